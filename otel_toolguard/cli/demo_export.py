"""Where the demo's telemetry goes: kept in memory for the printed trees, and by OTLP where somebody listens."""

from __future__ import annotations

import os
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

FLUSH_MS = 10_000
JAEGER_UI = 16686
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Target:
    """A place that takes OTLP.

    Attributes:
        endpoint: As given by the standard variable, None where a Jaeger on localhost was found.
        protocol: "grpc" or "http/protobuf".
        ui: Address of the Jaeger pages, None if none answers there.
        signals: Which of traces, metrics and logs it takes.
    """

    def __init__(self, endpoint: str | None, protocol: str, ui: str | None, signals: tuple[str, ...]) -> None:
        self.endpoint = endpoint
        self.protocol = protocol
        self.ui = ui
        self.signals = signals

    def exporter(self, signal: str) -> Any:
        """The exporter of a signal; the standard variables configure it."""
        given = None if self.endpoint is not None else _LOCAL[self.protocol]
        wire = "grpc" if self.protocol == "grpc" else "http"
        module, name = _EXPORTERS[signal]
        kind: Any = getattr(import_module(f"opentelemetry.exporter.otlp.proto.{wire}.{module}"), name)
        return kind(endpoint=given) if given else kind()


_EXPORTERS = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_LOCAL = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318/v1/traces"}


def target() -> Target | None:
    """The endpoint that the standard variables name, else a Jaeger on localhost, else None."""
    found = named_target()
    if found is not None and found.endpoint is not None:
        found.ui = _ui(_parts(found.endpoint).hostname or "localhost")
    if found is not None or _switched_off():
        return found
    ui = _ui("localhost")
    if ui is not None:
        for protocol, port in (("http/protobuf", 4318), ("grpc", 4317)):
            if _open("localhost", port):
                return Target(None, protocol, ui, ("traces",))  # Jaeger takes neither metrics nor logs
    return None


def named_target() -> Target | None:
    """The endpoint that the standard variables name, without a look at what answers there; None if they name none."""
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None or _switched_off():
        return None
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in ("grpc", "http/protobuf"):
        protocol = "grpc" if _parts(endpoint).port == 4317 else "http/protobuf"
    # A traces endpoint names no place for the other signals.
    whole = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    wanted = [
        signal for signal in ("metrics", "logs")
        if os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp") != "none"
        and (whole or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"))
    ]  # fmt: skip
    return Target(endpoint, protocol, None, ("traces", *wanted))


def _switched_off() -> bool:
    return os.environ.get("OTEL_TRACES_EXPORTER") == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"


def _parts(endpoint: str) -> SplitResult:
    return urlsplit(endpoint if "//" in endpoint else "//" + endpoint)


def _ui(host: str) -> str | None:
    return f"http://{host}:{JAEGER_UI}" if _open(host, JAEGER_UI) else None


def _open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=0.3):
            return True
    except OSError:
        return False


class _Watched(SpanExporter):
    """An exporter whose failures are remembered: a flush alone does not tell."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self.failed = self.failed or result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Providers:
    """The three providers of the demo; what a user's own set-up would be."""

    def __init__(self, to: Target | None) -> None:
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {"service.name": "otel-toolguard-demo"})
        self._memory = InMemorySpanExporter()
        self.traces = TracerProvider(resource=resource)
        self.traces.add_span_processor(SimpleSpanProcessor(self._memory))
        signals = to.signals if to is not None else ()
        self._sent = _Watched(to.exporter("traces")) if to is not None else None
        if self._sent is not None:
            self.traces.add_span_processor(BatchSpanProcessor(self._sent, max_queue_size=1 << 16))
        readers = [PeriodicExportingMetricReader(to.exporter("metrics"))] if to and "metrics" in signals else []
        self.metrics = MeterProvider(metric_readers=readers, resource=resource)
        self.logs = LoggerProvider(resource=resource)
        if to is not None and "logs" in signals:
            self.logs.add_log_record_processor(BatchLogRecordProcessor(to.exporter("logs")))

    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended, in order of their end."""
        return self._memory.get_finished_spans()

    def close(self) -> bool:
        """Sends what is left, within ten seconds a signal; False if the traces could not all be sent."""
        flushed = self.traces.force_flush(FLUSH_MS)
        for provider in (self.traces, self.metrics, self.logs):
            provider.shutdown()
        return flushed and not (self._sent is not None and self._sent.failed)
