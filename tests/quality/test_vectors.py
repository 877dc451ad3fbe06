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
from otel_toolguard.settings import Policy
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
    """Plays recorded calls through the chain, as fast as they come."""

    def __init__(self, config):
        rule = {"plugin": "repeat_guard", "compare": "exact", **config}
        self.policy = Policy(plugins=[rule], mode="enforce")
        self.judged = Judged()
        self.policy.chain = Chain([*self.policy.chain.plugins, self.judged])
        self.state = SessionState("vectors")
        self.tools = {}
        self.trips = []

    def start(self, call):
        tool = self.tools.setdefault(call["tool"], Tool(call["tool"]))
        made = tool.call(call["args"], self.policy, SIGNER)
        return made, self.policy.chain.admit(self.state, "run", made)

    def end(self, call, made, permit):
        exact, *_ = fingerprints(
            SIGNER, call["result"], failed=call["failed"], needs=self.policy.chain.needs
        )
        outcome = Outcome("failed" if call["failed"] else "ok", exact=exact)
        settled = self.policy.chain.settle(self.state, "run", permit.number, made, outcome)
        if settled.trip is not None:
            self.trips.append(settled.trip)
        return settled.trip


def config_of(row):
    return {key: row["config"][key] for key in ("limit", "max_period")}


@pytest.mark.parametrize("row", vectors("repeat_guard"))
def test_repeat_guard_stops_where_the_original_designs_say(row):
    """Trip index, period and first refused call are those derived from the original designs."""
    player = Player(config_of(row))
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
    player = Player(config_of(row))
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
    player = Player(config_of(row))
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


@pytest.mark.parametrize("row", vectors("classify_shell"))
def test_shell_text_is_classed_by_its_programs(row):
    """Programs and class are those of the vectors."""
    found = classify("bash", {"command": row["command"]})
    assert {"programs": list(found.programs), "class": found.tool_class} == row["expect"]


@pytest.mark.parametrize("row", vectors("classify_tool"))
def test_tools_are_classed_by_their_names(row):
    """The class is that of the vectors."""
    assert classify(row["tool"]).tool_class == row["expect"]["class"]


@pytest.mark.parametrize("profile", ["conservative", "balanced", "strict", "crucible"])
def test_every_recorded_session_is_replayed(profile):
    """Replay gets through all recorded sessions, both kinds of file, with one answer for each."""
    files = sorted(str(path) for path in (SHARED / "trajectories").glob("calls-*.jsonl.gz"))
    for inputs in (files, [str(SHARED / "trajectories" / "signatures.jsonl.gz")]):
        argv = [COMMAND, "replay", *inputs, "--profile", profile, "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        sessions = [json.loads(line)["session"] for line in done.stdout.splitlines()]
        assert len(sessions) == len(set(sessions)) > 1000
