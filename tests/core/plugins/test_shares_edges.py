"""How much of its limit a rule says is used, call by call, and what it may be left without: its defaults."""

from typing import TYPE_CHECKING, Any

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.cost import Cost
from otel_toolguard.core.plugins.deadline import Deadline
from otel_toolguard.core.plugins.depth import Depth
from otel_toolguard.core.plugins.distinct_ratio import DistinctRatio
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.file_edits import FileEdits
from otel_toolguard.core.plugins.max_in_flight import MaxInFlight
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.plugins.stagnation import Stagnation
from otel_toolguard.core.state import RunState, SessionState

if TYPE_CHECKING:
    from otel_toolguard.core.decision import Finding


def new_run() -> RunState:
    return SessionState("s").run("r")


def share(finding: "Finding | None") -> "float | None":
    return None if finding is None else round(finding.share, 4)


def call(number: int = 1, tool: str = "t", **more: Any) -> ToolCall:
    return ToolCall(tool, f"{tool}:{number}", arguments={"path": "f"}, **more)


SETTLED: list[tuple[Any, str, list[Any]]] = [
    (Stagnation(6), "same", [None, None, 0.5, 1.0, 1.5]),
    (Stagnation(4), "failed", [None, None, 0.875, 1.625]),
    (FailureStreak(4), "failed", [None, 0.5, 0.75, 1.0, 1.25]),
    (FailureStreak(1), "transient", [None, 0.6667, 1.0, 1.3333]),
    (SignatureFailures(4), "failed", [None, 0.5, 0.75, 1.0, 1.25]),
    (SignatureFailures(1), "transient", [None, 0.6667, 1.0, 1.3333]),
    (SameAnswer(4), "other", [None, 0.5, 0.75, 1.0, 1.0]),
    (SameAnswer(5), "other", [None, None, 0.6, 0.8, 1.0]),
    (FileEdits(3), "write", [None, 0.5, 0.75, 1.3333, 1.6667]),
    (FileEdits(4), "write", [None, None, 0.6, 0.8, 1.25]),
    (RepeatGuard(4), "same", [None, 0.5, 0.75, 1.0, 1.25]),
    (RepeatGuard(5), "same", [None, 0.4, 0.6, 0.8, 1.0]),
    (DistinctRatio(3), "same", [None, None, 0.5, 0.5]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "what", "expected"), SETTLED)
def test_the_share_of_a_limit_after_each_result(rule: Any, what: str, expected: list[Any]) -> None:
    """Nothing below a half, except where a cycle is named; 1.0 exactly at the limit, more beyond it."""
    mine, found = rule.start(), []
    for number in range(len(expected)):
        asked = call(number if what == "other" else 1, tool_class="write" if what == "write" else "read")
        kind: Any = "failed" if what in ("failed", "transient") else "ok"
        failure: Any = {"failed": "permanent", "transient": "transient"}.get(what)
        found.append(
            share(rule.settle(mine, new_run(), asked, Outcome(kind, failure=failure, exact="x", volatile="x")))
        )
    assert found == expected


def test_the_share_of_a_cost() -> None:
    """Tenths that do not add up exactly reach the limit all the same; a limit that is passed is passed by so much."""
    rule, run = Cost(1.0), new_run()
    mine = rule.start()
    assert [share(rule.on_cost(mine, run, 0.1)) for _ in range(11)] == [
        None, None, None, None, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1,
    ]  # fmt: skip
    assert share(Cost(4.0).on_cost(rule.start(), new_run(), 6.0)) == 1.5
    run.session.rules["cost"] = (own := Cost(4.0, scope="session")).start()
    assert share(own.on_cost(run.session.rules["cost"], run, 2.0)) == 0.5
    rule.on_cost(mine, run, 1.0)
    assert rule.report([mine, mine]) == {"cost": pytest.approx(4.2)}


def test_money_of_a_nested_run_counts_for_those_above_that_spent_nothing() -> None:
    """A run that never reported a cost has its purse all the same."""
    session, rule = SessionState("s"), Cost(2.0)
    session.run("r")
    session.run("c", "r")
    inner = session.run("g", "c")
    assert share(rule.on_cost(inner.rules.setdefault("cost", rule.start()), inner, 1.0)) == 0.5
    assert [session.runs[name].rules["cost"] for name in ("r", "c", "g")] == [
        {"own": 0.0, "spent": 1.0},
        {"own": 0.0, "spent": 1.0},
        {"own": 1.0, "spent": 1.0},
    ]


def test_money_of_a_session_is_one_purse() -> None:
    """Also for a run inside another."""
    session, rule = SessionState("s"), Cost(4.0, scope="session")
    session.run("r")
    mine = rule.start()
    assert [share(rule.on_cost(mine, session.run("c", "r"), 1.0)) for _ in range(4)] == [None, 0.5, 0.75, 1.0]
    assert mine == {"own": 4.0, "spent": 4.0}


