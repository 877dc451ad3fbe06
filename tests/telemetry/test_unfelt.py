"""Whatever happens to telemetry, the guarded call does not feel it."""

import asyncio
import contextvars
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from opentelemetry import context, trace
from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.decision import Circuit, Member, Permit, Refuse, Settled, Trip
from otel_toolguard.telemetry import Telemetry, spans, values

CALL = ToolCall("search", "search:0123456789abcdef", tool_class="read")


def a_trip(**more):
    given = {"rule": "repeat_guard", "why": "Eight laps.", "session_id": "s1"} | more
    return Trip(id="t1", scope="run", tool="search", loop_type="exact_repeat", **given)


def everything(telemetry, call=CALL, trip=None, outcome=None, message=None, **place):
    """All that can be told of a call that trips, and of one that is refused."""
    trip = trip or a_trip()
    place = {"session_id": "s1", "run_id": "r1"} | place
    telemetry.prepare([trip.rule])
    live = telemetry.start(call, **place)
    token = live.attach() if live else None
    if live:
        live.detach(token)
    telemetry.opened(live, trip)
    settled = Settled()
    settled.warned = (trip.rule,)
    telemetry.end(live, call, outcome or Outcome("ok"), Permit(1, 1, 1, 1), settled, seconds=0.1, message=message)
    second = telemetry.start(call, **place)
    telemetry.refused(second, call, Refuse(Circuit(trip, link=live.link() if live else None), fresh=False, nth=1))
    return live


@pytest.fixture
def world():
    exporter, reader, logs = InMemorySpanExporter(), InMemoryMetricReader(), InMemoryLogRecordExporter()
    tracing, logging_to = TracerProvider(), LoggerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    logging_to.add_log_record_processor(SimpleLogRecordProcessor(logs))
    telemetry = Telemetry(
        tracer_provider=tracing, meter_provider=MeterProvider([reader]), logger_provider=logging_to, content=True
    )

    return SimpleNamespace(
        telemetry=telemetry, spans=exporter.get_finished_spans, logs=logs.get_finished_logs, reader=reader
    )


@pytest.mark.parametrize("key", ["suppress_instrumentation", context._SUPPRESS_INSTRUMENTATION_KEY])
@pytest.mark.parametrize("by_parent", [False, True])
def test_suppressed(world, key, by_parent):
    """Where instrumentation is suppressed, here or in the given parent, nothing at all is told of a call."""
    quiet = context.set_value(key, True)
    token = None if by_parent else context.attach(quiet)
    live = world.telemetry.start(CALL, session_id="s1", run_id="r1", parent=quiet if by_parent else None)
    token = token or context.attach(quiet)
    try:
        assert live is None
        world.telemetry.opened(live, a_trip())
        world.telemetry.end(live, CALL, Outcome("ok"), None, None, seconds=0.1)
        world.telemetry.refused(live, CALL, Refuse(Circuit(a_trip()), fresh=True, nth=1))
    finally:
        context.detach(token)
    assert (world.spans(), world.reader.get_metrics_data(), world.logs()) == ((), None, ())


class Broken:
    """A provider, tracer, meter, instrument, span and logger that raises at whatever is asked of it."""

    def __getattr__(self, name):
        raise ZeroDivisionError(name)


class HalfBroken:
    """Gives tracers, instruments and loggers that raise when they are used."""

    def __init__(self, error):
        self.error = error

    def get_tracer(self, *_, **__):
        return self

    get_meter = get_logger = create_histogram = create_counter = get_tracer

    def start_span(self, *_, **__):
        raise self.error

    record = add = emit = enabled = start_span


class StrangeSpan(trace.NonRecordingSpan):
    """A span of somebody else's tracer: recording, and broken."""

    def is_recording(self):
        return True

    def set_attributes(self, attributes):
        raise ZeroDivisionError

    set_status = add_link = end = set_attributes


class StrangeTracer(trace.NoOpTracer):
    def start_span(self, *_, **__):
        return StrangeSpan(trace.SpanContext(1, 2, is_remote=False))


class StrangeProvider(trace.NoOpTracerProvider):
    def get_tracer(self, *_, **__):
        return StrangeTracer()


@pytest.mark.parametrize("provider", [Broken(), HalfBroken(ZeroDivisionError())], ids=["providers", "instruments"])
def test_broken_api(provider):
    """Providers, tracers, instruments and loggers that raise are not felt."""
    everything(Telemetry(tracer_provider=provider, meter_provider=provider, logger_provider=provider))


def test_broken_span():
    """A span whose every method raises is not felt, and does not keep the call from being measured."""
    reader = InMemoryMetricReader()
    everything(Telemetry(tracer_provider=StrangeProvider(), meter_provider=MeterProvider([reader])))
    (resource,) = reader.get_metrics_data().resource_metrics
    told = {metric.name for metric in resource.scope_metrics[0].metrics}
    assert told == {"gen_ai.execute_tool.duration", "toolguard.calls.refused", "toolguard.circuit.trips"}


