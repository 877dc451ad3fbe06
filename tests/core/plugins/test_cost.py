"""What the caller says that the work has cost."""

import pytest

from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Stop
from otel_toolguard.core.plugins.cost import Cost
from otel_toolguard.core.state import SessionState

CALL = ToolCall("t", "t:1")
ABOVE = {"c": "r", "g": "c"}


def play(rule, spent, **options):
    """``run:amount`` each; one letter: "." nothing, w warned, S stopped, o would have been."""
    chain, state, letters = Chain([rule], **options), SessionState("s"), ""
    for step in spent.split():
        run, _, amount = step.partition(":")
        settled = chain.cost(state, run, float(amount), above=ABOVE.get(run))
        letters += "S" if settled.trip else "o" if settled.would_trip else "w" if settled.warned else "."
    return letters, chain, state


TABLE = [
    ("run", "r:0.4 r:0.1 r:0.4", ".ww"),
    ("run", "r:0.99 r:0.01 r:1", "wS."),
    ("run", "r:1.5", "S"),
    ("run", "r:0.1 " * 10, "....wwwwwS"),
    ("run", "r:0.4 q:0.4 r:0.4 q:0.4", "..ww"),
    ("run", "r:0.4 c:0.4 g:0.2", ".wS"),
    ("run", "r:0 c:0.9 c:0.1 r:0", ".wS."),
    ("session", "r:0.4 q:0.4 z:0.2 z:1", ".wS."),
]


@pytest.mark.parametrize(("scope", "spent", "expected"), TABLE)
def test_reaching_the_limit_stops_at_once(scope, spent, expected):
    """Below the limit it goes on, at it and above it stops, once; a run pays for those nested in it."""
    assert play(Cost(1.0, scope=scope), spent)[0] == expected


@pytest.mark.parametrize(("scope", "later"), [("run", None), ("session", Stop)])
def test_a_later_run_has_its_own_money_only_where_the_scope_is_the_run(scope, later):
    """The stop comes with the report, before any call; the session's money stays spent over runs."""
    _, chain, state = play(Cost(1.0, scope=scope), "r:2")
    assert type(chain.admit(state, "r", CALL)) is Stop
    refused = chain.admit(state, "later", CALL)
    assert (type(refused) is Stop) == (later is Stop)
    assert later is None or (refused.trip.scope, refused.trip.observed) == ("session", 2.0)


@pytest.mark.parametrize("scope", ["run", "session"])
@pytest.mark.parametrize(("ceilings", "stopped"), [(False, True), (True, False)])
def test_a_reset_gives_new_money_only_with_ceilings(scope, ceilings, stopped):
    """What was spent is spent."""
    _, chain, state = play(Cost(1.0, scope=scope), "r:2")
    chain.reset(state, ceilings=ceilings)
    assert isinstance(chain.admit(state, "r", CALL), Stop) is stopped


def test_the_report_adds_up_once():
    """Nested runs are not counted twice."""
    _, chain, state = play(Cost(10.0), "r:1 c:2 g:3 q:4")
    assert chain.report(state)["cost"] == 10.0


def test_observing_says_it_once():
    """In observe mode nothing is stopped."""
    letters, chain, state = play(Cost(1.0), "r:1 r:1", observe=True)
    assert letters == "o."
    assert not isinstance(chain.admit(state, "r", CALL), Stop)


def test_without_the_rule_costs_are_nothing():
    """Reporting them is allowed."""
    chain, state = Chain([]), SessionState("s")
    assert chain.cost(state, "r", 5.0).trip is None
