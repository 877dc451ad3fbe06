"""Several rules warn about one call: all are told, each with its share, also those whose results had waited."""

from __future__ import annotations

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Finding
from otel_toolguard.core.state import SessionState


class Warns:
    """A rule that says at admission, or of each result, that a share of its limit is used."""

    def __init__(self, name, share, hook):
        self.name, self.advice = name, f"{name} is near"
        setattr(self, hook, lambda *_: Finding(name, share))


def call(n):
    return ToolCall("look", f"look:{n}")


def told(found):
    return list(found.warned), list(found.shares), [(nudge.rule, nudge.text) for nudge in found.nudges]


TWO = (["one", "two"], [0.5, 0.75], [("one", "one is near"), ("two", "two is near")])


def test_all_that_warn_at_admission_are_told():
    """A permit has every rule that warned, in their order, with shares and nudges."""
    chain = Chain([Warns("one", 0.5, "admit"), Warns("two", 0.75, "admit")], nudge_on_warn=True)
    assert told(chain.admit(SessionState("s"), "r", call(1))) == TWO


def test_all_that_warn_of_a_result_are_told():
    """So has what is said after a result."""
    chain, state = (
        Chain([Warns("one", 0.5, "settle"), Warns("two", 0.75, "settle")], nudge_on_warn=True),
        SessionState("s"),
    )
    number = chain.admit(state, "r", call(1)).number
    assert told(chain.settle(state, "r", number, call(1), Outcome("ok"))) == TWO


def test_what_had_waited_adds_to_what_the_call_says_itself():
    """A start that has an earlier result judged tells its own warnings first, then those of that result."""
    chain, state = (
        Chain([Warns("one", 0.5, "admit"), Warns("two", 0.75, "settle")], nudge_on_warn=True),
        SessionState("s"),
    )
    first, _still_running = (chain.admit(state, "r", call(n)).number for n in (1, 2))
    assert told(chain.settle(state, "r", first, call(1), Outcome("ok"))) == ([], [], [])
    permit = chain.admit(state, "r", call(3))
    assert (list(permit.warned), list(permit.shares)) == (["one", "two"], [0.5, 0.75])
    assert [nudge.rule for nudge in permit.nudges] == ["two"]  # what one says has been told before


@pytest.mark.parametrize("mine", ["first", "second"])
def test_results_are_judged_by_the_rules_of_who_settles(mine):
    """Where two policies share a run, each result is judged by the rules of the one that settles it."""
    chains = {name: Chain([Warns(name, 0.5, "settle")]) for name in ("first", "second")}
    other, state = chains["second" if mine == "first" else "first"], SessionState("s")
    number = other.admit(state, "r", call(0)).number
    other.settle(state, "r", number, call(0), Outcome("ok"))
    number = other.admit(state, "r", call(1)).number
    assert chains[mine].settle(state, "r", number, call(1), Outcome("ok")).warned == (mine,)
