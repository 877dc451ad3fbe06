"""The report: what the session did, in numbers."""

import json

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins.tool_stats import SIGNATURES_KEPT, TOOLS_KEPT, ToolStats
from otel_toolguard.core.state import SessionState

FIRST_KEYS = ["calls", "retries", "longest_fail_streak", "tools", "classes"]


class World:
    def __init__(self):
        self.chain, self.state = Chain([ToolStats()]), SessionState("s")

    def start(self, tool, n=1, run="r", **more):
        call = ToolCall(tool, f"{tool}:{n}", **more)
        return call, self.chain.admit(self.state, run, call).number, run

    def end(self, started, kind="ok", ms=None):
        call, number, run = started
        self.chain.settle(self.state, run, number, call, Outcome(kind, ms=ms))

    def do(self, tool, kind="ok", ms=None, **more):
        self.end(self.start(tool, **more), kind, ms)

    def report(self):
        return self.chain.report(self.state)


def test_the_report_of_nothing():
    """Before the first call every count is zero and the original's keys come first, in its order."""
    report = World().report()
    assert list(report)[:5] == FIRST_KEYS
    assert (report["calls"], report["tools"], report["distinct_ratio"], report["trips"]) == (0, {}, 1.0, [])


def test_counts_by_tool_and_class():
    """Calls, failures and milliseconds per tool, calls per class, over all runs of the session, as JSON."""
    world = World()
    world.do("a", ms=1.5, tool_class="read")
    world.do("a", "failed", ms=2.25, tool_class="read", run="other")
    world.do("b", tool_class="write")
    report = json.loads(json.dumps(world.report()))
    assert report["tools"] == {
        "a": {"calls": 2, "failed": 1, "ms": 3.75, "max_ms": 2.25},
        "b": {"calls": 1, "failed": 0, "ms": 0.0, "max_ms": 0.0},
    }
    assert (report["calls"], report["failed"], report["classes"]) == (3, 1, {"read": 2, "write": 1})


def test_fail_streaks():
    """The longest row of failures, neutral and cancelled calls left out, those of a batch counted once."""
    world = World()
    for kind in ("failed", "failed", "ok", "failed"):
        world.do("a", kind)
    world.do("think", neutral=True)
    world.do("a", "cancelled")
    for started in [world.start("a", n) for n in range(3)]:
        world.end(started, "failed")
    world.do("a", "failed")
    report = world.report()
    assert (report["longest_fail_streak"], report["cancelled"]) == (3, 1)


def test_calls_in_flight():
    """The most that ran at once is known even when a batch is judged after all of it ended; so is what still runs."""
    world = World()
    for started in [world.start("a", n) for n in range(5)]:
        world.end(started)
    world.do("b")
    hung = world.start("c")
    report = world.report()
    assert (report["calls"], report["max_in_flight"], report["in_flight"]) == (6, 5, 1)
    world.end(hung)
    assert world.report()["in_flight"] == 0


def test_distinct_signatures():
    """How many different calls there were, and how often the most frequent one came."""
    world = World()
    for n in (1, 2, 1, 1):
        world.do("a", n=n)
    report = world.report()
    assert (report["distinct_signatures"], report["distinct_ratio"], report["max_signature_calls"]) == (2, 0.5, 3)


def test_memory_is_bounded_and_says_so():
    """Beyond 256 tools and 4096 signatures the report is marked approximate, and totals stay right."""
    world = World()
    for n in range(SIGNATURES_KEPT + 5):
        world.do(f"t{n}", n=n)
    report = world.report()
    assert len(report["tools"]) == TOOLS_KEPT + 1
    assert report["tools"]["(other)"]["calls"] == SIGNATURES_KEPT + 5 - TOOLS_KEPT
    assert (report["calls"], report["distinct_signatures"], report["approximate"]) == (
        SIGNATURES_KEPT + 5,
        SIGNATURES_KEPT,
        True,
    )
