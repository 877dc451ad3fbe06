"""The decorator: what it leaves as it is, what it counts, what it refuses."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import sys
import threading
import traceback
import types
import typing
import unittest.mock
import warnings

import pytest

from otel_toolguard import CircuitOpen, Policy, Session, SessionMissing, SessionStopped, SettingsError, guard_tool
from otel_toolguard import calls as module

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
    module.warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            assert shout("a", 1) == "A"
    assert len(caught) == 1
    assert "Session(" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_warnings_as_errors_do_not_make_the_guard_fail(caplog):
    """Where warnings are errors, the advice goes to the logger and the call still runs."""
    module.warned.clear()
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
    module.warned.clear()
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


# ------------------------------------------------------------------------------------------------ transparency


def plain(q: str, n: int = 3) -> str:
    return q


async def later(q: str, n: int = 3) -> str:
    return q


def stream(q: str, n: int = 3) -> typing.Iterator[str]:
    yield q


async def stream_later(q: str, n: int = 3) -> typing.AsyncIterator[str]:
    yield q


def returns_a_coroutine(q: str, n: int = 3) -> typing.Any:
    return later(q, n)


class Shop:
    """Methods of every kind, bare."""

    def method(self, q: str, n: int = 3) -> str:
        return q

    async def method_later(self, q: str, n: int = 3) -> str:
        return q

    @classmethod
    def of_class(cls, q: str, n: int = 3) -> str:
        return q

    @staticmethod
    def static(q: str, n: int = 3) -> str:
        return q


@functools.wraps(plain)
def wraps_another(*args, **kwargs):
    return plain(*args, **kwargs)


class Oracle:
    """Knows."""

    def __call__(self, q: str, n: int = 3) -> str:
        return q


class OracleLater:
    """Knows, later."""

    async def __call__(self, q: str, n: int = 3) -> str:
        return q


BARE = {
    "plain": plain,
    "async": later,
    "generator": stream,
    "async generator": stream_later,
    "returns a coroutine": returns_a_coroutine,
    "wraps another": wraps_another,
    "bound method": Shop().method,
    "bound async method": Shop().method_later,
    "unbound method": Shop.method,
    "classmethod": Shop.of_class,
    "staticmethod": Shop.static,
    "callable object": Oracle(),
    "async callable object": OracleLater(),
    "partial": functools.partial(plain, "x"),
    "async partial": functools.partial(later, "x"),
}
KINDS = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
    inspect.isfunction,
    inspect.ismethod,
    callable,
)


@pytest.mark.parametrize("kind", BARE)
def test_inspection_sees_the_bare_function(kind):
    """Signature, hints and what inspect says of the kind of function, and of its call, are those of the bare one."""
    bare = BARE[kind]
    guarded = guard_tool(bare)
    assert inspect.signature(guarded) == inspect.signature(bare)
    assert inspect.signature(guarded, eval_str=True) == inspect.signature(bare, eval_str=True)
    assert [is_kind(guarded) for is_kind in KINDS] == [is_kind(bare) for is_kind in KINDS]
    assert inspect.iscoroutinefunction(guarded.__call__) == inspect.iscoroutinefunction(bare.__call__)
    if inspect.isroutine(bare):
        assert typing.get_type_hints(guarded) == typing.get_type_hints(bare)
        names = ("__name__", "__qualname__", "__module__", "__doc__", "__dict__")
        assert [getattr(guarded, name) for name in names] == [getattr(bare, name) for name in names]


def test_guarded_methods_look_like_bare_ones():
    """In a class and on an instance, a guarded method has the signature, hints and kind of the bare one."""

    class Guarded:
        method = guard_tool(Shop.__dict__["method"])
        method_later = guard_tool(Shop.__dict__["method_later"])
        of_class = guard_tool(Shop.__dict__["of_class"])
        static = guard_tool(Shop.__dict__["static"])

    for name in ("method", "method_later", "of_class", "static"):
        for guarded, bare in ((getattr(Guarded, name), getattr(Shop, name)),
                              (getattr(Guarded(), name), getattr(Shop(), name))):  # fmt: skip
            assert inspect.signature(guarded) == inspect.signature(bare)
            assert typing.get_type_hints(guarded) == typing.get_type_hints(bare)
            assert [is_kind(guarded) for is_kind in KINDS] == [is_kind(bare) for is_kind in KINDS]


NAMELESS = {
    "partial": (functools.partial(plain, n=1), "plain", plain.__doc__),
    "partial of a partial": (functools.partial(functools.partial(shout, "a"), times=1), "shout", "Says it loudly."),
    "object": (Oracle(), "Oracle", "Knows."),
    "async object": (OracleLater(), "OracleLater", "Knows, later."),
}


@pytest.mark.parametrize("kind", NAMELESS)
def test_what_has_no_name_gets_one(kind):
    """Frameworks ask for names: a partial has its function's name and docstring, an object those of its class."""
    bare, name, doc = NAMELESS[kind]
    guarded = guard_tool(name="given")(bare)
    assert guarded.guarded_tool.name == "given"
    assert (guarded.__name__, guarded.__doc__) == ("given" if "object" in kind else name, doc)
    other = guard_tool(NAMELESS["object"][0])
    assert (other.__name__, other.__qualname__) == ("Oracle", "Oracle")


