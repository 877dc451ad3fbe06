"""How calls end: cancelled from outside or inside, paused, refused alone or stopped for good."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest

from otel_toolguard import CircuitOpen, SessionStopped, find_trip, guard_tool
from otel_toolguard.adapter import GuardedTool, native
from otel_toolguard.testing import AsyncScriptedAgent, ScriptedAgent, capture_spans, unanswered

CEILING = {"plugin": "call_ceiling"}
FAILURES = {"plugin": "signature_failures"}
REPEAT = {"plugin": "repeat_guard"}
STATS = {"plugin": "tool_stats"}
STREAK = {"plugin": "failure_streak"}


@pytest.fixture
def captured():
    with capture_spans() as captured:
        yield captured


def outcomes(captured):
    return [span.attributes["toolguard.outcome"] for span in captured.spans()]


def figures(session):
    report = session.report()
    return {name: report[name] for name in ("calls", "failed", "cancelled", "in_flight")}


# ------------------------------------------------------------------------------------------------ cancellation


async def test_a_cancelled_call_is_neither_a_failure_nor_a_lap_and_gives_its_place_back(opened, captured):
    """Five cancels pass with their own message, trip no rule of failures or laps, and count for the ceiling alone."""
    running = asyncio.Event()

    @guard_tool
    async def wait(q):
        running.set()
        await asyncio.Event().wait()

    rules = [STREAK | {"limit": 2}, FAILURES | {"limit": 2}, REPEAT | {"limit": 2, "max_period": 1}]
    with opened(*rules, {"plugin": "max_in_flight", "limit": 1}, CEILING | {"run": 5}, STATS) as session:
        for n in range(5):
            running.clear()
            task = asyncio.create_task(wait("x"))
            await running.wait()
            assert session.report()["in_flight"] == 1
            task.cancel(f"enough {n}")
            with pytest.raises(asyncio.CancelledError, match=f"enough {n}"):
                await task
            assert session.trip is None
        assert figures(session) == {"calls": 5, "failed": 0, "cancelled": 5, "in_flight": 0}
        with pytest.raises(SessionStopped) as caught:
            await wait("x")
        assert caught.value.trip.rule == "call_ceiling"
    assert outcomes(captured) == ["cancelled"] * 5 + ["refused"]


async def raises_it():
    raise asyncio.CancelledError("from the client")


async def awaits_a_cancelled_future():
    future = asyncio.get_running_loop().create_future()
    future.cancel("from the client")
    await future


async def awaits_a_task_that_it_cancels():
    task = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    task.cancel("from the client")
    await task


async def after_a_cancel_that_was_taken_back():
    asyncio.current_task().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        asyncio.current_task().uncancel()
    raise asyncio.CancelledError("from the client")


INNER = [raises_it, awaits_a_cancelled_future, awaits_a_task_that_it_cancels, after_a_cancel_that_was_taken_back]


@pytest.mark.parametrize("body", INNER, ids=lambda body: body.__name__)
async def test_a_cancellation_that_nobody_asked_for_is_a_failure_of_the_tool(body, opened, captured):
    """A CancelledError from inside leaves as it came and is booked as failed, so a streak of three ends the run."""
    tool = guard_tool(name="fetch")(body)
    with opened(STREAK | {"limit": 3}, STATS) as session:
        for _ in range(3):
            with pytest.raises(asyncio.CancelledError, match="from the client"):
                await tool()
        assert figures(session) == {"calls": 3, "failed": 3, "cancelled": 0, "in_flight": 0}
        with pytest.raises(SessionStopped):
            await tool()
    assert outcomes(captured) == ["failed"] * 3 + ["refused"]
    assert {span.attributes["error.type"] for span in captured.spans()[:3]} == {"asyncio.CancelledError"}


def test_the_very_object_of_an_inner_cancellation_passes(opened):
    """Neither a copy nor a wrapper: the exception that the tool raised is the one that the caller gets."""
    error = asyncio.CancelledError("mine")

    @guard_tool
    async def fetch():
        raise error

    async def use():
        with opened(STATS):
            try:
                await fetch()
            except asyncio.CancelledError as caught:
                return caught is error
        return False

    assert asyncio.run(use())


# ------------------------------------------------------------------------------------------------ control flow


def made(module, name, *bases):
    return type(name.rpartition(".")[2], bases or (Exception,), {"__module__": module, "__qualname__": name})


PAUSE = made("langgraph.errors", "GraphBubbleUp")
CONTROL = {
    "a base": (PAUSE, True),
    "below it": (made("mine", "Ask", made("langgraph.errors", "GraphInterrupt", PAUSE)), True),
    "beside another base": (made("mine", "Both", ValueError, PAUSE), True),
    "an approval": (made("pydantic_ai.exceptions", "ApprovalRequired"), True),
    "a deferral": (made("pydantic_ai.exceptions", "CallDeferred"), True),
    "a class of the user's": (made("mine", "GraphBubbleUp"), False),
    "a module that ends alike": (made("my.langgraph.errors", "GraphBubbleUp"), False),
    "a class inside another": (made("langgraph.errors", "Mine.GraphBubbleUp"), False),
    "another error of the module": (made("langgraph.errors", "GraphRecursionError", RecursionError), False),
}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("which", CONTROL)
def test_a_pause_is_known_by_the_full_name_of_its_class(which, kind, opened, captured):
    """What a framework pauses with passes and trips nothing; a class that merely looks like it is a failure."""
    family, pauses = CONTROL[which]
    error = family("sure?")

    @guard_tool
    def now(q):
        raise error

    @guard_tool
    async def later(q):
        raise error

    with opened(STREAK | {"limit": 3}, STATS) as session:
        for _ in range(3):
            with pytest.raises(family) as caught:
                now("x") if kind == "sync" else asyncio.run(later("x"))
            assert caught.value is error
        assert (session.trip is None, session.report()["failed"]) == ((True, 0) if pauses else (False, 3))
    assert outcomes(captured) == ["interrupted" if pauses else "failed"] * 3


def test_a_call_and_its_resumption_are_one_round(opened):
    """Each call pauses once and is run again under its id: at a limit of three, three pairs are three laps."""

    @guard_tool
    def pay(to):
        if to_ask.pop():
            raise PAUSE("sure?")
        return "paid"

    to_ask = [False, True] * 3
    tool = GuardedTool("pay", pay)
    with opened(REPEAT | {"limit": 3, "max_period": 1}, CEILING | {"run": 4}, STATS) as session:
        place = session.place("framework run")
        trips = []
        for n in range(3):
            for _ in range(2):
                run_once(tool, place, pay, f"call_{n}")
            trips.append(session.trip_of("framework run"))
        assert [trip and trip.observed for trip in trips] == [None, None, 3]
        assert trips[2].rule == "repeat_guard"


def run_once(tool, place, function, call_id, times=1):
    """What an adapter does with one call: the framework may run the function several times under its id."""
    attempt = tool.attempt(place, {"to": "me"}, call_id=call_id)
    if attempt.refused is not None:
        return "refused"
    attempt.enter()
    try:
        for left in reversed(range(times)):
            try:
                result = function("me")
            except PAUSE as error:
                attempt.raised(error)
                return "paused"
            except ValueError as error:
                if not left:
                    attempt.raised(error)
                    return "failed"
    finally:
        attempt.leave()
    attempt.returned(result)
    return result


@pytest.mark.parametrize("fails", [True, False])
def test_a_function_that_the_framework_runs_twice_is_one_call_that_was_retried(fails, opened, captured):
    """Three calls whose bodies run twice each: three calls and spans, three retries on record, and a ceiling of three."""
    bodies = []

    @guard_tool
    def send(to):
        bodies.append(to)
        if fails:
            raise ValueError("no")
        return "sent"

    tool = GuardedTool("send", send)
    with opened(CEILING | {"run": 3}, STATS) as session:
        place = session.place("framework run")
        ended = [run_once(tool, place, send, f"call_{n}", times=2) for n in range(4)]
        assert ended == ["failed" if fails else "sent"] * 3 + ["refused"]
        report = session.report()
        assert (len(bodies), report["calls"], report["retries"], report["failed"]) == (6, 3, 3, 3 * fails)
    assert len(captured.spans("send")) == 4


# ------------------------------------------------------------------------------------------------ refusals and stops


@pytest.mark.parametrize("rule", ["ceiling", "failures"])
async def test_one_call_that_is_refused_leaves_the_run_going(rule, opened):
    """Of three at once the spent signature is refused as exactly CircuitOpen, ten times over, and is no failure."""

    @guard_tool
    async def read(q):
        await asyncio.sleep(0)
        if q == "x" and rule == "failures":
            raise ValueError("no")
        return q

    rules = [CEILING | {"signature": 1} if rule == "ceiling" else FAILURES | {"limit": 1}, STREAK | {"limit": 2}, STATS]
    with opened(*rules) as session:
        await asyncio.gather(read("x"), return_exceptions=True)
        failed = session.report()["failed"]
        for n in range(10):
            said = await asyncio.gather(read(f"a{n}"), read("x"), read(f"b{n}"), return_exceptions=True)
            assert (said[0], type(said[1]), said[2]) == (f"a{n}", CircuitOpen, f"b{n}")
            assert (said[1].trip.scope, said[1].trip.stops, session.trip) == ("signature", False, None)
            session.raise_if_open()
        assert (session.report()["failed"], session.report()["refused"]) == (failed, 10)


@pytest.mark.parametrize("scope", ["run", "session"])
async def test_a_stop_is_of_another_type_and_ends_all(scope, opened):
    """The same three calls at a ceiling of the whole: SessionStopped for what is left over, and for all that follows."""

    @guard_tool
    async def read(q):
        return q

    with opened(CEILING | {scope: 2}) as session:
        said = await asyncio.gather(*(read(n) for n in range(3)), return_exceptions=True)
        assert (said[:2], type(said[2]), said[2].trip.scope) == ([0, 1], SessionStopped, scope)
        with pytest.raises(SessionStopped):
            await read("new")
        with pytest.raises(SessionStopped):
            session.raise_if_open()


@pytest.mark.parametrize("kind", [ScriptedAgent, AsyncScriptedAgent])
def test_a_batch_that_is_cut_is_answered_in_full(kind, opened):
    """Three of five run, all five are answered, the model is asked no more, and the stop keeps the history so far."""
    work = guard_tool(name="work")(lambda n: f"did {n}")
    agent = kind({"work": work}, lambda turn: [("work", {"n": 5 * turn + n}) for n in range(5)])
    with opened(CEILING | {"run": 3}, STATS) as session:
        with pytest.raises(SessionStopped) as caught:
            agent.run() if kind is ScriptedAgent else asyncio.run(agent.run())
        assert (agent.asked, len(agent.answers), unanswered(agent.history)) == (1, 5, [])
        assert sorted(answer["refused"] for answer in agent.answers) == [False] * 3 + [True] * 2
        assert (session.report()["calls"], session.report()["refused"]) == (3, 2)
        assert caught.value.partial["messages"] == agent.history
        assert (caught.value.trip.rule, caught.value.trip.observed) == ("call_ceiling", 3)


def test_what_a_run_came_to_travels_with_the_stop(opened, tried):
    """A stop that is also the framework's own exception keeps partial and trip; pickled it is the plain stop."""
    theirs = native(made("frame.work", "Halt"), name="Stopped", module=__name__)
    search = guard_tool(name="search")(lambda q: q)
    with opened(CEILING | {"run": 2}) as session:
        tried(search, range(3))
        stop = theirs(session.trip, {"messages": ["a", "b"]})
    again = pickle.loads(pickle.dumps(stop))
    assert (isinstance(stop, SessionStopped), type(again)) == (True, SessionStopped)
    assert (again.partial, again.trip) == ({"messages": ["a", "b"]}, stop.trip)
    assert pickle.loads(pickle.dumps(theirs(stop.trip, threading.Lock()))).partial is None


