"""Every limit at its edge: one step before it nothing, at it the trip, raised by one a step of the rule later.

Each row says how much of the limit is used after so many steps; where the rule trips, warns and tells follows from that.
"""

from __future__ import annotations

import itertools

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Refuse
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
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.plugins.stagnation import Stagnation
from otel_toolguard.core.state import SessionState

LIMITS = [2, 3, 4, 5, 8, 12, 20]
FAR = 10_000


class World:
    """One session; each step gives back what it tripped, would have tripped, and told the model."""

    def __init__(self, plugins, **options):
        self.chain, self.state = Chain(plugins, **options), SessionState("s")
        self.refused = 0

    def call(self, call, outcome=None, *, run="r", above=None, at=0.0, end=None, leave=False):
        admission = self.chain.admit(self.state, run, call, above=above, at=at)
        if isinstance(admission, Refuse):
            self.refused += 1
            return [admission.trip, *([admission.opened.trip] if admission.opened else [])], None, []
        if leave:
            return [], admission.would_trip, [nudge.rule for nudge in admission.nudges]
        outcome = outcome or Outcome("ok", exact="x", volatile="x", digits="x")
        settled = self.chain.settle(self.state, run, admission.number, call, outcome, at=at if end is None else end)
        told = [nudge.rule for nudge in (*admission.nudges, *settled.nudges)]
        return [settled.trip] if settled.trip else [], admission.would_trip or settled.would_trip, told

    def cost(self, amount):
        settled = self.chain.cost(self.state, "r", amount)
        return [settled.trip] if settled.trip else [], settled.would_trip, list(settled.warned)


def call(name="a", **more):
    return ToolCall(more.pop("tool", name), f"{name}:1", **{"tool_class": "read"} | more)


def ok(answer="x", exact=None, digits=None):
    return Outcome("ok", exact=exact or answer, volatile=answer, digits=digits or answer)


def bad(error="no", failure="permanent"):
    return Outcome("failed", failure=failure, exact=error, volatile=error, digits=error)


def word(k):
    return f"w{k}"


# Steps: a function of the world and the number of the step, from 1.


def turns(period, outcome=lambda k: ok(), **more):
    return lambda world, k: world.call(call("abcdefgh"[(k - 1) % period], **more), outcome(k))


def new_calls(outcome, **more):
    return lambda world, k: world.call(call(word(k), **{"tool": "t"} | more), outcome(k))


def in_turn(first, then):
    """Odd steps are ``first``, even ones ``then``."""
    return lambda world, k: (first if k % 2 else then)(world, k)


def laps(period):
    return lambda k: k // period if k // period > 1 else 0  # a first lap repeats nothing


def repeats(k):
    return sum(min(n, 3) for n in range(1, k))


def thirds(k):
    return k / 3


def every(k):
    return k


def before(k):
    return k - 1


failing = turns(1, lambda k: bad())
passing = turns(1, lambda k: bad(failure="transient"))
other_answer = lambda k: ok(word(k))  # noqa: E731
write = call("w", tool_class="write")

