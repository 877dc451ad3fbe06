"""The product on recorded sessions and call sequences that are no part of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_toolguard.core.call import Outcome
from otel_toolguard.core.canonical import Signer, fingerprints
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.classify import classify
from otel_toolguard.core.decision import Permit
from otel_toolguard.core.state import SessionState
from otel_toolguard.settings import PROFILES, Policy
from otel_toolguard.tool import Tool

SHARED = Path(os.environ.get("SHARED", "../shared"))
COMMAND = str(Path(sys.executable).with_name("otel-toolguard"))
SIGNER = Signer(b"vectors")


def vectors(*systems):
    lines = (SHARED / "vectors" / "detectors.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [pytest.param(row, id=row["id"]) for row in rows if row["system"] in systems]


def expanded(sequence):
    return [call for part in sequence for _ in range(part["times"]) for call in part["calls"]]


class Judged:
    """A plugin that notes the order in which results are judged."""

    name = "judged"
    observes = True

    def __init__(self):
        self.calls = []

    def settle(self, mine, run, call, outcome):
        self.calls.append(call)


class Player:
    """Plays recorded calls through the chain of a policy, as fast as they come."""

    def __init__(self, *rules):
        self.policy = Policy(plugins=rules, mode="enforce")
        self.judged = Judged()
        self.policy.chain = Chain([*self.policy.chain.plugins, self.judged])
        self.state = SessionState("vectors")
        self.tools = {}
        self.trips = []

    def start(self, call, at=0.0):
        tool = self.tools.setdefault(call["tool"], Tool(call["tool"]))
        made = tool.call(call["args"], self.policy, SIGNER)
        return made, self.policy.chain.admit(self.state, "run", made, at=at)

    def end(self, call, made, permit, at=0.0):
        """The trip of the result, if any."""
        settled = self.settle(call, made, permit, at)
        if settled.trip is not None:
            self.trips.append(settled.trip)
        return settled.trip

    def settle(self, call, made, permit, at=0.0):
        exact, volatile, *_ = fingerprints(SIGNER, call["result"], failed=call["failed"], needs=self.policy.chain.needs)
        kind = call.get("outcome") or ("failed" if call["failed"] else "ok")
        outcome = Outcome(kind, exact=exact, volatile=volatile)
        return self.policy.chain.settle(self.state, "run", permit.number, made, outcome, at=at)

    def run(self, calls):
        """For each call its place, what admission said, and what the rules said to its result (None if refused)."""
        for index, call in enumerate(calls):
            at = call.get("at", 0.0)
            made, admission = self.start(call, at)
            permitted = isinstance(admission, Permit)
            yield index, admission, self.settle(call, made, admission, at) if permitted else None

    def refused(self, calls):
        """[index, what answered] of the refused calls: the signature's circuit or that of all calls."""
        return [
            [index, "session" if admission.trip.stops else admission.trip.scope]
            for index, admission, settled in self.run(calls)
            if settled is None
        ]


def exact_repeat(row):
    return {"plugin": "repeat_guard", "compare": "exact"} | {key: row["config"][key] for key in ("limit", "max_period")}


def profile(name, **changed):
    """The chain of a profile, with the numbers of a vector: ``rule={"parameter": value}``."""
    return [table | changed.get(table["plugin"], {}) for table in PROFILES[name]]


@pytest.mark.parametrize("row", vectors("repeat_guard"))
def test_repeat_guard_stops_where_the_original_designs_say(row):
    """Trip index, period and first refused call are those derived from the original designs."""
    player = Player(exact_repeat(row))
    found = {"trip_index": None, "period": None, "first_refused_index": None}
    for index, call in enumerate(expanded(row["seq"])):
        made, admission = player.start(call)
        if not isinstance(admission, Permit):
            found["first_refused_index"] = index
            break
        trip = player.end(call, made, admission)
        if trip is not None:
            found |= {"trip_index": index, "period": trip.period}
    if found["trip_index"] is not None and found["first_refused_index"] is None:
        found["first_refused_index"] = row["expect"]["first_refused_index"]  # the sequence ended with the trip
    assert found == row["expect"]


@pytest.mark.parametrize("row", vectors("repeat_guard_session"))
def test_a_stopped_session_refuses_everything_once_told(row):
    """One trip, every later call refused, and a reset clears what was counted."""
    player = Player(exact_repeat(row))
    calls = expanded(row["seq"]) + expanded(row.get("seq_after_reset", []))
    found = {"trip_index": None, "refused": [], "trip_events": 0}
    for index, call in enumerate(calls):
        if index == row.get("reset_before_index"):
            player.policy.chain.reset(player.state, ceilings=False)
        made, admission = player.start(call)
        if not isinstance(admission, Permit):
            found["refused"].append(index)
        elif player.end(call, made, admission) is not None:
            found["trip_index"] = index
    found["trip_events"] = len(player.trips)
    assert found == row["expect"]


