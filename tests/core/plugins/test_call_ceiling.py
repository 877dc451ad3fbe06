"""Ceilings: exactly the stated number of bodies starts."""

import json

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit, Refuse, Stop
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.state import SessionState


def play(ceiling, calls, *, settle=True):
    """One letter a call: p permitted, r refused, s stopped; and the last refusal."""
    chain, state, last, letters = Chain([ceiling]), SessionState("s"), None, ""
    for made in calls:
        run, _, name = made.rpartition("/")
        tool, _, number = name.partition(".")
        call = ToolCall(tool, f"{tool}:{number}", tool_class="network" if tool.startswith("net") else "read")
        admission = chain.admit(state, run or "r", call)
        letters += {Permit: "p", Refuse: "r", Stop: "s"}[type(admission)]
        if isinstance(admission, Permit):
            if settle:
                chain.settle(state, run or "r", admission.number, call, Outcome("ok"))
        else:
            last = admission.trip
    return letters, last


TABLE = [
    ({"run": 1}, ["a", "a"], "ps", "run"),
    ({"run": 3}, ["a", "b", "c"], "ppp", None),
    ({"run": 3}, ["a", "b", "c", "d", "d"], "pppss", "run"),
    ({"run": 2}, ["x/a", "x/a", "y/a", "y/a", "y/a", "x/a"], "ppppss", "run"),
    ({"session": 3}, ["x/a", "y/a", "x/a", "y/a", "z/a"], "pppss", "session"),
    ({"run": 2, "session": 3}, ["x/a", "x/a", "x/a", "y/a", "y/a"], "ppsps", "session"),
    ({"tools": {"a": 2}}, ["a.1", "a.2", "a.3", "b", "a.4"], "pprpr", "tool"),
    ({"tools": {"a*": 2}}, ["ab", "ab", "ac", "ab", "ac", "ac"], "ppprpr", "tool"),
    ({"tools": {"ab": 1, "a*": 3}}, ["ab", "ab", "ac", "ac", "ac", "ac"], "prpppr", "tool"),
    ({"tools": {"a*": 3, "ab": 1}}, ["ab", "ab", "ab", "ab"], "pppr", "tool"),
    ({"tools": {"A": 1}}, ["a", "a"], "pp", None),
    ({"classes": {"network": 2}}, ["net1", "a", "net2", "net3", "a", "net1"], "ppprpr", "tool"),
    ({"signature": 2}, ["a.1", "a.1", "a.2", "a.1", "a.2", "a.2"], "ppprpr", "signature"),
    ({"signature": 1, "tools": {"a": 2}}, ["a.1", "a.1", "a.2", "a.3"], "prpr", "tool"),
]


@pytest.mark.parametrize(("limits", "calls", "expected", "scope"), TABLE)
@pytest.mark.parametrize("settle", [True, False])
def test_exactly_the_limit_runs(limits, calls, expected, scope, settle):
    """L calls start and call L + 1 does not, each scope in its own way, whether or not earlier calls have ended."""
    letters, last = play(CallCeiling(**limits), calls, settle=settle)
    assert letters == expected
    assert (last and last.scope) == scope


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (
            {"run": 1},
            "The ceiling of 1 calls for the run is used up; call_ceiling run = 2 would have allowed one more.",
        ),
        (
            {"session": 1},
            "The ceiling of 1 calls for the session is used up; call_ceiling session = 2 would have allowed one more.",
        ),
        (
            {"tools": {"*": 1}},
            'The ceiling of 1 calls for tool a is used up in this run; call_ceiling tools = {"*" = 2} would have allowed one more.',
        ),
        (
            {"classes": {"read": 1}},
            "The ceiling of 1 calls for class read is used up in this run; call_ceiling classes = {read = 2} would have allowed one more.",
        ),
        (
            {"signature": 1},
            "The ceiling of 1 calls for this very call is used up in this run; call_ceiling signature = 2 would have allowed one more.",
        ),
    ],
)
def test_the_trip_names_the_setting_and_claims_no_loop(limits, why):
    """The sentence has the numbers and the setting that would have allowed it; the type is over-use."""
    _, trip = play(CallCeiling(**limits), ["a", "a"])
    assert (trip.why, trip.loop_type, trip.limit, trip.observed, trip.period, trip.members) == (
        why,
        "over_use",
        1,
        1,
        None,
        (),
    )


def test_warnings_start_at_half_the_limit():
    """The first call after half a ceiling is used carries the warning."""
    chain, state = Chain([CallCeiling(run=4)]), SessionState("s")
    assert [chain.admit(state, "r", ToolCall("a", "a:1")).warned for _ in range(4)] == [
        (),
        (),
        ("call_ceiling",),
        ("call_ceiling",),
    ]


