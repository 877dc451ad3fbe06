"""Providers that keep what they are told, for tests of what a guarded call tells."""

from __future__ import annotations

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard.telemetry import Telemetry


class Told:
    """All three providers, and what they were told."""

    def __init__(self, views=()):
        self._spans, self._logs, self._reader = (
            InMemorySpanExporter(),
            InMemoryLogRecordExporter(),
            InMemoryMetricReader(),
        )
        self.tracing, self.logging, self.metering = (
            TracerProvider(),
            LoggerProvider(),
            MeterProvider([self._reader], views=list(views)),
        )
        self.tracing.add_span_processor(SimpleSpanProcessor(self._spans))
        self.logging.add_log_record_processor(SimpleLogRecordProcessor(self._logs))

    def telemetry(self, **settings):
        return Telemetry(
            tracer_provider=self.tracing, meter_provider=self.metering, logger_provider=self.logging, **settings
        )

    def spans(self):
        return self._spans.get_finished_spans()

    def outcomes(self):
        return [span.attributes["toolguard.outcome"] for span in self.spans()]

    def events(self):
        return [record.log_record for record in self._logs.get_finished_logs()]

    def points(self):
        """Data points by the metric's name."""
        data = self._reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def told_through():
    """Makes such providers with views on the metrics."""
    return Told
