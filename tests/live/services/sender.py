"""Sends spans and log records of any shape, as an instrumentation would, from the test's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, set_span_in_context

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from services.collector import Collector
    from services.jaeger import Jaeger

FLUSH_MS = 30_000


class Sender:
    """A service that tells ``to`` what a test wants; a context manager that sends the rest on exit."""

    def __init__(self, to: Jaeger | Collector, *, service: str, resource: Mapping[str, Any] | None = None) -> None:
        """``resource`` adds to the attributes of the service."""
        about = Resource.create({"service.name": service, **(resource or {})})
        self._spans = TracerProvider(resource=about)
        exporter = OTLPSpanExporter(endpoint=f"{to.otlp_http}/v1/traces")
        self._spans.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=100_000))
        self._logs = LoggerProvider(resource=about)
        log_exporter = OTLPLogExporter(endpoint=f"{to.otlp_http}/v1/logs")
        self._logs.add_log_record_processor(BatchLogRecordProcessor(log_exporter))
        self._tracer = self._spans.get_tracer("sender")
        self._logger = self._logs.get_logger("sender")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._spans.shutdown()
        self._logs.shutdown()

    def span(
        self, name: str, attributes: Mapping[str, Any] | None = None, *, below: SpanContext | None = None,
        error: str | None = None, event: Mapping[str, Any] | None = None,
    ) -> SpanContext:  # fmt: skip
        """A span, started and ended: in a trace of its own or ``below`` another; ``event`` is one with attributes."""
        parent = set_span_in_context(NonRecordingSpan(below)) if below else None
        span = self._tracer.start_span(name, context=parent, attributes=attributes)
        if event is not None:
            span.add_event("an event", event)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end()
        return span.get_span_context()

    def log(self, body: Any, attributes: Mapping[str, Any] | None = None, *, event: str | None = None) -> None:
        """A log record; ``event`` is its event name."""
        self._logger.emit(severity_number=SeverityNumber.INFO, body=body, attributes=attributes, event_name=event)

    def flush(self) -> None:
        """Sends all that there is."""
        assert self._spans.force_flush(FLUSH_MS)
        assert self._logs.force_flush(FLUSH_MS)


def trace_id(context: SpanContext) -> str:
    """The id as Jaeger spells it."""
    return format(context.trace_id, "032x")
