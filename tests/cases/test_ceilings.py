"""Ceilings and what makes a limit hard: batches, pauses, long-lived tools, wrong settings."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, SessionStopped, SettingsError, find_trip, guard_tool
from otel_toolguard.adapter import Attempt
from otel_toolguard.core.state import SessionState
from otel_toolguard.tool import Tool

CEILING = {"plugin": "call_ceiling"}
REFUSALS = {"plugin": "max_refusals"}
REPEAT = {"plugin": "repeat_guard"}


@guard_tool
def search(q):
    return f"found {q}"


@guard_tool
def ask(q):
    return f"asked {q}"


# ------------------------------------------------------------------------------------------------ soft limits


def test_a_caller_that_takes_refusals_for_answers_is_stopped_for_good(opened, tried):
    """Ten bodies, two refusals of the tool, and from then on nothing runs: not the same tool, not another."""
    with opened(CEILING | {"tools": {"search": 10}}, REFUSALS | {"limit": 2}) as session:
        assert tried(search, range(4000)) == "." * 10 + "rr" + "S" * 3988
        assert tried(ask, range(100)) == "S" * 100
        report = session.report()
        assert (report["calls"], report["refused"]) == (10, 4090)
        assert [trip["rule"] for trip in report["trips"]] == ["call_ceiling", "max_refusals"]
        assert (session.trip.rule, session.trip.scope, session.trip.observed) == ("max_refusals", "run", 2)
        with pytest.raises(SessionStopped):
            session.raise_if_open()


@pytest.mark.parametrize("scope", ["run", "session"])
def test_a_ceiling_of_the_whole_run_is_hard_from_its_first_refusal(scope, opened, tried):
    """The eleventh call of any tool already gets the exception of a run that has ended."""
    with opened(CEILING | {scope: 10}, REFUSALS | {"limit": 5}) as session:
        assert tried(search, range(12)) + tried(ask, range(2)) == "." * 10 + "SSSS"
        assert (session.trip.scope, session.trip.observed, session.trip.limit) == (scope, 10, 10)


def test_refusals_with_work_between_them_end_the_run_in_the_end(opened, tried):
    """An agent that does something else after each refusal is not refused too often in a row, but in all."""
    with opened(CEILING | {"tools": {"search": 1}}, REFUSALS | {"limit": 2, "total": 5}) as session:
        said = tried(search, [0])
        for n in range(6):
            said += tried(search, [n]) + tried(ask, [n])
        assert said == "." + "r." * 4 + "rSSS"
        assert (session.trip.rule, session.trip.observed) == ("max_refusals", 5)


def test_warnings_come_at_a_half_and_again_at_three_quarters(opened, tried):
    """A caller is told twice before the stop, not once and never again."""
    with opened(CEILING | {"run": 8}, {"plugin": "failure_streak", "limit": 8}, on_warn="nudge") as session:

        @guard_tool
        def fail(q):
            raise ValueError("no")

        assert tried(fail, range(4)) == "!!!!"
        assert session.report()["nudges"] == {"failure_streak": 1}
        assert tried(fail, range(3)) == "!!!"
        assert session.report()["nudges"] == {"failure_streak": 2, "call_ceiling": 2}


# ------------------------------------------------------------------------------------------------ parallel calls


@pytest.mark.parametrize("scope", ["run", "session"])
async def test_a_batch_does_not_overshoot_a_ceiling(scope, opened):
    """Of eight calls at once that await at once, six bodies start and end, and two are refused before any code."""
    begun, ended = [], []

    @guard_tool
    async def work(n):
        begun.append(n)
        await asyncio.sleep(0)
        ended.append(n)
        return n

    with opened(CEILING | {scope: 6}) as session:
        answers = await asyncio.gather(*(work(n) for n in range(8)), return_exceptions=True)
        assert (begun, sorted(ended), answers[:6]) == (list(range(6)), list(range(6)), list(range(6)))
        assert [type(answer) for answer in answers[6:]] == [SessionStopped, SessionStopped]
        report = session.report()
        assert (report["calls"], report["refused"], report["in_flight"]) == (6, 2, 0)


async def test_one_refused_call_of_a_batch_leaves_its_siblings_running(opened):
    """A tool's ceiling hit in a batch refuses that one call; the others run, and so does what comes after."""

    @guard_tool
    async def write(n):
        await asyncio.sleep(0)
        return n

    @guard_tool
    async def read(n):
        await asyncio.sleep(0)
        return n

    with opened(CEILING | {"tools": {"write": 1}}, REFUSALS | {"limit": 1000}) as session:
        answers = await asyncio.gather(write(1), write(2), read(3), return_exceptions=True)
        assert (answers[0], type(answers[1]), answers[2]) == (1, CircuitOpen, 3)
        assert (answers[1].trip.scope, find_trip(answers[1]).rule) == ("tool", "call_ceiling")
        assert (session.trip, await read(4)) == (None, 4)


