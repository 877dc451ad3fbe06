"""Refusals become a stop: in a row, in all, those of one batch once."""

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit, Refuse, Stop
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.state import SessionState

LETTERS = {Permit: "p", Refuse: "r", Stop: "s"}


def play(rule, calls):
    """One letter a call; ``x`` names a tool with a ceiling of 0 left, any other name runs; ``x.b1`` is in batch b1."""
    chain, state, letters, last = Chain([CallCeiling(tools={"x*": 1}), rule]), SessionState("s"), "", None
    for index, name in enumerate(["x", "xx", *calls]):
        tool, _, batch = name.partition(".")
        call = ToolCall(tool, f"{tool}:{index}", batch=batch or None)
        admission = chain.admit(state, "r", call)
        letters += LETTERS[type(admission)]
        if isinstance(admission, Permit):
            chain.settle(state, "r", admission.number, call, Outcome("ok"))
        else:
            last = admission
    return letters[2:], last


TABLE = [
    ({"limit": 1}, "x", "s"),
    ({"limit": 3}, "x x", "rr"),
    ({"limit": 3}, "x x x", "rrs"),
    ({"limit": 3}, "x x x a x", "rrsss"),
    ({"limit": 3}, "x xx x", "rrs"),
    ({"limit": 3}, "x x a x x a x x", "rrprrprr"),
    ({"limit": 3}, "x.1 x.1 x.1 x.1 x.1", "rrrrr"),
    ({"limit": 3}, "x.1 x.1 x.2 x.2 x.3 x.3", "rrrrss"),
    ({"limit": 3, "total": 4}, "x x a x a x", "rrprps"),
    ({"limit": 3, "total": 4}, "x x a x a a a", "rrprppp"),
    ({"limit": 3, "total": 3}, "x.1 xx.1 a x.2 x.2 a x.3", "rrprrps"),
    ({"limit": 9, "total": 2}, "x.1 x.1 x.1 x.2", "rrrs"),
]


@pytest.mark.parametrize(("limits", "calls", "expected"), TABLE)
def test_refusals_in_a_row_and_in_all(limits, calls, expected):
    """The refusal that reaches the limit is the stop; an admitted call ends the row but not the total."""
    assert play(MaxRefusals(**limits), calls.split())[0] == expected


def test_the_stop_says_so():
    """The trip is the rule's own, fresh, and its sentence names the parameter that counted."""
    _, stop = play(MaxRefusals(2), ["x", "x"])
    assert (stop.trip.rule, stop.trip.scope, stop.trip.loop_type, stop.fresh, stop.nth) == (
        "max_refusals",
        "run",
        "refused_too_often",
        True,
        1,
    )
    assert (
        stop.trip.why
        == "Calls were refused 2 times in a row, and the agent asked again; max_refusals limit = 3 would have allowed it."
    )
    assert "total = 3" in play(MaxRefusals(9, total=2), ["x", "x"])[1].trip.why


def test_a_caller_that_takes_refusals_for_text_is_stopped():
    """Whoever asks for ever, for one tool and then for another, gets two refusals and then only stops."""
    letters, _ = play(MaxRefusals(3), ["x", "x"] + ["xx"] * 100)
    assert letters == "rr" + "s" * 100
