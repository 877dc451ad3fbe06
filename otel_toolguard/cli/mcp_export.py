"""The proxy's own OpenTelemetry providers, where the standard variables name a place and nobody set up others."""

from __future__ import annotations

import logging
import os
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.telemetry import Telemetry

logger = logging.getLogger("otel_toolguard")
FLUSH = 3.0  # seconds at the end, all signals together
SERVICE = "otel-toolguard-mcp-proxy"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.proto.grpc")


def exporting(of_process: Telemetry, mode: str) -> tuple[Telemetry, Callable[[], object]]:
    """Telemetry for the proxy's sessions; and what sends the rest at the end.

    Args:
        of_process: Goes to whatever providers the process has; is right unless nobody set up any.
        mode: ``enforce`` or ``observe``.
    """
    same = of_process, lambda: of_process.flush(FLUSH)
    if not any(os.environ.get(name) for name in _ENDPOINTS) or not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    ):
        return same
    if not all(map(_found, _NEEDED)):
        logger.warning('OTLP export needs the SDK and its exporters: pip install "otel-toolguard[otlp]"')
        return same
    from otel_toolguard.cli.demo_export import named_target

    target = named_target()
    return same if target is None else _made(target, "observe" if mode == "observe" else "enforce")


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _made(target: Any, mode: str) -> tuple[Telemetry, Callable[[], None]]:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from otel_toolguard.telemetry import Telemetry

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": SERVICE})
    # We shut them down ourselves, in limited time.
    traces = TracerProvider(resource=resource, shutdown_on_exit=False)
    traces.add_span_processor(BatchSpanProcessor(target.exporter("traces")))
    readers = [PeriodicExportingMetricReader(target.exporter("metrics"))] if "metrics" in target.signals else []
    metrics = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
    if "logs" in target.signals:
        logs.add_log_record_processor(BatchLogRecordProcessor(target.exporter("logs")))
    telemetry = Telemetry(tracer_provider=traces, meter_provider=metrics, logger_provider=logs, mode=mode)

    def finish() -> None:
        threads = [threading.Thread(target=provider.shutdown, daemon=True) for provider in (traces, metrics, logs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FLUSH / len(threads))

    return telemetry, finish
