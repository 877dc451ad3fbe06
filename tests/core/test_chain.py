"""The chain over the state: latches, nested runs, pauses, late results, stop and reset, observe mode."""

import json
import random

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit, Refuse, Stop
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.cost import Cost
from otel_toolguard.core.plugins.deadline import Deadline
from otel_toolguard.core.plugins.depth import Depth
from otel_toolguard.core.plugins.distinct_ratio import DistinctRatio
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.file_edits import FileEdits
from otel_toolguard.core.plugins.max_in_flight import MaxInFlight
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.plugins.tool_stats import ToolStats
from otel_toolguard.core.state import SessionState

OK = ("ok", "x")


class World:
    """One session under one chain; calls are named by their tool."""

    def __init__(self, *plugins, **options):
        self.chain, self.state = Chain(plugins, **options), SessionState("s")

    def admit(self, tool="a", run="r", above=None, **more):
        self.call = ToolCall(tool, f"{tool}:1", **more)
        return self.chain.admit(self.state, run, self.call, above=above)

    def settle(self, permit, kind="ok", result="x", run="r", call=None):
        outcome = Outcome(kind, exact=result, volatile=result, digits=result)
        return self.chain.settle(self.state, run, permit.number, call or self.call, outcome)

    def do(self, tool="a", kind="ok", result="x", run="r", **more):
        """Admits and settles; returns the refusal, the trip, or None."""
        admission = self.admit(tool, run, **more)
        if isinstance(admission, Refuse):
            return admission
        return self.settle(admission, kind, result, run).trip


def test_the_first_plugin_that_finds_names_the_trip():
    """Order is judgement: of two rules that fire on one call the first one is on the record, once."""
    for plugins, rule in (
        ((FailureStreak(2), RepeatGuard(2)), "failure_streak"),
        ((RepeatGuard(2), FailureStreak(2)), "repeat_guard"),
    ):
        world = World(*plugins)
        assert world.do(kind="failed") is None
        assert world.do(kind="failed").rule == rule
        assert [trip["rule"] for trip in world.chain.report(world.state)["trips"]] == [rule]


def test_an_empty_chain_lets_everything_run():
    """Without plugins nothing is ever refused, and the report still has its common part."""
    world = World()
    assert all(world.do() is None for _ in range(100))
    nothing = {"retries": 0, "longest_fail_streak": 0, "tools": {}, "classes": {}, "refused": 0, "nudges": {}}
    assert world.chain.report(world.state) == {"calls": 100, **nothing, "in_flight": 0, "trips": []}


def test_the_call_that_trips_runs_and_the_next_is_stopped():
    """A trip on a result is returned with it; the next admission, of any tool, is a stop."""
    world = World(RepeatGuard(2))
    assert world.do() is None
    trip = world.do()
    assert (trip.rule, trip.at_call, trip.run_id, trip.session_id) == ("repeat_guard", 2, "r", "s")
    for nth in (1, 2):
        refused = world.do("b")
        assert (type(refused), refused.trip, refused.fresh, refused.nth) == (Stop, trip, False, nth)


def test_a_refusal_of_a_tool_leaves_siblings_alone():
    """Scope tool: the exception's kind is the plain one, other tools go on, and the circuit refuses again."""
    world = World(CallCeiling(tools={"a": 1}))
    assert world.do() is None
    refused = world.do()
    assert (type(refused), refused.trip.scope, refused.fresh, refused.run_calls) == (Refuse, "tool", True, 1)
    assert world.do("b") is None
    again = world.do()
    assert (again.trip.id, again.fresh, again.nth) == (refused.trip.id, False, 2)


def test_refusals_consume_no_ceiling():
    """Refused calls are counted apart."""
    world = World(CallCeiling(run=3, tools={"a": 1}))
    world.do()
    for _ in range(10):
        assert type(world.do()) is Refuse
    assert [world.do("b") for _ in range(2)] == [None, None]
    assert world.do("b").trip.scope == "run"
    assert world.chain.report(world.state)["refused"] == 11


def test_links_are_asked_for_when_a_circuit_opens():
    """The link of the call that opened a circuit is kept for later refusals, and asked for only then."""
    world, asked = World(CallCeiling(tools={"a": 1})), []

    def link():
        asked.append(1)
        return "span"

    permit = world.chain.admit(world.state, "r", ToolCall("a", "a:1"), link=link)
    world.settle(permit, call=ToolCall("a", "a:1"))
    refusals = [world.chain.admit(world.state, "r", ToolCall("a", "a:1"), link=link) for _ in range(3)]
    assert [refused.link for refused in refusals] == [None, "span", "span"]
    assert asked == [1]


