"""One attempt: what the tool gets back, what is told of it, and that a failure of the guard's own is never felt."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import itertools
import logging
import pickle
import sys
import threading
import time
import traceback
import tracemalloc
import warnings
import weakref

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import StatusCode

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionMissing, SessionStopped, guard_tool
from otel_toolguard import guard as module
from otel_toolguard.core.decision import Trip
from otel_toolguard.place import here
from otel_toolguard.telemetry import Telemetry

RULES = [{"plugin": "repeat_guard", "limit": 3}, {"plugin": "call_ceiling", "run": 1000}, {"plugin": "tool_stats"}]


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


@pytest.fixture
def run(tracing):
    return session(telemetry=Telemetry(tracer_provider=tracing))


def session(**more):
    return Session("s", **{"policy": Policy(plugins=RULES), "store": MemoryStore()} | more)


def counts(run):
    report = run.report()
    return report["calls"], report["failed"], report["in_flight"]


def told(spans):
    return [
        (span.attributes["toolguard.outcome"], span.attributes.get("error.type"), span.status.status_code)
        for span in spans.get_finished_spans()
    ]


@guard_tool
def echo(value=None):
    return value


@guard_tool
def fail(error):
    raise error


@guard_tool
async def fail_later(error):
    await asyncio.sleep(0)
    raise error


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("str")


class Interrupted(type("GraphBubbleUp", (Exception,), {"__module__": "langgraph.errors"})):
    pass


TRIP = Trip(id="t", rule="call_ceiling", scope="run", session_id="other", loop_type="over_use", why="Enough.")
RED, UNSET = StatusCode.ERROR, StatusCode.UNSET
ENDS = [
    (ValueError("no"), "failed", "ValueError", RED),
    (Unprintable(), "failed", f"{__name__}.Unprintable", RED),
    (ExceptionGroup("many", [ValueError(1)]), "failed", "ExceptionGroup", RED),
    (CircuitOpen(TRIP), "failed", "otel_toolguard.CircuitOpen", RED),
    (KeyboardInterrupt(), "cancelled", None, UNSET),
    (SystemExit(1), "cancelled", None, UNSET),
    (GeneratorExit(), "closed", None, UNSET),
    (Interrupted(), "interrupted", None, UNSET),
]


@pytest.mark.parametrize(("error", "outcome", "name", "status"), ENDS, ids=lambda value: str(type(value).__name__))
def test_whatever_a_tool_raises_leaves_as_it_is(error, outcome, name, status, run, spans):
    """The very exception passes, the place is given back, and one span says how the call ended."""
    with run:
        before = here.get(), context.get_current()
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert caught.value is error
        assert (here.get(), context.get_current()) == before
        assert counts(run)[2] == 0
    assert told(spans) == [(outcome, name, status)]


def test_a_stop_iteration_passes_from_a_function_and_fails_a_coroutine_as_python_says(run):
    """StopIteration leaves a sync tool as it is; from a coroutine Python makes a RuntimeError of it, guarded or not."""
    with run:
        with pytest.raises(StopIteration):
            fail(StopIteration(1))
        for function in (fail_later, fail_later.__wrapped__):
            with pytest.raises(RuntimeError, match="StopIteration"):
                asyncio.run(function(StopIteration(1)))


class Meeting:
    """Awaitable, and more than that."""

    def __init__(self, answer):
        self.answer = answer
        self.left = False

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return self.answer

    async def __aenter__(self):
        await asyncio.sleep(0)
        return self.answer

    async def __aexit__(self, *_):
        self.left = True


def made_coroutine():
    async def later():
        await asyncio.sleep(0)
        return "done"

    return later()


def made_future():
    future = asyncio.get_running_loop().create_future()
    future.set_result("done")
    return future


AWAITABLES = {
    "coroutine": made_coroutine,
    "future": made_future,
    "task": lambda: asyncio.create_task(made_coroutine()),
    "object": lambda: Meeting("done"),
    "partial of a coroutine function": functools.partial(made_coroutine),
}


@pytest.mark.parametrize("kind", AWAITABLES)
async def test_an_awaitable_result_keeps_its_kind_and_settles_the_call(kind, run, spans):
    """What a sync tool returns can do what the bare one can do, and the call is over when it is."""
    make = AWAITABLES[kind]
    async with run:
        bare, guarded = make(), guard_tool(make, name="tool")()
        assert isinstance(guarded, type(bare))
        assert inspect.iscoroutine(guarded) == inspect.iscoroutine(bare)
        assert counts(run) == (0, 0, 1)
        assert (await bare, await guarded) == ("done", "done")
        await asyncio.sleep(0)
        assert counts(run) == (1, 0, 0)
    assert [outcome for outcome, *_ in told(spans)] == ["ok"]


async def test_a_task_that_a_tool_returns_is_the_very_task(run, spans):
    """A tool that starts a task hands it over: it can be cancelled, waited for and asked; its failure is counted."""

    async def work(fault):
        await asyncio.sleep(60 if fault is None else 0)
        raise fault

    made = []

    @guard_tool
    def start(fault=None):
        made.append(asyncio.create_task(work(fault)))
        return made[-1]

    async with run:
        first, second = start(), start(ValueError("late"))
        assert [first, second] == made
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first, second})
        await asyncio.sleep(0)
        assert isinstance(second.exception(), ValueError)
        assert counts(run) == (2, 1, 0)
    assert sorted(outcome for outcome, *_ in told(spans)) == ["cancelled", "failed"]


async def test_an_exception_that_nobody_retrieved_is_still_reported(run):
    """Watching a task does not count as having looked at its exception: asyncio still says that nobody did."""
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: said.append(what["message"]))

    async def work():
        raise ValueError("lost")

    async with run:
        guard_tool(lambda: asyncio.create_task(work()), name="tool")()
        await asyncio.sleep(0.01)
        gc.collect()
    assert said == ["Task exception was never retrieved"]


async def test_an_awaitable_context_manager_can_be_entered(run, spans):
    """A result that is both awaited and entered with ``async with`` elsewhere can be either here."""
    opened = guard_tool(lambda: Meeting("done"), name="tool")
    async with run:
        meeting = opened()
        async with meeting as answer:
            assert answer == "done"
            assert counts(run) == (1, 0, 0)
        assert meeting.left
        assert (await meeting, await meeting) == ("done", "done")
    assert [outcome for outcome, *_ in told(spans)] == ["ok"]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_an_awaitable_that_is_never_awaited_gives_its_place_back(run, spans):
    """Dropped, or cancelled before its first step: the call is closed, and nothing stays in flight."""
    start = guard_tool(made_coroutine, name="tool")
    async with run:
        start()
        guard_tool(lambda: Meeting(1), name="tool")()
        task = asyncio.create_task(start())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        await asyncio.sleep(0)
        gc.collect()
        assert counts(run) == (3, 0, 0)
    assert [outcome for outcome, *_ in told(spans)] == ["closed"] * 3


def test_nested_and_recursive_calls_are_spans_below_each_other(run, spans, tracing):
    """Own span around, guarded recursion, own span inside: each is the parent of the next."""
    tracer = tracing.get_tracer("mine")

    @guard_tool
    def dive(depth):
        if depth:
            return dive(depth - 1)
        with tracer.start_as_current_span("inside"):
            return "bottom"

    with run, tracer.start_as_current_span("around"):
        assert dive(2) == "bottom"
        assert counts(run) == (3, 0, 0)
    finished = spans.get_finished_spans()
    assert [span.name for span in finished] == ["inside", *["execute_tool dive"] * 3, "around"]
    for inner, outer in itertools.pairwise(finished):
        assert inner.parent.span_id == outer.context.span_id


def test_recursion_without_end_is_python_s_own_error():
    """A tool that calls itself for ever gets its RecursionError, and the session goes on."""

    @guard_tool
    def dive(n):
        return dive(n + 1)

    rules = Policy(plugins=[{"plugin": "tool_stats"}])
    with session(policy=rules):
        with pytest.raises(RecursionError):
            dive(0)
        assert echo("after") == "after"
    assert here.get() is None
    assert context.get_current() == {}


def test_a_finaliser_may_call_a_tool_anywhere():
    """Objects whose finaliser calls a guarded tool may be collected in the middle of the guard's own work."""

    class Last:
        def __init__(self):
            self.me = self  # only the cycle collector finds it

        def __del__(self):
            echo("last")

    old = gc.get_threshold()
    gc.set_threshold(5)
    try:
        with session(policy=Policy(plugins=[{"plugin": "tool_stats"}])) as run:
            for n in range(200):
                Last()
                echo(n)
            gc.collect()
            assert counts(run) == (400, 0, 0)
    finally:
        gc.set_threshold(*old)


