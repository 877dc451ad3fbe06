"""Circuits of one tool or call to the letter: probes and late results, held by hand or by settings; money; the report."""

from typing import Any

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Finding, Permit, Refuse, Settled, Stop
from otel_toolguard.core.holds import held, hold
from otel_toolguard.core.overrides import Overrides
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.cost import Cost
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.plugins.tool_stats import ToolStats
from otel_toolguard.core.state import CLOSED_KEPT, SessionState


class Breaker:
    """Opens the circuit of a tool (or of a call) at each failure, for a while."""

    name = "breaker"

    def __init__(self, scope: Any = "tool", seconds: "float | None" = 10.0) -> None:
        self.scope, self.seconds = scope, seconds
        self.late: list[bool] = []

    def settle(self, mine: Any, run: Any, call: ToolCall, outcome: Outcome) -> "Finding | None":
        self.late.append(outcome.late)
        if not outcome.failed:
            return None
        return Finding(self.name, scope=self.scope, retryable=True, retry_after_s=self.seconds, why="broken")

    def on_retry(self, mine: Any, kind: str, attempt: int) -> None:
        mine["told"] = (kind, attempt)


class World:
    """One session under one chain, at a moment that the test sets."""

    def __init__(self, *plugins: Any, **options: Any) -> None:
        self.chain, self.state, self.at = Chain(plugins, **options), SessionState("s"), 0.0

    def admit(self, tool: str = "a", run: str = "r", **more: Any) -> Any:
        self.call = ToolCall(tool, f"{tool}:{more.pop('number', 1)}", **more)
        return self.chain.admit(self.state, run, self.call, at=self.at)

    def settle(self, permit: Any, kind: Any = "ok", *, call: Any = None, run: str = "r") -> Settled:
        return self.chain.settle(self.state, run, permit.number, call or self.call, Outcome(kind), at=self.at)

    def do(self, tool: str = "a", kind: Any = "ok", **more: Any) -> Any:
        """The refusal, or what the result settled."""
        admission = self.admit(tool, **more)
        return admission if isinstance(admission, Refuse) else self.settle(admission, kind, run=more.get("run", "r"))

    def trips(self) -> list[str]:
        return [trip["rule"] for trip in self.chain.report(self.state)["trips"]]


# ------------------------------------------------------------------------------------------------ probes


@pytest.mark.parametrize(("scope", "other"), [("tool", Refuse), ("signature", Permit)])
def test_a_circuit_refuses_what_it_is_kept_for_until_its_time_is_over(scope: Any, other: Any) -> None:
    """The tool, or the one call; with the seconds that are left; then one probe, whose success closes it."""
    world = World(Breaker(scope))
    world.at = 5.0
    assert world.do("a", "failed").trip.scope == scope
    world.at = 14.9
    refused = world.admit("a")
    assert (type(refused), refused.fresh, refused.trip.retry_after_s) == (Refuse, False, 0.1)
    assert type(world.admit("a", number=2)) is other
    assert type(world.admit("b")) is Permit
    world.at = 15.0
    probe, call = world.admit("a"), world.call
    assert type(probe) is Permit
    assert type(world.admit("a")) is Refuse
    world.settle(probe, call=call)
    assert (type(world.admit("a")), type(world.admit("a"))) == (Permit, Permit)
    assert world.state.runs["r"].closed == {f"{scope}:{'a' if scope == 'tool' else 'a:1'}": probe.number}


def test_a_failed_probe_opens_again_for_twice_as_long() -> None:
    """From the moment at which it failed."""
    world = World(Breaker())
    world.do("a", "failed")
    world.at = 10.0
    probe = world.admit()
    world.at = 12.0
    world.settle(probe, "failed")
    for world.at, kind in ((31.9, Refuse), (32.0, Permit)):
        assert type(world.admit()) is kind


@pytest.mark.parametrize("kind", ["cancelled", "unknown", "closed"])
def test_a_probe_that_said_nothing_gives_its_place_to_the_next_call(kind: Any) -> None:
    """At once."""
    world = World(Breaker())
    world.do("a", "failed")
    world.at = 10.0
    world.settle(world.admit(), kind)
    assert type(world.admit()) is Permit


def test_a_result_that_is_no_probe_s_says_nothing_about_the_circuit() -> None:
    """What was running when it opened neither closes it nor lengthens it."""
    for kind in ("ok", "failed"):
        world = World(Breaker("signature"))
        slow, call = world.admit(batch="slow", siblings=1), world.call
        other = world.admit(batch="other", siblings=1)
        world.settle(other, "failed")
        world.chain.close_batch(world.state, "r")
        world.at = 9.0
        world.settle(slow, kind, call=call)
        assert type(world.admit()) is Refuse
        world.at = 10.0
        assert type(world.admit()) is Permit