@pytest.mark.parametrize("method", ["on_start", "on_end"])
def test_broken_processor(method):
    """A span processor that raises is not felt."""
    processor = SpanProcessor()
    setattr(processor, method, Broken().__getattr__)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    everything(Telemetry(tracer_provider=provider))


def test_broken_exporter(caplog):
    """An exporter that raises is the SDK's to report, and is not felt."""
    provider = TracerProvider()

    class Exporter(InMemorySpanExporter):
        export = Broken().__getattr__

    provider.add_span_processor(SimpleSpanProcessor(Exporter()))
    everything(Telemetry(tracer_provider=provider))
    assert not [record for record in caplog.records if record.name == "otel_toolguard"]


class WorseSpan(StrangeSpan):
    attributes = property(lambda self: 1 / 0)


@pytest.mark.parametrize("kind", [StrangeSpan, WorseSpan])
def test_broken_host(kind):
    """A host span that raises at every question is not felt."""
    token = context.attach(trace.set_span_in_context(kind(trace.SpanContext(1, 2, is_remote=False))))
    everything(Telemetry())
    context.detach(token)


def test_broken_records(world):
    """Even records of the wrong shape are not felt."""
    world.telemetry.prepare(None)
    live = world.telemetry.start(None, session_id=1, run_id=2)
    assert live is None
    live = world.telemetry.start(CALL, session_id=1, run_id=object())
    world.telemetry.opened(live, a_trip(limit="many"))
    world.telemetry.end(live, None, Outcome("failed", error_type=5), None, None, seconds="long")
    assert len(world.spans()) == 1, "the span is ended all the same"


def test_interrupts_pass():
    """What is no Exception, such as Ctrl-C in an exporter, is not swallowed."""
    with pytest.raises(KeyboardInterrupt):
        everything(Telemetry(tracer_provider=HalfBroken(KeyboardInterrupt())))


def test_said_once(caplog, monkeypatch):
    """A failure is named once per step and class of exception, however often it happens."""
    monkeypatch.setattr(spans, "_reported", set())
    telemetry = Telemetry(tracer_provider=HalfBroken(ZeroDivisionError("secret")))
    with caplog.at_level(logging.WARNING, "otel_toolguard"):
        for _ in range(3):
            telemetry.start(CALL, session_id="s1", run_id="r1")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("otel_toolguard", "WARNING")
    assert "start a span (ZeroDivisionError)" in record.getMessage()
    assert record.exc_info is None, "no stack and no message of the exception at WARNING"


def test_a_log_filter_that_raises(monkeypatch):
    """Not even a failure to report a failure is felt."""
    monkeypatch.setattr(spans, "_reported", set())
    logger = logging.getLogger("otel_toolguard")
    monkeypatch.setattr(logger, "filters", [Broken().__getattr__])
    everything(Telemetry(tracer_provider=HalfBroken(ZeroDivisionError())))


