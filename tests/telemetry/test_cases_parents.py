"""Where spans belong: threads and pools, streams that are left early, calls that end in an unusual way."""

import asyncio
import contextlib
import contextvars
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool

FAR = Policy(plugins=[{"plugin": "tool_stats"}])


@guard_tool
def search(q="a"):
    return q


def in_pool(function):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def in_executor(function):
    async def main():
        await asyncio.get_running_loop().run_in_executor(None, function)

    asyncio.run(main())


def to_thread(function):
    asyncio.run(asyncio.to_thread(function))


def with_context(function):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(contextvars.copy_context().run, function).result()


LOSING, KEEPING = (in_pool, in_thread, in_executor), (to_thread, with_context)


@pytest.mark.parametrize("way", [*LOSING, *KEEPING])
def test_bound_to_the_session_a_call_from_any_thread_is_in_the_agent_s_trace(told, way):
    """However a tool gets into a thread, bound to its session its span is a child of the agent's."""
    agent = told.tracing.get_tracer("app").start_span("invoke_agent")
    with trace.use_span(agent), Session(policy=FAR, telemetry=told.telemetry()) as session:
        way(session.bind(search))
    span = told.spans()[0]
    assert span.parent.span_id == agent.get_span_context().span_id
    assert span.attributes["toolguard.run.calls"] == 1


@pytest.mark.parametrize("way", KEEPING)
def test_a_thread_that_has_the_context_needs_nothing(told, way):
    """Where the thread was handed the context, the call is in its trace and session without further ado."""
    agent = told.tracing.get_tracer("app").start_span("invoke_agent")
    with trace.use_span(agent), Session(policy=FAR, telemetry=told.telemetry()):
        way(search)
    assert told.spans()[0].parent.span_id == agent.get_span_context().span_id


def test_a_span_that_is_current_in_the_thread_stays_the_parent(told):
    """A thread that opened a span of its own and calls an unbound tool is not moved anywhere."""
    tracer = told.tracing.get_tracer("app")

    def work():
        with Session(policy=FAR, telemetry=told.telemetry()), tracer.start_as_current_span("worker"):
            search()

    with tracer.start_as_current_span("invoke_agent"):
        in_thread(work)
    span, worker = told.spans()[:2]
    assert (worker.name, span.parent.span_id) == ("worker", worker.context.span_id)


@guard_tool
async def pages(n=3):
    for number in range(n):
        yield number


@guard_tool
def lines(n=3):
    yield from range(n)


async def closed_in_another_task(made):
    stream = made()
    await asyncio.create_task(anext(stream))
    await asyncio.create_task(stream.aclose())


async def left_by_break(made):
    async for _ in made():
        break
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def dropped(made):
    stream = made()
    await anext(stream)
    del stream
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.parametrize("leave", [closed_in_another_task, left_by_break, dropped])
def test_a_stream_that_is_left_early(told, leave, caplog):
    """Wherever a stream is left, its span ends once, as closed, and nobody logs of a foreign context."""

    async def main():
        with Session(policy=FAR, telemetry=told.telemetry()):
            await leave(pages)

    asyncio.run(main())
    gc.collect()
    assert told.outcomes() == ["closed"]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_generator_that_is_closed_in_another_context(told, caplog):
    """A generator that began in one context and is closed in another ends its span once and leaves both as they were."""
    with Session(policy=FAR, telemetry=told.telemetry()):
        stream = contextvars.copy_context().run(lines)
        contextvars.copy_context().run(next, stream)
        contextvars.copy_context().run(stream.close)
        assert not trace.get_current_span().get_span_context().is_valid
    assert told.outcomes() == ["closed"]
    assert caplog.records == []


def raising(error):
    def fail():
        raise error

    return fail


class Odd(BaseException):
    """What derives from nothing that anybody expects."""


ENDS = {
    "returns": (lambda: "a", "ok"),
    "raises": (raising(ValueError("a")), "failed"),
    "raises no Exception": (raising(Odd()), "failed"),
    "is interrupted": (raising(KeyboardInterrupt()), "cancelled"),
    "exits": (raising(SystemExit(1)), "cancelled"),
    "raises GeneratorExit": (raising(GeneratorExit()), "closed"),
}
CAUGHT = (ValueError, Odd, KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit)


@pytest.mark.parametrize(("body", "outcome"), ENDS.values(), ids=ENDS)
def test_every_end_is_one_span_with_an_outcome(told, body, outcome):
    """Whatever leaves a body, there is one ended span that says how, and nothing is kept of the call."""
    with Session(policy=FAR, telemetry=told.telemetry()) as session:
        with contextlib.suppress(*CAUGHT):
            guard_tool(name="search")(body)()
        assert session.report()["in_flight"] == 0
    assert told.outcomes() == [outcome]


ASYNC_ENDS = {name: end for name, end in ENDS.items() if end[1] != "cancelled"} | {
    "is cancelled from inside": (raising(asyncio.CancelledError()), "failed")
}


@pytest.mark.parametrize(("body", "outcome"), ASYNC_ENDS.values(), ids=ASYNC_ENDS)
def test_every_end_of_a_coroutine_too(told, body, outcome):
    """The same holds for a coroutine; a cancellation that nobody asked for is the tool's own failure."""

    @guard_tool
    async def search():
        return body()

    with Session(policy=FAR, telemetry=told.telemetry()) as session:
        with contextlib.suppress(*CAUGHT):
            asyncio.run(search())
        assert session.report()["in_flight"] == 0
    assert told.outcomes() == [outcome]


def test_a_task_that_is_cancelled(told):
    """A cancelled call is one span that says so, and is no error."""

    @guard_tool
    async def wait():
        await asyncio.Event().wait()

    async def main():
        with Session(policy=FAR, telemetry=told.telemetry()):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    (span,) = told.spans()
    assert (told.outcomes(), span.status.is_unset) == (["cancelled"], True)


def test_a_refused_call_and_one_that_is_never_iterated(told):
    """A call refused before its body is one ended span; a generator that nobody iterates is none at all."""
    ceiling = Policy(plugins=[{"plugin": "call_ceiling", "run": 1}])
    with Session(policy=ceiling, telemetry=told.telemetry()):
        lines()
        search()
        with pytest.raises(CircuitOpen):
            search()
    assert told.outcomes() == ["ok", "refused"]
