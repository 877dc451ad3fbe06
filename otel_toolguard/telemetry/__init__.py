"""Spans, metrics and events of guarded calls.

Telemetry tells and never decides. Nothing here raises into the caller, whatever a provider, an exporter or another
instrumentation does: a failure is swallowed and named once, at WARNING, on the logger ``otel_toolguard``. Only what is
no ``Exception``, such as ``KeyboardInterrupt``, passes.
"""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.context import Context, get_current
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import INVALID_SPAN, NoOpTracerProvider, SpanKind, get_tracer

from otel_toolguard._version import __version__
from otel_toolguard.errors import SettingsError
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.telemetry import values
from otel_toolguard.telemetry.content import NOTHING, Content
from otel_toolguard.telemetry.events import Warnings, circuit_opened, event_logger, session_ended, wanted
from otel_toolguard.telemetry.flush import Flusher
from otel_toolguard.telemetry.metrics import Metrics
from otel_toolguard.telemetry.spans import (
    Enriched,
    Live,
    came_to_nothing,
    hidden_host,
    host,
    silence,
    suppressed,
    swallowed,
)
from otel_toolguard.telemetry.views import recommended_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.decision import Permit, Refuse, Settled, Trip
    from otel_toolguard.telemetry.content import Redact
    from otel_toolguard.telemetry.values import Values

__all__ = ["Live", "Telemetry", "recommended_views"]

_INTERNAL: Final = SpanKind.INTERNAL
_HIDING: Final = names.KEEPS_ITS_SPANS
_LOADED: Final = sys.modules