HOSTILE = {
    "surrogate": "\ud800tool",
    "pair": "\ud83d\ude00",
    "nul": "to\0ol",
    "long": "x" * 100_000,
    "long and wide": "\U0001f600" * 100_000,
    "long and broken": "\udfff" * 100_000,
    "empty": "",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text(world, text, caplog):
    """Ids, names and sentences of any length and content arrive as valid, bounded text, and the SDK logs no warning."""
    call = ToolCall(text, f"{text}:0123456789abcdef", tool_class=text, agent=text, call_id=text)
    members = tuple(Member(text, f"{text}:{number}") for number in range(100))
    trip = a_trip(rule=text, why=text, session_id=text, signature=call.signature, members=members, tool_class=text)
    everything(
        world.telemetry,
        call,
        trip,
        Outcome("failed", error_type=text),
        message=text,
        session_id=text,
        run_id=text,
        conversation_id=text,
    )
    assert len(world.spans()) == 2
    for span in world.spans():
        total = 0
        for key, value in {**span.attributes, "name": span.name, "description": span.status.description}.items():
            for part in value if isinstance(value, tuple) else [value]:
                if isinstance(part, str):
                    assert type(part) is str
                    assert "\0" not in part
                    assert len(part.encode()) <= 4096, key
                    total += len(part.encode())
        assert total <= 65536
        assert span.attributes["toolguard.signature"].endswith(":0123456789abcdef"), "a cut keeps the hash"
    (event,) = world.logs()
    assert all(len(value.encode()) <= 4096 for value in event.log_record.attributes.values() if isinstance(value, str))
    assert len(event.log_record.body.encode()) <= 4096
    assert caplog.records == []


def test_text():
    """Text that is fine is handed on as it is, a pair of surrogates becomes its character, and a cut is marked."""
    fine = "grün"
    assert values.text(fine) == fine
    assert values.text("\ud83d\ude00") == "\U0001f600"
    assert values.text("a\ud800b\0c") == "a\ufffdb\ufffdc"
    cut = values.text("a" * 5000 + "end")
    assert (len(cut.encode()), cut[-3:], cut.count("…")) == (4096, "end", 1)


def test_invented_names(world):
    """A stream of invented tool names and error types does not grow what is kept."""
    for number in range(2000):
        call = ToolCall(f"tool{number}", "x:1")
        live = world.telemetry.start(call, session_id="s1", run_id="r1")
        world.telemetry.end(live, call, Outcome("ok"), None, None, seconds=0.1)
        live = world.telemetry.start(CALL, session_id="s1", run_id="r1")
        world.telemetry.end(live, CALL, Outcome("failed", error_type=f"E{number}"), None, None, seconds=0.1)
        kept = len(world.telemetry._labels._known), len(live.labels._failures)
        assert max(kept) <= 512
    assert world.spans()[-1].attributes["error.type"] == "E1999"


async def test_tasks(world):
    """Concurrent calls, attached and detached in one frame each, are siblings under the span around them."""

    async def one(number):
        live = world.telemetry.start(CALL, session_id="s1", run_id=f"r{number}")
        token = live.attach()
        try:
            await asyncio.sleep(0.001 * (number % 3))
            assert trace.get_current_span() is live.span
        finally:
            live.detach(token)
        world.telemetry.end(live, CALL, Outcome("ok"), None, None, seconds=0.1)

    around = world.telemetry.start(ToolCall("agent", "agent:1"), session_id="s1", run_id="r")
    token = around.attach()
    await asyncio.gather(*(one(number) for number in range(20)))
    assert trace.get_current_span() is around.span
    around.detach(token)
    assert {span.parent.span_id for span in world.spans()} == {around.span.get_span_context().span_id}
    assert len(world.spans()) == 20


def test_threads(world):
    """The same holds for threads that were handed the context, and one Telemetry serves them all."""
    around = world.telemetry.start(ToolCall("agent", "agent:1"), session_id="s1", run_id="r")
    token = around.attach()

    def one(number):
        live = world.telemetry.start(CALL, session_id=f"s{number}", run_id="r1")
        inner = live.attach()
        live.detach(inner)
        world.telemetry.end(live, CALL, Outcome("ok"), None, None, seconds=0.1)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(contextvars.copy_context().run, one, number) for number in range(50)]:
            done.result()
    around.detach(token)
    told = sorted(span.attributes["toolguard.session.id"] for span in world.spans())
    assert told == sorted(f"s{number}" for number in range(50)), "prebuilt attributes are never another thread's"
    assert {span.parent.span_id for span in world.spans()} == {around.span.get_span_context().span_id}


LATE = """
import sys, time
from opentelemetry.context import get_current
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.decision import Trip
from otel_toolguard.telemetry import Telemetry

call = ToolCall("search", "search:1")
telemetry = Telemetry()
telemetry.prepare(["repeat_guard"])
trip = Trip(id="t", rule="repeat_guard", scope="run", session_id="s1", loop_type="exact_repeat", why="w")

def once():
    before = get_current()
    live = telemetry.start(call, session_id="s1", run_id="r1", conversation_id="c1")
    token = live.attach()
    current, link = get_current() is before, live.link()
    live.detach(token)
    telemetry.end(live, call, Outcome("ok"), None, None, seconds=0.1)
    return live, current, link

first, second = once(), once()
assert first[0] is second[0], "not even an object a call"
assert first[1:] == (True, None)
telemetry.opened(first[0], trip)
assert "opentelemetry.sdk" not in sys.modules

from opentelemetry import trace, metrics, _logs
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

exporter, reader, logs = InMemorySpanExporter(), InMemoryMetricReader(), InMemoryLogRecordExporter()
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(exporter)); trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
logging_to = LoggerProvider(); logging_to.add_log_record_processor(SimpleLogRecordProcessor(logs)); _logs.set_logger_provider(logging_to)
time.sleep(1.1)
third, fourth = once(), once()
assert third[1] is False and third[2] is not None
one, two = exporter.get_finished_spans()
assert dict(one.attributes) == dict(two.attributes)
assert one.attributes["toolguard.session.id"] == "s1" and one.attributes["gen_ai.conversation.id"] == "c1"
(resource,) = reader.get_metrics_data().resource_metrics
found = {metric.name: metric.data.data_points for metric in resource.scope_metrics[0].metrics}
assert found["gen_ai.execute_tool.duration"][0].count == 2
assert [point.value for point in found["toolguard.circuit.trips"]] == [0, 0], found
telemetry.opened(third[0], trip)
assert len(logs.get_finished_logs()) == 1
print("fine")
"""


def test_no_sdk_and_a_late_one():
    """Without an SDK a call makes no object and no context; once providers are set, the next call is told in full."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LATE], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_explicit_no_op_logger():
    """Providers that do nothing are as good as none."""
    everything(Telemetry(tracer_provider=trace.NoOpTracerProvider(), logger_provider=NoOpLoggerProvider()))
