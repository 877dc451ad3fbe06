"""The one event, through the Logs API: Python's OpenTelemetry does not call it stable yet, hence a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry._logs import SeverityNumber, get_logger

from otel_toolguard._version import __version__
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.telemetry.values import announcement, text

if TYPE_CHECKING:
    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.context import Context

    from otel_toolguard.core.decision import Trip


def event_logger(provider: LoggerProvider | None) -> Logger:
    """Where events go."""
    return get_logger(names.SCOPE_NAME, __version__, provider, names.SCHEMA_URL)


def circuit_opened(logger: Logger, trip: Trip, mode: str, context: Context | None) -> None:
    """Emit ``toolguard.circuit.opened``; ``context`` is that of the tripping span, None where no span tripped."""
    # `enabled` came after API 1.39; without it the event is built for whoever may listen.
    enabled = getattr(logger, "enabled", None)
    severity, name = SeverityNumber.WARN, names.CIRCUIT_OPENED
    if enabled is not None and not enabled(context=context, severity_number=severity, event_name=name):
        return
    logger.emit(
        event_name=name,
        severity_number=severity,
        severity_text="WARN",
        body=text(trip.why),
        attributes=announcement(trip, mode),
        context=context,
    )