SCRIPT = """
    import asyncio, sys
    from otel_toolguard import MemoryStore, Policy, Session, find_trip, guard_tool

    look = guard_tool(name="look")(lambda q="x": "same")
    rules = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}])

    def swallowing():
        for _ in range(9):
            try:
                look()
            except Exception as error:
                print("swallowed", type(error).__name__)
"""
WAYS = {
    "not caught": "with Session('s', policy=rules):\n    for _ in range(9): look()",
    "swallowed before the gate": "with Session('s', policy=rules) as s:\n    swallowing()\n    s.raise_if_open()",
    "asked for after the block": "with Session('s', policy=rules) as s:\n    swallowing()\ns.raise_if_open()",
    "an exit code of one's own": "with Session('s', policy=rules) as s:\n    swallowing()\nsys.exit(s.trip and s.trip.why)",
    "wrapped": (
        "with Session('s', policy=rules):\n    try:\n        for _ in range(9): look()\n"
        "    except Exception as error:\n        raise RuntimeError('tool failed') from error"
    ),
    "a task": (
        "async def main():\n    async with Session('s', policy=rules):\n        async with asyncio.TaskGroup() as group:\n"
        "            async def use():\n                for _ in range(9): look()\n            group.create_task(use())\n"
        "asyncio.run(main())"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_script_that_was_stopped_does_not_end_like_one_that_was_done(way):
    """However the stop leaves the program, its exit code is not 0, it never says done, and stderr says which rule."""
    text = f"{textwrap.dedent(SCRIPT)}\n{WAYS[way]}\nprint('done')\n"
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (ended.returncode, "done" in ended.stdout) == (1, False)
    assert "3 times" in ended.stderr or "repeat_guard" in ended.stderr


def test_who_stopped_a_run_and_at_what_count_is_read_from_fields(opened, captured):
    """Exception, session and report name the same trip, the event its rule and count; no text has to be read."""
    look = guard_tool(name="look")(lambda q: "same")
    with opened(REPEAT | {"limit": 3}) as session:
        for _ in range(3):
            look("x")
        with pytest.raises(SessionStopped) as caught:
            look("x")
        trip = find_trip(caught.value)
        assert (trip.rule, trip.observed, trip.limit, trip.scope) == ("repeat_guard", 3, 3, "run")
        assert session.trip.id == trip.id == session.report()["trips"][0]["id"]
    (event,) = captured.events()
    told = [event.attributes[f"toolguard.{name}"] for name in ("rule", "observed", "limit", "session.id")]
    assert told == ["repeat_guard", 3, 3, "s"]
    assert outcomes(captured) == ["ok"] * 3 + ["refused"]