@pytest.mark.parametrize("scope", ["tool", "signature"])
def test_results_of_calls_from_before_a_circuit_closed_are_late(scope: Any) -> None:
    """Those that were admitted before its probe; the probe itself and what came after it are not."""
    world = World(breaker := Breaker(scope))
    early, call = world.admit("a"), world.call
    world.do("a", "failed")
    world.settle(world.admit("z"))
    world.chain.close_batch(world.state, "r")
    world.at = 10.0
    breaker.late.clear()
    world.do("a")
    world.do("a")
    world.settle(early, call=call)
    assert breaker.late == [False, False, True]
    world.do("z")
    assert breaker.late[-1] is False


def test_so_many_closed_circuits_are_remembered() -> None:
    """With one more than that the oldest is forgotten; the newest is always there."""
    world = World(Breaker("signature"))
    for number in range(CLOSED_KEPT + 1):
        world.at += 20.0
        world.do(number=number, kind="failed")
        world.at += 20.0
        world.do(number=number)
    closed = world.state.runs["r"].closed
    assert (len(closed), "signature:a:0" in closed, "signature:a:1" in closed) == (CLOSED_KEPT, False, True)
    assert list(closed)[-1] == f"signature:a:{CLOSED_KEPT}"


# ------------------------------------------------------------------------------------------------ held by hand


def test_a_circuit_forced_open_by_hand_refuses_until_then() -> None:
    """The tool or the one call, with the reason and the seconds that are left; then it is as before."""
    for key, what, scope, other in (
        ("tool:a", "Tool a", "tool", Refuse),
        ("signature:a:1", "This very call", "signature", Permit),
    ):
        world = World()
        hold(world.state, key, "forced_open", "on fire", 30.0)
        world.at = 10.5
        first, second = world.admit("a"), world.admit("a")
        assert (type(first), first.fresh, first.nth, second.fresh, second.nth) == (Refuse, True, 1, False, 2)
        trip = first.trip
        assert (trip.rule, trip.scope, trip.tool, trip.signature) == ("forced_open", scope, "a", "a:1")
        assert (trip.retryable, trip.retry_after_s, trip.loop_type) == (True, 19.5, "stopped_by_operator")
        assert trip.why == (
            f'{what} is forced open: on fire; session.set_circuit("closed", ...) would have allowed it.'
        )
        assert (second.trip.id, world.trips()) == (trip.id, ["forced_open"])
        world.at = 20.0
        assert world.admit("a").trip.retry_after_s == 10.0
        assert (type(world.admit("a", number=2)), type(world.admit("b"))) == (other, Permit)
        world.at = 30.0
        assert type(world.admit("a")) is Permit


def test_a_circuit_forced_open_for_good_is_not_to_be_tried_again() -> None:
    """There is no time after which it closes."""
    world = World()
    hold(world.state, "tool:a", "forced_open", "retired", None)
    world.at = 1e9
    trip = world.admit("a").trip
    assert (trip.retryable, trip.retry_after_s) == (False, None)


def test_a_call_goes_before_its_tool_and_the_hand_before_the_settings() -> None:
    """Whatever each says."""
    world, own = World(), Overrides("a*", {}, "forced_open")
    assert world.admit("a", overrides=own).trip.why == (
        'Tool a is forced open by the settings; [tools."a*"] circuit = "closed" would have allowed it.'
    )
    assert held(world.state, ToolCall("a", "a:1", overrides=own), 0.0) == "forced_open"
    hold(world.state, "tool:a", "closed", "needed", None)
    assert type(world.admit("a", overrides=own)) is Permit
    hold(world.state, "signature:a:1", "forced_open", "not this", None)
    refused = world.admit("a", overrides=own)
    assert (refused.trip.scope, "not this" in refused.trip.why) == ("signature", True)
    assert held(world.state, ToolCall("b", "b:1"), 0.0) == "closed"


def test_a_tool_forced_open_beside_a_call_that_is_held_otherwise() -> None:
    """The refusal of another call of the tool names the tool."""
    world = World()
    hold(world.state, "signature:a:2", "observe", "looking", None)
    hold(world.state, "tool:a", "forced_open", "broken", None)
    assert world.admit("a").trip.scope == "tool"
    assert type(world.admit("a", number=2)) is Permit


