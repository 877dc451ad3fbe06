"""Brings the SDK up once, aside and for nobody, to hear what it says of the variables that it reads."""

from __future__ import annotations

import io
import logging
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.doctor_finding import Finding, one_line
from otel_toolguard.cli.doctor_providers import OTLP, installed
from otel_toolguard.cli.doctor_variables import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_COMPONENTS = {  # variables that name entry points; without one of that name the SDK does not come up
    **{f"OTEL_{signal.upper()}_EXPORTER": f"opentelemetry_{signal}_exporter" for signal in SIGNALS},
    "OTEL_PROPAGATORS": "opentelemetry_propagator",
    "OTEL_PYTHON_ID_GENERATOR": "opentelemetry_id_generator",
}
_BY_OTLP = "otlp"


def sdk_findings(environment: Mapping[str, str]) -> list[Finding]:
    """What the SDK refuses, and what it puts right with a word in a log.

    Args:
        environment: The variables; the SDK reads those of the process.
    """
    findings = list(_unknown(environment))
    if installed("opentelemetry-sdk") is None:
        return findings
    with _overheard() as said:
        for signal, (make, variables) in _PARTS.items():
            try:
                make()
            except Exception as fault:
                text = f"the SDK does not come up for {signal} ({type(fault).__name__}: {one_line(fault, 200)})"
                findings.append(Finding("fail", "sdk", text, f"look at {variables}"))
    findings += [Finding("warn", "sdk", one_line(each), "correct the variable") for each in said]
    return list({finding.text: finding for finding in findings}.values())


def _unknown(environment: Mapping[str, str]) -> Iterator[Finding]:
    for variable, group in _COMPONENTS.items():
        said = environment.get(variable)
        names = [name.strip() for name in said.split(",")] if said else []
        if len(names) == 1 and names[0].lower() == "none":
            continue
        known = {entry.name for entry in entry_points(group=group)}
        for name in dict.fromkeys(names):
            if name not in known and not name.startswith(_BY_OTLP):  # of that one the packages speak
                text = f"{variable} names {one_line(name, 60) or 'nothing'}, which is not installed"
                advice = f"installed are {', '.join(sorted(known)) or 'none'}" if known else OTLP
                yield Finding("fail", "sdk", text, advice)


def _tracer() -> None:
    trace = import_module("opentelemetry.sdk.trace")
    export = import_module("opentelemetry.sdk.trace.export")
    export.BatchSpanProcessor(export.ConsoleSpanExporter(out=io.StringIO())).shutdown()
    trace.TracerProvider(resource=_resource(), shutdown_on_exit=False).shutdown()


def _meter() -> None:
    metrics = import_module("opentelemetry.sdk.metrics")
    export = import_module("opentelemetry.sdk.metrics.export")
    metrics.MeterProvider(resource=_resource(), shutdown_on_exit=False).shutdown()  # before there is a thread to leave
    reader = export.PeriodicExportingMetricReader(export.ConsoleMetricExporter(out=io.StringIO()))
    metrics.MeterProvider([reader], resource=_resource(), shutdown_on_exit=False).shutdown()


def _logger() -> None:
    logs = import_module("opentelemetry.sdk._logs")
    export = import_module("opentelemetry.sdk._logs.export")
    spans = import_module("opentelemetry.sdk.trace.export")  # any exporter will do, and this one has had no other name
    export.BatchLogRecordProcessor(spans.ConsoleSpanExporter(out=io.StringIO())).shutdown()
    logs.LoggerProvider(resource=_resource(), shutdown_on_exit=False).shutdown()


_PARTS: dict[str, tuple[Callable[[], None], str]] = {
    "traces": (_tracer, "OTEL_BSP_*, OTEL_SPAN_*, OTEL_ATTRIBUTE_*"),
    "metrics": (_meter, "OTEL_METRIC_*, OTEL_METRICS_*"),
    "logs": (_logger, "OTEL_BLRP_*, OTEL_LOGRECORD_*, OTEL_ATTRIBUTE_*"),
}


def _resource() -> Any:
    """What the variables say of the resource; detectors, of which some ask the network, are left out."""
    return import_module("opentelemetry.sdk.resources").OTELResourceDetector().detect()


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """What the SDK's loggers say meanwhile, which nobody else gets to hear."""
    said: list[str] = []
    logger = logging.getLogger("opentelemetry")
    ear = _Ear(said.append)
    before, propagate, level = logging.root.manager.disable, logger.propagate, logger.level
    logging.disable(logging.NOTSET)
    logger.addHandler(ear)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield said
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.removeHandler(ear)
        logging.disable(before)


class _Ear(logging.Handler):
    def __init__(self, tell: Callable[[str], Any]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())
