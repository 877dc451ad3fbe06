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
    ({"limit": 1}, "x x", "rs"),
    ({"limit": 3}, "x x", "rr"),
    ({"limit": 3}, "x x x x", "rrrs"),
    ({"limit": 3}, "x x x a x", "rrrss"),
    ({"limit": 3}, "x xx x a", "rrrs"),
    ({"limit": 3}, "x x a x x a x x", "rrprrprr"),
    ({"limit": 3}, "x.1 x.1 x.1 x.1 x.1", "rrrrr"),
    ({"limit": 3}, "x.1 x.1 x.2 x.2 x.3 x.3", "rrrrrs"),
    ({"limit": 3, "total": 4}, "x x a x a x a", "rrprprs"),
    ({"limit": 3, "total": 4}, "x x a x a a a", "rrprppp"),
    ({"limit": 3, "total": 3}, "x.1 xx.1 a x.2 x.2 a x.3 a", "rrprrprs"),
    ({"limit": 9, "total": 2}, "x.1 x.1 x.1 x.2 a", "rrrrs"),
]


@pytest.mark.parametrize(("limits", "calls", "expected"), TABLE)
def test_refusals_in_a_row_and_in_all(limits, calls, expected):
    """After the refusal that reaches the limit nothing runs; an admitted call ends the row but not the total."""
    assert play(MaxRefusals(**limits), calls.split())[0] == expected


def test_the_stop_says_so():
    """The refusal names its own circuit and the stop it opened, whose sentence names the parameter that counted."""
    _, refusal = play(MaxRefusals(2), ["x", "x"])
    assert (type(refusal), refusal.trip.rule, refusal.trip.scope) == (Refuse, "call_ceiling", "tool")
    stop = refusal.opened
    assert (stop.trip.rule, stop.trip.scope, stop.trip.loop_type) == ("max_refusals", "run", "refused_too_often")
    assert (
        stop.trip.why
        == "Calls were refused 2 times in a row, and the agent asked again; max_refusals limit = 3 would have allowed it."
    )
    assert "total = 3" in play(MaxRefusals(9, total=2), ["x", "x"])[1].opened.trip.why


def test_a_caller_that_takes_refusals_for_text_is_stopped():
    """Whoever asks for ever, for one tool and then for another, gets three refusals and then only stops."""
    letters, _ = play(MaxRefusals(3), ["x", "x"] + ["xx"] * 100)
    assert letters == "rrr" + "s" * 99