class BrokenStore(MemoryStore):
    """Fails where it is told to: before the n-th step, or from then on."""

    def __init__(self, fault, *, admitting=True, settling=True):
        super().__init__()
        self.fault, self.faults = fault, (admitting, settling)
        self.steps = 0

    def transact(self, session_id, step):
        self.steps += 1
        if self.faults[(self.steps - 1) % 2]:
            raise self.fault
        return super().transact(session_id, step)


class Failing(SpanProcessor, SpanExporter, Sampler):
    def fault(self, *args, **kwargs):
        raise RuntimeError("telemetry")

    on_start = on_end = export = should_sample = fault

    def get_description(self):
        return "failing"

    def shutdown(self):
        pass


@pytest.fixture
def afresh(monkeypatch):
    monkeypatch.setattr(module, "_faults", set())


def errors(caplog):
    return [record for record in caplog.records if record.name == "otel_toolguard" and record.levelname == "ERROR"]


@pytest.mark.parametrize("fault", [OSError("store"), KeyError("x"), RecursionError("deep"), SessionStopped])
@pytest.mark.parametrize(
    "where", [{"settling": False}, {"admitting": False}, {}], ids=["admitting", "settling", "both"]
)
def test_a_store_that_fails_is_said_once_and_not_felt(fault, where, afresh, caplog, tracing, spans):
    """Calls run unguarded, results and exceptions leave unchanged, spans end, and one ERROR with the stack says why."""
    if fault is SessionStopped:
        if where != {"admitting": False}:
            return  # a store that refuses in admission is another matter
        fault = SessionStopped(TRIP)
    store = BrokenStore(fault, **where)
    run = session(store=store, telemetry=Telemetry(tracer_provider=tracing))
    place = run.place()
    token = here.set(place)
    mine = ValueError("mine")
    try:
        for n in range(5):
            store.steps = 0
            assert echo(n) == n
        store.steps = 0
        with pytest.raises(ValueError) as caught:
            fail(mine)
        assert caught.value is mine
        store.steps = 0
        assert asyncio.run(guard_tool(made_coroutine, name="later")()) == "done"
        store.steps = 0
        assert list(guard_tool(lambda: (yield 1), name="items")()) == [1]
    finally:
        here.reset(token)
    assert [outcome for outcome, *_ in told(spans)] == ["ok"] * 5 + ["failed", "ok", "ok"]
    said = errors(caplog)
    assert {record.getMessage().split(";")[0] for record in said} <= {
        "the guard failed to admit a call",
        "the guard failed to settle a call",
    }
    assert len(said) == 1
    assert all(record.exc_info[0] is type(fault) for record in said)