def test_what_a_partial_was_given_by_name_is_in_no_signature():
    """A key that the host gave is no parameter with a default any more, for schemas show defaults; it still is used."""

    def weather(city: str, key: str, days: int = 2) -> str:
        return f"{city} {key} {days}"

    guarded = guard_tool(functools.partial(functools.partial(weather, key="hunter2"), days=3))
    assert list(inspect.signature(guarded).parameters) == ["city"]
    with Session(policy=laps(9)):
        assert guarded("Rome") == "Rome hunter2 3"
        assert guarded("Rome", days=4) == "Rome hunter2 4"


def test_hints_of_nameless_tools_are_resolved_as_far_as_they_can_be():
    """Postponed annotations of a partial or object are found where they were written; unknown names stay texts."""

    def unknown(q: Nowhere) -> str:  # noqa: F821
        return q

    assert typing.get_type_hints(guard_tool(Oracle())) == {"q": str, "n": int, "return": str}
    assert typing.get_type_hints(guard_tool(functools.partial(plain))) == {"q": str, "n": int, "return": str}
    assert guard_tool(functools.partial(unknown)).__annotations__ == {"q": "Nowhere", "return": "str"}
    with pytest.raises(AttributeError):
        guard_tool(Oracle()).nothing  # noqa: B018


