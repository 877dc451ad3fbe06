"""Ceilings: exactly the stated number of bodies starts."""

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