@pytest.mark.parametrize("fault", [CircuitOpen(TRIP), SessionStopped(TRIP), KeyboardInterrupt(), SystemExit(1)])
def test_a_store_may_refuse_and_an_interrupt_passes(fault, afresh, caplog, tracing, spans):
    """What is no failure of the guard is felt: a store's own refusal and what is no Exception, with an ended span."""
    bodies = []
    guarded = guard_tool(lambda: bodies.append(1), name="tool")
    run = session(store=BrokenStore(fault), telemetry=Telemetry(tracer_provider=tracing))
    token = here.set(run.place())
    try:
        with pytest.raises(type(fault)):
            guarded()
    finally:
        here.reset(token)
    assert (bodies, len(told(spans)), errors(caplog)) == ([], 1, [])


def test_leaving_a_block_never_fails(afresh, caplog):
    """A store that is gone at the end of the block changes neither its result nor its exception, nor leaves it open."""
    run = session(store=BrokenStore(OSError("gone")))
    with run:
        pass
    with pytest.raises(ValueError, match="mine"), run:
        raise ValueError("mine")
    assert here.get() is None
    assert [record.getMessage().split(";")[0] for record in errors(caplog)] == ["the guard failed to end a run"]


def test_settings_that_cannot_be_read_stop_no_tool(afresh, caplog, monkeypatch):
    """Outside any session a wrong setting is said, not felt; strict is felt, for that is what it is for."""
    monkeypatch.setenv("TOOLGUARD_MODE", "nonsense")
    assert echo("x") == "x"
    assert list(guard_tool(lambda: (yield 1), name="items")()) == [1]
    assert asyncio.run(guard_tool(made_coroutine, name="later")()) == "done"
    assert len(errors(caplog)) == 1
    monkeypatch.setenv("TOOLGUARD_MODE", "enforce")
    monkeypatch.setenv("TOOLGUARD_STRICT", "1")
    with pytest.raises(SessionMissing):
        echo("x")


