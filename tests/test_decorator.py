"""The decorator: what it leaves as it is, what it counts, what it refuses."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import threading
import traceback
import typing
import unittest.mock
import warnings

import pytest

from otel_toolguard import CircuitOpen, Policy, Session, SessionMissing, SessionStopped, SettingsError, guard_tool
from otel_toolguard import decorator as module

THREADS, CEILING = 64, 25
CEILING_ONLY = Policy(plugins=[{"plugin": "call_ceiling", "run": CEILING}])


def laps(limit, **more):
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit, **more}, {"plugin": "tool_stats"}])


@guard_tool
def shout(word: str, times: int = 2) -> str:
    """Says it loudly."""
    return word.upper() * times


@guard_tool
async def shout_later(word: str) -> str:
    """Says it loudly, later."""
    await asyncio.sleep(0)
    return word.upper()


def test_the_function_looks_as_it_did():
    """Name, signature, hints, docstring and kind are those of the bare function."""
    bare = shout.__wrapped__
    assert (shout.__name__, shout.__doc__, shout.__module__) == (bare.__name__, bare.__doc__, bare.__module__)
    assert inspect.signature(shout) == inspect.signature(bare)
    assert typing.get_type_hints(shout) == typing.get_type_hints(bare)
    assert inspect.iscoroutinefunction(shout_later)
    assert not inspect.iscoroutinefunction(shout)


def test_the_result_is_the_function_s_own():
    """Within a session the guarded function returns the very object that the body returned."""
    thing = object()
    with Session():
        assert guard_tool(lambda: thing)() is thing


@pytest.mark.parametrize("limit", [2, 3, 5])
def test_a_repeated_call_completes_its_last_lap_and_is_refused_after(limit):
    """Limit L lets L equal calls run and refuses the next before its body, with the exception of a stopped run."""
    bodies = []

    @guard_tool
    def look(q):
        bodies.append(q)
        return "same"

    with Session(policy=laps(limit)) as session:
        for _ in range(limit):
            assert look("x") == "same"
        assert session.trip.rule == "repeat_guard"
        with pytest.raises(SessionStopped) as caught:
            look("something else")
        assert type(caught.value) is SessionStopped
    assert len(bodies) == limit


def test_positional_keyword_and_default_arguments_are_one_call():
    """f("w"), f(q="w") and an explicit default have one signature, so three of them are three laps."""

    @guard_tool
    def look(q, limit=10):
        return "same"

    with Session(policy=laps(3)) as session:
        look("w")
        look(q="w")
        look(limit=10, q="w")
        assert session.trip is not None


def test_methods_are_tools_and_their_receiver_is_no_argument():
    """Two instances asking the same repeat one call; classmethods and staticmethods are guarded too."""

    class Desk:
        @guard_tool
        def look(self, q):
            return "same"

        @guard_tool
        @classmethod
        def look_class(cls, q):
            return cls, q

        @guard_tool
        @staticmethod
        def look_static(q):
            return q

    with Session(policy=laps(2)) as session:
        Desk().look("x")
        Desk().look("x")
        assert session.trip.members[0].arguments == {"q": "str(1)"}
    with Session(policy=laps(9)) as session:
        assert Desk.look_class("x") == (Desk, "x")
        assert Desk.look_static("x") == Desk().look_static("x") == "x"
        assert session.report()["calls"] == 3


def test_exactly_the_ceiling_runs_under_threads():
    """64 threads against a ceiling of 25: exactly 25 bodies, the others refused before theirs."""
    bodies, refused = [], []
    gate = threading.Barrier(THREADS)

    @guard_tool
    def work(n):
        bodies.append(n)

    with Session(policy=CEILING_ONLY) as session:
        bound = session.bind(work)

        def ask(n):
            gate.wait()
            try:
                bound(n)
            except CircuitOpen as error:
                refused.append(error)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(bodies), len(refused)) == (CEILING, THREADS - CEILING)


async def test_exactly_the_ceiling_runs_under_tasks():
    """64 tasks against a ceiling of 25: exactly 25 bodies, the others refused before theirs."""
    bodies = []

    @guard_tool
    async def work(n):
        bodies.append(n)
        await asyncio.sleep(0)

    async with Session(policy=CEILING_ONLY):
        answers = await asyncio.gather(*(work(n) for n in range(THREADS)), return_exceptions=True)
    assert len(bodies) == CEILING
    assert sum(isinstance(answer, SessionStopped) for answer in answers) == THREADS - CEILING


def test_a_coroutine_that_is_never_awaited_reserves_nothing():
    """Async tools are admitted when they are awaited."""
    with Session(policy=CEILING_ONLY) as session:
        shout_later("x").close()
        assert session.guard.transact(lambda state: state.calls) == 0


def test_the_tool_s_own_exception_leaves_unchanged():
    """The very exception object passes, with at most one frame of the guard in its traceback."""
    mine = ValueError("mine")

    @guard_tool
    def fail():
        raise mine

    with Session() as session, pytest.raises(ValueError) as caught:
        fail()
    assert caught.value is mine
    frames = [frame.filename for frame in traceback.extract_tb(mine.__traceback__)]
    assert sum("otel_toolguard" in name and "tests" not in name for name in frames) == 1
    assert session.report()["failed"] == 1


def test_a_call_that_fails_the_same_way_again_and_again_is_stopped():
    """Failures repeat like results do: same type, same message."""

    @guard_tool
    def fail():
        raise PermissionError("denied")

    with Session(policy=laps(3)) as session:
        for _ in range(3):
            with pytest.raises(PermissionError):
                fail()
        assert session.trip.loop_type == "error_storm"


def test_a_sync_function_that_returns_an_awaitable_is_settled_after_the_await():
    """The call is over when its awaitable is; a failure inside it is the call's failure."""

    @guard_tool
    def start(fail):
        async def later():
            if fail:
                raise ValueError("late")
            return "done"

        return later()

    async def use():
        async with Session(policy=laps(9)) as session:
            pending = start(False)
            assert session.guard.transact(lambda state: state.in_flight) == 1
            assert await pending == "done"
            with pytest.raises(ValueError):
                await start(True)
            return session.report()

    report = asyncio.run(use())
    assert (report["calls"], report["failed"]) == (2, 1)


