"""The chain to the letter: what each answer carries, what is remembered how long, who is asked and who is not."""

from typing import Any

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Finding, Nudge, Permit, Refuse, Settled, Stop
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.deadline import Deadline
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.state import PAUSED_KEPT, SPARED_MOST, SessionState


class Says:
    """Finds what it is told to find, by tool, at the hooks that it is told to have."""

    def __init__(self, name: str = "says", **hooks: Any) -> None:
        self.name, self.heard = name, []  # type: ignore[var-annotated]
        for hook, findings in hooks.items():
            setattr(self, hook, lambda *args, findings=findings: self._found(findings, args))

    def _found(self, findings: "dict[str, dict[str, Any]]", args: Any) -> "Finding | None":
        call = args[2]
        if isinstance(args[-1], bool):  # a refusal, and whether it counted
            self.heard.append(args[-1])
        known = findings.get(call.tool, findings.get("*"))
        return None if known is None else Finding(self.name, **known)


class World:
    """One session under one chain."""

    def __init__(self, *plugins: Any, **options: Any) -> None:
        self.chain, self.state, self.at = Chain(plugins, **options), SessionState("s"), 0.0

    def admit(self, tool: str = "a", run: str = "r", above: "str | None" = None, link: Any = None, **more: Any) -> Any:
        number = more.pop("number", 1)
        self.call = ToolCall(tool, f"{tool}:{number}", **more)
        return self.chain.admit(self.state, run, self.call, above=above, link=link, at=self.at)

    def settle(self, permit: Any, kind: Any = "ok", *, run: str = "r", call: Any = None, link: Any = None) -> Settled:
        outcome = Outcome(kind, failure="permanent" if kind == "failed" else None, exact="x", volatile="x")
        return self.chain.settle(self.state, run, permit.number, call or self.call, outcome, link, self.at)

    def do(self, tool: str = "a", kind: Any = "ok", *, run: str = "r", **more: Any) -> Any:
        """The refusal, or what the result settled."""
        admission = self.admit(tool, run, **more)
        return admission if isinstance(admission, Refuse) else self.settle(admission, kind, run=run)

    def trips(self) -> list[str]:
        return [trip["rule"] for trip in self.chain.report(self.state)["trips"]]


# ------------------------------------------------------------------------------------------------ admission


def test_a_permit_counts_this_call() -> None:
    """Its number, the calls of its signature and run, and those of the session."""
    world = World()
    world.do("a")
    world.do("a", run="q")
    world.do("b")
    permit = world.admit("a")
    assert (permit.number, permit.signature_calls, permit.run_calls, permit.session_calls) == (3, 2, 3, 4)
    assert (permit.warned, permit.nudges, permit.would_trip) == ((), (), None)


def test_a_refusal_counts_the_calls_before_it() -> None:
    """Those that were admitted, and how often its circuit has refused."""
    world = World(CallCeiling(tools={"a": 2}))
    for _ in range(2):
        world.do("a")
    world.do("b", run="q")
    refusals = [world.admit("a") for _ in range(3)]
    for nth, refused in enumerate(refusals, 1):
        assert (refused.nth, refused.signature_calls, refused.run_calls, refused.session_calls) == (nth, 2, 2, 3)
        assert (refused.fresh, refused.opened, refused.trip.tool) == (nth == 1, None, "a")
    assert world.chain.report(world.state)["refused"] == 3


def test_warnings_of_all_rules_come_with_the_permit_in_order() -> None:
    """Each rule that warns is named, until one refuses."""
    half = {"*": {"share": 0.5}}
    world = World(
        Says("one", admit=half),
        Says("two", admit={"b": {"share": 0.9}}),
        Says("three", admit={**half, "b": {"scope": "tool"}}),
    )
    assert world.admit("a").warned == ("one", "three")
    refused = world.admit("b")
    assert (type(refused), refused.trip.rule, refused.trip.scope) == (Refuse, "three", "tool")


def test_a_rule_s_words_come_with_the_permit_even_beyond_its_limit() -> None:
    """A finding with a nudge opens nothing, whatever its share."""
    world = World(
        Says("one", admit={"*": {"share": 3.0, "nudge": "look up"}}), Says("two", admit={"*": {"share": 0.2}})
    )
    permit = world.admit()
    assert (permit.warned, permit.nudges) == (("one", "two"), (Nudge("one", "look up"),))
    assert world.chain.report(world.state)["nudges"] == {"one": 1}


