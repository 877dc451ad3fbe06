"""Generators under guard: whatever is done to one, its consumer sees no difference and the call is settled once."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import threading
import traceback
import weakref

import pytest
from opentelemetry import context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard import MemoryStore, Policy, Session, SessionStopped, guard_tool
from otel_toolguard.place import here
from otel_toolguard.telemetry import Telemetry

RULES = [{"plugin": "repeat_guard", "limit": 3}, {"plugin": "tool_stats"}]


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def run(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(tracer_provider=provider)
    return Session("s", policy=Policy(plugins=RULES), store=MemoryStore(), telemetry=telemetry)


def outcomes(spans):
    return [span.attributes["toolguard.outcome"] for span in spans.get_finished_spans()]


def counts(run):
    report = run.report()
    return report["calls"], report["failed"], report["in_flight"]


@guard_tool
def echo(top):
    """Yields numbers and what it is sent; survives a KeyError; says what it heard."""
    heard = []
    for n in range(top):
        try:
            heard.append((yield n))
        except KeyError:
            yield "caught"
    return heard


@guard_tool
async def echo_later(top):
    heard = []
    for n in range(top):
        try:
            heard.append((yield n))
        except KeyError:
            yield "caught"
        await asyncio.sleep(0)


def drive(generator, steps):
    """What a consumer sees of each step: the item, or the exception with its arguments."""
    seen = []
    for word, *given in steps:
        try:
            seen.append(getattr(generator, word)(*given))
        except BaseException as error:
            seen.append((type(error), error.args))
    return seen


async def drive_later(generator, steps):
    seen = []
    for word, *given in steps:
        try:
            seen.append(await getattr(generator, {"close": "aclose"}.get(word, f"a{word}"))(*given))
        except BaseException as error:
            seen.append((type(error), error.args))
    return seen


STEPS = {
    "exhausted": ([("send", None)] * 4, "ok"),
    "sent": ([("send", None), ("send", "a"), ("send", "b"), ("send", "c")], "ok"),
    "asked again after its end": ([("send", None)] * 6, "ok"),
    "closed": ([("send", None), ("close",), ("send", None)], "closed"),
    "closed twice": ([("send", None), ("close",), ("close",)], "closed"),
    "thrown and caught": ([("send", None), ("throw", KeyError()), ("send", None), ("close",)], "closed"),
    "thrown": ([("send", None), ("throw", ValueError("x")), ("send", None)], "failed"),
    "thrown an end": ([("send", None), ("throw", StopIteration(1))], "failed"),
    "thrown an async end": ([("send", None), ("throw", StopAsyncIteration(1))], "failed"),
    "thrown an exit": ([("send", None), ("throw", GeneratorExit())], "closed"),
    "interrupted": ([("send", None), ("throw", KeyboardInterrupt())], "cancelled"),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_generator_behaves_as_the_bare_one(case, run, spans):
    """send, throw and close give what they give without the guard, and the call ends once, as it ended."""
    steps, outcome = STEPS[case]
    with run:
        assert drive(echo(3), steps) == drive(echo.__wrapped__(3), steps)
        assert counts(run)[2] == 0
    assert outcomes(spans) == [outcome]


@pytest.mark.parametrize("case", STEPS)
async def test_an_async_generator_behaves_as_the_bare_one(case, run, spans):
    """asend, athrow and aclose give what they give without the guard, and the call ends once, as it ended."""
    steps, outcome = STEPS[case]
    async with run:
        assert await drive_later(echo_later(3), steps) == await drive_later(echo_later.__wrapped__(3), steps)
        assert counts(run)[2] == 0
    assert outcomes(spans) == [outcome]


@guard_tool
def cleans(log, fault=None):
    try:
        yield 1
    finally:
        log.append(here.get().inside is not None)
        if fault is not None:
            raise fault


@guard_tool
async def cleans_later(log, fault=None):
    try:
        yield 1
    finally:
        await asyncio.sleep(0)
        log.append(here.get().inside is not None)
        if fault is not None:
            raise fault


@pytest.mark.parametrize("fault", [None, ValueError("late")])
async def test_cleaning_up_is_part_of_the_call(run, spans, fault):
    """On close the body's finally runs inside its own call, and what it raises is the call's failure."""
    log = []
    async with run:
        sync, later = cleans(log, fault), cleans_later(log, fault)
        next(sync)
        await anext(later)
        raised = drive(sync, [("close",)]) + await drive_later(later, [("close",)])
        assert raised == ([None, None] if fault is None else [(ValueError, ("late",))] * 2)
        assert (log, counts(run)[2]) == ([True, True], 0)
    assert outcomes(spans) == (["closed"] * 2 if fault is None else ["failed"] * 2)


def test_a_generator_that_refuses_to_close_is_told_so(run, spans):
    """A body that yields on close gets Python's own RuntimeError, and the call failed."""

    @guard_tool
    def stubborn():
        try:
            yield 1
        finally:
            yield 2

    with run:
        items = stubborn()
        next(items)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            items.close()
    assert outcomes(spans) == ["failed"]


def test_arguments_that_do_not_fit_fail_at_the_call(run, spans):
    """As with the bare function the TypeError comes from the call, not from the first item, and is counted."""
    with run:
        for function in (echo, echo_later):
            with pytest.raises(TypeError, match="top"):
                function()
        assert counts(run) == (2, 2, 0)
        for _ in range(3):
            with pytest.raises(TypeError):
                echo()
        with pytest.raises(SessionStopped):
            echo()
    assert outcomes(spans) == ["failed"] * 5 + ["refused"]


