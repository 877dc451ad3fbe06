"""Laps: the counter equals its definition, and each parameter does what it says at its limit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.state import SessionState


def call(name, **more):
    return ToolCall(more.pop("tool", name), f"{name}:1", **more)


def play(guard, calls):
    """(index, trip) of the call whose result trips; calls are names or (call, outcome)."""
    chain, state = Chain([guard]), SessionState("s")
    for index, item in enumerate(calls):
        made, outcome = item if isinstance(item, tuple) else (call(item), Outcome("ok", exact="x", volatile="x"))
        admission = chain.admit(state, "r", made)
        if isinstance(admission, Refuse):
            raise AssertionError(f"refused at {index} without a trip")
        settled = chain.settle(state, "r", admission.number, made, outcome)
        if settled.trip:
            return index, settled.trip
    return None


def answered(name, result, kind="ok", **more):
    return call(name, **more), Outcome(kind, exact=result, volatile=more.get("volatile", result))


def definition(keys, limit, max_period):
    """(index, smallest period) after which the last limit * p keys are ``limit`` equal laps."""
    for end in range(1, len(keys) + 1):
        for period in range(1, max_period + 1):
            tail = keys[end - limit * period : end] if end >= limit * period else None
            if tail and all(tail[i] == tail[i % period] for i in range(len(tail))):
                return end - 1, period
    return None


KEYS = st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.sampled_from(["ok", "failed"]))
PIECES = st.lists(
    st.tuples(st.lists(KEYS, min_size=1, max_size=6), st.integers(1, 7)).map(lambda piece: piece[0] * piece[1])
    | st.lists(st.sampled_from([("a", "x", "ok"), ("b", "x", "ok")]), max_size=12),
    max_size=6,
).map(lambda pieces: [key for piece in pieces for key in piece])


@settings(max_examples=2500, deadline=None)
@given(keys=PIECES, limit=st.integers(2, 6), max_period=st.integers(1, 5))
def test_the_counter_equals_the_definition(keys, limit, max_period):
    """Through the chain, call by call: the trip comes with the call, and the period, that the definition says."""
    made = [answered(name, result, kind) for name, result, kind in keys]
    tripped = play(RepeatGuard(limit, max_period=max_period, compare="exact"), made)
    expected = definition(keys, limit, max_period)
    assert (tripped and (tripped[0], tripped[1].period)) == expected
    if tripped:
        trip = tripped[1]
        lap = keys[tripped[0] - trip.period + 1 : tripped[0] + 1]
        distinct = dict.fromkeys(f"{name}:1" for name, _, _ in lap)
        assert [member.signature for member in trip.members] == list(distinct)
        assert (trip.limit, trip.observed) == (limit, limit)


# (name, settings, calls, index of the tripping call or None, period)
LIMITS = [
    ("L - 1 laps of one", {"limit": 5}, "aaaa", None, None),
    ("L laps of one", {"limit": 5}, "aaaaa", 4, 1),
    ("the limit is met, whatever follows", {"limit": 5}, "aaaaaa", 4, 1),
    ("limit 2", {"limit": 2}, "aa", 1, 1),
    ("a cycle has the limit of its shortest period", {"limit": 5, "limits": {2: 2}}, "aaaa", None, None),
    ("which is its own", {"limit": 5, "limits": {2: 2}}, "aaaaa", 4, 1),
    ("and a cycle of two the other", {"limit": 5, "limits": {2: 2}}, "abab", 3, 2),
    ("L laps of two less a call", {"limit": 3}, "ababa", None, None),
    ("L laps of two", {"limit": 3}, "ababab", 5, 2),
    ("L laps of three", {"limit": 3}, "abcabcabc", 8, 3),
    ("four is no period", {"limit": 3}, "abac" * 6, None, None),
    ("four is one if asked for", {"limit": 3, "max_period": 4}, "abac" * 3, 11, 4),
    ("two is none at max_period 1", {"limit": 3, "max_period": 1}, "ab" * 9, None, None),
    ("the smallest period is reported", {"limit": 4}, "aaaa", 3, 1),
    ("the phase is irrelevant", {"limit": 3}, "zababab", 6, 2),
    ("a foreign call breaks the row", {"limit": 3}, "aabaab", None, None),
    ("aab is a period of three", {"limit": 3}, "aabaabaab", 8, 3),
    ("limits for a period", {"limit": 5, "limits": {2: 3}}, "ababab", 5, 2),
    ("limits for another period leave this one", {"limit": 4, "limits": {2: 2}}, "aaaa", 3, 1),
    ("limits may be higher", {"limit": 2, "limits": {1: 6}, "max_period": 1}, "aaaaaa", 5, 1),
]


@pytest.mark.parametrize(("name", "options", "calls", "index", "period"), LIMITS)
def test_limits(name, options, calls, index, period):
    """Limit L means that L full laps ran, lap L included."""
    tripped = play(RepeatGuard(**options), calls)
    assert (tripped and (tripped[0], tripped[1].period)) == (None if index is None else (index, period))


def failing(n):
    return [answered("a", "E", "failed") for _ in range(n)]


FAILED = [(2, 6, 1, 2), (3, 6, 2, 3), (6, 3, 5, 6)]


@pytest.mark.parametrize(("failed_limit", "limit", "index", "observed"), FAILED)
def test_failed_limit_replaces_the_others_where_every_call_failed(failed_limit, limit, index, observed):
    """Cycles in which all failed have their own limit, lower or higher, and are called an error storm."""
    guard = RepeatGuard(limit, failed_limit=failed_limit)
    tripped = play(guard, failing(10))
    assert (tripped[0], tripped[1].observed, tripped[1].loop_type) == (index, observed, "error_storm")
    assert f"failed_limit = {failed_limit + 1} " in tripped[1].why
    mixed = [answered("b", "x"), answered("a", "E", "failed")] * 10
    assert play(RepeatGuard(limit, failed_limit=failed_limit), mixed)[1].limit == limit


COMPARE = [
    # compare, class, results (exact, volatile) that alternate, trips at limit 3 or not
    ("volatile", "read", [("x1", "x"), ("x2", "x")], True),
    ("volatile", "read", [("x", "x"), ("y", "y")], False),
    ("exact", "read", [("x1", "x"), ("x2", "x")], False),
    ("exact", "read", [("x", "x")], True),
    ("call", "read", [("x", "x"), ("y", "y")], True),
    ("volatile", "write", [("x", "x"), ("y", "y")], True),
    ("exact", "write", [("x", "x"), ("y", "y")], False),
    ("volatile", "read", [(None, None)], False),
    ("exact", "read", [(None, None)], False),
    ("call", "read", [(None, None)], True),
]


@pytest.mark.parametrize(("compare", "tool_class", "results", "trips"), COMPARE)
def test_compare(compare, tool_class, results, trips):
    """What must be equal: results without passing tokens (but for writes), to the letter, or only the call."""
    calls = []
    for n in range(5):
        exact, volatile = results[n % len(results)]
        calls.append((call("a", tool_class=tool_class), Outcome("ok", exact=exact, volatile=volatile)))
    tripped = play(RepeatGuard(3, compare=compare, max_period=1), calls)
    assert (tripped and tripped[0]) == (2 if trips else None)


def test_an_outcome_of_another_kind_is_another_lap():
    """Equal text as success and as failure is no repeat, unless only calls are compared."""
    calls = [answered("a", "x"), answered("a", "x", "failed")] * 3
    assert play(RepeatGuard(3, max_period=1), calls) is None
    assert play(RepeatGuard(3, max_period=1, compare="call"), calls)[0] == 2


def test_what_was_not_signed_in_full_repeats_nothing():
    """A call too large to be signed never counts, and breaks the row."""
    huge = (call("a", whole=False), Outcome("ok", exact="x", volatile="x"))
    for compare in ("volatile", "exact", "call"):
        assert play(RepeatGuard(2, compare=compare), [huge] * 9) is None
        assert play(RepeatGuard(3, compare=compare), ["a", "a", huge, "a", "a"]) is None


POLLING = [
    ("a poller has ten times the limit", [{"patience": 10}], 30),
    ("its own number", [{"patience": 4}], 12),
    ("the least patient member arms the cycle", [{"patience": 10}, {}], 3),
    ("two pollers", [{"patience": 10}, {"patience": 4}], 12),
    ("a neutral call does not arm it", [{"patience": 10}, {"neutral": True}], 30),
    ("neutral calls alone have the plain limit", [{"neutral": True}], 3),
    ("a neutral poller has the plain limit too", [{"neutral": True, "patience": 10}], 3),
    ("a neutral call and a plain one", [{}, {"neutral": True}], 3),
]


@pytest.mark.parametrize(("name", "members", "laps"), POLLING)
def test_pollers_and_neutral_members(name, members, laps):
    """A cycle has the limit of its least patient member; neutral members do not arm it but are counted."""
    lap = [(call(f"t{n}", **more), Outcome("ok", exact="x", volatile="x")) for n, more in enumerate(members)]
    index, trip = play(RepeatGuard(3), lap * (laps + 2))
    assert (index, trip.observed, trip.limit) == (laps * len(lap) - 1, laps, laps)
    assert "repeat_guard limit = 4 " in trip.why
    assert play(RepeatGuard(3), lap * (laps - 1)) is None


def test_exact_makes_no_allowance_for_pollers():
    """The original rule to the letter knows no pollers."""
    assert play(RepeatGuard(3, compare="exact"), [(call("a", patience=10), Outcome("ok", exact="x"))] * 9)[0] == 2


def batched(guard, *batches):
    """The batch, counted from 0, in which the guard trips; each is a list of (name, answer)."""
    chain, state = Chain([guard]), SessionState("s")
    for index, batch in enumerate(batches):
        calls = [call(name) for name, _ in batch]
        permits = [chain.admit(state, "r", made) for made in calls]
        for made, permit, (_, answer) in zip(calls, permits, batch, strict=True):
            outcome = Outcome("ok", exact=answer if "exact" in guard.needs else "", volatile=answer)
            if chain.settle(state, "r", permit.number, made, outcome).trip:
                return index
    return None


def test_equal_calls_of_one_batch_are_at_most_one_lap():
    """Ten twins at once are one lap; L batches of twins are L laps."""
    assert batched(RepeatGuard(3), [("a", "x")] * 10) is None
    assert batched(RepeatGuard(3), *[[("a", "x")] * 10] * 3) == 2
    assert batched(RepeatGuard(3, compare="call"), [("a", "x"), ("a", "y")] * 9) is None


@pytest.mark.parametrize("compare", ["volatile", "exact"])
def test_siblings_with_other_answers_are_no_twins(compare):
    """A batch whose second answer changes each time is progress, even if its first never does."""
    batches = [[("a", "0"), ("a", f"1{n}")] for n in range(9)]
    assert batched(RepeatGuard(3, compare=compare), *batches) is None


def test_scheduling_cannot_hide_a_cycle():
    """A batch of a and b commits in one order whichever ends first."""
    assert batched(RepeatGuard(3), *[[("a", "x"), ("b", "x")], [("b", "x"), ("a", "x")]] * 2) == 2


def test_the_trip_tells_the_cycle():
    """Type, period, members in order with shapes, and a sentence that names the setting."""
    lap = [(call(n, arguments={"q": "secret"}), Outcome("ok", exact="x", volatile="x")) for n in "ab"]
    _, trip = play(RepeatGuard(5, limits={2: 3}), lap * 3)
    assert (trip.loop_type, trip.scope, trip.period, trip.tool) == ("oscillation", "run", 2, "b")
    assert [(member.tool, member.arguments) for member in trip.members] == [
        ("a", {"q": "str(6)"}),
        ("b", {"q": "str(6)"}),
    ]
    assert "secret" not in str(trip.to_dict())
    assert (
        trip.why
        == "The same 2 calls (a, b) came round 3 times in a row with the same results; repeat_guard limits = {2 = 4} would have allowed it."
    )
    assert play(RepeatGuard(3), "aaa")[1].loop_type == "exact_repeat"


def test_warnings_start_at_half_the_limit():
    """From half the limit on a result is a warning; the laps so far are told from the second on."""
    chain, state, seen = Chain([RepeatGuard(6)]), SessionState("s"), []
    for _ in range(5):
        permit = chain.admit(state, "r", call("a"))
        settled = chain.settle(state, "r", permit.number, call("a"), Outcome("ok", exact="x", volatile="x"))
        seen.append((settled.warned, settled.repeat_length, settled.repeat_count))
    assert seen == [
        ((), 0, 0),
        ((), 1, 2),
        (("repeat_guard",), 1, 3),
        (("repeat_guard",), 1, 4),
        (("repeat_guard",), 1, 5),
    ]
    assert chain.report(state)["longest_repeat"] == {"period": 1, "laps": 5}


def test_memory_does_not_grow():
    """What is kept does not depend on the limit or on the number of calls."""
    guard = RepeatGuard(1000, max_period=3)
    mine = guard.start()
    for n in range(500):
        guard.settle(mine, None, call("a" if n % 7 else "b"), Outcome("ok", exact="x", volatile="x"))
    assert (len(mine["last"]), len(mine["same"])) == (3, 3)


# ------------------------------------------------------------------------------------------------ nudges


def told(guard, script):
    """One letter a call: n the model is told, S stopped. ``a`` works, ``a!`` and ``a?`` fail with two errors."""
    chain, state, letters = Chain([guard]), SessionState("s"), ""
    for word in script.split():
        made, outcome = answered(word[0], f"x{word[1:]}", "failed" if word[1:] else "ok")
        admission = chain.admit(state, "r", made)
        if isinstance(admission, Refuse):
            return letters + "x"
        settled = chain.settle(state, "r", admission.number, made, outcome)
        assert all(nudge.rule == "repeat_guard" and len(nudge.text) <= 300 for nudge in settled.nudges)
        letters += "S" if settled.trip else "n" if settled.nudges else "."
    return letters


NUDGE = {"on_limit": "nudge"}
OPENHANDS = {"limits": {2: 3}, "max_period": 2, "compare": "exact", "failed_nudge": 3, "same_error": False}
TOLD = [
    (3, NUDGE, "a a", ".."),
    (3, NUDGE, "a a a", "..n"),
    (3, NUDGE, "a a a a a a a", "..n..n."),
    (3, NUDGE, "a a b a a a", ".....n"),
    (3, NUDGE, "a b a b a b a b a b a b", ".....n.....n"),
    (3, NUDGE | {"max_period": 1, "compare": "call"}, "a a! a?", "..n"),
    (4, OPENHANDS, "a a a", "..."),
    (4, OPENHANDS, "a a a a a", "...Sx"),
    (4, OPENHANDS, "a! a! a! a! a!", "..nSx"),
    (4, OPENHANDS, "a! a? a! a?", "..nS"),
    (4, OPENHANDS, "a! a? a! a a! a? a! a", "..n...n."),
    (4, OPENHANDS, "a b a b a", "....."),
    (4, OPENHANDS, "a b a b a b", ".....S"),
    (4, OPENHANDS, "a! b a! b a! b", ".....S"),
    (4, OPENHANDS, "a! b a? b a! b", "......"),
    (4, OPENHANDS, "a b c a b c a b c a b c", "............"),
    (5, {"failed_nudge": 2}, "a! b! a! b! a! b! a! b! a! b!", "...n.....S"),
    (5, {"failed_limit": 3, "failed_nudge": 2}, "a! a! a!", ".nS"),
    (5, {"failed_nudge": 2}, "a a a a a", "....S"),
    (3, {"same_error": False}, "a! a? a!", "..S"),
    (3, {}, "a! a? a! a?", "...."),
    (3, {"same_error": False}, "a! b? a! b! a? b?", "......"),
]


@pytest.mark.parametrize(("limit", "settings", "script", "letters"), TOLD)
def test_where_the_model_is_told(limit, settings, script, letters):
    """on_limit="nudge" tells and counts afresh, failed_nudge tells once and counts on, same_error=False is blind to texts."""
    assert told(RepeatGuard(limit, **settings), script) == letters


def test_a_poller_is_told_as_late_as_it_is_stopped():
    """Patience stretches failed_nudge as it does the limit."""
    chain, state, at = Chain([RepeatGuard(4, failed_nudge=2)]), SessionState("s"), []
    for index in range(25):
        made, outcome = answered("p", "x", "failed", patience=10, poll=True)
        permit = chain.admit(state, "r", made)
        at += [index] if chain.settle(state, "r", permit.number, made, outcome).nudges else []
    assert at == [19]