def test_calls_in_flight_are_on_the_trip():
    """A stop lists what was running, by class and risk, without the call that tripped."""
    world = World(RepeatGuard(2))
    hung = world.admit("w", tool_class="write", risk="irreversible")
    world.do()
    trip = world.do()
    assert [(call.tool, call.tool_class, call.risk) for call in trip.in_flight] == [("w", "write", "irreversible")]
    assert world.settle(hung).trip is None


def test_calls_in_flight_in_other_runs_are_on_the_trip():
    """What runs in another run of the session is listed as well, even where it alone left no place."""
    world = World(MaxInFlight(1, scope="session"))
    world.admit("w", tool_class="write", run="other")
    refused = world.admit("a")
    assert [call.tool for call in refused.circuit.trip.in_flight] == ["w"]


# ------------------------------------------------------------------------------------------------ latch


@pytest.mark.parametrize(("lasting", "kinds"), [(False, [Stop, Permit]), (True, [Stop, Stop])])
def test_a_stop_ends_with_its_run_unless_it_is_latched_for_the_session(lasting, kinds):
    """latch="run": the next run starts clean; latch="session": it is stopped too, until a reset."""
    world = World(RepeatGuard(2), lasting_stop=lasting)
    world.do()
    world.do()
    assert [type(world.admit(run=run)) for run in ("r", "next")] == kinds
    world.chain.reset(world.state, ceilings=False)
    assert isinstance(world.admit(run="third"), Permit)


# ------------------------------------------------------------------------------------------------ nesting


@pytest.mark.parametrize("ceiling", [{"run": 5}, {"tools": {"a": 5}}, {"classes": {"other": 5}}, {"signature": 5}])
def test_nested_runs_draw_from_the_ceilings_of_all_ancestors(ceiling):
    """Five calls in all may start in a tree, wherever in it they are asked for."""
    world = World(CallCeiling(**ceiling))
    ran = [
        world.do(run=run, above=above) for run, above in [("r", None), ("c", "r"), ("g", "c"), ("c", None), ("d", "r")]
    ]
    assert ran == [None] * 5
    for run in ("g", "r", "c", "d"):
        assert isinstance(world.do(run=run), Refuse), run
    assert world.do(run="other") is None


def test_siblings_do_not_draw_from_each_other():
    """Runs beside each other have ceilings of their own."""
    world = World(CallCeiling(run=2))
    assert [world.do(run=run) for run in "xyxy"] == [None] * 4
    assert isinstance(world.do(run="x"), Stop)


def test_rings_are_not_shared_with_nested_runs():
    """Equal calls in a run and one nested in it are no laps of one loop."""
    world = World(RepeatGuard(3))
    for run, above in [("r", None), ("c", "r")] * 2:
        assert world.do(run=run, above=above) is None
    assert world.do(run="c").rule == "repeat_guard"


def test_a_stop_in_a_nested_run_stops_the_tree():
    """Ancestors, brothers and later descendants are all stopped by the one trip; another run is not."""
    world = World(RepeatGuard(2))
    world.do("p", run="r")
    world.do("q", run="brother", above="r")
    world.do(run="c", above="r")
    trip = world.do(run="c")
    for run, above in [("r", None), ("c", "r"), ("brother", "r"), ("later", "c"), ("later2", "r")]:
        refused = world.do("z", run=run, above=above)
        assert (type(refused), refused.trip.id) == (Stop, trip.id), run
    assert world.do("z", run="other") is None
    assert [t["id"] for t in world.chain.report(world.state)["trips"]] == [trip.id]


def test_results_after_a_stop_elsewhere_open_no_second_circuit():
    """What was running in a brother when the tree was stopped ends without a trip of its own."""
    world = World(RepeatGuard(2))
    world.do("root", run="r")
    world.do("b", run="brother", above="r")
    late = world.admit("b", run="brother")
    call = world.call
    world.do(run="c", above="r")
    trip = world.do(run="c")
    assert world.settle(late, run="brother", call=call).trip is None
    assert world.do(run="brother").trip.id == trip.id


def test_adopt_stops_the_run_of_another_session():
    """A stop in a session nested inside a call stops the outer tree, but only when enforcing."""
    trip = World(RepeatGuard(2)).chain.stop(SessionState("inner"), "why")
    for observe, kind in ((False, Stop), (True, Permit)):
        world = World(RepeatGuard(2), observe=observe)
        world.do(run="r")
        world.do(run="c", above="r")
        world.chain.adopt(world.state, "c", trip)
        world.chain.adopt(world.state, "unknown", trip)
        assert type(world.admit("z", run="r")) is kind


