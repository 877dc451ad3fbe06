"""The events, through the Logs API: Python's OpenTelemetry does not call it stable yet, hence a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry._logs import SeverityNumber, get_logger

from otel_toolguard._version import __version__
from otel_toolguard.errors import SettingsError
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.telemetry.values import announcement, ending, text, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.context import Context

    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.telemetry.values import Values

OPTIONAL: Final = (names.CIRCUIT_WARNED, names.SESSION_ENDED)
_STAGES_KEPT: Final = 1024  # runs and rules whose last warning is remembered


def event_logger(provider: LoggerProvider | None) -> Logger:
    """Where events go."""
    return get_logger(names.SCOPE_NAME, __version__, provider, names.SCHEMA_URL)


def wanted(asked: Iterable[str]) -> frozenset[str]:
    """The optional events that were asked for.

    Raises:
        SettingsError: There is none of that name.
    """
    given = frozenset([asked] if isinstance(asked, str) else asked)
    unknown = sorted(given.difference(OPTIONAL))
    if unknown:
        raise SettingsError(f"unknown event {unknown[0]!r:.80}; valid are {', '.join(OPTIONAL)}")
    return given


def circuit_opened(logger: Logger, trip: Trip, mode: str, context: Context | None) -> None:
    """Emit ``toolguard.circuit.opened``; ``context`` is that of the tripping span, None where no span tripped."""
    if _heard(logger, names.CIRCUIT_OPENED, SeverityNumber.WARN, context):
        _emit(logger, names.CIRCUIT_OPENED, SeverityNumber.WARN, text(trip.why), announcement(trip, mode), context)


def session_ended(logger: Logger, session_id: str, tripped: bool, report: Mapping[str, Any]) -> None:
    """Emit ``toolguard.session.ended``."""
    if _heard(logger, names.SESSION_ENDED, SeverityNumber.INFO, None):
        values = ending(session_id, tripped, report)
        said = f"The session ended after {report.get('calls', 0)} calls."
        _emit(logger, names.SESSION_ENDED, SeverityNumber.INFO, said, values, None)


class Warnings:
    """Tells of a rule that has used up half of its limit, and again three quarters; once each while that lasts."""

    __slots__ = ("_stages",)

    def __init__(self) -> None:
        self._stages: dict[tuple[str, str], int] = {}

    def tell(
        self, logger: Logger, call: ToolCall, warned: Mapping[str, float], mode: str, session_id: str | None,
        run_id: str | None, context: Context | None,
    ) -> None:  # fmt: skip
        """Emit ``toolguard.circuit.warned`` for each of these rules, by its share of the limit, that is news."""
        for rule, share in warned.items():
            if self._is_news((run_id or "", rule), 2 if share >= 0.75 else 1) and _heard(
                logger, names.CIRCUIT_WARNED, SeverityNumber.INFO, context
            ):
                values = warning(call, rule, share, mode, session_id, run_id)
                said = text(f"The rule {rule} has used {share:.0%} of its limit.")
                _emit(logger, names.CIRCUIT_WARNED, SeverityNumber.INFO, said, values, context)

    def _is_news(self, key: tuple[str, str], stage: int) -> bool:
        before = self._stages.pop(key, 0)
        if len(self._stages) >= _STAGES_KEPT:
            del self._stages[next(iter(self._stages))]
        self._stages[key] = stage
        return stage > before


def _heard(logger: Logger, name: str, severity: SeverityNumber, context: Context | None) -> bool:
    # `enabled` came after API 1.39; without it the event is built for whoever may listen.
    enabled = getattr(logger, "enabled", None)
    return enabled is None or bool(enabled(context=context, severity_number=severity, event_name=name))


def _emit(
    logger: Logger, name: str, severity: SeverityNumber, said: str, values: Values, context: Context | None
) -> None:
    logger.emit(
        event_name=name,
        severity_number=severity,
        severity_text=severity.name,
        body=said,
        attributes=values,
        context=context,
    )
