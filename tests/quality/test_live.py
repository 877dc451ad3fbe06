"""Recorded sessions called again through the decorator: what stops them there is what replay says of the same calls.

A recorded failure is raised, with the recorded text as its words. The calls are made one after the other and where the
process is, so their times and directories are taken out for replay too; texts that were cut count as they stand, and a
failure that is not known as none. Left out are sessions with arguments that are no table.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool
from otel_toolguard.cli.replay import Replay

FOLDER = Path(os.environ.get("SHARED", "../shared")) / "trajectories"
FILES = sorted(FOLDER.glob("calls-*.jsonl.gz"))


class Recorded(Exception):
    """A failure of a recorded call."""


def sessions(path):
    """The calls of each session, as they can be made again."""
    found = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            call = json.loads(line)
            kept = {key: call[key] for key in ("session", "i", "tool", "arguments", "result")}
            found[call["session"]].append(kept | {"failed": bool(call["failed"])})
    return {name: calls for name, calls in found.items() if all(isinstance(call["arguments"], dict) for call in calls)}


def stopped_live(name, calls, policy):
    """Rule and index of the stop when the calls are made through the decorator; None without one."""
    now, tools = {}, {}

    def body(**_):
        if now["call"]["failed"]:
            raise Recorded(now["call"]["result"])
        return now["call"]["result"]

    with Session(name, policy=policy, store=MemoryStore()) as session:
        for index, now["call"] in enumerate(calls):
            tool = now["call"]["tool"]
            tools.setdefault(tool, guard_tool(name=tool)(body))
            try:
                tools[tool](**now["call"]["arguments"])
            except Recorded:
                pass
            except CircuitOpen as refused:
                if refused.trip.stops:
                    return refused.trip.rule, index
            if session.trip is not None:
                return session.trip.rule, index
    return None


@pytest.mark.parametrize("profile", ["strict", "balanced"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_decorator_stops_where_replay_does(path, profile, monkeypatch, tmp_path):
    """The same rule stops the same call of each session, and no other session is stopped."""
    monkeypatch.setenv("TOOLGUARD_TELEMETRY", "off")
    policy, calls = Policy(profile=profile), sessions(path)
    file = tmp_path / "calls.jsonl"
    file.write_text("".join(json.dumps(call) + "\n" for each in calls.values() for call in each))
    trips = {row.session: row.trip for row in Replay(policy, print).run([str(file)], lambda *_: None)}
    wanted = {
        name: (trip["rule"], trip["index"]) if trip and trip["scope"] in ("run", "session") else None
        for name, trip in trips.items()
    }
    live = {name: stopped_live(name, each, policy) for name, each in calls.items()}
    assert live == wanted
    print(f"{path.name} {profile}: {len(live)} sessions, {sum(each is not None for each in live.values())} stopped")


def test_there_is_something_to_compare():
    """Nearly every recorded file has sessions that can be called again, thousands in all."""
    counts = [len(sessions(path)) for path in FILES]
    assert sum(counts) > 7000
    assert sum(map(bool, counts)) >= len(counts) - 1