# ------------------------------------------------------------------------------------------------ pauses and late results


def test_an_interrupted_call_resumed_by_its_id_is_counted_once():
    """The approved call runs under a ceiling of one; a second call does not, nor does the same id twice."""
    world = World(CallCeiling(run=1), ToolStats())
    first = world.admit(call_id="c1")
    assert world.settle(first, "interrupted").trip is None
    assert isinstance(world.admit(call_id="c2"), Stop)
    world.state.runs["r"].stop = None
    resumed = world.admit(call_id="c1")
    assert (type(resumed), resumed.run_calls, resumed.session_calls) == (Permit, 1, 1)
    world.settle(resumed)
    assert isinstance(world.admit(call_id="c1"), Stop)
    assert world.chain.report(world.state)["calls"] == 1


def test_a_pause_is_no_lap_and_hides_no_result():
    """What ended beside an interrupted call is judged at once, and the interruption itself is not judged."""
    world = World(RepeatGuard(2), ToolStats())
    one, call = world.admit("a"), world.call
    two = world.admit("b", call_id="c")
    assert world.settle(one, call=call).trip is None
    world.settle(two, "interrupted")
    assert world.chain.report(world.state)["calls"] == 1
    assert world.do("a").rule == "repeat_guard"


def test_a_resumed_call_is_refused_by_a_stop():
    """Being approved does not outrank a latched stop."""
    world = World()
    world.settle(world.admit(call_id="c"), "interrupted")
    world.chain.stop(world.state, "enough")
    assert isinstance(world.admit(call_id="c"), Stop)


def test_a_late_result_opens_and_closes_nothing():
    """A result from before a reset, of an unknown run, or settled twice changes no state and trips nothing."""
    world = World(RepeatGuard(2), FailureStreak(1))
    late = world.admit()
    call = world.call
    world.chain.reset(world.state, ceilings=False)
    before = json.dumps(world.state.to_plain())
    assert world.settle(late, "failed", call=call).trip is None
    assert world.settle(late, "failed", run="unknown", call=call).trip is None
    assert json.dumps(world.state.to_plain()) == before
    fresh = world.admit()
    assert fresh.number != late.number
    world.settle(fresh)
    assert world.settle(fresh, "failed").trip is None


# ------------------------------------------------------------------------------------------------ stop and reset


def test_stop_holds_for_every_run_until_reset():
    """An operator's stop refuses in open, nested and new runs, keeps its first reason, and a reset lifts it."""
    world = World(ToolStats())
    world.do()
    running = world.admit("w")
    trip = world.chain.stop(world.state, "on fire")
    assert (trip.rule, trip.scope, trip.loop_type, trip.tool, trip.run_id) == (
        "session.stop",
        "session",
        "stopped_by_operator",
        None,
        None,
    )
    assert "on fire" in trip.why
    assert [call.tool for call in trip.in_flight] == ["w"]
    assert world.chain.stop(world.state, "again") is trip
    for run, above in (("r", None), ("c", "r"), ("new", None)):
        assert world.admit(run=run, above=above).trip is trip
    world.settle(running, call=ToolCall("w", "w:1"))
    assert [t["id"] for t in world.chain.report(world.state)["trips"]] == [trip.id]
    world.chain.reset(world.state, ceilings=False)
    assert world.do() is None


def test_stop_works_before_the_first_call():
    """A session can be stopped before anything ran."""
    world = World()
    assert world.chain.stop(world.state, "no").at_call == 0
    assert isinstance(world.admit(), Stop)


@pytest.mark.parametrize(("ceilings", "left"), [(False, 0), (True, 2)])
def test_reset_clears_rings_streaks_and_refusals_and_ceilings_only_if_asked(ceilings, left):
    """After a reset laps, streaks, circuits and refusals start at zero; the ceiling's count only with ceilings=True."""
    world = World(RepeatGuard(3), FailureStreak(3), CallCeiling(run=2, tools={"t": 1}), MaxRefusals(2))
    world.do("t", kind="failed")
    assert type(world.do("t")) is Refuse
    world.do("u", kind="failed")
    world.chain.reset(world.state, ceilings=ceilings)
    run = world.state.runs["r"]
    assert (run.refusals, run.refused_in_row, run.circuits, run.rules, run.stop) == (0, 0, {}, {}, None)
    assert [world.do(f"v{i}") for i in range(left)] == [None] * left
    assert world.do("z").trip.scope == "run"