# name: rules of a limit, steps, what is used after (for ceilings: before) each step, what is allowed beyond the limit
ROWS = {
    "repeat_guard, one": (lambda n: [RepeatGuard(n)], turns(1), laps(1)),
    "repeat_guard, two": (lambda n: [RepeatGuard(n)], turns(2), laps(2)),
    "repeat_guard, three": (lambda n: [RepeatGuard(n)], turns(3), laps(3)),
    "repeat_guard, limits 1": (lambda n: [RepeatGuard(FAR, limits={1: n})], turns(1), laps(1)),
    "repeat_guard, limits 2": (lambda n: [RepeatGuard(FAR, limits={2: n})], turns(2), laps(2)),
    "repeat_guard, limits 3": (lambda n: [RepeatGuard(FAR, limits={3: n})], turns(3), laps(3)),
    "repeat_guard, five": (lambda n: [RepeatGuard(n, max_period=5)], turns(5), laps(5)),
    "repeat_guard, volatile": (
        lambda n: [RepeatGuard(n)], turns(1, lambda k: ok("x", exact=word(k), digits=word(k))), laps(1)),
    "repeat_guard, volatile write": (
        lambda n: [RepeatGuard(n)], turns(1, other_answer, tool_class="write"), laps(1)),
    "repeat_guard, exact": (
        lambda n: [RepeatGuard(n, compare="exact")],
        turns(1, lambda k: Outcome("ok", exact="x", volatile=word(k), digits=word(k)), tool_class="write"), laps(1)),
    "repeat_guard, call": (lambda n: [RepeatGuard(n, compare="call")], turns(1, other_answer), laps(1)),
    "repeat_guard, failed_limit": (lambda n: [RepeatGuard(FAR, failed_limit=n)], failing, laps(1)),
    "repeat_guard, failed_limit of two": (
        lambda n: [RepeatGuard(2, failed_limit=n)], turns(2, lambda k: bad()), laps(2)),
    "repeat_guard, any error": (
        lambda n: [RepeatGuard(n, same_error=False)], turns(1, lambda k: bad(word(k))), laps(1)),
    "repeat_guard, transient": (lambda n: [RepeatGuard(n)], passing, laps(1)),
    "stagnation, repeats": (lambda n: [Stagnation(n)], turns(1), repeats),
    "stagnation, numbers": (
        lambda n: [Stagnation(n)], turns(1, lambda k: ok(word(k), digits="w#")), lambda k: (k - 1) / 2),
    "stagnation, variants": (lambda n: [Stagnation(n)], new_calls(lambda k: ok(), shape="t#"), lambda k: (k - 1) / 2),
    "stagnation, new errors": (lambda n: [Stagnation(n)], new_calls(lambda k: bad(word(k))), lambda k: k / 2),
    "stagnation, known error": (lambda n: [Stagnation(n)], new_calls(lambda k: bad()), lambda k: k - 0.5),
    "stagnation, refused write": (
        lambda n: [Stagnation(n)], turns(1, lambda k: bad(word(k)), tool_class="write"), lambda k: k - 0.5),
    "stagnation, transient": (
        lambda n: [Stagnation(n)], new_calls(lambda k: bad(word(k), "transient")), lambda k: k / 6),
    "same_answer": (lambda n: [SameAnswer(n)], new_calls(lambda k: ok()), every),
    "same_answer, failed": (lambda n: [SameAnswer(n)], new_calls(lambda k: bad()), every),
    "failure_streak": (lambda n: [FailureStreak(n)], new_calls(lambda k: bad(word(k))), every),
    "failure_streak, another tool between": (
        lambda n: [FailureStreak(n)], in_turn(new_calls(lambda k: bad(word(k))), turns(1)), lambda k: (k + 1) // 2),
    "failure_streak, across_tools": (
        lambda n: [FailureStreak(n, across_tools=True)], turns(8, lambda k: bad(word(k))), every),
    "failure_streak, transient": (
        lambda n: [FailureStreak(n)], new_calls(lambda k: bad(word(k), "transient")), thirds),
    "signature_failures": (lambda n: [SignatureFailures(n)], failing, every),
    "signature_failures, transient": (lambda n: [SignatureFailures(n)], passing, thirds),
    "signature_failures, any error": (
        lambda n: [SignatureFailures(n, same_error=False)], turns(1, lambda k: bad(word(k))), every),
    "signature_failures, cumulative": (
        lambda n: [SignatureFailures(n, count="cumulative")], in_turn(failing, turns(1)), lambda k: (k + 1) // 2),
    "signature_failures, over writes": (
        lambda n: [SignatureFailures(n, clear_on_write=False)],
        in_turn(failing, lambda world, k: world.call(write)), lambda k: (k + 1) // 2),
    "call_ceiling, run": (lambda n: [CallCeiling(run=n)], turns(8), before),
    "call_ceiling, session": (
        lambda n: [CallCeiling(session=n)], lambda world, k: world.call(call(), run=f"r{k}"), before),
    "call_ceiling, tools": (lambda n: [CallCeiling(tools={"t*": n})], new_calls(other_answer), before),
    "call_ceiling, classes": (lambda n: [CallCeiling(classes={"read": n})], turns(1), before),
    "call_ceiling, signature": (lambda n: [CallCeiling(signature=n)], turns(1, other_answer), before),
    "max_refusals, limit": (lambda n: [CallCeiling(tools={"a": 1}), MaxRefusals(n)], turns(1), before),
    "max_refusals, total": (
        lambda n: [CallCeiling(tools={"a": 1}), MaxRefusals(FAR, total=n)],
        in_turn(turns(1), lambda world, k: world.call(call("b"))), lambda k: (k - 1) // 2),
    "file_edits": (
        lambda n: [FileEdits(n)],
        lambda world, k: world.call(call(word(k), tool="edit", tool_class="write", arguments={"path": "f"})), every),
    "deadline, asked": (lambda n: [Deadline(float(n))], lambda world, k: world.call(call(), at=k - 1.0), before),
    "deadline, ended": (
        lambda n: [Deadline(float(n))], lambda world, k: world.call(call(), at=0.0, end=float(k)), every),
    "deadline, session": (
        lambda n: [Deadline(float(n), scope="session")],
        lambda world, k: world.call(call(), run=f"r{k}", at=k - 1.0), before),
    "cost": (lambda n: [Cost(float(n))], lambda world, k: world.cost(1.0), every),
    "cost, tenths": (lambda n: [Cost(n / 10)], lambda world, k: world.cost(0.1), every),
    "cost, session": (lambda n: [Cost(float(n), scope="session")], lambda world, k: world.cost(1.0), every),
    "depth": (
        lambda n: [Depth(n)],
        lambda world, k: world.call(call(), run=f"r{k}", above=f"r{k - 1}", leave=True), every),
    "max_in_flight": (lambda n: [MaxInFlight(n)], lambda world, k: world.call(call(word(k)), leave=True), before),
    "max_in_flight, session": (
        lambda n: [MaxInFlight(n, scope="session")],
        lambda world, k: world.call(call(word(k)), run=f"r{k}", leave=True), before),
}  # fmt: skip
ALLOWED = {"file_edits", "depth"}  # so many are allowed, and it is the next one that trips
REFUSES = {
    "signature_failures": "signature", "call_ceiling, signature": "signature", "max_in_flight": "signature",
    "call_ceiling, tools": "tool", "call_ceiling, classes": "tool", "call_ceiling, session": "session",
    "deadline, session": "session", "cost, session": "session",
}  # fmt: skip
NO_WARNING = {"depth", "max_in_flight", "max_refusals"}  # there is nothing half way to any of them
SINGLE = {"call_ceiling, tools", "call_ceiling, classes", "call_ceiling, signature"}  # ceilings of single calls
MANY_RUNS = {"call_ceiling, session", "deadline, session", "depth", "max_in_flight, session"}  # one for each step
THIRDS = {"stagnation, transient", "failure_streak, transient", "signature_failures, transient"}


def rule_of(name):
    return name.partition(",")[0]


def needed(name, limit):
    return limit + 1 if name in ALLOWED else limit


def reached(name, share):
    """The number of the first step after which so much of the limit is used."""
    used = ROWS[name][2]
    return next(k for k in itertools.count(1) if used(k) > share - 1e-6)


def played(name, limit, steps, **options):
    """What each of so many steps brought."""
    build, step, _ = ROWS[name]
    world = World(build(limit), **options)
    return world, [step(world, k) for k in range(1, steps + 1)]


def first(name, events):
    """(number of the step, trip) of the first trip of the row's rule."""
    for k, (trips, _, _) in enumerate(events, 1):
        for trip in trips:
            if trip.rule == rule_of(name):
                return k, trip
    return None


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", ROWS)
def test_the_limit_is_met_where_it_is_reached_and_not_before(name, limit):
    """At L - 1 nothing, at L the trip with what was counted, the limit and the scope; raised by one, at L + 1."""
    at = reached(name, needed(name, limit))
    _, events = played(name, limit, at + 3)
    assert first(name, events[: at - 1]) is None
    found, trip = first(name, events)
    used = ROWS[name][2](at)
    tenths = 10 if name == "cost, tenths" else 1
    assert (found, trip.limit, trip.observed) == (at, limit / tenths, pytest.approx(used / tenths, abs=0.005))
    assert used >= needed(name, limit) - 1e-6
    assert trip.scope == REFUSES.get(name, REFUSES.get(rule_of(name), "run"))
    later = reached(name, needed(name, limit + 1))
    assert first(name, played(name, limit + 1, later)[1])[0] == later


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", [name for name in ROWS if rule_of(name) != "max_refusals"])
def test_observing_says_it_at_the_limit_and_once(name, limit):
    """Only watched, every step runs; what would have tripped is said with the step that reaches the limit, once a run."""
    at = reached(name, needed(name, limit))
    world, events = played(name, limit, at + 3, observe=True)
    said = [k for k, (_, would, _) in enumerate(events, 1) if would]
    assert said == ([at, at + 1, at + 2, at + 3] if name in MANY_RUNS else [at])
    assert events[at - 1][1].rule == rule_of(name)
    assert (world.refused, [trips for trips, _, _ in events if trips]) == (0, [])


def told_at(name, limit):
    """(the steps with which the model is told, those of them that should be: at a half and at three quarters)."""
    whole = needed(name, limit)
    at, half, most = (reached(name, share * whole) for share in (1, 0.5, 0.75))
    _, events = played(name, limit, at, nudge_on_warn=True)
    told = [k for k, (_, _, rules) in enumerate(events, 1) for rule in rules if rule == rule_of(name)]
    return told, sorted({half, most} - {at}) if name not in MANY_RUNS else list(range(half, at))


WARNING = [n for n in ROWS if rule_of(n) not in NO_WARNING | {"cost"} and n not in SINGLE | THIRDS]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", WARNING)
def test_the_model_is_told_at_exactly_a_half_and_three_quarters(name, limit):
    """The first step that uses half of the limit tells, the first that uses three quarters too, no other of the run."""
    told, expected = told_at(name, limit)
    assert told == expected


@pytest.mark.parametrize("name", sorted(THIRDS))
def test_thirds_tell_at_exactly_a_half_too(name):
    """Failures that may pass use up half of a limit of four with the sixth third."""
    told, expected = told_at(name, 4)
    assert told == expected


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_ceilings_of_single_calls_tell_too(name):
    """Each rule warns at a half and at three quarters, a ceiling of a tool, a class or a signature like others."""
    told, expected = told_at(name, 8)
    assert told == expected


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", [name for name in ROWS if rule_of(name) == "cost"])
def test_a_reported_cost_warns_from_half_of_the_limit_on(name, limit):
    """Each report between half and the limit is a warning, none before or at it."""
    _, events = played(name, limit, limit)
    assert [bool(warned) for _, _, warned in events] == [limit / 2 <= k < limit for k in range(1, limit + 1)]


# ------------------------------------------------------------------------------------------------ what only tells


@pytest.mark.parametrize("laps", [2, 3, 5, 8])
@pytest.mark.parametrize("period", [1, 2, 3])
def test_failed_nudge_tells_with_its_lap_and_once(period, laps):
    """The model is told when that lap is complete, not before, not again, and the limit stands where it stood."""
    guard = RepeatGuard(FAR, failed_nudge=laps, failed_limit=laps + 2)
    world = World([guard])
    events = [turns(period, lambda k: bad())(world, k) for k in range(1, period * (laps + 2) + 1)]
    assert [k for k, (_, _, told) in enumerate(events, 1) if told] == [period * laps]
    assert [k for k, (trips, _, _) in enumerate(events, 1) if trips] == [period * (laps + 2)]


NUDGING = {
    "repeat_guard": (lambda n: RepeatGuard(n, on_limit="nudge"), turns(1), 0),
    "failure_streak": (lambda n: FailureStreak(n, on_limit="nudge"), new_calls(lambda k: bad(word(k))), 0),
    "file_edits": (lambda n: FileEdits(n, on_limit="nudge"), ROWS["file_edits"][1], 1),
}


@pytest.mark.parametrize("limit", [2, 3, 5, 8])
@pytest.mark.parametrize("name", NUDGING)
def test_a_nudge_comes_at_the_limit_and_counts_afresh(name, limit):
    """At L the model is told and nothing is stopped, at 2 L once more; only a file that overruns twice stops the run."""
    build, step, beyond = NUDGING[name]
    each = limit + beyond
    world = World([build(limit)])
    events = [step(world, k) for k in range(1, 2 * each + 1)]
    told = [k for k, (_, _, rules) in enumerate(events, 1) if rules]
    stopped = [k for k, (trips, _, _) in enumerate(events, 1) if trips]
    assert (told, stopped) == (([each], [2 * each]) if name == "file_edits" else ([each, 2 * each], []))


@pytest.mark.parametrize("window", [2, 3, 5, 8])
def test_distinct_ratio_warns_once_its_window_is_full(window):
    """A window less one of equal calls is no verdict, a full one is a warning, and it never stops anything."""
    chain, state, warned = Chain([DistinctRatio(window, distinct=1)]), SessionState("s"), []
    for _ in range(window + 2):
        admission = chain.admit(state, "r", call())
        settled = chain.settle(state, "r", admission.number, call(), ok())
        warned.append(settled.warned)
        assert settled.trip is None
    assert [bool(each) for each in warned] == [False] * (window - 1) + [True] * 3


@pytest.mark.parametrize("different", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("distinct", [1, 2, 3, 5])
def test_distinct_ratio_counts_different_calls(distinct, different):
    """With at most so many different calls in the window it warns, with one more it does not."""
    chain, state, warned = Chain([DistinctRatio(8, distinct=distinct)]), SessionState("s"), ()
    for k in range(8):
        made = call(word(k % different))
        warned = chain.settle(state, "r", chain.admit(state, "r", made).number, made, ok()).warned
    assert bool(warned) == (different <= distinct)


# ------------------------------------------------------------------------------------------------ what clears a count


@pytest.mark.parametrize("limit", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("rule", "clears"),
    [
        (lambda n: RepeatGuard(n, max_period=1), call("b")),
        (SameAnswer, write),
        (FailureStreak, call("a", tool="t")),
        (lambda n: FailureStreak(n, across_tools=True), call("b", tool="u")),
        (SignatureFailures, call("w1", tool="t")),
        (SignatureFailures, write),
        (lambda n: SignatureFailures(n, count="cumulative"), write),
    ],
    ids=["repeat", "answer", "streak", "across", "success", "write", "cumulative"],
)
def test_a_count_that_is_cleared_one_before_its_limit_starts_afresh(rule, clears, limit):
    """L - 1, then what clears it, then L - 1 again: nothing; one more: the trip."""
    world = World([rule(limit)])
    fixed = isinstance(rule(limit), (RepeatGuard, SignatureFailures))

    def step(k):
        return world.call(call("w1" if fixed else word(k), tool="t"), bad())[0]

    trips = [step(k) for k in range(1, limit)]
    assert world.call(clears, ok("fine"))[0] == []
    trips += [step(k) for k in range(limit, 2 * limit - 1)]
    assert trips == [[]] * (2 * limit - 2)
    (trip,) = step(2 * limit)
    assert (trip.limit, trip.observed) == (limit, limit)