def test_a_log_that_fails_is_not_felt(afresh, monkeypatch):
    """A logging filter that raises does not make the report of a failure, or of a trip, a failure of the tool."""

    def refuse(_record):
        raise RuntimeError("filter")

    logger = logging.getLogger("otel_toolguard")
    logger.addFilter(refuse)
    try:
        with session(store=BrokenStore(OSError("store"))):
            assert echo("x") == "x"
        with session() as run:
            for _ in range(3):
                echo("x")
            assert run.trip is not None
            with pytest.raises(SessionStopped):
                echo("x")
    finally:
        logger.removeFilter(refuse)


def broken_processor():
    provider = TracerProvider()
    provider.add_span_processor(Failing())
    return provider


def broken_exporter():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Failing()))
    return provider


@pytest.mark.parametrize(
    "provider",
    [
        broken_processor,
        broken_exporter,
        lambda: TracerProvider(sampler=Failing()),
        lambda: TracerProvider(sampler=ALWAYS_OFF),
    ],
    ids=["processor", "exporter", "sampler", "sampled out"],
)
def test_the_guard_counts_whatever_becomes_of_telemetry(provider):
    """Broken telemetry and spans that are sampled out change neither results nor limits."""
    with session(telemetry=Telemetry(tracer_provider=provider())) as run:
        before = context.get_current()
        for _ in range(3):
            assert echo("x") == "x"
            assert context.get_current() is before
        with pytest.raises(SessionStopped):
            echo("x")
        assert counts(run) == (3, 0, 0)


def test_refused_calls_have_a_span_and_no_body(run, spans):
    """A refused call is an ERROR span of its own, linked to the one that tripped; the first ten of a circuit have one."""
    with run:
        for _ in range(3):
            echo("x")
        for _ in range(30):
            with pytest.raises(SessionStopped):
                echo("y")
    done, refused = spans.get_finished_spans()[:3], spans.get_finished_spans()[3:]
    assert [outcome for outcome, *_ in told(spans)] == ["ok"] * 3 + ["refused"] * 10
    assert {span.links[0].context.span_id for span in refused} == {done[-1].context.span_id}


def test_refusals_of_old_runs_are_forgotten():
    """What is remembered of the refused calls of a run goes with the run, on a session that lives long."""
    run = session()
    for _ in range(5):
        with run:
            for _ in range(3):
                echo("x")
            for _ in range(12):
                with pytest.raises(SessionStopped):
                    echo("y")
            assert len(run.guard.quiet) == 1
    assert run.guard.quiet == set()


def test_one_frame_of_the_guard_is_in_the_traceback(run):
    """Through function, method, coroutine and awaitable alike, one frame of ours is between caller and body."""

    class Desk:
        @guard_tool
        def fail(self, error):
            raise error

    async def later(error):
        raise error

    def made(error):
        return later(error)

    ways = [fail, Desk().fail, lambda error: asyncio.run(fail_later(error))]
    ways.append(lambda error: asyncio.run(guard_tool(later)(error)))
    ways.append(lambda error: asyncio.run(_awaited(guard_tool(made)(error))))
    with run:
        for way in ways:
            mine = ValueError("mine")
            with pytest.raises(ValueError):
                way(mine)
            frames = [frame.filename for frame in traceback.extract_tb(mine.__traceback__)]
            assert sum("/otel_toolguard/" in name for name in frames) == 1


class Thing:
    """Can be watched by weak reference."""


def test_nothing_of_a_call_is_kept(run):
    """After a call neither its arguments nor its result nor what it raised is referred to by the guard."""
    things = []

    @guard_tool
    def use(thing, **more):
        made = Thing()
        things.append(weakref.ref(made))
        return made

    @guard_tool
    def refuse(thing):
        raise ValueError(thing)

    with run:
        for n in range(20):
            thing = Thing()
            thing.n = n
            things.append(weakref.ref(thing))
            use(thing, more=[thing])
            with pytest.raises(ValueError):
                refuse(thing)
        del thing
        gc.collect()
        assert [ref() for ref in things] == [None] * len(things)


def test_many_calls_leave_nothing_behind():
    """Memory and threads after 25,000 different calls are what they were after the first 5,000."""
    rules = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}, {"plugin": "tool_stats"}])
    with session(policy=rules):
        for n in range(5_000):
            echo(n)
        gc.collect()
        threads = threading.active_count()
        tracemalloc.start(1)
        before = tracemalloc.get_traced_memory()[0]
        for n in range(20_000):
            echo(n)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert threading.active_count() == threads
    assert grown < 2_000_000


