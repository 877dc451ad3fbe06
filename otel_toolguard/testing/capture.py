"""What guarded calls tell OpenTelemetry, kept in memory for a test to look at.

The SDK is looked for when a capture begins, not on import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.session import default_telemetry
from otel_toolguard.telemetry import Telemetry
from otel_toolguard.telemetry import attributes as names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer, TracerProvider


class Event(NamedTuple):
    """One emitted event; ``severity`` is a word such as WARN, ``body`` the text."""

    name: str
    severity: str
    body: str
    attributes: Mapping[str, Any]


class Point(NamedTuple):
    """One series of a metric: a counter's value, with 0 ``measurements``, or a histogram's sum and their number."""

    attributes: Mapping[str, Any]
    value: float
    measurements: int


class Captured:
    """Spans, metrics and events since the capture began or was cleared.

    Attributes:
        telemetry: To hand to a session or adapter by name; inside the block those without one use it anyway.
        tracer: For a test's own spans, to stand around or inside guarded calls.
        tracer_provider: For other instrumentations whose spans belong into the same trace.
    """

    telemetry: Telemetry
    tracer: Tracer
    tracer_provider: TracerProvider

    def __init__(self, **options: Any) -> None:
        try:
            from opentelemetry.sdk._logs import LoggerProvider, export  # noqa: PLC0415
            from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415
        except ImportError as error:
            raise ImportError("capture_spans needs the OpenTelemetry SDK: install opentelemetry-sdk") from error
        self._exporter = InMemorySpanExporter()
        tracers = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader], shutdown_on_exit=False)
        in_memory: Any = getattr(export, "InMemoryLogRecordExporter", None) or export.InMemoryLogExporter
        self._logs = in_memory()
        loggers = LoggerProvider(shutdown_on_exit=False)
        loggers.add_log_record_processor(export.SimpleLogRecordProcessor(self._logs))
        self._counted_before: dict[tuple[str, Any], tuple[float, int]] = {}
        self.tracer_provider = tracers
        self.tracer = tracers.get_tracer("test")
        self.telemetry = Telemetry(tracer_provider=tracers, meter_provider=meters, logger_provider=loggers, **options)

    def spans(self, tool: str | None = None) -> list[ReadableSpan]:
        """The finished spans of calls of one tool, None of all tools, in the order in which they ended."""
        return [
            span
            for span in self._exporter.get_finished_spans()
            if (span.attributes or {}).get(names.OPERATION) == names.EXECUTE_TOOL
            and tool in (None, (span.attributes or {}).get(names.TOOL_NAME))
        ]

    def all_spans(self) -> list[ReadableSpan]:
        """Every finished span, those of the test's own ``tracer`` included."""
        return list(self._exporter.get_finished_spans())

    def outcomes(self, tool: str | None = None) -> list[str]:
        """How the calls came out, in the order in which they ended: ok, failed, refused and the other outcomes."""
        return [str((span.attributes or {}).get(names.OUTCOME)) for span in self.spans(tool)]

    def points(self, metric: str) -> list[Point]:
        """The series of a metric; empty if nothing was measured under that name."""
        return [
            Point(attributes, value - before[0], count - before[1])
            for name, attributes, value, count in self._measured()
            if name == metric
            for before in [self._counted_before.get((name, _key(attributes)), (0, 0))]
        ]

    def count(self, metric: str, attributes: Mapping[str, Any] | None = None) -> float:
        """A counter's total, or the number of a histogram's measurements; 0 if there are none.

        Args:
            metric: Its name.
            attributes: Only series that have these values; None for all.
        """
        wanted = dict(attributes or {}).items()
        return sum(
            point.measurements or point.value
            for point in self.points(metric)
            if wanted <= dict(point.attributes).items()
        )

    def events(self) -> list[Event]:
        """The events, such as that of an opened circuit, in order."""
        found = []
        for kept in self._logs.get_finished_logs():
            record = kept.log_record
            severity = getattr(record, "severity_text", None) or ""
            found.append(Event(record.event_name or "", severity, str(record.body), dict(record.attributes or {})))
        return found

    def clear(self) -> None:
        """Forgets what was captured until now."""
        self._exporter.clear()
        self._logs.clear()
        self._counted_before = {
            (name, _key(attributes)): (value, count) for name, attributes, value, count in self._measured()
        }

    def _measured(self) -> Iterator[tuple[str, Mapping[str, Any], float, int]]:
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = getattr(point, "value", None)
                        total = getattr(point, "sum", 0) if value is None else value
                        yield metric.name, dict(point.attributes or {}), total, getattr(point, "count", 0)


def _key(attributes: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    return frozenset(
        (name, tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value)
        for name, value in attributes.items()
    )


@contextmanager
def capture_spans(**options: Any) -> Iterator[Captured]:
    """Keeps the spans, metrics and events of guarded calls made inside the block, of all threads, in memory.

    Nothing leaves the process meanwhile, and the global providers stay as they are. Sessions that were given a
    telemetry of their own tell only that one; under ``TOOLGUARD_TELEMETRY=off`` only those given
    ``captured.telemetry`` tell anything. Blocks may be nested: the innermost captures.

    Args:
        options: What else ``Telemetry`` takes, such as ``content=True``; its defaults where nothing is said.

    Raises:
        ImportError: No OpenTelemetry SDK is installed.
    """
    captured = Captured(**options)
    # What sessions use by default is one object for each mode, which others may hold already: it is changed inside.
    defaults = [telemetry for mode in ("enforce", "observe") if (telemetry := default_telemetry(mode)) is not None]
    own = [dict(vars(telemetry)) for telemetry in defaults]
    lent = {name: part for name, part in vars(captured.telemetry).items() if name != "_mode"}
    try:
        for telemetry in defaults:
            vars(telemetry).update(lent)
        yield captured
    finally:
        for telemetry, parts in zip(defaults, own, strict=True):
            vars(telemetry).update(parts)