class Telemetry:
    """What is told of each call: one span, at most two measurements, one event when a circuit opens.

    Args:
        tracer_provider: Where spans go; None for the global provider, even if that is set later.
        meter_provider: Where measurements go; None likewise.
        logger_provider: Where events go; None likewise.
        mode: ``enforce`` or ``observe``; written on trips and their events.
        content: Whether arguments, results and the words of errors, which quote both, may stand on our own spans. None
            goes by ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``, which leaves them out by default.
        redact: Where content may be told: called with the attribute's name and the text, in which what sounds or looks
            like a secret is masked already; returns what may be told, None for nothing. If it raises, a placeholder is.
        events: Which optional events to emit: "toolguard.circuit.warned", "toolguard.session.ended".
        flush_seconds: After a trip wait at most so long until it is exported, for processes that may be gone in a
            moment. The calling thread, an event loop included, waits; 0 does not.

    Raises:
        SettingsError: There is no such event, or ``flush_seconds`` is no number of 0 and more.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        mode: str = "enforce",
        content: bool | None = None,
        redact: Redact | None = None,
        events: Iterable[str] = (),
        flush_seconds: float = 0.0,
    ) -> None:
        if isinstance(flush_seconds, bool) or not 0 <= flush_seconds < math.inf:
            raise SettingsError(f"flush_seconds = {flush_seconds!r}; valid is a number of seconds from 0")
        optional = wanted(events)
        self._mode = mode
        self._flush_seconds = flush_seconds
        self._flusher = Flusher(tracer_provider, meter_provider, logger_provider)
        self._warnings = Warnings() if names.CIRCUIT_WARNED in optional else None
        self._extra = self._warnings is not None or flush_seconds > 0
        self.reports = names.SESSION_ENDED in optional  # whether ``session_ended`` has a use for the report
        self._content = Content(redact) if (_content_wanted() if content is None else content) else None
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
            hosting = None
            if context or current:
                if suppressed(context) or suppressed(current):
                    return None
                hosting = host(context, call.tool)
            if _HIDING in _LOADED and hosting is None and parent is None:
                hosting, context = hidden_host(context, call.tool)
            if hosting is not None:
                hosting.set_attributes(values.place(labels.enriched, session_id, run_id))
                return Enriched(hosting, labels, session_id, run_id)
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
            return Live(span, labels, session_id, run_id)
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
                told = values.told(call, "refused", refuse, own=live.own, in_session=live.session_id is not None)
                if refuse.opened is None:  # else the span says why that one opened, as each tripping span does
                    told |= values.verdict(refuse.trip)
                live.blame(told, names.CIRCUIT_OPEN)
                if self._content is not None:
                    self._add_content(told, live, call, NOTHING, None)
                live.span.set_attributes(told)
                live.fail(refuse.trip.why)
                if not refuse.fresh:
                    live.point_at(refuse.link)
        except Exception as fault:
            swallowed("describe a refusal", fault)
        self._finish(live)
        if self._flush_seconds and (refuse.fresh or refuse.opened is not None):
            self.flush(self._flush_seconds)

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
        result: Any = NOTHING,
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
            result: What the body returned; left out likewise.
        """
        if live is None:
            return
        error: str | None = None
        try:
            error = None if outcome.kind == "ok" else values.error_type(outcome)
            if not live.silent and live.span.is_recording():
                told = values.told(call, outcome.kind, permit, own=live.own, in_session=live.session_id is not None)
                values.judged(told, outcome, permit, settled)
                ours = error is not None and live.blame(told, error)
                words: str | None = None  # an error's words quote arguments and results; its class says the kind
                if self._content is not None:
                    words = None if message is None else self._content.words(names.ERROR_TYPE, message)
                    self._add_content(told, live, call, result, outcome.exact)
                live.span.set_attributes(told)
                if ours:
                    live.fail(words)
        except Exception as fault:
            swallowed("describe a call", fault)
        try:
            if live.timed and outcome.kind != "refused":
                self._metrics.duration(seconds, live.labels, error, None if live.silent else live.context())
        except Exception as fault:
            swallowed("record a duration", fault)
        if not live.silent:
            self._finish(live)
        if self._extra:
            self._tell_more(live, call, permit, settled)

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
        if self._flush_seconds and live is None and not observed_only:
            self.flush(self._flush_seconds)

    def run_ended(self, *, calls: int, peak_repeats: int, tripped: bool, distinct: int = 0) -> None:
        """Tell what a run came to: calls, most laps, whether it was stopped, different calls (0: unknown)."""
        try:
            if calls > 0 and not suppressed(get_current()):
                self._metrics.run_ended(calls, max(1, peak_repeats), tripped, distinct)
        except Exception as fault:
            swallowed("measure a run", fault)

    def session_ended(
        self, session_id: str, *, calls: int, tripped: bool, report: Mapping[str, Any] | None = None
    ) -> None:
        """Tell what a session came to when a block of it ended; ``report`` as ``Session.report`` makes it."""
        try:
            if calls <= 0 or suppressed(get_current()):
                return
            self._metrics.session_ended(calls, tripped)
            if self.reports:
                session_ended(self._events, session_id, tripped, report or {"calls": calls})
        except Exception as fault:
            swallowed("tell of a session's end", fault)

    def flush(self, seconds: float) -> bool:
        """Have everything told so far exported; returns whether that was done within so many seconds.

        For a worker that is about to be recycled without Python's own exit. Never raises.
        """
        try:
            return self._flusher(seconds)
        except Exception as fault:
            swallowed("flush", fault)
            return False

    def _add_content(self, told: Values, live: Live, call: ToolCall, result: Any, fingerprint: str | None) -> None:
        """Arguments and result in words; a host tells or leaves out its own."""
        if self._content is None or not live.own:
            return
        cut: list[str] = []
        for name, value in ((names.ARGUMENTS, call.arguments), (names.RESULT, result)):
            if value is NOTHING or (value is None and name == names.ARGUMENTS):
                continue
            said, shortened = self._content.json(name, value)
            if said is not None:
                told[name] = said
                cut += [name] if shortened else []
        if fingerprint:
            told[names.RESULT_HASH] = values.text(fingerprint, values.ITEM_LIMIT)
        if cut:
            told[names.CUT] = cut

    def _tell_more(self, live: Live, call: ToolCall, permit: Permit | None, settled: Settled | None) -> None:
        """What only some ask for: warnings as events, and a flush after a trip."""
        try:
            if self._warnings is not None and not live.silent:
                shares = values.shares(permit, settled)
                if shares:
                    place = (live.session_id, live.run_id)
                    self._warnings.tell(self._events, call, shares, self._mode, *place, live.context())
        except Exception as fault:
            swallowed("emit a warning event", fault)
        if self._flush_seconds and settled is not None and settled.trip is not None:
            self.flush(self._flush_seconds)

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