def test_holding_a_circuit_is_listed_and_closes_what_was_open() -> None:
    """In every run; other circuits stay."""
    world = World(CallCeiling(tools={"*": 0}))
    for run in ("r", "q"):
        assert [type(world.admit(tool, run)) for tool in "ab"] == [Refuse, Refuse]
    hold(world.state, "tool:a", "disabled", "let it", 5.0)
    assert [list(run.circuits) for run in world.state.runs.values()] == [["tool:b"], ["tool:b"]]
    assert world.state.audit == [
        {"action": "set_circuit", "circuit": "tool:a", "state": "disabled", "expires_at": 5.0, "reason": "let it"}
    ]
    hold(world.state, "tool:a", "forced_open", "no", 5.0)
    world.admit("a")
    assert "forced:tool:a" in world.state.runs["r"].circuits
    hold(world.state, "tool:a", "closed", "yes", 5.0)
    assert list(world.state.runs["r"].circuits) == ["tool:b"]


def test_observing_lets_a_circuit_that_is_forced_open_run() -> None:
    """It is said once a run, after what a rule of the chain would have done to that call."""
    world = World(CallCeiling(tools={"a": 1}), observe=True)
    hold(world.state, "tool:a", "forced_open", "no", None)
    said = [world.admit("a").would_trip for _ in range(3)]
    assert [trip and trip.rule for trip in said] == ["forced_open", "call_ceiling", None]
    assert (said[0].tool, said[0].scope) == ("a", "tool")
    assert world.trips() == []
    world.chain.stop(world.state, "enough")
    assert type(world.admit("a")) is Stop


@pytest.mark.parametrize(("state", "would"), [("observe", "call_ceiling"), ("disabled", None), ("closed", None)])
def test_a_circuit_that_is_not_enforced_opens_nothing(state: Any, would: "str | None") -> None:
    """Observed it is said what would have been refused, disabled it is not; a circuit held closed opens as ever."""
    for by_hand in (True, False):
        world = World(CallCeiling(tools={"a": 0}))
        own = None if by_hand else Overrides("a", {}, state)
        if by_hand:
            hold(world.state, "tool:a", state, "why", None)
        admission = world.admit("a", overrides=own)
        if state == "closed":
            assert type(admission) is Refuse
        else:
            assert type(admission) is Permit
            assert (admission.would_trip and admission.would_trip.rule) == would
        assert type(world.admit("b")) is Permit


@pytest.mark.parametrize("state", ["observe", "disabled"])
def test_a_circuit_that_is_not_enforced_does_not_spare_the_run(state: Any) -> None:
    """Rules that stop the run stop it; those of single calls, at admission and at the result, do not refuse."""
    world = World(SignatureFailures(2), FailureStreak(4))
    hold(world.state, "tool:a", state, "why", None)
    settled = [world.do("a", "failed") for _ in range(4)]
    assert [one.trip and one.trip.rule for one in settled] == [None, None, None, "failure_streak"]
    assert [one.would_trip and one.would_trip.rule for one in settled] == [
        None, "signature_failures" if state == "observe" else None, None, None,
    ]  # fmt: skip
    assert type(world.admit("b")) is Stop


def test_an_open_circuit_is_passed_while_it_is_not_enforced() -> None:
    """And refuses again where the hold has ended."""
    world = World(Breaker("signature", None))
    world.do("a", "failed")
    hold(world.state, "tool:a", "disabled", "why", 5.0)
    assert type(world.admit("a")) is Permit
    world.at = 5.0
    assert type(world.admit("a")) is Refuse


def test_rules_that_a_tool_is_spared_do_not_judge_it() -> None:
    """Limit 0 is off, for that rule and tool only; another limit is that limit."""
    spared = Overrides("a", {"repeat_guard": 0, "failure_streak": 3})
    world = World(RepeatGuard(2), FailureStreak(2))
    assert [world.do("a", "failed", overrides=spared).trip for _ in range(2)] == [None, None]
    assert world.do("a", "failed", overrides=spared).trip.rule == "failure_streak"
    world = World(CallCeiling(tools={"a": 0}))
    assert type(world.admit("a", overrides=Overrides("a", {"call_ceiling": 0}))) is Permit
    assert type(world.admit("a")) is Refuse


# ------------------------------------------------------------------------------------------------ money


class Meter:
    """Says what it is told at each amount."""

    name = "meter"

    def __init__(self, **finding: Any) -> None:
        self.finding = finding

    def on_cost(self, mine: Any, run: Any, amount: float) -> "Finding | None":
        mine["spent"] = mine.get("spent", 0.0) + amount
        return Finding(self.name, **self.finding) if amount else None


