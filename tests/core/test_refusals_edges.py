"""Refusals and money to the letter: whom a stop is put down to, what is counted, and from when on."""

from typing import Any

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Finding, Permit, Refuse, Stop
from otel_toolguard.core.holds import hold
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.cost import Cost
from otel_toolguard.core.plugins.deadline import Deadline
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.state import SessionState


class World:
    """One session under one chain, at a moment that the test sets."""

    def __init__(self, *plugins: Any, **options: Any) -> None:
        self.chain, self.state, self.at = Chain(plugins, **options), SessionState("s"), 0.0

    def admit(self, tool: str = "a", run: str = "r", number: int = 1, **more: Any) -> Any:
        self.call = ToolCall(tool, f"{tool}:{number}", **more)
        return self.chain.admit(self.state, run, self.call, at=self.at)

    def settle(self, permit: Any, kind: Any = "ok", *, call: Any = None) -> Any:
        return self.chain.settle(self.state, "r", permit.number, call or self.call, Outcome(kind), at=self.at)


def test_a_stop_by_refusals_is_put_down_to_the_call_that_was_refused() -> None:
    """Its tool, signature and class."""
    world = World(CallCeiling(tools={"a": 0}), MaxRefusals(1))
    trip = world.admit("a", tool_class="read").opened.trip
    assert (trip.rule, trip.tool, trip.signature, trip.tool_class) == ("max_refusals", "a", "a:1", "read")


def test_a_refused_signature_that_never_ran_has_no_calls() -> None:
    """Counts are those before the call."""
    world = World(CallCeiling(run=1))
    world.admit("a")
    refused = world.admit("b")
    assert (refused.signature_calls, refused.run_calls, refused.session_calls) == (0, 1, 1)


def test_the_time_of_a_circuit_that_opens_with_a_refusal_runs_from_then_on() -> None:
    """Where a refusal is the last that waiting results needed, their circuit is as old as the refusal."""
    world = World(CallCeiling(tools={"b": 0}), SignatureFailures(1, cooldown=10))
    world.settle(world.admit("a", batch="t", siblings=2), "failed")
    world.at = 50.0
    assert type(world.admit("b", batch="t", siblings=2)) is Refuse
    for world.at, kind in ((59.0, Refuse), (60.0, Permit)):
        assert type(world.admit("a")) is kind


@pytest.mark.parametrize("how", ["next call", "beside a circuit", "forced open", "end of the turn"])
def test_the_time_of_a_circuit_that_waiting_results_open_runs_from_then_on(how: str) -> None:
    """Whatever has them judged."""
    world = World(CallCeiling(tools={"x": 0}), SignatureFailures(1, cooldown=10), observe=False)
    if how == "beside a circuit":
        world.admit("x")
    first, call = world.admit("a"), world.call
    world.admit("b")
    world.settle(first, "failed", call=call)
    world.at = 50.0
    if how == "end of the turn":
        world.chain.close_batch(world.state, "r", world.at)
    else:
        if how == "forced open":
            hold(world.state, "tool:c", "observe", "looking", None)
        world.admit("c")
    for world.at, kind in ((59.0, Refuse), (60.0, Permit)):
        assert type(world.admit("a")) is kind


def test_a_forced_circuit_of_one_call_is_let_go_with_its_hold() -> None:
    """Forced open again it is a circuit of its own, which has refused nothing yet."""
    world = World()
    for _ in range(2):
        hold(world.state, "signature:a:1", "forced_open", "no", 99.1234)
        world.at = 1.0
        refused = [world.admit("a") for _ in range(2)]
        assert [(one.fresh, one.nth) for one in refused] == [(True, 1), (False, 2)]
        assert refused[0].circuit.trip.retry_after_s == 98.123
        hold(world.state, "signature:a:1", "closed", "yes", None)
        assert world.state.runs["r"].circuits == {}


def test_observing_judges_what_waited_before_a_call_that_is_forced_open() -> None:
    """What the chain would have said of those results comes with that call."""
    world = World(FailureStreak(1), observe=True)
    hold(world.state, "tool:a", "forced_open", "no", None)
    first, call = world.admit("z"), world.call
    world.admit("y")
    world.settle(first, "failed", call=call)
    said = [world.admit("a").would_trip for _ in range(3)]
    assert [trip and trip.rule for trip in said] == ["failure_streak", "forced_open", None]


