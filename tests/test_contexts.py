"""Threads, tasks, executors, event loops and forks: where a call belongs, and that nothing leaks from one to another."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from opentelemetry import context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard import MemoryStore, Policy, Session, SessionStopped, current_session, guard_tool
from otel_toolguard.place import here
from otel_toolguard.telemetry import Telemetry

CEILING = 20


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


@pytest.fixture(autouse=True)
def _clean():
    yield
    assert here.get() is None
    assert context.get_current() == {}


def session(name="s", **more):
    rules = Policy(plugins=[{"plugin": "call_ceiling", "run": CEILING}, {"plugin": "tool_stats"}])
    return Session(name, **{"policy": rules, "store": MemoryStore()} | more)


def counts(run):
    report = run.report()
    return report["calls"], report["failed"], report["in_flight"]


def stats(run, word):
    return run.report()[word]


@guard_tool
def look(q=0):
    return q


@guard_tool
async def look_later(q=0, seconds=0):
    await asyncio.sleep(seconds)
    return q


def unlimited():
    """What a call outside any session does: it runs, with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return look(5)


async def in_thread(run):
    await asyncio.to_thread(look, 1)


async def in_executor_bound(run):
    with ThreadPoolExecutor(2) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, run.bind(look), 1)


async def in_executor_copied(run):
    with ThreadPoolExecutor(2) as pool:
        pool.submit(contextvars.copy_context().run, look, 1).result()


async def in_pool_bound(run):
    with ThreadPoolExecutor(2) as pool:
        pool.submit(run.bind(look), 1).result()


async def in_raw_thread_bound(run):
    thread = threading.Thread(target=run.bind(look))
    thread.start()
    thread.join()


async def in_task(run):
    await asyncio.create_task(look_later(1))


async def in_group(run):
    async with asyncio.TaskGroup() as group:
        group.create_task(look_later(1))


async def in_foreign_loop(run):
    await asyncio.to_thread(lambda: asyncio.run(look_later(1)))


async def in_foreign_loop_bound(run):
    bound = run.bind(look_later)
    thread = threading.Thread(target=lambda: asyncio.run(bound(1)))
    thread.start()
    thread.join()


async def in_callback(run):
    asyncio.get_running_loop().call_soon(look, 1)
    await asyncio.sleep(0.01)


WAYS = [
    in_thread, in_executor_bound, in_executor_copied, in_pool_bound, in_raw_thread_bound, in_task, in_group,
    in_foreign_loop, in_foreign_loop_bound, in_callback,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_call_finds_session_and_parent(way, run, spans, tracing):
    """Wherever the context goes, or bind takes it, the call is the session's and its span below the user's own."""
    async with run:
        with tracing.get_tracer("mine").start_as_current_span("around") as around:
            await way(run)
        assert counts(run) == (1, 0, 0)
    span = spans.get_finished_spans()[0]
    assert span.parent.span_id == around.get_span_context().span_id


@pytest.mark.parametrize("thread", [True, False])
def test_where_the_context_is_lost_the_call_runs_unlimited(thread, run):
    """A raw thread or executor without bind is outside any session: the call runs, and is not this session's."""
    done = []
    with run:
        if thread:
            worker = threading.Thread(target=lambda: done.append(unlimited()))
            worker.start()
            worker.join()
        else:
            with ThreadPoolExecutor(1) as pool:
                done.append(pool.submit(unlimited).result())
        assert (done, counts(run)) == ([5], (0, 0, 0))


def stepped():
    yield look(1)
    yield look(2)


async def stepped_later():
    yield await look_later(1)
    yield await look_later(2)


def returning():
    async def later():
        return [await look_later(1), await look_later(2)]

    return later()


class Steps:
    async def __call__(self):
        return [await look_later(1), await look_later(2)]


async def listed(made):
    if hasattr(made, "__aiter__"):
        return [item async for item in made]
    return await made if hasattr(made, "__await__") else list(made)


@pytest.mark.parametrize("function", [stepped, stepped_later, returning, Steps()])
def test_what_is_bound_stays_in_the_session_to_its_end(function, run):
    """Generators of both kinds, functions that return coroutines and callable objects keep the session in each step."""
    with run:
        bound = run.bind(function)
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(asyncio.run(listed(bound()))))
    thread.start()
    thread.join()
    assert answers == [1, 2]
    assert counts(run) == (2, 0, 0)


async def test_bound_generators_can_be_sent_to_thrown_at_and_closed(run):
    """A bound generator hands on what the bare one would get, and is settled where it is left."""

    @guard_tool
    def echo():
        heard = None
        while True:
            try:
                heard = yield heard
            except KeyError:
                heard = "caught"

    @guard_tool
    async def echo_later():
        heard = None
        while True:
            try:
                heard = yield heard
            except KeyError:
                heard = "caught"

    with run:
        sync, later = run.bind(echo), run.bind(echo_later)
    items = sync()
    assert [next(items), items.send("a"), items.throw(KeyError())] == [None, "a", "caught"]
    stream = later()
    assert [await anext(stream), await stream.asend("a"), await stream.athrow(KeyError())] == [None, "a", "caught"]
    assert counts(run)[2] == 2
    items.close()
    await stream.aclose()
    assert counts(run) == (2, 0, 0)
    items = sync()
    next(items)
    with pytest.raises(ValueError):
        items.throw(ValueError())
    assert counts(run) == (3, 1, 0)