def test_generators_stay_generators_and_are_settled_at_their_end():
    """send, throw and close work; nothing is counted before the first item; the call ends with the iteration."""

    @guard_tool
    def count(top):
        got = []
        for n in range(top):
            got += [(yield n)]
        return got

    assert inspect.isgeneratorfunction(count)
    with Session(policy=laps(2)) as session:
        count(3)
        assert session.guard.transact(lambda state: state.calls) == 0
        items = count(2)
        assert inspect.isgenerator(items)
        assert next(items) == 0
        assert session.guard.transact(lambda state: state.in_flight) == 1
        assert items.send("a") == 1
        with pytest.raises(StopIteration) as ended:
            items.send("b")
        assert ended.value.value == ["a", "b"]
        half = count(9)
        next(half)
        half.close()
        assert session.guard.transact(lambda state: state.in_flight) == 0
        assert list(count(3)) == list(count(3)) == [0, 1, 2]
        assert session.trip.rule == "repeat_guard"
        with pytest.raises(SessionStopped):
            next(count(1))


async def test_async_generators_are_guarded_to_their_end():
    """asend, athrow and aclose reach the body; a loop of equal streams is stopped."""

    @guard_tool
    async def ticks(top):
        for n in range(top):
            try:
                yield n
            except KeyError:
                yield "caught"

    async with Session(policy=laps(2)) as session:
        stream = ticks(2)
        assert await anext(stream) == 0
        assert await stream.athrow(KeyError()) == "caught"
        assert [item async for item in stream] == [1]
        half = ticks(5)
        await anext(half)
        await half.aclose()
        assert session.guard.transact(lambda state: state.in_flight) == 0
        for _ in range(2):
            assert [item async for item in ticks(2)] == [0, 1]
        with pytest.raises(SessionStopped):
            [item async for item in ticks(9)]


async def test_a_cancelled_call_gives_its_place_back():
    """A real cancellation passes unchanged, is no failure, and leaves nothing in flight."""

    @guard_tool
    async def wait():
        await asyncio.sleep(60)

    async with Session(policy=laps(2)) as session:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        report = session.report()
    assert (report["failed"], report["cancelled"], report["in_flight"]) == (0, 1, 0)


async def test_a_cancellation_from_inside_the_tool_is_its_failure():
    """A CancelledError that nobody asked for is booked as a failure and passes unchanged."""

    @guard_tool
    async def broken():
        raise asyncio.CancelledError

    async with Session(policy=laps(9)) as session:
        with pytest.raises(asyncio.CancelledError):
            await broken()
        assert session.report()["failed"] == 1