def test_each_rule_hears_of_each_cost() -> None:
    """Also behind one that has nothing to say, and in a run that is stopped."""
    world = World(Cost(9.0), Cost(2.0))
    world.chain.plugins[1].name = "other"
    chain = world.chain = Chain(world.chain.plugins)
    assert chain.cost(world.state, "r", 1.0).warned == ("other",)
    trip: Any = chain.cost(world.state, "r", 1.0).trip
    assert trip.rule == "other"
    chain.cost(world.state, "r", 4.0)
    assert world.state.runs["r"].rules == {"cost": {"own": 6.0, "spent": 6.0}, "other": {"own": 6.0, "spent": 6.0}}


def test_a_cost_of_a_run_that_is_known_leaves_its_place() -> None:
    """Whatever it is said to have been started by."""
    world = World(Cost(9.0), Deadline(9))
    world.chain.cost(world.state, "r", 1.0)
    world.chain.cost(world.state, "q", 1.0, above="unknown")
    world.chain.cost(world.state, "q", 1.0, above="r")
    assert [(name, run.above) for name, run in world.state.runs.items()] == [("r", None), ("q", None)]
    assert world.state.now == 0.0
    world.chain.stop(world.state, "enough")
    assert type(world.admit("a", "q")) is Stop


# ------------------------------------------------------------------------------------------------ rules of third parties


class Own:
    """A rule from elsewhere that finds one thing at one hook."""

    name = "own"

    def __init__(self, hook: str, **finding: Any) -> None:
        setattr(self, hook, lambda *_: Finding(self.name, **finding))


def test_a_stop_says_what_its_rule_said_however_late_it_is() -> None:
    """Seconds to wait are counted down only where something opens again by itself."""
    world = World(Own("settle", scope="run", retry_after_s=5.0, retryable=True))
    world.settle(world.admit())
    world.at = 3.0
    assert world.admit().trip.retry_after_s == 5.0


def test_a_circuit_that_refusals_open_is_counted_down() -> None:
    """From the refusal on, for the tool alone."""
    world = World(CallCeiling(signature=0), Own("refused", scope="tool", retry_after_s=5.0))
    world.at = 50.0
    assert world.admit("a").opened.trip.rule == "own"
    world.at = 52.0
    refused = world.admit("a", number=2)
    assert (refused.trip.rule, refused.trip.retry_after_s) == ("own", 3.0)


def test_a_cycle_without_a_number_of_laps_has_none() -> None:
    """The length is said all the same."""
    world = World(Own("settle", share=0.1, period=2))
    settled = world.settle(world.admit())
    assert (settled.repeat_length, settled.repeat_count, settled.warned) == (2, 0, ())


def test_two_chains_over_one_session_judge_by_their_own_rules() -> None:
    """At admission and at the result, whichever was there first."""
    plain, strict, state = Chain([]), Chain([CallCeiling(tools={"x": 0}), FailureStreak(1)]), SessionState("s")
    for chain, tool, kind in ((plain, "x", Permit), (strict, "x", Refuse), (plain, "y", Permit)):
        assert type(chain.admit(state, "r", ToolCall(tool, f"{tool}:1"))) is kind
    state, call = SessionState("s"), ToolCall("a", "a:1")
    for chain, tripped in ((plain, False), (strict, True)):
        permit: Any = chain.admit(state, "r", call)
        chain.settle(state, "r", permit.number, call, Outcome("failed"))
        assert (state.runs["r"].stop is not None) is tripped


def test_the_time_is_zero_where_nobody_tells_it() -> None:
    """For each step that takes one."""
    world, call = World(Deadline(9)), ToolCall("a", "a:1")
    permit: Any = world.chain.admit(world.state, "r", call)
    world.chain.settle(world.state, "r", permit.number, call, Outcome("ok"))
    world.chain.close_batch(world.state, "r")
    world.chain.cost(world.state, "r", 1.0)
    assert world.state.now == 0.0


@pytest.mark.parametrize("state", ["observe", "disabled"])
def test_a_hold_for_a_while_spares_single_calls_but_no_session(state: Any) -> None:
    """Until it ends; a ceiling of the session stops all the same."""
    world = World(CallCeiling(tools={"a": 0}), SignatureFailures(1))
    hold(world.state, "tool:a", state, "looking", 100.0)
    world.at = 99.0
    permit = world.admit("a")
    assert type(permit) is Permit
    settled = world.settle(permit, "failed")
    assert (settled.trip, settled.would_trip is None) == (None, state == "disabled")
    world.at = 100.0
    assert type(world.admit("a")) is Refuse
    world = World(CallCeiling(session=0))
    hold(world.state, "tool:a", state, "looking", 100.0)
    refused = world.admit("a")
    assert (type(refused), refused.trip.scope) == (Stop, "session")