class Desk:
    """A picklable receiver."""

    def __init__(self):
        self.seen = []

    @guard_tool
    def look(self, q):
        self.seen.append(q)
        return q

    @guard_tool
    @classmethod
    def of(cls, q):
        return cls, q

    @guard_tool
    @staticmethod
    def plain(q):
        return q


def unguarded(q):
    return q


other_name = guard_tool(unguarded)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_guarded_methods_are_copied_like_bound_ones(clone, monkeypatch):
    """Copies and pickles of a bound guarded method work and stay guarded; a deep copy has a receiver of its own."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    desk = Desk()
    with session() as run:
        assert [clone(way)("x") for way in (desk.look, Desk.of, desk.plain)] == ["x", (Desk, "x"), "x"]
        assert clone(Desk.look)(desk, "y") == "y"
        assert counts(run) == (4, 0, 0)
    assert desk.seen == (["x", "y"] if clone is copy.copy else ["y"])


def _this_module():
    from types import SimpleNamespace

    return SimpleNamespace(Desk=Desk, unguarded=unguarded, other_name=other_name)


def test_a_pickle_never_loses_the_guard(monkeypatch):
    """Where a guarded function's own name leads to the bare one, pickling says so instead of handing over that."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(other_name)


@pytest.mark.parametrize(
    "again",
    [
        lambda desk: desk.look,
        lambda _desk: Desk.of,
        lambda desk: functools.partial(desk.look),
        lambda _desk: functools.partial(echo),
    ],
)
def test_what_is_guarded_already_is_guarded_once(again):
    """The decorator on a bound method or a partial of a guarded function does not count its calls twice."""
    thing = again(Desk())
    assert guard_tool(thing) is thing
    with session() as run:
        guard_tool(thing)("x")
        assert counts(run) == (1, 0, 0)


class Callable:
    """An object to be called, of every kind."""

    def __call__(self, q):
        return q


class CallableLater:
    async def __call__(self, q):
        return q


class CallableItems:
    def __call__(self, q):
        yield q


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Callable(), "x"),
        (CallableLater(), "x"),
        (CallableItems(), ["x"]),
        (functools.partial(Callable(), "x"), "x"),
        (functools.partial(CallableLater(), "x"), "x"),
        (functools.lru_cache(lambda q: q), "x"),
        (lambda q: q, "x"),
        ("{}".format, "x"),
        (Desk().seen.__class__, None),
    ],
    ids=range(9),
)
def test_every_kind_of_callable(function, expected, run, spans):
    """Callable objects, partials, cached functions, lambdas and builtins keep their kind; a class is refused."""
    if isinstance(function, type):
        with pytest.raises(Exception, match="takes a function, not the class"):
            guard_tool(function)
        return
    guarded = guard_tool(function)
    with run:
        answer = guarded() if isinstance(function, functools.partial) else guarded("x")
        if inspect.iscoroutine(answer):
            answer = asyncio.run(_awaited(answer))
        elif inspect.isgenerator(answer):
            answer = list(answer)
        assert answer == expected
        assert counts(run) == (1, 0, 0)
    assert len(told(spans)) == 1


async def _awaited(coroutine):
    return await coroutine


def test_the_advice_outside_a_session_never_fails(monkeypatch, caplog):
    """An application that makes anything of warnings, an exception of its own too, gets its result all the same."""

    def refuse(*_args, **_kwargs):
        raise LookupError("warnings")

    from otel_toolguard.calls import warned

    warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", refuse)
        monkeypatch.setattr(warnings, "_showwarnmsg_impl", refuse)
        assert echo("x") == "x"
    assert "outside any session" in caplog.text


def test_a_session_is_not_needed_to_be_traced(tracing, spans, monkeypatch):
    """Outside any session a call has its span, of which the user's own span around it is the parent."""
    from otel_toolguard import session as sessions

    monkeypatch.setattr(sessions, "default_telemetry", lambda _mode: Telemetry(tracer_provider=tracing))
    sessions._unguarded.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tracing.get_tracer("mine").start_as_current_span("around") as around:
            assert echo("x") == "x"
    sessions._unguarded.cache_clear()
    span = spans.get_finished_spans()[0]
    assert span.parent.span_id == around.get_span_context().span_id
    assert "session.id" not in span.attributes
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_time_is_measured_without_the_guard(run, spans):
    """The span lasts at least as long as the body."""
    with run:
        guard_tool(lambda: time.sleep(0.02), name="tool")()
    (span,) = spans.get_finished_spans()
    assert span.end_time - span.start_time >= 20_000_000