def test_outside_a_session_a_call_runs_and_says_once_how_to_open_one():
    """No session: the call runs, unlimited, and one warning per tool points at the caller."""
    module._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            assert shout("a", 1) == "A"
    assert len(caught) == 1
    assert "Session(" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_warnings_as_errors_do_not_make_the_guard_fail(caplog):
    """Where warnings are errors, the advice goes to the logger and the call still runs."""
    module._warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shout("a", 1) == "A"
    assert "outside any session" in caplog.text


def test_strict_refuses_calls_outside_a_session(monkeypatch):
    """Under strict a guarded call outside any session raises SessionMissing before its body."""
    monkeypatch.setenv("TOOLGUARD_STRICT", "1")
    with pytest.raises(SessionMissing):
        shout("a")


def test_mode_off_judges_nothing(monkeypatch):
    """TOOLGUARD_MODE=off lets everything run, without a deploy."""
    monkeypatch.setenv("TOOLGUARD_MODE", "off")
    with Session() as session:
        for _ in range(50):
            shout("a")
        assert session.trip is None


def test_guarding_twice_guards_once():
    """A guarded function under the decorator again is the same object, so no call is counted twice."""
    assert guard_tool(shout) is shout


def test_copies_and_pickles_are_the_function_itself():
    """copy, deepcopy and pickle work and keep drawing from the same session."""
    assert copy.copy(shout) is shout
    assert copy.deepcopy(shout) is shout
    assert pickle.loads(pickle.dumps(shout)) is shout


def test_partials_have_the_name_of_their_function():
    """functools.partial objects are guarded under the inner function's name."""

    def weather(key, city):
        return city

    guarded = guard_tool(functools.partial(weather, "secret"))
    with Session(policy=laps(9)) as session:
        assert guarded(city="Rome") == "Rome"
        assert list(session.report()["tools"]) == ["weather"]


@pytest.mark.parametrize("thing", [3, "text", None.__class__, object()])
def test_what_is_no_function_is_refused_by_name(thing):
    """A non-callable or a class under guard_tool is a SettingsError that says what it got."""
    with pytest.raises(SettingsError, match="guard_tool takes a function"):
        guard_tool(thing)


@pytest.mark.parametrize(
    ("told", "valid"),
    [
        ({"tool_class": "reader"}, "read, write, exec"),
        ({"risk": "none"}, "read_only, reversible, irreversible"),
        ({"poll": 0}, "whole number from 1"),
        ({"ignore": "request_id"}, "list of argument names"),
        ({"key": "q"}, "takes a function"),
    ],
)
def test_settings_of_a_tool_are_checked_when_it_is_defined(told, valid):
    """A wrong value for the decorator is an error at definition time that names the valid choices."""
    with pytest.raises(SettingsError, match=valid):
        guard_tool(**told)


def test_what_is_ignored_or_keyed_decides_what_repeats():
    """Ignored arguments do not tell calls apart; key and result_key replace what is compared."""
    counter = iter(range(99))

    @guard_tool(ignore=["request_id"], result_key=lambda result: result["rows"])
    def query(sql, request_id):
        return {"rows": 3, "took": next(counter)}

    with Session(policy=laps(3)) as session:
        for n in range(3):
            query("select 1", request_id=n)
        assert session.trip is not None


def test_a_declared_poller_has_its_own_patience():
    """poll=True gives ten times the limit, poll=N that many times; another tool keeps the plain limit."""
    for patience, poll in ((10, True), (3, 3), (1, False)):

        @guard_tool(poll=poll)
        def job():
            return "running"

        with Session(policy=laps(2)) as session:
            for _ in range(2 * patience - 1):
                job()
            assert session.trip is None
            job()
            assert session.trip is not None


def test_errors_of_on_trip_are_logged_and_never_felt(caplog):
    """A callback that raises changes nothing for the tool or the trip."""

    def broken(_trip):
        raise RuntimeError("callback")

    @guard_tool
    def look():
        return "same"

    with Session(policy=laps(2), on_trip=broken) as session:
        assert [look(), look()] == ["same", "same"]
        assert session.trip is not None
    assert "on_trip raised" in caplog.text


