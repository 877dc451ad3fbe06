"""Telemetry breaks, and heals: what the tools do and what the guard decides is the same, and the next call is told."""

import asyncio
import contextlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.telemetry import Telemetry

POLICY = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}, {"plugin": "call_ceiling", "tools": {"fetch": 1}}])


class Fault(RuntimeError):
    """What a broken part of telemetry raises."""


class Breakable:
    """A provider one part of which raises while ``broken``."""

    def __init__(self, part):
        self.part, self.broken = part, False
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider(sampler=self._sampler())
        self.provider.add_span_processor(self._processor())
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter()))
        self.telemetry = Telemetry(
            tracer_provider=self.provider, meter_provider=MeterProvider([self.reader]), flush_seconds=0.05
        )

    def touch(self, part):
        if self.broken and part == self.part:
            raise Fault(part)

    def _sampler(outer):
        class Breaking(Sampler):
            def should_sample(self, *args, **kwargs):
                outer.touch("sampler")
                return ALWAYS_ON.should_sample(*args, **kwargs)

            def get_description(self):
                return "breaking"

        return Breaking()

    def _processor(outer):
        class Breaking(SpanProcessor):
            def on_start(self, span, parent_context=None):
                outer.touch("processor at the start")

            def on_end(self, span):
                outer.touch("processor at the end")

            def force_flush(self, timeout_millis=30000):
                outer.touch("flush")
                return True

        return Breaking()

    def _exporter(outer):
        class Breaking(InMemorySpanExporter):
            def export(self, spans):
                outer.touch("exporter")
                return outer.exporter.export(spans)

        return Breaking()

    def durations(self):
        data = self.reader.get_metrics_data()
        return sum(
            point.count
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "gen_ai.execute_tool.duration"
            for point in metric.data.data_points
        )


PARTS = ("sampler", "processor at the start", "processor at the end", "exporter", "flush")


def search(q):
    if q == "bad":
        raise LookupError(q)
    return f"found {q}"


async def search_async(q):
    return search(q)


def pages(q):
    yield from (search(q), q)


def drained(generator):
    return list(generator)


KINDS = {
    "function": (search, lambda made, q: made(q)),
    "coroutine": (search_async, lambda made, q: asyncio.run(made(q))),
    "generator": (pages, lambda made, q: drained(made(q))),
}


def answers(kind, telemetry):
    """All that a caller sees of a session: results, exceptions by type and words, and the trip."""
    function, call = KINDS[kind]
    made = guard_tool(name="search")(function)
    seen = []
    with Session(policy=POLICY, telemetry=telemetry) as session:
        for q in ("a", "bad", "b", "c", "c", "c", "d"):
            try:
                seen.append(call(made, q))
            except Exception as error:
                seen.append((type(error).__name__, str(error)))
    trip = session.trip
    return seen, (trip.rule, trip.limit, trip.observed, trip.at_call), session.report()["calls"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS)
def test_broken_all_the_time(part, kind, caplog):
    """Whichever part is broken, results, exceptions and decisions are those without telemetry."""
    breakable = Breakable(part)
    breakable.broken = True
    assert answers(kind, breakable.telemetry) == answers(kind, Telemetry(tracer_provider=trace.NoOpTracerProvider()))


@pytest.mark.parametrize("part", PARTS)
def test_broken_and_healed(part):
    """The call after the fault has its span and its measurement, and the span around it is whole."""
    breakable = Breakable(part)
    tool = guard_tool(search)
    with Session(policy=POLICY, telemetry=breakable.telemetry):
        with breakable.provider.get_tracer("app").start_as_current_span("request") as around:
            breakable.broken = True
            tool("a")
            before = len(breakable.exporter.get_finished_spans()), breakable.durations()
            breakable.broken = False
            tool("b")
            assert trace.get_current_span() is around
        spans = breakable.exporter.get_finished_spans()[before[0] :]
    (healed,) = [span for span in spans if span.name == "execute_tool search"]
    assert (healed.attributes["toolguard.outcome"], healed.attributes["toolguard.run.calls"]) == ("ok", 2)
    assert healed.parent.span_id == around.get_span_context().span_id
    assert breakable.durations() == before[1] + 1


@pytest.mark.parametrize("part", PARTS)
def test_calls_are_measured_while_spans_are_broken(part):
    """A fault of tracing does not keep a call from being measured."""
    breakable = Breakable(part)
    breakable.broken = True
    with Session(telemetry=breakable.telemetry):
        guard_tool(search)("a")
    assert breakable.durations() == 1


class BrokenMeter(NoOpMeterProvider):
    """Gives instruments that raise while ``broken``."""

    broken = True

    def get_meter(outer, *args, **kwargs):
        def record(*args, **kwargs):
            if outer.broken:
                raise Fault

        instrument = SimpleNamespace(add=record, record=record)
        return SimpleNamespace(
            create_counter=lambda *args, **kwargs: instrument, create_histogram=lambda *args, **kwargs: instrument
        )


def test_broken_instruments():
    """A meter that raises changes nothing, and the spans are whole."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=provider, meter_provider=BrokenMeter())
    assert answers("function", telemetry) == answers("function", Telemetry(tracer_provider=trace.NoOpTracerProvider()))
    assert [span.attributes["toolguard.outcome"] for span in exporter.get_finished_spans()] == [
        "ok", "failed", "ok", "ok", "ok", "ok", "refused",
    ]  # fmt: skip


def test_the_sdk_is_shut_down_in_mid_run(caplog):
    """After a shutdown of all providers the run goes on and is stopped as before; nothing is raised."""
    breakable = Breakable(None)
    tool = guard_tool(search)
    with Session(policy=POLICY, telemetry=breakable.telemetry) as session:
        tool("a")
        breakable.provider.shutdown()
        breakable.telemetry.flush(1.0)
        with contextlib.suppress(LookupError):
            tool("bad")
        for q in ("c", "c", "c"):
            assert tool(q) == "found c"
        with pytest.raises(CircuitOpen):
            tool("d")
    assert session.trip.rule == "repeat_guard"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_no_sdk_is_the_bare_function():
    """In a process without an SDK results, exceptions and decisions are those of telemetry switched off."""
    script = """
import sys
from otel_toolguard import Policy, Session, guard_tool
@guard_tool
def search(q):
    if q == "bad":
        raise LookupError(q)
    return q
seen = []
with Session(policy=Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}])) as session:
    for q in ("a", "bad", "c", "c", "c", "d"):
        try:
            seen.append(search(q))
        except Exception as error:
            seen.append(type(error).__name__)
print(seen, session.trip.rule, "opentelemetry.sdk" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['a', 'LookupError', 'c', 'c', 'c', 'SessionStopped'] repeat_guard False\n"
