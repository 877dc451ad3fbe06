"""What an answer or an exception means, also where it refuses to be looked at."""

from __future__ import annotations

import asyncio
import subprocess
import tracemalloc
from collections import UserDict, defaultdict
from types import SimpleNamespace

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool
from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.canonical import Signer
from otel_toolguard.core.decision import Trip
from otel_toolguard.outcomes import Ended, failed_result, of_exception, of_result, outcome, uncompared

SIGNER = Signer(b"key")
NEEDS = frozenset({"exact", "volatile", "digits"})
STATS = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}, {"plugin": "tool_stats"}])


def call(**arguments):
    return ToolCall("run", "run:0", arguments=arguments)


class Raising:
    """Refuses every attribute, its class included."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


class RaisingDict(dict):
    def __contains__(self, key):
        raise RuntimeError("contains")

    def __iter__(self):
        raise RuntimeError("iter")

    items = keys = values = __iter__


class RaisingText(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("str")

    def __getitem__(self, key):
        raise RuntimeError("getitem")


CYCLE = []
CYCLE.append(CYCLE)
DEEP = []
for _ in range(100_000):
    DEEP = [DEEP]

RESULTS = [
    ({"exit_code": 0}, {}, "ok"),
    ({"exit_code": 2, "stdout": ""}, {}, "failed"),
    ({"returncode": -9}, {}, "failed"),
    ({"exitCode": 1}, {}, "failed"),
    ({"exit_status": 127}, {}, "failed"),
    ({"exit_code": True}, {}, "ok"),
    ({"exit_code": "1"}, {}, "ok"),
    ({"exit_code": None}, {}, "ok"),
    ({"exit_code": 1}, {"command": "grep -r needle ."}, "ok"),
    ({"exit_code": 2}, {"command": "grep -r needle ."}, "failed"),
    ({"exit_code": 1}, {"cmd": ["diff", "a", "b"]}, "ok"),
    ({"exit_code": 1}, {"command": 5}, "failed"),  # no command text: like no command at all
    ({"exit_code": 1}, {"command": Raising()}, "failed"),  # what lies or raises is no command text either
    (subprocess.CompletedProcess(["x"], 0), {}, "ok"),
    (subprocess.CompletedProcess(["x"], 3), {}, "failed"),
    (SimpleNamespace(returncode=1), {}, "failed"),
    (SimpleNamespace(exit_code=1), {}, "ok"),
    (defaultdict(int), {}, "ok"),
    (UserDict(exit_code=1), {}, "ok"),
    (None, {}, "ok"),
    ("exit_code 1", {}, "ok"),
    (1, {}, "ok"),
    (Raising(), {}, "ok"),
    (RaisingDict(exit_code=1), {}, "ok"),
    (CYCLE, {}, "ok"),
]


@pytest.mark.parametrize(("result", "arguments", "kind"), RESULTS, ids=range(len(RESULTS)))
def test_a_result_says_whether_it_failed(result, arguments, kind):
    """Exit codes decide, 1 from a searching program is an answer, and what cannot be read is no failure."""
    assert of_result(call(**arguments), result).kind == kind


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("str")


class Odd(Exception):
    def __str__(self):
        return RaisingText("odd")


class Stranger(BaseException):
    pass


BUBBLE = type("GraphBubbleUp", (Exception,), {"__module__": "langgraph.errors"})
INTERRUPT = type("GraphInterrupt", (BUBBLE,), {})
TRIP = Trip(id="t", rule="call_ceiling", scope="run", session_id="s", loop_type="over_use", why="Enough.")

ERRORS = [
    (ValueError("no"), "failed", "ValueError", "permanent"),
    (TimeoutError(), "failed", "TimeoutError", "transient"),
    (ConnectionResetError("reset"), "failed", "ConnectionResetError", "transient"),
    (Unprintable(), "failed", f"{__name__}.Unprintable", "permanent"),
    (Odd(), "failed", f"{__name__}.Odd", "permanent"),
    (ExceptionGroup("many", [ValueError(1), ExceptionGroup("more", [OSError()])]), "failed", "ExceptionGroup",
     "permanent"),
    (BaseExceptionGroup("many", [KeyboardInterrupt()]), "failed", "BaseExceptionGroup", "permanent"),
    (StopIteration(3), "failed", "StopIteration", "permanent"),
    (RecursionError("deep"), "failed", "RecursionError", "permanent"),
    (MemoryError(), "failed", "MemoryError", "permanent"),
    (Stranger("x"), "failed", f"{__name__}.Stranger", "permanent"),
    (CircuitOpen(TRIP), "failed", "otel_toolguard.CircuitOpen", "permanent"),
    (asyncio.CancelledError(), "cancelled", None, None),
    (KeyboardInterrupt(), "cancelled", None, None),
    (SystemExit(2), "cancelled", None, None),
    (GeneratorExit(), "closed", None, None),
    (INTERRUPT("ask"), "interrupted", None, None),
    (type("GraphInterrupt", (Exception,), {"__module__": "mine"})("ask"), "failed", "mine.GraphInterrupt", "permanent"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "kind", "name", "failure"), ERRORS, ids=lambda value: str(type(value).__name__))
def test_an_exception_says_how_a_body_ended(error, kind, name, failure):
    """Interrupts and cancellation are no failures, failures are named and weighed, unreadable ones included."""
    ended = of_exception(error)
    assert (ended.kind, ended.error_type, ended.failure) == (kind, name, failure)


@pytest.mark.parametrize("size", [10, 5_000, 5_000_000])
def test_messages_are_bounded(size):
    """Of a failure's text no more is kept than fits a span."""
    for ended in (of_exception(ValueError("x" * size)), failed_result("x" * size)):
        assert len(ended.message) == min(size, 4096)