def test_the_first_of_two_rules_that_would_have_refused_is_said() -> None:
    """Observing, one call names one trip; the other rule is not said again later."""
    world = World(Says("one", admit={"a": {}}), Says("two", admit={"*": {}}), observe=True)
    first, second = world.admit("a").would_trip, world.admit("b").would_trip
    assert (first.rule, first.tool, first.signature, first.run_id) == ("one", "a", "a:1", "r")
    assert second.rule == "two"
    assert world.admit("a").would_trip is None


def test_a_passing_finding_refuses_this_call_only() -> None:
    """Nothing is opened: the next call of the tool is judged afresh."""
    world = World(Says(admit={"b": {"passing": True, "scope": "signature", "why": "busy"}}))
    for _ in range(2):
        refused = world.admit("b")
        assert (type(refused), refused.fresh, refused.nth, refused.trip.why) == (Refuse, False, 1, "busy")
        assert (refused.trip.tool, refused.trip.signature) == ("b", "b:1")
    assert world.trips() == []


def test_a_new_run_is_placed_under_the_run_that_started_it() -> None:
    """Only where it is new, and only if that run is known."""
    world = World()
    world.admit(run="r")
    world.admit(run="c", above="r")
    world.admit(run="c", above="q")
    world.admit(run="x", above="unknown")
    above = {name: run.above.id if run.above else None for name, run in world.state.runs.items()}
    assert above == {"r": None, "c": "r", "x": None}


def test_links_are_asked_for_by_the_call_that_opens_a_circuit() -> None:
    """Of the call's own circuit and of the stop that its refusal brings about; never for one that is open already."""
    asked: list[str] = []

    def link() -> str:
        asked.append("link")
        return f"span {len(asked)}"

    world = World(CallCeiling(tools={"a": 0}), MaxRefusals(2))
    refusals = [world.admit("a", link=link) for _ in range(3)]
    assert asked == ["link", "link"]
    assert [refused.circuit.link for refused in refusals] == ["span 1", "span 1", "span 2"]
    assert refusals[1].opened.link == "span 2"
    assert type(refusals[2]) is Stop


def test_a_result_that_opens_a_circuit_is_asked_for_its_link() -> None:
    """And no other; without anybody to ask there is none."""
    for link, expected in ((lambda: "span", "span"), (None, None)):
        world = World(FailureStreak(2))
        world.settle(world.admit(), "failed", link=link)
        settled = world.settle(world.admit(), "failed", link=link)
        assert settled.trip is not None
        assert world.admit().circuit.link == expected


@pytest.mark.parametrize("timed", [True, False])
def test_the_time_is_told_where_a_rule_or_a_raised_ceiling_asks_for_it(timed: bool) -> None:
    """At admission, at the result, at the end of a turn; for costs always."""
    world = World(*([Deadline(100)] if timed else []))
    seen = []
    for world.at, step in ((1.0, "admit"), (2.0, "settle"), (3.0, "close"), (4.0, "cost")):
        if step == "admit":
            permit = world.admit()
        elif step == "settle":
            world.settle(permit)
        elif step == "close":
            world.chain.close_batch(world.state, "r", world.at)
        else:
            world.chain.cost(world.state, "r", 1.0, at=world.at)
        seen.append(world.state.now)
    assert seen == ([1.0, 2.0, 3.0, 4.0] if timed else [0.0, 0.0, 0.0, 4.0])
    world.state.raised, world.at = [["run", 5, 9.0]], 5.0
    world.admit()
    assert (world.state.now, world.state.raised) == (5.0, [["run", 5, 9.0]])
    world.at = 9.0
    world.admit()
    assert world.state.raised == []


# ------------------------------------------------------------------------------------------------ results


def test_a_result_says_the_cycle_it_is_part_of() -> None:
    """Its length and laps, warned or not."""
    world = World(RepeatGuard(9))
    said = [(settled.repeat_length, settled.repeat_count) for settled in [world.do(tool) for tool in "ababab"]]
    assert said == [(0, 0), (0, 0), (0, 0), (2, 2), (2, 2), (2, 3)]


@pytest.mark.parametrize(("share", "warned"), [(0.49, ()), (0.5, ("says",)), (0.99, ("says",))])
def test_results_warn_from_a_half_on(share: float, warned: "tuple[str, ...]") -> None:
    """Less is nothing, the limit is a trip."""
    settled = World(Says(settle={"*": {"share": share}})).do()
    assert (settled.warned, settled.nudges, settled.trip, settled.would_trip) == (warned, (), None, None)