def test_a_cost_is_noted_in_its_run() -> None:
    """A run that is new is placed under the one that started it; the trip names no call."""
    world = World(Cost(2.0))
    world.chain.cost(world.state, "r", 1.0)
    assert world.chain.cost(world.state, "c", 0.5, above="r").warned == ("cost",)
    trip: Any = world.chain.cost(world.state, "c", 0.5).trip
    assert (trip.rule, trip.run_id, trip.tool, trip.at_call) == ("cost", "c", None, 0)
    assert type(world.admit("a", "r")) is Stop
    assert world.chain.cost(world.state, "r", 9.0).trip is None


@pytest.mark.parametrize(
    ("finding", "warned"), [({"share": 0.5}, True), ({"share": 2.0, "nudge": "dear"}, True), ({"share": 1.0}, False)]
)
def test_what_a_cost_warns_of(finding: "dict[str, Any]", warned: bool) -> None:
    """All rules are heard; a stop holds from the next call on."""
    world = World(Meter(**finding), Meter(share=0.6))
    settled = world.chain.cost(world.state, "r", 1.0)
    assert settled.warned == (("meter", "meter") if warned else ())
    assert (settled.trip is None, type(world.admit()) is Permit) == (warned, warned)
    assert world.chain.cost(world.state, "r", 0.0).warned == ()


def test_costs_of_a_stopped_session_warn_nobody() -> None:
    """They are noted all the same."""
    world = World(Meter(share=0.5))
    world.chain.stop(world.state, "enough")
    settled = world.chain.cost(world.state, "r", 1.0)
    assert (settled.warned, settled.trip, world.state.runs["r"].rules["meter"]) == ((), None, {"spent": 1.0})


def test_observing_says_the_first_rule_that_a_cost_would_have_tripped() -> None:
    """Once; nothing is stopped."""
    world = World(Meter(), Cost(1.0), observe=True)
    one = world.chain.cost(world.state, "r", 2.0)
    assert (one.trip, one.would_trip and one.would_trip.rule, one.warned) == (None, "meter", ())
    assert world.chain.cost(world.state, "r", 2.0).would_trip.rule == "cost"  # type: ignore[union-attr]
    assert type(world.admit()) is Permit


# ------------------------------------------------------------------------------------------------ the report


def test_the_report_adds_up_over_runs() -> None:
    """Nudges by rule, refusals, what runs; each trip once, with or without statistics in the chain."""
    nudging: list[Any] = [FailureStreak(1, on_limit="nudge")]
    world = World(*nudging, CallCeiling(tools={"x": 0}))
    for run in ("r", "q", "q"):
        world.do("a", "failed", run=run)
    for run in ("r", "q"):
        world.admit("x", run)
    world.admit("b", "r")
    report = world.chain.report(world.state)
    assert (report["nudges"], report["refused"], report["in_flight"], report["calls"]) == (
        {"failure_streak": 3},
        2,
        1,
        4,
    )
    assert [(trip["rule"], trip["run_id"]) for trip in report["trips"]] == [
        ("call_ceiling", "r"),
        ("call_ceiling", "q"),
    ]
    world.chain.stop(world.state, "enough")
    assert world.trips() == ["call_ceiling", "call_ceiling", "session.stop"]


def test_the_report_has_the_parts_of_all_rules() -> None:
    """Those of each run, or of the session where the rule lasts; a rule that has no state yet reports too."""
    world = World(RepeatGuard(9), ToolStats(), Cost(9.0))
    assert world.chain.report(world.state)["longest_repeat"] == {"period": 0, "laps": 0}
    for run in ("r", "q"):
        world.do("a", run=run)
        world.do("a", run=run)
        world.chain.cost(world.state, run, 1.5)
    report = world.chain.report(world.state)
    assert (report["longest_repeat"], report["cost"], report["calls"]) == ({"period": 1, "laps": 2}, 3.0, 4)


def test_a_retry_is_told_to_the_rules_of_its_run() -> None:
    """Of what kind, and which it was."""
    world = World(Breaker())
    world.chain.retry(world.state, "q", "rate_limit", 3)
    assert {name: run.rules for name, run in world.state.runs.items()} == {
        "q": {"breaker": {"told": ("rate_limit", 3)}}
    }


def test_what_rules_compare_is_asked_for_by_the_chain() -> None:
    """All of it, once."""
    assert World(RepeatGuard(2), SignatureFailures(2), Breaker()).chain.needs == {"volatile", "class"}
