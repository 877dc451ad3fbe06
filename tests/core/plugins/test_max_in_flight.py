"""How many calls may run at the same time."""

import json

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit, Refuse
from otel_toolguard.core.plugins.max_in_flight import MaxInFlight
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.state import SessionState

CALL = ToolCall("t", "t:1")


class World:
    def __init__(self, *rules, **options):
        self.chain, self.state = Chain(rules, **options), SessionState("s")

    def admit(self, run="r", above=None):
        return self.chain.admit(self.state, run, CALL, above=above)

    def end(self, permit, run="r"):
        return self.chain.settle(self.state, run, permit.number, CALL, Outcome("ok"))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_only_the_call_that_is_over_is_refused(limit):
    """L calls run, call L + 1 is refused, and admitted again as soon as one has ended: nothing is latched or tripped."""
    world = World(MaxInFlight(limit))
    permits = [world.admit() for _ in range(limit)]
    for _ in range(3):
        refused = world.admit()
        assert (type(refused), refused.fresh, refused.trip.retryable, refused.trip.scope) == (
            Refuse,
            False,
            True,
            "signature",
        )
    assert f"max_in_flight limit = {limit + 1} would" in refused.trip.why
    assert "at once" in json.loads(refused.trip.to_tool_message())["instead"]
    report = world.chain.report(world.state)
    assert (report["refused"], report["trips"], report["in_flight"]) == (3, [], limit)
    world.end(permits[0])
    assert isinstance(world.admit(), Permit)
    assert isinstance(world.admit(), Refuse)


@pytest.mark.parametrize(("scope", "kind"), [("run", Permit), ("session", Refuse)])
def test_scope_says_whose_calls_are_counted(scope, kind):
    """Those of the run, or those of all runs."""
    world = World(MaxInFlight(2, scope=scope))
    assert [type(world.admit(run)) for run in ("r", "q")] == [Permit, Permit]
    assert type(world.admit("z")) is kind


@pytest.mark.parametrize("scope", ["run", "session"])
def test_a_call_with_a_nested_run_in_it_does_not_starve_that_run(scope):
    """At a limit of one a sub-agent can still call tools, one at a time."""
    world = World(MaxInFlight(1, scope=scope))
    assert isinstance(world.admit("r"), Permit)
    inner = world.admit("c", above="r")
    assert isinstance(inner, Permit)
    assert isinstance(world.admit("c"), Refuse)
    world.end(inner, "c")
    assert isinstance(world.admit("c"), Permit)


def test_asking_on_and_on_ends_in_max_refusals():
    """The refusals count for max_refusals, those beside running calls once."""
    world = World(MaxInFlight(1), MaxRefusals(2))
    world.admit()
    kinds = [world.admit().opened is not None for _ in range(200)]
    assert any(kinds)


def test_observing_lets_it_run():
    """In observe mode it is said once."""
    world = World(MaxInFlight(1), observe=True)
    said = [world.admit().would_trip for _ in range(3)]
    assert [trip and trip.rule for trip in said] == [None, "max_in_flight", None]