NUDGING: list[tuple[Any, str, tuple[float, float]]] = [
    (FailureStreak(1, on_limit="nudge"), "failed", (1, 1.0)),
    (FailureStreak(1, on_limit="nudge"), "transient", (1, 1.0)),
    (FailureStreak(2, on_limit="nudge"), "mixed", (2, 2.33)),
    (FileEdits(2, on_limit="nudge"), "write", (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "what", "expected"), NUDGING)
def test_the_numbers_of_a_finding_that_tells_the_model(rule: Any, what: str, expected: "tuple[float, float]") -> None:
    """The limit, and what was counted, to two digits."""
    mine, found = rule.start(), None
    for number in range(99):
        failure: Any = "transient" if what == "transient" or (what == "mixed" and number != 4) else "permanent"
        kind: Any = "ok" if what == "write" else "failed"
        asked = call(tool_class="write" if what == "write" else "read")
        found = rule.settle(mine, new_run(), asked, Outcome(kind, failure=failure))
        if found is not None and found.nudge:
            break
    assert found is not None
    assert (found.limit, found.observed) == expected


FIRST: list[tuple[dict[str, Any], str]] = [
    ({"signature": 4, "tools": {"t": 2}}, "signature"),
    ({"session": 4, "run": 2}, "session"),
    ({"run": 4, "signature": 2}, "run"),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "scope"), FIRST)
def test_the_first_ceiling_that_is_reached_is_the_one_that_refuses(limits: "dict[str, Any]", scope: str) -> None:
    """Even where another one is passed by more."""
    rule, run = CallCeiling(**limits), new_run()
    run.calls = run.session.calls = run.tools["t"] = run.signatures["t:1"] = 4
    found = rule.admit(None, run, call())
    assert found is not None
    assert (found.scope, found.share, found.limit, found.observed) == (scope, 1.0, 4, 4)


def test_the_share_of_a_deadline() -> None:
    """Of the time since the first call; a result before any call says nothing."""
    rule, run = Deadline(10), new_run()
    mine = rule.start()
    assert rule.settle(mine, run, call(), Outcome("ok")) is None
    found = []
    for run.session.now in (3.0, 7.9, 8.0, 10.5, 13.0, 15.0):
        found.append((share(rule.admit(mine, run, call())), share(rule.settle(mine, run, call(), Outcome("ok")))))
    assert found == [(None, None), (None, None), (0.5, 0.5), (0.75, 0.75), (1.0, 1.0), (1.2, 1.2)]


@pytest.mark.parametrize(("scope", "expected"), [("run", 1.0), ("session", None)])
def test_a_deadline_of_runs_begins_with_the_first_run_above(scope: Any, expected: "float | None") -> None:
    """However far above it is, and whatever began between; a session has a clock of its own."""
    session, rule = SessionState("s"), Deadline(10, scope=scope)
    session.run("r").rules["deadline"] = {"began": 0.0}
    session.run("c", "r").rules["deadline"] = {"began": 6.0}
    session.run("d", "c")
    session.now = 10.0
    assert share(rule.admit({"began": 7.0}, session.run("g", "d"), call())) == expected


def test_the_share_of_a_depth() -> None:
    """Nothing down to the limit, then levels by the limit; the deepest so far is remembered."""
    session, rule = SessionState("s"), Depth(2)
    mine, above, found = rule.start(), None, []
    assert mine == {"deepest": 0}
    for name in "abcd":
        found.append(share(rule.admit(mine, session.run(name, above), call())))
        above = name
    assert (found, mine) == ([None, None, 1.5, 2.0], {"deepest": 4})


def test_the_share_of_calls_in_flight() -> None:
    """As many as may run: the next call is refused, passing, and there is no warning before."""
    rule, run = MaxInFlight(2), new_run()
    for number in range(3):
        found = rule.admit(None, run, call())
        if number < 2:
            assert found is None
        run.flight[number] = ("t", "t:1", "read", "read_only")
    assert found is not None
    assert (found.share, found.passing, found.limit, found.observed) == (1.0, True, 2, 2)


def test_the_share_of_refusals() -> None:
    """Nothing before the limit; in a row goes before in all."""
    rule, run = MaxRefusals(4, total=6), new_run()
    mine, found = rule.start(), []
    for run.refused_in_row in (1, 2, 3, 4, 5, 1, 2):
        found.append(share(rule.refused(mine, run, call(), counted=run.refused_in_row != 2)))
    assert found == [None, None, None, 1.0, 1.25, None, None]
    assert mine == {"total": 5}
    assert [share(rule.refused(mine, run, call(), counted=True)) for _ in range(2)] == [1.0, 1.1667]