@pytest.mark.parametrize("kind", ["thread", "bound pool", "task"])
async def test_exactly_the_ceiling_runs(kind, run):
    """More calls at once than the ceiling, by whatever way: exactly the ceiling runs, the others are refused."""
    bodies = []

    @guard_tool
    def work(n):
        bodies.append(n)

    @guard_tool
    async def work_later(n):
        bodies.append(n)
        await asyncio.sleep(0)

    async with run:
        if kind == "thread":
            calls = [asyncio.to_thread(work, n) for n in range(3 * CEILING)]
        elif kind == "task":
            calls = [work_later(n) for n in range(3 * CEILING)]
        else:
            pool, bound, loop = ThreadPoolExecutor(8), run.bind(work), asyncio.get_running_loop()
            calls = [loop.run_in_executor(pool, bound, n) for n in range(3 * CEILING)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert len(bodies) == CEILING
        assert sum(isinstance(answer, SessionStopped) for answer in answers) == 2 * CEILING
        assert counts(run) == (CEILING, 0, 0)


async def by_group():
    async def fail():
        await asyncio.sleep(0.01)
        raise ValueError("sibling")

    async def all_of_them():
        async with asyncio.TaskGroup() as group:
            for each in (look_later(1, seconds=60), look_later(2, seconds=60), fail()):
                group.create_task(each)

    with pytest.raises(ExceptionGroup):
        await all_of_them()


async def by_timeout():
    for n in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await look_later(n, seconds=60)


async def by_wait_for():
    for n in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(look_later(n, seconds=60), 0.01)


@pytest.mark.parametrize("way", [by_group, by_timeout, by_wait_for], ids=lambda way: way.__name__)
async def test_a_call_that_is_cancelled_from_outside_is_no_failure(way, run, spans):
    """A sibling's failure or a time limit around the call cancels it: its place is back, its span says cancelled."""
    async with run:
        mine, theirs = here.get(), context.get_current()
        await way()
        assert (here.get(), context.get_current()) == (mine, theirs)
        assert counts(run) == (2, 0, 0)
        assert stats(run, "cancelled") == 2
    assert [span.attributes["toolguard.outcome"] for span in spans.get_finished_spans()] == ["cancelled"] * 2


async def test_a_time_limit_inside_the_body_is_a_failure(run):
    """A tool whose own time limit runs out has failed."""

    @guard_tool
    async def slow():
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    async with run:
        with pytest.raises(TimeoutError):
            await slow()
        assert counts(run) == (1, 1, 0)


async def test_a_suspended_call_may_be_closed_from_another_context(run, spans, caplog):
    """A coroutine that is begun in one context and closed in another is settled, and nobody complains of tokens."""
    async with run:
        coroutine = look_later(1, seconds=60)
        contextvars.copy_context().run(coroutine.send, None)
        contextvars.Context().run(coroutine.close)
        assert counts(run) == (1, 0, 0)
    assert [span.attributes["toolguard.outcome"] for span in spans.get_finished_spans()] == ["closed"]
    assert caplog.records == []


def test_calls_that_a_dying_loop_leaves_behind_are_settled(run, spans, caplog):
    """A task that is destroyed while it waits gives its place back when it is collected."""
    with run:
        loop = asyncio.new_event_loop()
        task = loop.create_task(look_later(1, seconds=60))
        task._log_destroy_pending = False
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        del task, loop
        gc.collect()
        assert counts(run) == (1, 0, 0)
    assert [span.attributes["toolguard.outcome"] for span in spans.get_finished_spans()] == ["closed"]
    assert caplog.records == []


def test_a_task_that_outlives_its_call_belongs_to_the_run(run):
    """A task that a tool started and left behind still makes its calls in the session's run, after the call too."""

    async def use():
        later = []

        @guard_tool
        async def start():
            later.append(asyncio.create_task(look_later(1, seconds=0.01)))
            return "started"

        async with run:
            assert await start() == "started"
        await asyncio.gather(*later)

    asyncio.run(use())
    assert counts(run) == (2, 0, 0)


def test_nested_event_loops_share_the_session(run):
    """A sync tool that runs an event loop of its own in a thread: its async calls are nested calls of the session."""

    @guard_tool
    def delegate(n):
        with ThreadPoolExecutor(1) as pool:
            copied = contextvars.copy_context()
            return pool.submit(copied.run, asyncio.run, look_later(n)).result()

    with run:
        assert delegate(3) == 3
        assert counts(run) == (2, 0, 0)


def test_a_session_may_be_entered_again(run):
    """The same object inside itself, after itself, and around an exception: each entry a run, each exit its own."""
    with run:
        outer = here.get()
        with run:
            assert here.get().run_id != outer.run_id
            look(1)
        assert here.get() is outer
        with pytest.raises(ValueError, match="mine"), run:
            raise ValueError("mine")
        assert here.get() is outer
    with run:
        assert here.get().run_id != outer.run_id
    assert run.guard.transact(lambda state: [each.ended for each in state.runs.values()]) == [True]


async def test_a_block_may_be_left_in_another_task(run):
    """Entered here, left in a task that inherited the context: the run is over, and leaving again does no harm."""
    await run.__aenter__()
    look(1)
    await asyncio.create_task(run.__aexit__(None, None, None))
    ended = run.guard.transact(lambda state: [each.ended for each in state.runs.values()])
    await run.__aexit__(None, None, None)
    assert ended == [True]
    assert current_session() is None
    await run.__aexit__(None, None, None)


@contextmanager
def opened(run):
    with run:
        yield run


def in_session(run):
    with run:
        yield 1
        yield 2


def test_blocks_of_generators_end_in_any_order():
    """A block in a generator that is closed while a later block is open leaves that one the current."""
    first, second = session("first"), session("second")
    items = in_session(first)
    next(items)
    with opened(second):
        assert current_session() is second
        items.close()
        assert current_session() is second
        look(1)
    assert current_session() is None
    assert counts(second) == (1, 0, 0)


def test_a_session_may_be_left_while_its_calls_run(run):
    """Calls that are still running when the block is left end in peace and are counted."""
    started, leave = threading.Event(), threading.Event()

    @guard_tool
    def slow():
        started.set()
        leave.wait(10)
        return "done"

    with ThreadPoolExecutor(1) as pool:
        with run:
            pending = pool.submit(run.bind(slow))
            started.wait(10)
        assert counts(run)[2] == 1
        leave.set()
        assert pending.result() == "done"
    assert counts(run) == (1, 0, 0)


@pytest.mark.parametrize("hand", ["stop", "reset", "both"])
def test_stop_and_reset_while_a_call_runs(hand, run):
    """The running call keeps its result; after a stop no other begins, after a reset all do, and nothing is in flight."""
    started, leave = threading.Event(), threading.Event()

    @guard_tool
    def slow():
        started.set()
        leave.wait(10)
        return "done"

    with run, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(run.bind(slow))
        started.wait(10)
        if hand != "reset":
            run.stop("by hand")
            with pytest.raises(SessionStopped):
                look(1)
        if hand != "stop":
            run.reset("by hand")
            assert look(1) == 1
        leave.set()
        assert pending.result() == "done"
        assert counts(run)[2] == 0
        if hand == "stop":
            with pytest.raises(SessionStopped):
                look(2)
        else:
            assert look(2) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_an_open_session(run):
    """The child goes on in the session as it was, on a copy of its own, even while a thread of the parent is busy."""
    busy = threading.Event()
    with run:
        worker = threading.Thread(target=run.bind(lambda: [unlimited_store(run) for _ in iter(busy.is_set, True)]))
        worker.start()
        for n in range(CEILING // 2):
            look(n)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                made = 0
                try:
                    for n in range(CEILING):
                        look(100 + n)
                        made += 1
                except SessionStopped:
                    pass
                os.write(write, b"%d" % made)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        made = int(os.read(read, 10))
        os.close(read)
        os.close(write)
        busy.set()
        worker.join()
        assert made == CEILING // 2
        assert counts(run) == (CEILING // 2, 0, 0)


def unlimited_store(run):
    run.guard.transact(lambda state: state.calls)


def test_telemetry_off_leaves_the_context_alone(monkeypatch):
    """TOOLGUARD_TELEMETRY=off: OpenTelemetry's context is not touched in the body, and the guard counts."""
    monkeypatch.setenv("TOOLGUARD_TELEMETRY", "off")
    inside = []
    with session() as run:
        before = context.get_current()
        guard_tool(lambda: inside.append(context.get_current()), name="tool")()
        assert inside == [before]
        assert counts(run) == (1, 0, 0)


def test_the_body_sees_its_call_and_the_caller_does_not(run, tracing):
    """Inside the body the call's span and place are current; before and after it the caller's own are."""
    seen = []
    with run:
        mine, theirs = here.get(), context.get_current()
        guard_tool(lambda: seen.append((here.get(), context.get_current())), name="tool")()
        assert (here.get(), context.get_current()) == (mine, theirs)
    ((place, current),) = seen
    assert place.inside is not None
    assert place.outer is mine
    assert current != theirs


def test_an_attached_context_is_not_undone(run):
    """What a body attaches to OpenTelemetry's context and forgets is gone after the call, what the caller has stays."""
    token = context.attach(context.set_value("mine", 1))
    with run:
        guard_tool(lambda: context.attach(context.set_value("theirs", 2)) and None, name="tool")()
        assert context.get_value("mine") == 1
        assert context.get_value("theirs") is None
    context.detach(token)