def raiser(_result):
    raise LookupError("key")


@pytest.mark.parametrize("kind", ["cancelled", "closed", "interrupted", "unknown"])
def test_what_did_not_end_is_never_compared(kind):
    """Calls that neither returned nor failed have no fingerprint, and their result is not touched."""
    record = outcome(Ended(kind), Raising(), 0.5, SIGNER, NEEDS, raiser)
    assert (record.exact, record.volatile, record.digits, record.ms) == (None, None, None, 500)
    assert uncompared(Ended(kind), 0.5).to_plain() == record.to_plain()


def test_where_no_rule_compares_the_result_is_left_alone():
    """Without a rule that asks, neither the result nor result_key costs anything."""
    record = outcome(Ended("ok"), Raising(), 0.5, SIGNER, frozenset(), raiser)
    assert (record.kind, record.exact) == ("ok", "")


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 50_000_000,
        lambda: ["x" * 1000] * 50_000,
        lambda: {str(n): n for n in range(200_000)},
        lambda: CYCLE,
        lambda: DEEP,
        Raising,
        lambda: RaisingDict(a=1),
        lambda: RaisingText("x"),
        lambda: [Raising(), {Raising: Raising()}],
        lambda: (n for n in range(3)),
        lambda: iter([1]),
        lambda: "\ud800",
        lambda: 10**6000,
        lambda: float("nan"),
        lambda: memoryview(b"x"),
        object,
    ],
)
def test_any_result_leaves_as_it_is(make):
    """Huge, cyclic, deep, lazy and hostile results reach the caller as the very object, and are counted as success."""
    result = make()
    guarded = guard_tool(lambda: result, name="tool")
    with Session("s", policy=STATS, store=MemoryStore()) as run:
        assert guarded() is result
        assert (run.report()["calls"], run.report()["failed"], run.report()["in_flight"]) == (1, 0, 0)


def test_iterators_are_never_consumed():
    """A tool that returns an iterator, generator or file-like object hands over an untouched one."""
    guarded = guard_tool(lambda: (n for n in range(3)), name="tool")
    with Session("s", policy=STATS, store=MemoryStore()):
        assert list(guarded()) == [0, 1, 2]


def test_a_lazy_result_is_not_evaluated():
    """An object that answers for another one, and computes it when asked for its class, is handed over uncomputed."""
    asked = []

    class Lazy:
        @property
        def __class__(self):
            asked.append("class")
            raise RuntimeError("outside of any request")

    thing = Lazy()
    guarded = guard_tool(lambda: thing, name="tool")
    assert guarded() is thing
    with Session("s", policy=STATS, store=MemoryStore()):
        assert guarded() is thing


def test_a_huge_result_is_looked_at_within_bounds():
    """50 MB of text are fingerprinted without a copy of them."""
    result = "x" * 50_000_000
    guarded = guard_tool(lambda: result, name="tool")
    with Session("s", policy=STATS, store=MemoryStore()):
        tracemalloc.start()
        guarded()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 10_000_000


class Answer:
    def __init__(self, status):
        self.status_code = status


class Refused(Exception):
    """What a client of a web service raises, in words of its own."""

    def __init__(self, **said):
        super().__init__("no")
        vars(self).update(said)

    @property
    def status(self):
        return vars(self).get("status_")


class Touchy(Exception):
    @property
    def response(self):
        raise RuntimeError("not yet")


@pytest.mark.parametrize(("error", "failure"), [
    (Refused(status_code=429), "transient"), (Refused(code=503), "transient"), (Refused(status_=599), "transient"),
    (Refused(response=Answer(502)), "transient"), (Refused(response=Answer(404)), "permanent"),
    (Refused(status_code=600), "permanent"), (Refused(status_code="429"), "permanent"), (Refused(), "permanent"),
    (Touchy("no"), "permanent"),
], ids=str)  # fmt: skip
def test_the_status_of_a_server_says_whether_it_may_pass(error, failure):
    """429 and 5xx on an exception or its response make a transient failure, whatever its words."""
    assert of_exception(error).failure == failure