CEILINGS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"run": 4}, [None, None, 0.5, 0.75, 1.0, 1.25]),
    ({"run": 5}, [None, None, None, 0.6, 0.8, 1.0]),
    ({"session": 4}, [None, None, 0.5, 0.75, 1.0, 1.25]),
    ({"tools": {"t*": 4}}, [None, None, 0.5, 0.75, 1.0, 1.25]),
    ({"classes": {"read": 4}}, [None, None, 0.5, 0.75, 1.0, 1.25]),
    ({"signature": 4}, [None, None, 0.5, 0.75, 1.0, 1.25]),
    ({"session": 5}, [None, None, None, 0.6, 0.8, 1.0]),
    ({"tools": {"t*": 5}}, [None, None, None, 0.6, 0.8, 1.0]),
    ({"classes": {"read": 5}}, [None, None, None, 0.6, 0.8, 1.0]),
    ({"signature": 5}, [None, None, None, 0.6, 0.8, 1.0]),
    ({"run": 0}, [1.0, 1.0]),
    ({"run": 4, "session": 6}, [None, None, 0.5, 0.75, 1.0]),
    ({"run": 6, "session": 4}, [None, None, 0.5, 0.75, 1.0]),
    ({"run": 4, "tools": {"t": 6}}, [None, None, 0.5, 0.75, 1.0]),
    ({"run": 6, "tools": {"t": 4}, "signature": 5}, [None, None, 0.5, 0.75, 1.0]),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "expected"), CEILINGS)
def test_the_share_of_a_ceiling(limits: "dict[str, Any]", expected: list[Any]) -> None:
    """The one that is nearest to its limit is the one that is said, however many there are."""
    rule, run = CallCeiling(**limits), new_run()
    found = []
    for number in range(len(expected)):
        run.calls = run.session.calls = number
        run.tools["t"] = run.classes["read"] = run.signatures["t:1"] = number
        found.append(share(rule.admit(None, run, call(tool_class="read"))))
    assert found == expected


@pytest.mark.parametrize("limits", [{"run": 4}, {"tools": {"t": 4}}])
def test_the_share_of_a_ceiling_of_runs_above(limits: "dict[str, Any]") -> None:
    """Of a run and those above it, the one that has used most."""
    session, rule = SessionState("s"), CallCeiling(**limits)
    for used, name, above in ((2, "r", None), (3, "c", "r"), (1, "g", "c")):
        run = session.run(name, above)
        run.calls = run.tools["t"] = used
    assert share(rule.admit(None, run, call())) == 0.75


DEFAULTS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (FailureStreak, {"limit": 3}, {"across_tools": False, "on_limit": "stop"}),
    (FileEdits, {"limit": 3}, {"on_limit": "stop"}),
    (RepeatGuard, {"limit": 3}, {"limit": 3, "max_period": 3, "compare": "volatile", "failed_limit": None, "failed_nudge": None, "same_error": True, "on_limit": "stop", "needs": ("volatile",)}),
    (RepeatGuard, {"limit": 3, "compare": "exact"}, {"needs": ("exact",)}),
    (RepeatGuard, {"limit": 3, "compare": "call"}, {"needs": ()}),
    (SignatureFailures, {"limit": 3}, {"count": "consecutive", "same_error": True, "clear_on_write": True, "cooldown": None, "needs": ("volatile", "class")}),
    (SignatureFailures, {"limit": 3, "same_error": False}, {"needs": ("class",)}),
    (SignatureFailures, {"limit": 3, "clear_on_write": False}, {"needs": ("volatile",)}),
    (MaxRefusals, {"limit": 3}, {"total": None}),
    (MaxInFlight, {"limit": 3}, {"scope": "run"}),
    (Deadline, {"seconds": 3}, {"scope": "run", "lasting": False}),
    (Deadline, {"seconds": 3, "scope": "session"}, {"lasting": True}),
    (Cost, {"limit": 3}, {"scope": "run", "lasting": False}),
    (Cost, {"limit": 3, "scope": "session"}, {"lasting": True}),
    (Depth, {"limit": 3}, {"scope": "run", "lasting": False}),
    (Depth, {"limit": 3, "scope": "session"}, {"lasting": True}),
    (DistinctRatio, {}, {"window": 5, "distinct": 2}),
    (CallCeiling, {}, {"run": None, "session": None, "tools": {}, "classes": {}, "signature": None, "needs": ()}),
    (CallCeiling, {"classes": {"read": 1}}, {"needs": ("class",)}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "expected"), DEFAULTS)
def test_what_a_rule_is_where_nothing_is_said(
    kind: Any, settings: "dict[str, Any]", expected: "dict[str, Any]"
) -> None:
    """The defaults, and which comparisons the rule asks for."""
    rule = kind(**settings)
    assert {name: getattr(rule, name) for name in expected} == expected