def test_classes_are_computed_only_if_asked_for():
    """The rule needs the class only where it limits one."""
    assert (CallCeiling(run=1).needs, CallCeiling(classes={"read": 1}).needs) == ((), ("class",))


# ------------------------------------------------------------------------------------------------ raised for a while


def raised(limits, name, value, calls, *, before=0, at=0.0, until=10.0):
    """Letters of calls ``tool@time``, the ceiling being raised after the first ``before`` of them; and the state."""
    rule = CallCeiling(**limits)
    chain, state, letters = Chain([rule]), SessionState("s"), ""
    for index, made in enumerate(calls.split()):
        if index == before:
            rule.raise_to(state, name, value, "why", until=until, at=at)
            state = SessionState.from_plain(json.loads(json.dumps(state.to_plain())))
        tool, _, moment = made.partition("@")
        call = ToolCall(tool, f"{tool}:", tool_class="read")
        admission = chain.admit(state, "r", call, at=float(moment or 0))
        letters += {Permit: "p", Refuse: "r", Stop: "s"}[type(admission)]
    return letters, state


RAISED = [
    ({"run": 2}, "run", 4, "a a a a a", "pppps"),
    ({"session": 2}, "session", 3, "a a a a", "ppps"),
    ({"signature": 1}, "signature", 2, "a a a b b b", "pprppr"),
    ({"tools": {"a*": 1}}, "tools.a*", 2, "a a a", "ppr"),
    ({"tools": {"a*": 1, "b": 1}}, "tools.a*", 2, "a a b b", "pppr"),
    ({"classes": {"read": 1}}, "classes.read", 3, "a b c a", "pppr"),
    ({"run": 2}, "run", 4, "a a@9 a@9.9 a@10", "ppps"),
    ({"run": 2}, "run", 4, "a a@10 a@10", "pps"),
]


@pytest.mark.parametrize(("limits", "name", "value", "calls", "letters"), RAISED)
def test_a_raised_ceiling_holds_until_its_time_is_over(limits, name, value, calls, letters):
    """Exactly the raised number runs; from the moment of expiry the old ceiling holds again; it survives JSON."""
    assert raised(limits, name, value, calls)[0] == letters


BEFORE = [
    ({"tools": {"a": 1, "b": 1}}, "tools.a", 2, "a b a b a b a", 4, "pprrprr"),
    ({"classes": {"read": 1}}, "classes.read", 2, "a a a a", 2, "prpr"),
    ({"signature": 1}, "signature", 2, "a a a a", 2, "prpr"),
    ({"signature": 1, "tools": {"a": 2}}, "tools.a", 3, "a a a", 2, "prr"),
    ({"run": 1}, "run", 2, "a a a", 2, "pss"),
]


@pytest.mark.parametrize(("limits", "name", "value", "calls", "before", "letters"), BEFORE)
def test_raising_closes_what_it_opened_but_lifts_no_stop(limits, name, value, calls, before, letters):
    """Circuits of that very ceiling are closed, others and a stop stay."""
    assert raised(limits, name, value, calls, before=before)[0] == letters


WRONG = [
    ("rum", 5, "no ceiling 'rum'; it has run, tools.a"),
    ("session", 5, "no ceiling 'session'"),
    ("tools.b", 5, "no ceiling 'tools.b'"),
    ("run", 3, "run is 3; 3 would not raise it"),
    ("run", 2, "would not raise"),
    ("run", 4.0, "whole number"),
    ("run", True, "whole number"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG)
def test_what_raises_nothing_is_refused(name, value, says):
    """An unknown ceiling, or a value that is not above what holds, is a ValueError, and nothing is listed."""
    state = SessionState("s")
    with pytest.raises(ValueError, match=says):
        CallCeiling(run=3, tools={"a": 2}).raise_to(state, name, value, "why", until=5.0, at=0.0)
    assert (state.raised, state.audit) == ([], [])


def test_the_highest_that_has_not_expired_holds():
    """Raised twice, the ceiling falls back in two steps, and each is listed with what held before."""
    rule, state = CallCeiling(run=1), SessionState("s")
    rule.raise_to(state, "run", 2, "one", until=20.0, at=0.0)
    rule.raise_to(state, "run", 3, "two", until=10.0, at=0.0)
    listed = [(entry["action"], entry["value"], entry["was"], entry["reason"]) for entry in state.audit]
    assert listed == [("raise_ceiling", 2, 1, "one"), ("raise_ceiling", 3, 2, "two")]
    chain, ran = Chain([rule]), {}
    for at in (0.0, 10.0, 20.0):
        kinds = [type(chain.admit(state, f"run{at}", ToolCall("a", "a:"), at=at)) for _ in range(5)]
        ran[at] = kinds.count(Permit)
    assert ran == {0.0: 3, 10.0: 2, 20.0: 1}
    assert state.raised == []
