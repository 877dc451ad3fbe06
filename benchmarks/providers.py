"""The process's OpenTelemetry providers for one child; they can be set once in a process."""

from __future__ import annotations

from typing import Any


def record(*, sampled: bool = True, metrics: bool = False) -> None:
    """Spans go to a batch processor whose exporter drops them; measurements to a reader that is never read."""
    from opentelemetry import metrics as metrics_api
    from opentelemetry import trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    class Drop(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
    provider.add_span_processor(BatchSpanProcessor(Drop()))
    trace.set_tracer_provider(provider)
    if metrics:
        metrics_api.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
