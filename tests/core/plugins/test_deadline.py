"""Wall time, per run or per session."""

import json

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit
from otel_toolguard.core.plugins.deadline import Deadline
from otel_toolguard.core.state import SessionState

CALL = ToolCall("t", "t:1")


def play(rule, steps, *, reset=None):
    """``run@begin-end`` each; one letter a step: "." ran, w warned, S stopped by the result, x refused."""
    chain, state, letters = Chain([rule]), SessionState("s"), ""
    for step in steps.split():
        if step == "reset":
            chain.reset(state, ceilings=reset)
            continue
        run, _, times = step.partition("@")
        begin, _, end = times.partition("-")
        run, _, above = run.partition("<")
        admission = chain.admit(state, run, CALL, above=above or None, at=float(begin))
        if not isinstance(admission, Permit):
            assert admission.trip.rule == "deadline"
            letters += "x"
            continue
        settled = chain.settle(state, run, admission.number, CALL, Outcome("ok"), at=float(end or begin))
        letters += "S" if settled.trip else "w" if admission.warned or settled.warned else "."
        state = SessionState.from_plain(json.loads(json.dumps(state.to_plain())))
    return letters, chain, state


TABLE = [
    ("run", "r@100 r@109", ".w"),
    ("run", "r@100 r@104 r@105 r@109.9 r@110", "..wwx"),
    ("run", "r@100-109 r@109", "ww"),
    ("run", "r@100-110 r@110", "Sx"),
    ("run", "r@100-111 q@111 q@120 q@121", "S.wx"),
    ("run", "r@0 q@9 r@9 r@10 q@18 q@19", "..wxwx"),
    ("run", "r@0 c<r@4 c<r@10", "..x"),
    ("session", "r@0 q@4 q@9 q@10 z@11", "..wxx"),
    ("session", "r@0-12 z@12", "Sx"),
]


@pytest.mark.parametrize(("scope", "steps", "expected"), TABLE)
def test_so_many_seconds_from_the_first_call(scope, steps, expected):
    """Nothing is asked for, and nothing goes on, once the time is over; a nested run has no more time than those above."""
    assert play(Deadline(10, scope=scope), steps)[0] == expected


@pytest.mark.parametrize("scope", ["run", "session"])
@pytest.mark.parametrize(("ceilings", "expected"), [(False, ".xx"), (True, ".x.")])
def test_a_reset_gives_new_time_only_with_ceilings(scope, ceilings, expected):
    """The clock goes on over a plain reset."""
    assert play(Deadline(10, scope=scope), "r@0 r@10 reset r@11", reset=ceilings)[0] == expected


def test_the_trip_says_the_seconds():
    """Scope as set; limit and time passed in seconds."""
    _, chain, state = play(Deadline(10, scope="session"), "r@0 r@12.5")
    trip = chain.report(state)["trips"][0]
    assert (trip["scope"], trip["limit"], trip["observed"], trip["loop_type"]) == ("session", 10, 12.5, "over_use")
    assert "deadline seconds = 13 " in trip["why"]


def test_only_a_rule_that_asks_is_told_the_time():
    """Chains without such a rule spend nothing on it."""
    state = SessionState("s")
    Chain([]).admit(state, "r", CALL, at=5.0)
    assert state.now == 0.0
    Chain([Deadline(10)]).admit(state, "r", CALL, at=5.0)
    assert state.now == 5.0
