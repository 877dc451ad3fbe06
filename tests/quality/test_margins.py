"""How near healthy recorded sessions come to the limits: their highest counts, rule by rule, as shares of each limit.

The counters do not depend on limits. So the sessions are replayed once through rules whose limits nothing reaches, a
probe around each rule notes the highest count of each session, and the limits of the profiles are divided into those.
Nothing is refused on the way: where a profile would refuse a call, what came after it counts here all the same.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

from otel_toolguard.cli.replay import Replay
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.plugins.stagnation import Stagnation
from otel_toolguard.settings import Policy

FOLDER = Path(os.environ.get("SHARED", "../shared")) / "trajectories"
FAR = 10**6  # a limit that nothing reaches
NEAREST = 2 / 3
PROFILES = ("strict", "balanced", "conservative")
RULES = ("stagnation", "repeat_guard", "same_answer", "failure_streak")
TOYS = {"intercode", "hotpot-react"}
# How a recording says that the agent ended the session itself or solved the task: field and values by source.
SAYS = {
    "mini-swe-gemini3": ("exit", ["Submitted"]),
    **dict.fromkeys(["sweagent-gpt4-lite", "sweagent-java", "mlgym", "se-agent", "swe-smith", "swe-agent-demos"],
                    ("exit", ["submitted"])),
    **dict.fromkeys(["tau-airline", "tau-airline-gpt4o", "tau-retail"], ("outcome", ["reward=1", "reward=1.0"])),
    "letta-filebench": ("outcome", ["success=True"]),
}  # fmt: skip
ALWAYS = {"pi-sessions", "claude-simonw", "claude-reliability", "claude-code-log", "openhands-examples", "tbench-mini"}


def healthy():
    """Ids and sources of the sessions that ended well and that nobody labelled otherwise, toys left out."""
    labels = json.loads((FOLDER / "labels.json").read_text(encoding="utf-8"))
    found = {}
    with gzip.open(FOLDER / "sessions.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            source = row["source"]
            field, values = SAYS.get(source, ("exit", ()))
            ended = source in ALWAYS or row[field] in values
            label = labels.get(row["session"])
            if ended and source not in TOYS and (label is None or label["label"] == "healthy"):
                found[row["session"]] = source
    return found


class Probe:
    """Stands around a rule and notes what it counted; stops nothing."""

    def __init__(self, rule, count, peaks):
        self.name, self.needs, self.start = rule.name, getattr(rule, "needs", ()), rule.start
        self._rule, self._count, self._peaks = rule, count, peaks

    def settle(self, mine, run, call, outcome):
        finding = self._rule.settle(mine, run, call, outcome)
        peak = self._peaks[run.session.id]
        peak[self.name] = max(peak.get(self.name, 0), self._count(mine, finding))


FILES = {
    "signatures": ["signatures.jsonl.gz"],  # every source, calls as hashes
    "calls": sorted(path.name for path in FOLDER.glob("calls-*.jsonl.gz")),  # with text: classes, masks, pollers
}


def paths(kind):
    return [str(FOLDER / name) for name in FILES[kind]]


@pytest.fixture(scope="module", params=FILES)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def peaks(kind):
    """The highest count of each rule in each recorded session."""
    found = defaultdict(dict)
    chain = Chain([
        Probe(Stagnation(float(FAR)), lambda mine, _: mine["score"], found),
        # Laps over the patience of the cycle: a poller's laps count a tenth.
        Probe(RepeatGuard(FAR), lambda _, finding: finding.share * FAR if finding else 0, found),
        Probe(SameAnswer(FAR), lambda mine, _: len(mine["calls"]), found),
        Probe(FailureStreak(FAR), lambda mine, _: max(mine.values(), default=0), found),
    ])  # fmt: skip
    wrong = []
    replay = Replay(Policy(profile="balanced"), lambda *place: wrong.append(place))
    replay.chain = chain
    recordings = replay.run(paths(kind), lambda *_: None)
    assert not wrong
    assert not any(recorded.trip for recorded in recordings)
    return found


def documented():
    """The margins that docs/detection.md tells, by rule: the most, and share and warned sessions by profile."""
    text = (Path(__file__).parents[2] / "docs" / "detection.md").read_text(encoding="utf-8")
    cells = r"([0-9.]+) \(([0-9]+)\)"
    rows = re.findall(rf"\| `(\w+)` \| ([0-9.]+) \w+ \| {cells} \| {cells} \| {cells} \|", text)
    return {rule: [float(cell) for cell in row] for rule, *row in rows}


def limits(profile):
    return {name: settings.limit for name, settings in Policy.profile(profile).plugins if name in RULES}


def test_healthy_sessions_keep_their_distance(peaks, kind):
    """No healthy session uses more than two thirds of any limit of any profile."""
    sessions = [session for session in healthy() if session in peaks]
    assert len(sessions) > {"signatures": 1000, "calls": 300}[kind]
    nearest = {rule: max(sessions, key=lambda s: peaks[s].get(rule, 0)) for rule in RULES}
    lines = [f"{kind}: {len(sessions)} healthy sessions; largest count, and its share of the limit by profile"]
    lines += [f"{'rule':<16}{'count':>7}" + "".join(f"{profile:>20}" for profile in PROFILES) + "  session"]
    shares, measured = {}, {}
    for rule in RULES:
        most = peaks[nearest[rule]].get(rule, 0)
        row, measured[rule] = [], [most]
        for profile in PROFILES:
            limit = limits(profile)[rule]
            shares[profile, rule] = most / limit
            near = sum(peaks[s].get(rule, 0) >= limit / 2 for s in sessions)
            measured[rule] += [round(most / limit, 2), near]
            row.append(f"{most / limit:>9.2f} of {limit:>2g} ({near:>2})")
        lines.append(f"{rule:<16}{most:>7.2f}" + "".join(f"{cell:>20}" for cell in row) + f"  {nearest[rule]}")
    lines.append("(in brackets: healthy sessions at half the limit or more, which would be warned)")
    print("\n" + "\n".join(lines))
    if kind == "signatures":
        assert documented() == measured
    assert {place: share for place, share in shares.items() if share > NEAREST} == {}


def test_a_probe_counts_what_the_rule_counts(peaks, kind):
    """Where a profile stops a recorded session, the probe's count reached that limit too."""
    replay = Replay(Policy(profile="balanced"), lambda *_: None)
    stopped = 0
    for recorded in replay.run(paths(kind), lambda *_: None):
        trip = recorded.trip
        if trip and trip["rule"] in RULES:
            stopped += 1
            assert (
                peaks[recorded.session][trip["rule"]] >= min(trip["observed"], limits("balanced")[trip["rule"]]) - 0.01
            )
    assert stopped > {"signatures": 50, "calls": 20}[kind]