def this_module(monkeypatch):
    """Pickle finds things by the name of their module, which the tests are not always imported under."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or inspect.getmodule(plain))


@pytest.mark.parametrize("bare", [functools.partial(plain, n=1), Oracle()], ids=["partial", "object"])
def test_nameless_tools_travel_with_their_guard(bare, monkeypatch):
    """A pickled partial or object arrives guarded, under the same name and with what was said about it."""
    this_module(monkeypatch)
    guarded = guard_tool(name="given", poll=False, ignore=["n"])(bare)
    assert copy.copy(guarded) is copy.deepcopy(guarded) is guarded
    arrived = pickle.loads(pickle.dumps(guarded))
    tool = arrived.guarded_tool
    assert (tool.name, tool.poll, tool.ignore, tool.key) == ("given", False, {"n"}, None)
    with Session(policy=laps(9)) as session:
        assert arrived(q="a") == guarded(q="a") == "a"
        assert session.report()["tools"]["given"]["calls"] == 2


# ------------------------------------------------------------------------------------------------ guarded once


class Counted:
    """Bears the decorator in every way."""

    @guard_tool
    def method(self, q):
        return q

    @classmethod
    @guard_tool
    def inner(cls, q):
        return q

    @guard_tool
    @staticmethod
    def static(q):
        return q

    @guard_tool
    def __call__(self, q):
        return q


AGAIN = {
    "function": lambda _run: shout,
    "method": lambda _run: Counted().method,
    "method of the class": lambda _run: Counted.method,
    "classmethod": lambda _run: Counted.inner,
    "staticmethod": lambda _run: Counted.static,
    "a method made by hand": lambda _run: types.MethodType(vars(Counted)["method"], Counted()),
    "object whose class is guarded": lambda _run: Counted(),
    "partial of guarded": lambda _run: functools.partial(shout, "a"),
    "guarded partial": lambda _run: guard_tool(functools.partial(plain, n=1)),
    "guarded object": lambda _run: guard_tool(Oracle()),
    "staticmethod object": lambda _run: guard_tool(staticmethod(plain)),
    "classmethod object": lambda _run: classmethod(guard_tool(Shop.__dict__["method"])),
    "bound to a session": lambda run: run.bind(shout),
    "bound method, bound to a session": lambda run: run.bind(Counted().method),
}


@pytest.mark.parametrize("kind", AGAIN)
def test_what_comes_to_a_guard_anyway_is_not_guarded_again(kind):
    """Whatever stands between, the decorator gives back the object that it was given."""
    thing = AGAIN[kind](Session())
    assert guard_tool(thing) is thing


@pytest.mark.parametrize("kind", AGAIN)
def test_what_is_guarded_under_another_name_is_counted_once(kind):
    """Where something is said about what is guarded already, each call is one call, under the name said last."""
    run = Session(policy=laps(9))
    thing = AGAIN[kind](run)
    renamed = guard_tool(name="renamed")(thing)
    given = [Counted()] if kind == "method of the class" else []
    if kind.endswith("classmethod object"):
        given, renamed = [], types.new_class("Home", (), {}, lambda names: names.update(tool=renamed)).tool
    if kind != "partial of guarded":
        given.append("a")
    with run:
        renamed(*given)
        assert counted(run) == {"renamed": 1}


def logged(function):
    """A decorator of somebody else."""

    @functools.wraps(function)
    def logging(*args, **kwargs):
        return function(*args, **kwargs)

    return logging


def logged_later(function):
    @functools.wraps(function)
    async def logging(*args, **kwargs):
        return await function(*args, **kwargs)

    return logging


def counted(session):
    return {name: row["calls"] for name, row in session.report()["tools"].items()}


def test_a_guard_around_another_decorator_around_a_guard_counts_once():
    """The outer guard counts, the inner one sees the same call; name and settings are those that were given inside."""
    inner = guard_tool(name="weather", poll=1)(plain)
    outer = guard_tool(logged(logged(inner)))
    assert (outer.guarded_tool.name, outer.guarded_tool.poll) == ("weather", 1)
    assert guard_tool(name="sky")(logged(inner)).guarded_tool.poll == 1
    with Session(policy=laps(2)) as session:
        assert [outer("a"), outer("a")] == ["a", "a"]
        assert counted(session) == {"weather": 2}
        with pytest.raises(SessionStopped):
            outer("a")


async def test_guards_around_async_decorators_count_once():
    """The same for coroutine functions, also where the decorator between them is bound to the session."""
    async with Session(policy=laps(9)) as session:
        inner = guard_tool(later)
        for outer in (guard_tool(logged_later(inner)), guard_tool(logged_later(session.bind(inner)))):
            assert await outer("a") == "a"
        assert counted(session) == {"later": 2}


async def test_guards_around_decorated_generators_count_once():
    """Whether the decorator between them iterates or only hands the generator on: one call for each iteration."""
    inner, inner_later = guard_tool(stream), guard_tool(stream_later)

    @functools.wraps(inner)
    def iterating(q):
        yield from inner(q)

    async with Session(policy=laps(9)) as session:
        for outer in (guard_tool(logged(inner)), guard_tool(iterating)):
            assert list(outer("a")) == ["a"]
        assert [item async for item in guard_tool(logged(inner_later))("a")] == ["a"]
        assert counted(session) == {"stream": 2, "stream_later": 1}


def test_a_retry_between_two_guards_is_one_call_with_retries():
    """The outer guard counts one call; executions below it are its retries."""
    tries = []

    @guard_tool
    def flaky(q):
        tries.append(q)
        if len(tries) < 3:
            raise OSError("again")
        return q

    @guard_tool
    @functools.wraps(flaky)
    def retrying(q):
        while True:
            try:
                return flaky(q)
            except OSError:
                continue

    with Session(policy=laps(9)) as session:
        assert retrying("a") == "a"
        report = session.report()
        assert (report["calls"], report["retries"], report["failed"], len(tries)) == (1, 2, 0, 3)


def test_a_tool_that_calls_itself_makes_calls():
    """Recursion is counted call by call, through one guard or two."""

    @guard_tool
    def down(n):
        return n and down(n - 1)

    @guard_tool
    @logged
    @guard_tool
    def twice(n):
        return n and twice(n - 1)

    with Session(policy=laps(9)) as session:
        assert (down(3), twice(3)) == (0, 0)
        assert counted(session) == {"down": 4, "twice": 4}


def test_a_function_under_two_names_is_two_tools():
    """One function that serves two servers has counters of its own for each, also where it is guarded already."""
    first = guard_tool(name="github__search", ignore=["n"])(plain)
    second = guard_tool(name="gitlab__search")(first)
    assert second.guarded_tool.ignore == {"n"}
    with Session(policy=laps(9)) as session:
        first("a")
        second("a")
        second("b")
        assert counted(session) == {"github__search": 1, "gitlab__search": 2}


class Above:
    @guard_tool
    def look(self, q):
        return q

    @guard_tool
    async def look_later(self, q):
        return q

    @guard_tool(name="other")
    def ask(self, q):
        return q


class Between(Above):
    @guard_tool
    def look(self, q):
        return super().look(q)

    @guard_tool
    async def look_later(self, q):
        return await super().look_later(q)

    @guard_tool
    def ask(self, q):
        return super().ask(q)


class Below(Between):
    @guard_tool
    def look(self, q):
        return self.look("x") + super().look(q) if q == "again" else super().look(q)


class Bare(Above):
    def look(self, q):
        return super().look(q)


async def test_an_overriding_method_and_what_it_overrides_are_one_call():
    """super() of a method that overrides a tool of the same name is no call of its own; under another name it is."""
    cases = [
        (lambda: Between().look("a"), {"look": 1}),
        (lambda: Below().look("a"), {"look": 1}),
        (lambda: Below().look("again"), {"look": 2}),
        (lambda: Bare().look("a"), {"look": 1}),
        (lambda: Between().ask("a"), {"ask": 1, "other": 1}),
        (lambda: Between().look_later("a"), {"look_later": 1}),
    ]
    for call, expected in cases:
        async with Session(policy=laps(9)) as session:
            made = call()
            if inspect.isawaitable(made):
                await made
            assert counted(session) == expected


# ------------------------------------------------------------------------------------------------ bound


def test_the_guard_on_a_bound_function_is_where_the_session_is():
    """guard_tool above session.bind counts in that session, from a thread that has no context; the last bind holds."""
    first, second = Session(policy=laps(9)), Session(policy=laps(9))
    guarded = guard_tool(first.bind(plain))
    again = second.bind(guarded)
    answers = []
    for one in (guarded, again):
        thread = threading.Thread(target=lambda one=one: answers.append(one("a")))
        thread.start()
        thread.join()
    assert answers == ["a", "a"]
    assert (counted(first), counted(second)) == ({"plain": 1}, {"plain": 1})


def test_what_wraps_a_bound_function_is_not_taken_for_one():
    """Other decorators copy the attributes of what they wrap; their functions are guarded like any other."""
    session = Session(policy=laps(9))
    outer = guard_tool(logged(session.bind(plain)))
    with session:
        assert outer("a") == "a"
    assert counted(session) == {"plain": 1}


def test_a_result_whose_metaclass_raises_is_returned():
    """Whatever the type of a result does when it is asked for something, the caller gets the result."""

    class Odd(type):
        def __getattribute__(cls, name):
            raise RuntimeError(name)

        def __eq__(cls, other):
            raise RuntimeError("compared")

        __hash__ = None

    class Result(metaclass=Odd):
        pass

    result = object.__new__(Result)
    with Session(policy=Policy(profile="strict")):
        assert guard_tool(name="look")(lambda: result)() is result
