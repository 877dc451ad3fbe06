"""What the tests look at: the spans of guarded calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard.telemetry import Telemetry


@pytest.fixture
def traced():
    """Telemetry to give to a session or capability, its tracer, and the finished spans of tool calls."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def spans():
        return [span for span in exporter.get_finished_spans() if span.name.startswith("execute_tool")]

    return SimpleNamespace(
        telemetry=Telemetry(tracer_provider=provider, meter_provider=NoOpMeterProvider()),
        provider=provider,
        tracer=provider.get_tracer("user"),
        spans=spans,
        named=lambda *starts: [span for span in exporter.get_finished_spans() if span.name.startswith(starts)],
        outcomes=lambda: [span.attributes["toolguard.outcome"] for span in spans()],
        clear=exporter.clear,
    )


class Measuring(Telemetry):
    """Telemetry that notes how many calls each run came to, when that is told."""

    def __init__(self):
        super().__init__(tracer_provider=TracerProvider(), meter_provider=NoOpMeterProvider())
        self.runs = []

    def run_ended(self, *, calls, peak_repeats, tripped, distinct):
        self.runs.append(calls)


@pytest.fixture
def measured():
    """Telemetry to give to a session or options."""
    return Measuring()
