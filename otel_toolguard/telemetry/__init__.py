"""Spans, metrics and events of guarded calls.

Telemetry tells and never decides. Nothing here raises into the caller, whatever a provider, an exporter or another
instrumentation does: a failure is swallowed and named once, at WARNING, on the logger ``otel_toolguard``. Only what is
no ``Exception``, such as ``KeyboardInterrupt``, passes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.context import Context, get_current
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import INVALID_SPAN, NoOpTracerProvider, SpanKind, get_tracer

from otel_toolguard._version import __version__
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.telemetry import values
from otel_toolguard.telemetry.events import circuit_opened, event_logger
from otel_toolguard.telemetry.metrics import Metrics
from otel_toolguard.telemetry.spans import Enriched, Live, came_to_nothing, host, silence, suppressed, swallowed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.decision import Permit, Refuse, Settled, Trip

__all__ = ["Live", "Telemetry"]

_INTERNAL: Final = SpanKind.INTERNAL


class Telemetry:
    """What is told of each call: one span, at most two measurements, one event when a circuit opens.

    Args:
        tracer_provider: Where spans go; None for the global provider, even if that is set later.
        meter_provider: Where measurements go; None likewise.
        logger_provider: Where events go; None likewise.
        mode: ``enforce`` or ``observe``; written on trips and their events.
        content: Whether an error's words may stand in a span's status, for they quote arguments and results. None goes
            by ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``, which leaves them out by default.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        mode: str = "enforce",
        content: bool | None = None,
    ) -> None:
        self._mode = mode
        self._content = _content_wanted() if content is None else content
        self._labels = values.LabelCache()
        self._idle = False  # the last own span came to nothing: no provider yet
        self._tracer = _tracer(tracer_provider)
        self._metrics = _metrics(meter_provider)
        self._events = _events(logger_provider)

    def prepare(self, rules: Iterable[str]) -> None:
        """Begin the trip counter at 0 for each of these rules, so that the first trip already is an increase."""
        try:
            self._metrics.prepare(rules)
        except Exception as fault:
            swallowed("prepare the trip counter", fault)

    def start(
        self,
        call: ToolCall,
        *,
        session_id: str | None,
        run_id: str | None,
        conversation_id: str | None = None,
        parent: Context | None = None,
        tool_type: str = "function",
    ) -> Live | None:
        """Open the span of a call, or take the current one if it already is this tool's span; it is not made current.

        Args:
            call: The call.
            session_id: The session; None if the call belongs to none.
            run_id: The run, None likewise.
            conversation_id: The caller's id of the conversation, if there is one.
            parent: Context to open the span in, where the current one is not the call's.
            tool_type: function, extension or datastore.

        Returns:
            What ``refused`` and ``end`` need; None if somebody suppressed instrumentation here.
        """
        try:
            current = get_current()
            context = current if parent is None else parent
            labels = self._labels.of(call, tool_type)
            if context or current:
                if suppressed(context) or suppressed(current):
                    return None
                hosting = host(context, call.tool)
                if hosting is not None:
                    hosting.set_attributes(values.place(labels.enriched, session_id, run_id))
                    return Enriched(hosting, labels, session_id is not None)
            # With no provider behind the tracer nobody reads the attributes: do not build them for each call.
            idle = self._idle
            given = labels.start if idle else labels.placed(session_id, run_id).copy()  # a tracer may add to it
            if conversation_id is not None:
                given = {**given, names.CONVERSATION_ID: values.text(conversation_id)}
            span = self._tracer.start_span(labels.span_name, context, _INTERNAL, given)
            if span is INVALID_SPAN or came_to_nothing(span, context):
                self._idle = True
                return labels.silent or silence(labels)
            if idle:  # a provider has come: this first span gets late what later ones have from the start
                self._idle = False
                if span.is_recording():
                    span.set_attributes(values.place({}, session_id, run_id))
            return Live(span, labels, session_id is not None)
        except Exception as fault:
            swallowed("start a span", fault)
            return self._fallback(call, tool_type)

    def refused(self, live: Live | None, call: ToolCall, refuse: Refuse) -> None:
        """Tell that the call was not run, and count it; ``live`` is None for refusals that are only counted."""
        try:
            if live is None and suppressed(get_current()):
                return
            labels = self._labels.of(call, "function") if live is None else live.labels
            self._metrics.refused(labels, refuse.trip.rule)
        except Exception as fault:
            swallowed("count a refusal", fault)
        if live is None or live.silent:
            return
        try:
            if live.span.is_recording():
                told = values.told(call, "refused", refuse, own=live.own, in_session=live.in_session)
                told |= values.verdict(refuse.trip)
                live.blame(told, names.CIRCUIT_OPEN)
                live.span.set_attributes(told)
                live.fail(refuse.trip.why)
                if not refuse.fresh:
                    live.point_at(refuse.link)
        except Exception as fault:
            swallowed("describe a refusal", fault)
        self._finish(live)

    def end(
        self,
        live: Live | None,
        call: ToolCall,
        outcome: Outcome,
        permit: Permit | None,
        settled: Settled | None,
        *,
        seconds: float,
        message: str | None = None,
    ) -> None:
        """Tell how a call came out.

        Args:
            live: What ``start`` returned.
            call: The call.
            outcome: How it came out.
            permit: What admission said; None if the call was not counted.
            settled: What the rules said to the result; None if they were not asked.
            seconds: How long the body took.
            message: The error in words, for the span's status; left out unless content is captured.
        """
        if live is None:
            return
        error: str | None = None
        try:
            if outcome.kind != "ok":
                error = values.error_type(outcome)
            if not live.silent and live.span.is_recording():
                told = values.told(call, outcome.kind, permit, own=live.own, in_session=live.in_session)
                values.judged(told, outcome, permit, settled)
                ours = error is not None and live.blame(told, error)
                live.span.set_attributes(told)
                if ours:
                    # An error's words quote arguments and results; the class says what kind it was.
                    live.fail(message if self._content else None)
        except Exception as fault:
            swallowed("describe a call", fault)
        try:
            if live.timed and outcome.kind != "refused":
                self._metrics.duration(seconds, live.labels, error, None if live.silent else live.context())
        except Exception as fault:
            swallowed("record a duration", fault)
        if not live.silent:
            self._finish(live)

    def opened(self, live: Live | None, trip: Trip, *, observed_only: bool = False) -> None:
        """Tell that a circuit opened on this call, or with ``observed_only`` would have; before ``end`` or ``refused``.

        Args:
            live: The span of the call that tripped; None where no call did.
            trip: Why.
            observed_only: True if the rules only watch.
        """
        mode = "observe" if observed_only else self._mode
        context: Context | None = None
        try:
            if live is None and suppressed(get_current()):
                return
            if live is not None:
                context = live.context()
                if live.span.is_recording():
                    live.span.set_attributes(values.opening(trip, mode, observed_only=observed_only))
        except Exception as fault:
            swallowed("describe a trip", fault)
        try:
            self._metrics.tripped(trip.rule, mode, context)
        except Exception as fault:
            swallowed("count a trip", fault)
        try:
            circuit_opened(self._events, trip, mode, context)
        except Exception as fault:
            swallowed("emit a trip event", fault)

    def _fallback(self, call: ToolCall, tool_type: str) -> Live | None:
        try:
            return silence(self._labels.of(call, tool_type))
        except Exception as fault:
            swallowed("label a call", fault)
            return None

    def _finish(self, live: Live) -> None:
        try:
            live.finish()
        except Exception as fault:
            swallowed("end a span", fault)


def _content_wanted() -> bool:
    return os.environ.get(names.CAPTURE_CONTENT, "").upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def _tracer(provider: TracerProvider | None) -> Tracer:
    try:
        return get_tracer(names.SCOPE_NAME, __version__, provider, names.SCHEMA_URL)
    except Exception as fault:
        swallowed("get a tracer", fault)
        return NoOpTracerProvider().get_tracer(names.SCOPE_NAME)


def _metrics(provider: MeterProvider | None) -> Metrics:
    try:
        return Metrics(provider)
    except Exception as fault:
        swallowed("create instruments", fault)
        return Metrics(NoOpMeterProvider())


def _events(provider: LoggerProvider | None) -> Logger:
    try:
        return event_logger(provider)
    except Exception as fault:
        swallowed("get an event logger", fault)
        return event_logger(NoOpLoggerProvider())