def test_trips_after_a_reset_have_ids_of_their_own():
    """The same ceiling trips again after a reset, under another id."""
    world = World(CallCeiling(run=1))
    world.do()
    first = world.do().trip
    world.chain.reset(world.state, ceilings=False)
    world.state.audit.append({"action": "reset"})
    assert world.do().trip.id != first.id


# ------------------------------------------------------------------------------------------------ observe


def test_observe_refuses_nothing_and_says_each_rule_once():
    """In observe mode every call runs; each rule says once per run what it would have stopped."""
    world = World(RepeatGuard(2), CallCeiling(run=4, tools={"a": 3}), MaxRefusals(1), observe=True)
    said = []
    for _ in range(20):
        permit = world.admit()
        assert isinstance(permit, Permit)
        settled = world.settle(permit)
        assert settled.trip is None
        said += [(trip.rule, trip.at_call) for trip in (permit.would_trip, settled.would_trip) if trip]
    assert said == [("repeat_guard", 2), ("call_ceiling", 3)]
    assert world.state.calls == 20
    assert world.do(run="next") is None
    assert world.chain.report(world.state)["trips"] == []


# ------------------------------------------------------------------------------------------------ the rest


def test_retries_reach_every_plugin_that_listens():
    """A retry that the host reports is counted, in a run that is known or new."""
    world = World(RepeatGuard(2), ToolStats())
    for attempt in (1, 2):
        world.chain.retry(world.state, "r", "rate_limit", attempt)
    assert world.chain.report(world.state)["retries"] == 2


def test_a_plugin_may_leave_out_every_hook():
    """A third party's rule needs no more than a name."""
    bare = type("Bare", (), {"name": "bare"})()
    world = World(bare)
    assert world.do() is None
    world.chain.retry(world.state, "r", "k", 1)
    assert world.chain.report(world.state)["trips"] == []


def test_tool_stats_hears_of_results_after_a_stop():
    """What was running when the run was stopped is still counted when it ends."""
    world = World(RepeatGuard(2), ToolStats())
    hung = world.admit("w")
    world.do()
    world.do()
    world.settle(hung, call=ToolCall("w", "w:1"))
    assert world.chain.report(world.state)["calls"] == 3


# ------------------------------------------------------------------------------------------------ nudges


def nudges(world, count=1, **call):
    """For each call the rules by which the model was told something."""
    said = []
    for _ in range(count):
        permit = world.admit(**call)
        settled = world.settle(permit, "failed")
        said.append(tuple(nudge.rule for nudge in permit.nudges + settled.nudges))
        assert {nudge.rule for nudge in permit.nudges} <= set(permit.warned)
        assert {nudge.rule for nudge in settled.nudges} <= set(settled.warned)
    return said


def test_warnings_nudge_at_half_and_at_three_quarters():
    """Once at each, of whatever rule, in the words of its advice; the limit itself still stops, and the report counts."""
    world = World(FailureStreak(8), nudge_on_warn=True)
    assert [len(said) for said in nudges(world, 7)] == [0, 0, 0, 1, 0, 1, 0]
    assert world.do(kind="failed").rule == "failure_streak"
    assert world.chain.report(world.state)["nudges"] == {"failure_streak": 2}
    world = World(CallCeiling(run=4), nudge_on_warn=True)
    permits = [world.admit() for _ in range(4)]
    assert [[nudge.text for nudge in permit.nudges] for permit in permits] == [
        [],
        [],
        [CallCeiling.advice],
        [CallCeiling.advice],
    ]
    assert type(world.admit()) is Stop


def test_a_streak_that_starts_again_warns_again():
    """Below what was told, the stages begin anew."""
    world = World(FailureStreak(4), nudge_on_warn=True)
    assert [len(said) for said in nudges(world, 3)] == [0, 1, 1]
    world.do()
    assert [len(said) for said in nudges(world, 3)] == [0, 1, 1]


def test_warnings_do_not_nudge_unless_asked_to():
    """By default a warning is on the span only."""
    world = World(FailureStreak(4))
    assert nudges(world, 3) == [(), (), ()]
    assert world.chain.report(world.state)["nudges"] == {}