@pytest.mark.parametrize("scope", ["run", "session"])
def test_threads_do_not_overshoot_a_ceiling(scope, opened):
    """Sixteen threads with five calls each at a ceiling of forty: exactly forty bodies start."""
    started, refused = [], []

    @guard_tool
    def work(n):
        started.append(n)

    with opened(CEILING | {scope: 40}) as session:

        def one(first):
            for n in range(first, first + 5):
                try:
                    work(n)
                except SessionStopped as stop:
                    refused.append(stop)

        threads = [threading.Thread(target=session.bind(one), args=(5 * n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(started), len(refused), len(set(started))) == (40, 40, 40)
        assert session.report()["calls"] == 40


# ------------------------------------------------------------------------------------------------ pauses


class Written(MemoryStore):
    """A store in which every session is plain text between two calls, as if each came in another process."""

    def __init__(self):
        super().__init__()
        self.texts = {}

    def transact(self, session_id, step):
        text = self.texts.get(session_id)
        state = SessionState.from_plain(json.loads(text)) if text else SessionState(session_id)
        try:
            return step(state)
        finally:
            self.texts[session_id] = json.dumps(state.to_plain())


class Approval(Exception):
    """By which a framework pauses a run until somebody has said yes."""


Approval.__module__, Approval.__qualname__ = "langgraph.errors", "GraphBubbleUp"


def test_an_approved_call_is_counted_once_in_whatever_process_it_is_resumed(opened):
    """At a ceiling of one the interrupted call runs after its approval, under its id; a second call is refused."""
    with opened(CEILING | {"run": 1}, {"plugin": "tool_stats"}, store=Written()) as session:
        place, tool = session.place("framework run"), Tool("pay")
        Attempt(session.guard, place, tool, {"to": "me"}, call_id="call_1").raised(Approval())
        again = Attempt(session.guard, session.place("framework run"), tool, {"to": "me"}, call_id="call_1")
        assert again.refused is None
        again.returned("paid")
        for call_id in ("call_1", "call_2", None):
            assert Attempt(session.guard, place, tool, {"to": "me"}, call_id=call_id).refused is not None
        report = session.report()
        assert (report["calls"], report["failed"], report["refused"]) == (1, 0, 3)


def test_a_pause_is_neither_a_failure_nor_a_lap(opened, tried):
    """A decorated tool that asks for approval five times trips nothing, though each body start is counted."""

    @guard_tool
    def pay(to):
        raise Approval("sure?")

    rules = [{"plugin": "failure_streak", "limit": 2}, REPEAT | {"limit": 2, "max_period": 1}, {"plugin": "tool_stats"}]
    with opened(*rules, CEILING | {"run": 5}) as session:
        assert tried(pay, ["me"] * 5) == "!!!!!"
        assert (session.trip, session.report()["failed"]) == (None, 0)
        assert tried(pay, ["me"]) == "S"


# ------------------------------------------------------------------------------------------------ whose counter it is


def test_a_tool_of_a_long_lived_server_has_no_counter_of_its_own(opened, tried):
    """Three sessions with fifty calls each of one module's tool, at a ceiling of a hundred a session: no trip."""
    for day in ("monday", "tuesday", "wednesday"):
        with opened(CEILING | {"session": 100}, name=day) as session:
            assert tried(search, range(50)) == "." * 50
            assert (session.trip, session.report()["calls"]) == (None, 50)


def test_outside_any_session_nothing_is_limited_and_that_is_said_once(tried):
    """There is no counter of the process: the calls run, with one warning per tool that says what to open."""

    @guard_tool(name="tool_without_a_session")
    def alone(q):
        return q

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert tried(alone, [1] * 600) == "." * 600
    assert [("outside any session" in str(each.message), each.category) for each in said] == [(True, RuntimeWarning)]


# ------------------------------------------------------------------------------------------------ cost, no progress


def test_use_without_a_loop_ends_at_the_ceiling_and_is_called_by_its_name(opened, tried, words):
    """A thousand new questions with new answers: two hundred run, and the reason speaks of a ceiling, not of a loop."""
    with opened(REPEAT | {"limit": 3}, CEILING | {"session": 200}) as session:
        assert tried(search, map(words, range(1000))) == "." * 200 + "S" * 800
        trip = session.trip
        assert (trip.rule, trip.scope, trip.loop_type, trip.observed) == ("call_ceiling", "session", "over_use", 200)
        assert (trip.period, trip.members) == (None, ())
        assert not any(word in trip.why for word in ("same", "row", "round", "repeat"))


def test_time_and_cost_end_it_earlier(opened, tried, words):
    """Wall time and reported cost are limits like others: the calls that fit run, and the reason names the limit."""
    now = [0.0]
    for rule, ran in (({"plugin": "deadline", "seconds": 60.0}, 60), ({"plugin": "cost", "limit": 1.5}, 15)):
        with opened(rule, CEILING | {"session": 200}, name=rule["plugin"], clock=lambda: now[0]) as session:
            calls = 0
            while not tried(search, [words(calls)]).startswith("S"):
                calls += 1
                now[0] += 1.0
                session.report_cost(0.1)
            assert (calls, session.trip.rule, session.trip.loop_type) == (ran, rule["plugin"], "over_use")


# ------------------------------------------------------------------------------------------------ off by one, no effect


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize(
    ("ceiling", "end"), [("run", "S"), ("session", "S"), ("signature", "r"), ("tools", "r"), ("classes", "r")]
)
def test_a_limit_is_so_many_executions(ceiling, end, limit, opened, tried):
    """A ceiling of one lets the first call run and refuses the second; of five, five and the sixth."""
    value = {"tools": {"search": limit}, "classes": {"read": limit}}.get(ceiling, limit)
    with opened(CEILING | {ceiling: value}):
        assert tried(search, ["x"] * (limit + 2)) == "." * limit + end * 2


WHOLE = [
    ("repeat_guard", "limit"), ("repeat_guard", "failed_limit"), ("repeat_guard", "failed_nudge"),
    ("repeat_guard", "max_period"), ("same_answer", "limit"), ("failure_streak", "limit"),
    ("signature_failures", "limit"), ("call_ceiling", "run"), ("call_ceiling", "session"),
    ("call_ceiling", "signature"), ("max_refusals", "limit"), ("max_refusals", "total"), ("file_edits", "limit"),
    ("depth", "limit"), ("max_in_flight", "limit"), ("distinct_ratio", "window"), ("distinct_ratio", "distinct"),
]  # fmt: skip
AMOUNTS = [("stagnation", "limit"), ("deadline", "seconds"), ("cost", "limit"), ("signature_failures", "cooldown")]
NEEDED = {"repeat_guard": {"limit": 5}, "max_refusals": {"limit": 5}, "signature_failures": {"limit": 5}}


@pytest.mark.parametrize(
    ("rule", "parameter", "value"),
    [(*known, value) for known in WHOLE for value in (0, -1, True, 2.5, "3")]
    + [(*known, value) for known in AMOUNTS for value in (0, -1.0, True, float("nan"), float("inf"), "3")],
)
def test_a_limit_that_limits_nothing_is_an_error_where_it_is_set(rule, parameter, value):
    """Zero, negative, a truth, a fraction of a call, no number: the policy is not made, and the parameter is named."""
    with pytest.raises(SettingsError, match=parameter):
        Policy(plugins=[{"plugin": rule} | NEEDED.get(rule, {}) | {parameter: value}])


@pytest.mark.parametrize("rule", sorted({rule for rule, _ in WHOLE + AMOUNTS}))
def test_a_misspelled_limit_is_an_error(rule):
    """No rule takes a parameter that it does not know, so that none is set without effect."""
    with pytest.raises(SettingsError, match="unknown parameter 'limitt'"):
        Policy(plugins=[{"plugin": rule, "limitt": 5}])


def test_a_ceiling_cannot_be_set_below_what_was_reached(opened, tried):
    """Raising to less than what holds is an error; a smaller policy on a session that went further ends it at once."""
    with opened(CEILING | {"session": 5}) as session:
        assert tried(search, range(5)) == "....."
        with pytest.raises(ValueError, match="session is 5; 3 would not raise it"):
            session.raise_ceiling("session", 3, "why", 1e12)
    with opened(CEILING | {"session": 3}) as session:
        assert tried(search, [9]) == "S"
        assert (session.trip.limit, session.trip.observed) == (3, 5)


def test_the_limits_in_force_can_be_read(opened, tried):
    """The policy says them as plain values, and the trip says the one that was reached."""
    with opened(CEILING | {"run": 7, "tools": {"s*": 2}}, REPEAT | {"limit": 2}) as session:
        ceiling, repeat = session.policy.to_dict()["tool_plugins"]
        assert (ceiling["run"], ceiling["tools"], repeat["limit"], repeat["max_period"]) == (7, {"s*": 2}, 2, 3)
        assert tried(search, ["x", "y", "z"]) == "..r"
        assert session.report()["trips"][0]["limit"] == 2