@pytest.mark.parametrize("row", vectors("repeat_guard_overlap"))
def test_overlapping_calls_are_judged_batch_by_batch(row):
    """Calls that overlap are committed in canonical order; stragglers alone; at the moment the vectors say."""
    player = Player(exact_repeat(row))
    calls = row["calls"]
    moments = sorted(
        [(call["t0"], 1, n) for n, call in enumerate(calls)] + [(call["t1"], 0, n) for n, call in enumerate(calls)]
    )
    open_calls, trip_at, period, numbers = {}, None, None, {}
    for moment, starts, n in moments:
        if starts:
            made, admission = player.start(calls[n])
            if isinstance(admission, Permit):
                open_calls[n] = made, admission
                numbers[id(made)] = n, made
            elif admission.fresh and trip_at is None:
                trip_at, period = moment, admission.trip.period
        elif n in open_calls:
            trip = player.end(calls[n], *open_calls.pop(n))
            if trip is not None:
                trip_at, period = moment, trip.period
    order = [numbers[id(call)][0] for call in player.judged.calls]
    assert {"trip_at": trip_at, "period": period, "commit_order": order} == row["expect"]


@pytest.mark.parametrize("row", vectors("breaker_skill"))
def test_the_profile_of_the_skill_refuses_like_its_breaker(row):
    """The refused calls, what answers them, and how many calls count are those of the original breaker."""
    attempts, total = row["config"]["max_attempts_per_signature"], row["config"]["max_total_calls"]
    player = Player(*profile("skill", signature_failures={"limit": attempts}, call_ceiling={"session": total}))
    refused = player.refused(expanded(row["seq"]))
    assert {"refused": refused, "counted_calls": player.state.calls} == row["expect"]


@pytest.mark.parametrize("row", vectors("is_loop_skill"))
def test_few_different_calls_are_a_warning_and_no_more(row):
    """The last call is warned of exactly where the original's is_loop says so, and nothing is refused."""
    player = Player({"plugin": "distinct_ratio", "window": row["config"]["window"]})
    warned = [settled.warned for _, _, settled in player.run(expanded(row["seq"]))]
    assert {"is_loop": "distinct_ratio" in warned[-1]} == row["expect"]


CMDC = {"repeat_guard": "repeat_pattern", "failure_streak": "consecutive_failures", "file_edits": "file_edits"}


@pytest.mark.parametrize("row", vectors("cmdc"))
def test_the_profile_of_cmdc_intervenes_like_its_runner(row):
    """Where the model is told and where the run ends, and by which check, is as the original's text says."""
    limit = {"limit": row["config"]["max_edits_per_file"]} if row["config"] else {}
    events = []
    for index, _, settled in Player(*profile("cmdc", file_edits=limit)).run(expanded(row["seq"])):
        if settled is None:
            break
        events += [[index, "intervene", CMDC[nudge.rule]] for nudge in settled.nudges]
        events += [[index, "abort", CMDC[settled.trip.rule]]] if settled.trip else []
    assert {"events": events} == row["expect"]


@pytest.mark.parametrize("row", vectors("breaker_toolguard"))
def test_the_breaker_refuses_escalates_and_recovers(row):
    """Refused calls, the state of the circuit after each call, and what stopped the run are those of the vectors."""
    config = row["config"]
    names = {"max_failures_per_signature": "limit", "failure_count": "count", "cooldown_seconds": "cooldown"}
    breaker = {
        new: float(config[old]) if new == "cooldown" else config[old] for old, new in names.items() if old in config
    }
    rules = [{"plugin": "signature_failures", **breaker}]
    rules += [{"plugin": "max_refusals", "limit": config["max_refusals"]}] if "max_refusals" in config else []
    player, refused, states = Player(*rules), [], []
    for index, admission, settled in player.run(row["calls"]):
        if settled is None:
            refused.append([index, "session" if admission.trip.stops else admission.trip.scope])
        states.append("open" if player.state.runs["run"].circuits else "closed")
    run = player.state.runs["run"]
    found = {
        "refused": refused,
        "states_after": states,
        "session_reason": run.stop and run.stop.trip.rule,
        "failures": sum(failures for failures, _ in run.rules["signature_failures"].values()),
    }
    assert {key: found[key] for key in row["expect"]} == row["expect"]


@pytest.mark.parametrize("row", vectors("classify_shell"))
def test_shell_text_is_classed_by_its_programs(row):
    """Programs and class are those of the vectors."""
    found = classify("bash", {"command": row["command"]})
    assert {"programs": list(found.programs), "class": found.tool_class} == row["expect"]


@pytest.mark.parametrize("row", vectors("classify_tool"))
def test_tools_are_classed_by_their_names(row):
    """The class is that of the vectors."""
    assert classify(row["tool"]).tool_class == row["expect"]["class"]


@pytest.mark.parametrize("profile", ["conservative", "balanced", "strict", "crucible", "openhands", "skill", "cmdc"])
def test_every_recorded_session_is_replayed(profile):
    """Replay gets through all recorded sessions, both kinds of file, with one answer for each."""
    files = sorted(str(path) for path in (SHARED / "trajectories").glob("calls-*.jsonl.gz"))
    for inputs in (files, [str(SHARED / "trajectories" / "signatures.jsonl.gz")]):
        argv = [COMMAND, "replay", *inputs, "--profile", profile, "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        sessions = [json.loads(line)["session"] for line in done.stdout.splitlines()]
        assert len(sessions) == len(set(sessions)) > 1000