@pytest.mark.parametrize("rule", [FailureStreak(2, on_limit="nudge"), RepeatGuard(2, on_limit="nudge")])
def test_a_nudge_leaves_every_circuit_closed(rule):
    """However often the model is told, every call runs; a reset clears the numbers."""
    world = World(rule)
    assert [len(said) for said in nudges(world, 8)] == [0, 1] * 4
    report = world.chain.report(world.state)
    assert (report["nudges"], report["trips"], report["refused"]) == ({rule.name: 4}, [], 0)
    world.chain.reset(world.state, ceilings=False)
    assert world.chain.report(world.state)["nudges"] == {}


def test_observing_nudges_nobody():
    """In observe mode the model is told nothing; the warning is still on the span."""
    world = World(FailureStreak(2, on_limit="nudge"), observe=True, nudge_on_warn=True)
    permit = world.admit()
    world.settle(permit, "failed")
    settled = world.settle(world.admit(), "failed")
    assert (settled.nudges, settled.warned, settled.would_trip) == ((), ("failure_streak",), None)
    assert world.chain.report(world.state)["nudges"] == {}


def test_what_waited_for_its_siblings_nudges_at_the_next_call():
    """A batch that is judged when the next call starts tells the model beside that call's result."""
    world = World(FailureStreak(1, on_limit="nudge"))
    first, call = world.admit("a"), world.call
    world.admit("b")
    world.settle(first, "failed", call=call)
    assert [nudge.rule for nudge in world.admit("c").nudges] == ["failure_streak"]


def test_a_rule_s_own_words_are_cut_at_300_characters():
    """However long a third party's sentence is."""
    from otel_toolguard.core.decision import Finding

    class Chatty:
        name = "chatty"

        def admit(self, mine, run, call):
            return Finding("chatty", nudge="x" * 1000)

    assert len(World(Chatty()).admit().nudges[0].text) == 300


# ------------------------------------------------------------------------------------------------ plain data


def every_rule():
    return Chain(
        [
            FileEdits(3, on_limit="nudge"), RepeatGuard(3, on_limit="nudge"), DistinctRatio(3), Deadline(40),
            Cost(30.0, scope="session"), Depth(2), MaxInFlight(3), FailureStreak(4, on_limit="nudge"),
            SignatureFailures(2, cooldown=5), CallCeiling(run=30, tools={"a": 9}), MaxRefusals(6), ToolStats(),
        ],
        nudge_on_warn=True,
    )  # fmt: skip


def verdicts(seed, *, disturb):
    """What a chain of all rules says to a random session; with ``disturb`` the state goes through JSON before each step."""
    chance, chain, state, open_, said = random.Random(seed), every_rule(), SessionState("s"), [], []
    for at in range(120):
        if disturb:
            state = SessionState.from_plain(json.loads(json.dumps(state.to_plain())))
        run, above = chance.choice([("r", None), ("r", None), ("c", "r"), ("g", "c"), ("q", None)])
        step, tool, number = chance.choice("aaaaassssspzr"), chance.choice(["a", "edit_b"]), chance.randrange(3)
        if step == "a":
            call = ToolCall(tool, f"{tool}:{number}", tool_class="write", arguments={"path": f"f{number}"})
            admission = chain.admit(state, run, call, above=above, at=float(at))
            if isinstance(admission, Permit):
                open_.append((run, admission.number, call))
                said.append((admission.warned, admission.nudges))
            else:
                said.append((admission.trip.to_dict(), admission.fresh, admission.nth))
        elif step == "s" and open_:
            run, place, call = open_.pop(chance.randrange(len(open_)))
            call = ToolCall.from_plain(call.to_plain())  # without its arguments, as where it waited in a shared store
            outcome = Outcome(chance.choice(["ok", "failed", "failed"]), failure="permanent", exact="e", volatile="e")
            settled = chain.settle(state, run, place, call, outcome, at=float(at))
            said.append((settled.trip, settled.warned, settled.nudges, settled.repeat_count))
        elif step == "p":
            said.append(chain.cost(state, run, 1.5, above=above, at=float(at)).trip)
        elif step == "z" and not state.raised:
            chain.plugins[9].raise_to(state, "tools.a", 12, "why", until=at + 9.0, at=float(at))
        elif step == "r" and number == 0:
            chain.reset(state, ceilings=bool(at % 2))
    return said, state.to_plain(), chain.report(state)


@pytest.mark.parametrize("seed", range(40))
def test_every_rule_keeps_plain_data_only(seed):
    """A state that went through JSON at every step judges and ends like its undisturbed twin, with all rules in one chain."""
    assert verdicts(seed, disturb=True) == verdicts(seed, disturb=False)