def test_all_warnings_of_a_result_are_said() -> None:
    """Rule by rule, with their words."""
    world = World(
        Says("one", settle={"*": {"share": 0.5}}),
        Says("two", settle={"*": {"share": 0.1, "nudge": "stop it"}}),
        Says("three", settle={"*": {"share": 0.6}}),
    )
    settled = world.do()
    assert (settled.warned, settled.nudges) == (("one", "two", "three"), (Nudge("two", "stop it"),))


def test_after_a_stop_the_other_rules_are_not_asked() -> None:
    """The first stop counts; a circuit of one call does not keep a later rule from stopping the run."""
    stop, single = {"*": {"scope": "run"}}, {"*": {"scope": "signature"}}
    assert World(Says("one", settle=stop), Says("two", settle=stop)).do().trip.rule == "one"
    world = World(Says("one", settle=single), Says("two", settle={"*": {"scope": "tool"}}))
    assert (world.do().trip.rule, sorted(world.trips())) == ("one", ["one", "two"])
    world = World(Says("one", settle=single), Says("two", settle=stop))
    assert (world.do().trip.rule, sorted(world.trips())) == ("two", ["one", "two"])


def test_an_open_circuit_is_not_opened_again() -> None:
    """A second result of the same call that was running meanwhile changes nothing about it."""
    world = World(Says(settle={"*": {"scope": "signature"}}))
    one, two = world.admit(), world.admit()
    assert world.settle(one).trip is None
    first = world.settle(two).trip
    assert first is not None
    assert world.admit().trip.id == first.id


def test_observing_says_the_call_whose_result_would_have_tripped() -> None:
    """Once per rule and run."""
    world = World(Says(settle={"*": {}}), observe=True)
    trip = world.do("b").would_trip
    assert (trip.rule, trip.tool, trip.signature) == ("says", "b", "b:1")
    assert world.do("b").would_trip is None
    assert world.do("b", run="q").would_trip.run_id == "q"


def test_what_waits_for_the_rest_of_a_turn_is_judged_when_the_turn_ends() -> None:
    """Siblings that never came: the results that did are judged, once."""
    for observe in (False, True):
        world = World(FailureStreak(1), observe=observe)
        assert world.do("a", "failed", batch="t", siblings=2).trip is None
        settled = world.chain.close_batch(world.state, "r")
        trip: Any = settled.would_trip if observe else settled.trip
        assert (trip.rule, trip.tool) == ("failure_streak", "a")
        assert (settled.trip is None, settled.would_trip is None) == (observe, not observe)
        assert world.chain.close_batch(world.state, "r").would_trip is None
        assert type(world.admit()) is (Permit if observe else Stop)


def test_the_end_of_a_turn_warns_and_knows_its_run() -> None:
    """Nothing waits in an unknown run, nor in one whose results were all judged."""
    world = World(Says(settle={"a": {"share": 0.5}}), Deadline(10))
    world.do("a", batch="t", siblings=2)
    world.at = 4.0
    assert world.chain.close_batch(world.state, "unknown").warned == ()
    assert world.chain.close_batch(world.state, "r", 6.0).warned == ("says", "deadline")
    assert (world.state.now, world.chain.close_batch(world.state, "r").warned) == (6.0, ())


def test_what_waited_is_judged_before_the_next_call_starts() -> None:
    """Its stop refuses that call; so does a circuit of that very call; a circuit of another lets it run."""
    for scope, tool, kind in (
        ("run", "b", Stop),
        ("tool", "a", Refuse),
        ("signature", "a", Refuse),
        ("tool", "b", Permit),
    ):
        world = World(Says(settle={"a": {"scope": scope}}), Says("warns", settle={"*": {"share": 0.7, "nudge": "hm"}}))
        one, call = world.admit("a"), world.call
        world.admit("z")
        world.settle(one, call=call)
        admission = world.admit(tool)
        assert type(admission) is kind, (scope, tool)
        if isinstance(admission, Refuse):
            assert (admission.fresh, admission.nth, admission.trip.rule) == (True, 1, "says")
        else:
            assert (admission.warned, admission.nudges) == (("warns",), (Nudge("warns", "hm"),))


def test_observing_says_what_waited_with_the_next_call() -> None:
    """What the next call itself would have tripped goes before."""
    for own, expected in ((None, "says"), ({"b": {}}, "first")):
        world = World(Says("first", admit=own or {"none": {}}), Says(settle={"a": {}}), observe=True)
        one, call = world.admit("a"), world.call
        world.admit("z")
        world.settle(one, call=call)
        assert world.admit("b").would_trip.rule == expected


