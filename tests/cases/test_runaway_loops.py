"""Loops that cost real money elsewhere, and healthy work that was taken for one: what is stopped, and where."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from otel_toolguard import CircuitOpen, guard_tool

REPEAT = {"plugin": "repeat_guard"}
CEILING = {"plugin": "call_ceiling"}
STREAK = {"plugin": "failure_streak"}
PROFILES = ["conservative", "balanced", "strict"]


class Throttled(Exception):
    """What a server says that has too much to do."""


@guard_tool
def proc_log(name):
    return ""


@guard_tool
def step(which, tool_call_id=None):
    return "ok"


# ------------------------------------------------------------------------------------------------ exact repeats


def test_the_same_empty_answer_is_asked_for_as_often_as_the_limit_says(opened, tried):
    """25 bodies run, the record says what came round how often, and the call is refused for the rest of the run."""
    told = []
    with opened(REPEAT | {"limit": 25}, on_trip=told.append) as session:
        assert tried(proc_log, ["s1"] * 1535) == "." * 25 + "S" * 1510
        trip = session.trip
        assert (trip.rule, trip.loop_type, trip.scope) == ("repeat_guard", "exact_repeat", "run")
        assert (trip.period, trip.observed, trip.limit, trip.at_call) == (1, 25, 25, 25)
        assert (trip.tool, trip.tool_class, trip.signature.partition(":")[0]) == ("proc_log", "other", "proc_log")
        assert [(member.tool, member.signature) for member in trip.members] == [("proc_log", trip.signature)]
        with pytest.raises(CircuitOpen) as caught:
            proc_log("s1")
        assert caught.value.trip == trip
        assert session.report()["refused"] == 1511
    assert told == [trip]


@pytest.mark.parametrize(("profile", "calls"), [("conservative", 9), ("balanced", 6), ("strict", 6)])
def test_nobody_has_to_set_a_limit_to_be_saved_from_it(profile, calls, opened, tried):
    """The ready profiles stop the same empty answer after six to nine times."""
    with opened(profile) as session:
        assert tried(proc_log, ["s1"] * 50) == "." * calls + "S" * (50 - calls)
        assert session.trip.rule == "stagnation"


def test_fresh_ids_times_and_durations_in_an_answer_hide_no_loop(opened, tried):
    """Compared without what passes, three rounds are three laps; to the letter they are not, and a ceiling is left."""
    rng, start = random.Random(3), datetime(2024, 5, 20, 10, 11, 12, tzinfo=UTC)

    @guard_tool
    def spawn(task):
        moment = (start + timedelta(seconds=rng.randrange(10**6))).isoformat()
        return f"batch-{uuid.UUID(int=rng.getrandbits(128), version=4)} took {rng.randrange(10**5)}ms at {moment}"

    with opened(REPEAT | {"limit": 3}) as session:
        assert tried(spawn, ["x"] * 6) == "...SSS"
        assert session.trip.rule == "repeat_guard"
    exact = REPEAT | {"limit": 3, "compare": "exact"}
    with opened(exact, CEILING | {"signature": 9}, name="exact") as session:
        assert tried(spawn, ["x"] * 12) == "." * 9 + "rrr"
        assert [trip["rule"] for trip in session.report()["trips"]] == ["call_ceiling"]


@pytest.mark.parametrize(("rules", "calls"), [((REPEAT | {"limit": 3},), None), (("balanced",), 25)])
def test_a_number_in_an_answer_is_progress(rules, calls, opened, tried):
    """12 rows, 13 rows, 14 rows are no laps; only stagnation counts them, half a point each, so that it takes 25."""
    rows = iter(range(12, 1000))

    @guard_tool
    def count_rows(table):
        return f"{next(rows)} rows"

    with opened(*rules) as session:
        assert tried(count_rows, ["t"] * 30) == ("." * 30 if calls is None else "." * calls + "S" * (30 - calls))
        assert (session.trip and session.trip.rule) == (calls and "stagnation")


CYCLES = [
    ("A", 3, 1, "exact_repeat"),
    ("AB", 6, 2, "oscillation"),
    ("ABC", 9, 3, "oscillation"),
]


@pytest.mark.parametrize(("lap", "calls", "period", "kind"), CYCLES)
def test_two_or_three_calls_in_turn_are_a_loop_whatever_their_ids(lap, calls, period, kind, opened, tried):
    """Three laps run; the record has the shortest period and each call of the lap, though every call id is another."""
    with opened(REPEAT | {"limit": 3}) as session:
        asked = [{"which": lap[n % len(lap)], "tool_call_id": f"call_{n}"} for n in range(60)]
        assert tried(step, asked) == "." * calls + "S" * (60 - calls)
        trip = session.trip
        assert (trip.period, trip.observed, trip.loop_type) == (period, 3, kind)
        assert len({member.signature for member in trip.members}) == period
        assert all(member.arguments == {"which": "str(1)"} for member in trip.members)


def test_a_cycle_of_four_is_left_to_the_ceilings(opened, tried):
    """A, B, A, C for ever is no cycle of one to three calls: the ceiling ends it, and says so."""
    with opened(REPEAT | {"limit": 3}, CEILING | {"run": 40}) as session:
        assert tried(step, list("ABAC") * 12) == "." * 40 + "S" * 8
        assert (session.trip.rule, session.trip.loop_type) == ("call_ceiling", "over_use")


# ------------------------------------------------------------------------------------------------ error storms


def denied(path):
    raise PermissionError(f"denied {path}")


def test_failures_that_never_repeat_exactly_are_a_streak_of_their_tool(opened, tried):
    """Path and error differ each time: no lap, but a streak, whose limit is its own."""
    write = guard_tool(name="write")(denied)
    with opened(REPEAT | {"limit": 3}, name="blind") as session:
        assert tried(write, [f"/x/{n}" for n in range(40)]) == "!" * 40
        assert session.trip is None
    with opened(REPEAT | {"limit": 3}, STREAK | {"limit": 12}) as session:
        assert tried(write, [f"/x/{n}" for n in range(40)]) == "!" * 12 + "S" * 28
        trip = session.trip
        assert (trip.rule, trip.loop_type, trip.observed) == ("failure_streak", "error_storm", 12)


@pytest.mark.parametrize(("profile", "calls"), [("conservative", 25), ("balanced", 20), ("strict", 16)])
def test_a_storm_of_denials_meets_the_ready_limits(profile, calls, opened, tried):
    """The profiles end it at the limit of the streak, hundreds of calls before anybody looks."""
    write = guard_tool(name="write")(denied)
    with opened(profile) as session:
        assert tried(write, [f"/x/{n}" for n in range(384)]) == "!" * calls + "S" * (384 - calls)
        assert session.trip.rule == "failure_streak"


@pytest.mark.parametrize(("between", "stopped"), [("read", True), ("write", False)])
def test_only_a_success_of_the_same_tool_ends_a_streak(between, stopped, opened, tried):
    """After two failures a call of another tool works, or one of the same: only the latter starts the count afresh."""
    good = set()

    def maybe(path):
        return "ok" if path in good else denied(path)

    tools = {name: guard_tool(name=name)(maybe) for name in ("read", "write")}
    with opened(STREAK | {"limit": 3}) as session:
        assert tried(tools["write"], ["/a", "/b"]) == "!!"
        good.add("/c")
        assert tried(tools[between], ["/c"]) == "."
        assert tried(tools["write"], ["/d"]) == "!"
        assert (session.trip is not None) == stopped


def failing(errors):
    """A tool that fails with each of these, and then works."""

    @guard_tool
    def fetch(u):
        if errors:
            raise errors.pop()
        return "page"

    return fetch


RULES = {
    "signature_failures": ({"limit": 4}, "!!!!!.", "!!!!rr"),
    "failure_streak": ({"limit": 4}, "!!!!!.", "!!!!SS"),
    "stagnation": ({"limit": 6.5}, "!!!!!.", "!!!!SS"),
    "repeat_guard": ({"limit": 4}, "!!!!SS", "!!!!SS"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_throttled_call_is_given_three_times_the_tries(rule, opened, tried):
    """Five times throttled and then served goes on, five times not found does not; to repeat_guard both are laps."""
    limits, throttled, missing = RULES[rule]
    for error, expected in ((Throttled("429 Too Many Requests, Retry-After: 5"), throttled), (OSError("404"), missing)):
        with opened({"plugin": rule} | limits, name=str(error)):
            assert tried(failing([error] * 5), ["u"] * 6) == expected


def test_throttled_five_times_is_no_stuck_agent_under_the_default(opened, tried):
    """The balanced profile lets the sixth try through, and ends the same story with a page that is not there."""
    stories = (("HTTP 429: too many requests", 5, "!!!!!."), ("HTTP 404: not found", 99, "!!!!!!SS"))
    for error, times, expected in stories:
        with opened("balanced", name=error):
            assert tried(failing([OSError(error)] * times), ["u"] * len(expected)) == expected


def test_calls_that_never_ran_are_no_laps(opened, tried):
    """Nine refusals of one call by a ceiling do not make it a loop: the run goes on."""
    with opened(REPEAT | {"limit": 3}, CEILING | {"tools": {"proc_*": 2}}) as session:
        assert tried(proc_log, ["s1"] * 11) == ".." + "r" * 9
        assert tried(step, "A") == "."
        assert session.trip is None


# ------------------------------------------------------------------------------------------------ batches


def in_tasks(session, size):
    """So many equal calls in tasks that all run before one of them fails; what they failed with."""

    @guard_tool(name="ask")
    async def later(q):
        await asyncio.sleep(0)
        raise ValueError("denied")

    async def gathered():
        return await asyncio.gather(*(later("x") for _ in range(size)), return_exceptions=True)

    return asyncio.run(gathered())


def in_threads(session, size):
    """The same in threads."""
    gate, ended = threading.Barrier(size), []

    @guard_tool(name="ask")
    def now(q):
        gate.wait()
        raise ValueError("denied")

    def one():
        try:
            bound("x")
        except ValueError as error:
            ended.append(error)
        except CircuitOpen:
            gate.abort()  # or the others would wait for ever

    bound = session.bind(now)
    threads = [threading.Thread(target=one) for _ in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


@pytest.mark.parametrize("way", [in_tasks, in_threads])
def test_calls_at_the_same_time_are_one_lap(way, opened, tried):
    """Five equal failures at once, and something else after: at a limit of three nothing trips, but ceilings saw five."""
    rules = [REPEAT | {"limit": 3, "max_period": 2}, STREAK | {"limit": 3}, {"plugin": "tool_stats"}]
    with opened(*rules, CEILING | {"run": 6, "signature": 5}) as session:
        assert [str(error) for error in way(session, 5)] == ["denied"] * 5
        assert session.trip is None
        assert tried(step, "A") == "."
        report = session.report()
        assert (report["calls"], report["failed"], report["max_in_flight"]) == (6, 5, 5)
        assert tried(step, "A") == "S"
        assert (session.trip.rule, session.trip.observed) == ("call_ceiling", 6)


@pytest.mark.parametrize("way", [in_tasks, in_threads])
def test_three_equal_batches_are_three_laps(way, opened):
    """What is asked for five at a time, three times over, is a loop of three laps: no more, no fewer."""
    with opened(REPEAT | {"limit": 3}) as session:
        trips = []
        for _ in range(3):
            way(session, 5)
            trips.append(session.trip and session.trip.observed)
        assert trips == [None, None, 3]


# ------------------------------------------------------------------------------------------------ healthy repetition


def test_a_declared_poller_waits_as_long_as_it_takes(opened, tried):
    """Thirty equal answers of a poller run at a limit of four; the next tool has the limit of four."""
    look = guard_tool(name="job_state", poll=True)(lambda job: "running")
    fetch = guard_tool(name="job_fetch")(lambda job: "running")
    with opened(REPEAT | {"limit": 4}) as session:
        assert tried(look, [1] * 30) == "." * 30
        assert tried(fetch, [1] * 6) == "....SS"
        assert session.trip.tool == "job_fetch"


@pytest.mark.parametrize(
    ("told", "name", "runs"),
    [({}, "job_state", 4), ({"poll": 50}, "job_state", 200), ({"poll": False}, "status", 4), ({}, "status", 40)],
)
def test_how_patient_a_poller_is(told, name, runs, opened, tried):
    """Ten times the limit for one known by its name, so many times as was declared, and none if that is denied."""
    look = guard_tool(name=name, **told)(lambda job: "running")
    with opened(REPEAT | {"limit": 4}):
        assert tried(look, [1] * 210) == "." * runs + "S" * (210 - runs)
    with opened(REPEAT | {"limit": 4}, name="settings", tools={name: told} if told else {}):
        assert tried(guard_tool(name=name)(lambda job: "running"), [1] * 210).count(".") == runs


@pytest.mark.parametrize(("ceiling", "end"), [({"signature": 20}, "r"), ({"run": 20}, "S"), ({"session": 20}, "S")])
def test_ceilings_hold_for_pollers_too(ceiling, end, opened, tried):
    """Patience is no licence: whatever may be counted is counted."""
    look = guard_tool(name="job_state", poll=True)(lambda job: "running")
    with opened(REPEAT | {"limit": 4}, CEILING | ceiling):
        assert tried(look, [1] * 22) == "." * 20 + end * 2


@pytest.mark.parametrize("rules", [(REPEAT | {"limit": 3},), *((name,) for name in PROFILES)])
@pytest.mark.parametrize("same", [False, True])
def test_the_same_tools_with_new_arguments_are_work(rules, same, opened, words):
    """Search, move, edit over forty files goes on under every profile; over one file again and again it is stopped."""
    tools = [guard_tool(name=name)(lambda x: "ok") for name in ("grep", "mv", "edit")]
    with opened(*rules) as session:
        ran = 0
        for n in range(40):
            for tool in tools:
                if session.trip is None:
                    tool("same" if same else words(n))
                    ran += 1
        assert (session.trip is not None, ran == 120) == (same, not same)
        if same and isinstance(rules[0], dict):
            assert (session.trip.period, ran) == (3, 9)


def test_what_one_run_did_is_no_lap_of_the_next(opened, tried):
    """Twenty heartbeats of one session with equal answers never trip; the session's ceiling counts through them all."""
    read, send = (guard_tool(name=name)(lambda: "ok") for name in ("read_config", "send"))
    rules = REPEAT | {"limit": 2}, CEILING | {"session": 40}
    for _ in range(20):
        with opened(*rules) as session:
            assert tried(read, [{}]) + tried(send, [{}]) == ".."
            assert session.trip is None
    with opened(*rules) as session:
        assert tried(read, [{}]) == "S"
        assert (session.trip.scope, session.trip.observed) == ("session", 40)


def test_time_alone_begins_no_new_run(opened, tried):
    """Hours between two calls of one block do not make it two runs: the third equal answer is the third lap."""
    now = [0.0]
    with opened(REPEAT | {"limit": 3}, clock=lambda: now[0]) as session:
        for _ in range(3):
            assert session.trip is None
            assert tried(step, "A") == "."
            now[0] += 36_000.0
        assert session.trip.observed == 3