async def test_what_is_never_iterated_counts_nothing(run, spans):
    """Generators that are made and dropped, or closed before their first item, reserve no place and have no span."""
    async with run:
        for made in (echo(3), echo_later(3)):
            assert inspect.isgenerator(made) or inspect.isasyncgen(made)
            del made
        echo(3).close()
        await echo_later(3).aclose()
        gc.collect()
        assert counts(run) == (0, 0, 0)
    assert outcomes(spans) == []


async def test_abandoned_generators_are_settled_when_they_are_collected(run, spans, caplog):
    """Leaving early and garbage collection close the call, in whatever context that happens, and nothing is logged."""
    async with run:
        for _ in echo(3):
            break
        async for _ in echo_later(3):
            break
        gc.collect()
        await asyncio.sleep(0.01)
        assert counts(run) == (2, 0, 0)
    assert outcomes(spans) == ["closed", "closed"]
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_an_async_generator_may_change_tasks(run, spans, caplog):
    """First item in one task, the next in another, closed in a third: one span, no complaint of OpenTelemetry's."""
    async with run:
        items = echo_later(9)

        async def step():
            return await anext(items)

        assert await asyncio.create_task(step()) == 0
        assert await asyncio.create_task(step()) == 1
        await asyncio.create_task(items.aclose())
        assert counts(run) == (1, 0, 0)
    assert outcomes(spans) == ["closed"]
    assert caplog.records == []


def test_a_generator_may_change_threads(run, spans):
    """Begun here, exhausted in a thread without the context: still this session's call, and that thread stays clean."""
    left = []
    with run:
        items = echo(3)
        next(items)

        def rest():
            left.extend([*items, here.get(), context.get_current()])

        thread = threading.Thread(target=rest)
        thread.start()
        thread.join()
        assert counts(run) == (1, 0, 0)
    assert left == [1, 2, None, {}]
    assert outcomes(spans) == ["ok"]


async def test_a_cancelled_step_ends_the_stream(run, spans):
    """Cancelling the task that waits for an item passes CancelledError and gives the place back."""

    @guard_tool
    async def slow():
        yield 1
        await asyncio.sleep(60)
        yield 2

    async def consume():
        async for _ in slow():
            pass

    async with run:
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.report()["cancelled"] == 1
        assert counts(run) == (1, 0, 0)
    assert outcomes(spans) == ["cancelled"]


async def test_nothing_is_current_between_two_items(run):
    """Between items the consumer's own session place and OpenTelemetry context are current, not the generator's."""
    async with run:
        mine, theirs = here.get(), context.get_current()
        for _ in echo(3):
            assert here.get() is mine
            assert context.get_current() is theirs
        async for _ in echo_later(3):
            assert here.get() is mine
            assert context.get_current() is theirs


def test_nested_and_recursive_generators_are_calls_of_their_own(run, spans):
    """A guarded generator that delegates to itself is one call per level, each span below the one above it."""

    @guard_tool
    def countdown(n):
        yield n
        if n:
            yield from countdown(n - 1)

    with run:
        assert list(countdown(3)) == [3, 2, 1, 0]
        assert counts(run) == (4, 0, 0)
    inner, *outer = spans.get_finished_spans()
    for span in outer:
        assert inner.parent.span_id == span.context.span_id
        inner = span


@pytest.mark.parametrize(
    ("items", "stops"),
    [
        (lambda n: [1, 2], True),
        (lambda n: [n], False),
        (lambda n: ["x" * 9000, "y" * 9000, "z"], True),
        (lambda n: ["x" * 9000, "y" * 9000, n], False),
        (lambda n: ["x" * 20_000, "x" * 3_000_000 + str(n) + "x" * 3_000_000], False),
    ],
    ids=["equal", "different", "long and equal", "long and different", "too long to be compared"],
)
def test_streams_are_compared_as_a_whole(items, stops, run):
    """Three equal streams are three laps; one that differs anywhere, or cannot be compared, is progress."""
    counter = iter(range(10, 99))

    @guard_tool
    def stream():
        yield from items(next(counter))

    with run:
        for _ in range(3):
            list(stream())
        assert (run.trip is not None) is stops


def test_items_are_not_kept(run):
    """A big item is gone when the consumer lets go of it, and all of them when the call is over."""

    class Item:
        def __init__(self):
            self.text = "x" * 20_000

    kept = []

    @guard_tool
    def items():
        for _ in range(3):
            item = Item()
            kept.append(weakref.ref(item))
            yield item
            del item

    with run:
        stream = items()
        next(stream)
        next(stream)
        assert kept[0]() is None
        list(stream)
        assert [ref() for ref in kept] == [None] * 3


@pytest.mark.parametrize("function", ["sync", "async"])
async def test_one_frame_of_the_guard_is_in_the_traceback(function, run):
    """What a generator raises leaves as the very object, with one frame of the guard in its traceback."""
    mine = ValueError("mine")

    @guard_tool
    def fails():
        yield 1
        raise mine

    @guard_tool
    async def fails_later():
        yield 1
        raise mine

    async with run:
        with pytest.raises(ValueError) as caught:
            list(fails()) if function == "sync" else [item async for item in fails_later()]
    assert caught.value is mine
    frames = [frame.filename for frame in traceback.extract_tb(mine.__traceback__)]
    assert sum("otel_toolguard/" in name and "tests" not in name for name in frames) == 1