def test_a_trip_is_one_warning_on_the_logger(caplog):
    """Without any back end a trip is still seen: one WARNING, the sentence that says why."""

    @guard_tool
    def look():
        return "same"

    with Session(policy=laps(2)) as session:
        look()
        look()
        for _ in range(5):
            with pytest.raises(SessionStopped):
                look()
    records = [record for record in caplog.records if record.name == "otel_toolguard"]
    assert [(record.levelname, record.message) for record in records] == [("WARNING", session.trip.why)]


def test_hostile_arguments_do_not_make_the_guard_fail():
    """Arguments that refuse repr, equality, hashing and iteration are passed on untouched."""

    class Hostile:
        def __repr__(self):
            raise RuntimeError("repr")

        __str__ = __iter__ = __len__ = __bool__ = __repr__

        def __eq__(self, other):
            raise RuntimeError("eq")

        def __hash__(self):
            raise RuntimeError("hash")

        def __getattr__(self, name):
            raise RuntimeError(name)

    @guard_tool
    def take(thing, **more):
        return "ok"

    with Session():
        cycle = []
        cycle.append(cycle)
        for thing in (Hostile(), [Hostile()], {"a": Hostile()}, cycle, "\ud800", 10**5000, {1: 2, "1": 2, None: 3}):
            assert take(thing) == "ok"
            assert take(thing=thing, extra=thing) == "ok"


def test_a_wrong_call_raises_the_function_s_own_type_error():
    """A call that does not fit the function raises what Python raises, and is counted as a failure."""
    with Session() as session:
        with pytest.raises(TypeError, match="shout"):
            shout()
        with pytest.raises(TypeError, match="shout"):
            shout("a", 1, 2, 3)
        assert session.report()["failed"] == 2


async def test_refusals_of_one_batch_are_one_refusal():
    """Eight calls at once against a tool's ceiling of six: two are refused, the run goes on; asking again ends it."""
    rules = Policy(plugins=[{"plugin": "call_ceiling", "tools": {"work": 6}}, {"plugin": "max_refusals", "limit": 2}])

    @guard_tool
    async def work(n):
        await asyncio.sleep(0.01)
        return n

    @guard_tool
    async def other():
        return "fine"

    async with Session(policy=rules):
        answers = await asyncio.gather(*(work(n) for n in range(8)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [int] * 6 + [CircuitOpen] * 2
        assert await other() == "fine"
        with pytest.raises(CircuitOpen) as first:
            await work(8)
        assert not isinstance(first.value, SessionStopped)
        with pytest.raises(CircuitOpen):
            await work(9)  # told why, and asked again: the answer is the same, but the run ends with it
        with pytest.raises(SessionStopped) as stopped:
            await other()
        assert stopped.value.trip.rule == "max_refusals"


async def test_asking_again_beside_a_slow_call_is_stopped_in_the_end():
    """A slow call in flight does not make a storm of refused calls one batch for ever."""
    rules = Policy(plugins=[{"plugin": "call_ceiling", "tools": {"work": 1}}, {"plugin": "max_refusals", "limit": 2}])

    @guard_tool
    async def slow():
        await asyncio.sleep(60)

    @guard_tool
    async def work(n):
        return n

    async with Session(policy=rules) as session:
        task = asyncio.create_task(slow())
        await asyncio.sleep(0)
        asked = 0
        await work(0)
        while session.trip is None and asked < 500:
            asked += 1
            with pytest.raises(CircuitOpen):
                await work(asked)
        task.cancel()
    assert session.trip.rule == "max_refusals"
    assert asked < 100


def test_off_is_off_under_strict_too(monkeypatch):
    """The kill switch wins over strict, and says nothing about sessions."""
    module._warned.clear()
    monkeypatch.setenv("TOOLGUARD_STRICT", "1")
    monkeypatch.setenv("TOOLGUARD_MODE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shout("a", 1) == "A"


def test_a_mock_is_a_function_like_any_other():
    """An object that answers to every attribute is not taken for a framework's tool."""
    mock = unittest.mock.Mock(return_value="done")
    with Session():
        assert guard_tool(name="mock")(mock)("x") == "done"


@pytest.mark.parametrize("name", ["", " ", 3, "a\nb", b"x"])
def test_a_tool_s_name_is_a_text_on_one_line(name):
    """A name that could not stand on a span or in a sentence is an error when the tool is defined."""
    with pytest.raises(SettingsError, match="tool's name"):
        guard_tool(name=name)