def test_a_refusal_may_be_the_last_that_a_turn_waited_for() -> None:
    """The stop that the waiting results bring answers the refused sibling; a smaller circuit does not."""
    for scope, kind, rule in (("run", Stop, "says"), ("tool", Refuse, "call_ceiling")):
        world = World(CallCeiling(tools={"b": 0}), Says(settle={"a": {"scope": scope}}))
        assert world.do("a", batch="t", siblings=2).trip is None
        refused = world.admit("b", batch="t", siblings=2)
        assert (type(refused), refused.trip.rule, refused.fresh) == (kind, rule, True)
        assert "says" in world.trips()


# ------------------------------------------------------------------------------------------------ refusals


def test_refusals_are_told_to_rules_that_ask() -> None:
    """Whether each counted; not those of a stop."""
    listener = Says("listens", refused={"never": {}})
    world = World(CallCeiling(tools={"a": 0}), listener)
    for batch in ("t", "t", "u"):
        world.admit("a", batch=batch, siblings=9)
    assert listener.heard == [True, False, True]
    world.chain.stop(world.state, "enough")
    world.admit("a")
    assert listener.heard == [True, False, True]


@pytest.mark.parametrize(("share", "opens"), [(0.99, False), (1.0, True)])
def test_a_refusal_brings_about_one_stop_at_most(share: float, opens: bool) -> None:
    """The first rule that has had enough is on record, and only from its limit on."""
    world = World(
        CallCeiling(tools={"a": 0}), Says("one", refused={"*": {"share": share}}), Says("two", refused={"b": {}})
    )
    refused = world.admit("a")
    assert (refused.opened is not None) is opens
    assert type(world.admit("z")) is (Stop if opens else Permit)
    world = World(CallCeiling(tools={"a": 0}), Says("one", refused={"*": {}}), Says("two", refused={"*": {}}))
    assert (world.admit("a").opened.trip.rule, world.trips()) == ("one", ["call_ceiling", "one"])


def test_refusals_beside_a_running_call_count_once_up_to_a_bound() -> None:
    """64 may be siblings of what runs; whoever asks on and on is counted again."""
    listener = Says("listens", refused={"never": {}})
    world = World(CallCeiling(tools={"a": 0}), listener)
    world.admit("slow")
    for _ in range(2 * SPARED_MOST + 1):
        world.admit("a")
    assert [number for number, counted in enumerate(listener.heard) if counted] == [0, SPARED_MOST, 2 * SPARED_MOST]
    assert world.state.runs["r"].refused_in_row == 3


def test_refusals_of_a_named_turn_count_once_however_many() -> None:
    """Nor does anything else share their count."""
    listener = Says("listens", refused={"never": {}})
    world = World(CallCeiling(tools={"a": 0}), listener)
    for _ in range(3 * SPARED_MOST):
        world.admit("a", batch="t", siblings=999)
    world.admit("a")
    world.admit("a")
    assert [number for number, counted in enumerate(listener.heard) if counted] == [0, 192, 193]


def test_a_neutral_call_does_not_end_a_row_of_refusals() -> None:
    """Another call does."""
    world = World(CallCeiling(tools={"a": 0}))
    world.admit("a")
    world.do("think", neutral=True)
    assert world.state.runs["r"].refused_in_row == 1
    world.do("b")
    assert world.state.runs["r"].refused_in_row == 0


# ------------------------------------------------------------------------------------------------ pauses


def test_so_many_pauses_are_remembered() -> None:
    """With one more than that the oldest is forgotten: that call is counted when it is asked for again."""
    world = World()
    for number in range(PAUSED_KEPT + 1):
        world.settle(world.admit(number=number, call_id=f"c{number}"), "interrupted")
    before = world.state.calls
    world.admit(number=1, call_id="c1")
    assert world.state.calls == before
    world.admit(number=0, call_id="c0")
    assert world.state.calls == before + 1
    assert len(world.state.runs["r"].paused) == PAUSED_KEPT - 1


def test_a_call_without_an_id_is_not_resumed() -> None:
    """Nor does a pause of one that nobody can name keep a place."""
    world = World()
    world.settle(world.admit(), "interrupted")
    assert world.state.runs["r"].paused == []
    world.admit()
    assert world.state.calls == 2


def test_a_resumed_call_leaves_the_other_pauses_alone() -> None:
    """Its own is over, and the rules that admit are not asked a second time."""
    world = World(CallCeiling(run=2))
    for name in ("c1", "c2"):
        world.settle(world.admit(call_id=name), "interrupted")
    assert isinstance(world.admit(call_id="c1"), Permit)
    assert world.state.runs["r"].paused == ["c2"]
    assert isinstance(world.admit(call_id="c1"), Stop)
