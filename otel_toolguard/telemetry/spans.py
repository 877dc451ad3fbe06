"""The span of one call: our own, or another instrumentation's that already is this tool's span."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import opentelemetry.context as otel_context
from opentelemetry.context import Context, attach, create_key, detach, get_current
from opentelemetry.trace import INVALID_SPAN, SpanContext, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation import set_span_in_context

from otel_toolguard.telemetry import attributes as names
from otel_toolguard.telemetry.values import text

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.trace import Span

    from otel_toolguard.telemetry.values import Labels, Values

_GUARDED: Final = create_key("toolguard-guarded-span")  # id of the span that a guarded call of an outer frame uses
_SPAN: Final = next(iter(set_span_in_context(INVALID_SPAN, Context())))  # where the API keeps the current span
# Two keys say it: a plain one of old, and the API's own, which it does not export.
_QUIET: Final = "suppress_instrumentation"
_QUIET_TOO: Final[str] = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", _QUIET)
_LINK: Final = re.compile("[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_logger: Final = logging.getLogger(names.SCOPE_NAME)
_reported: Final[set[tuple[str, type[Exception]]]] = set()
_REPORTS: Final = 64


def swallowed(step: str, fault: Exception) -> None:
    """Say that telemetry failed: one WARNING per process, step and exception class, at DEBUG level with the place.

    Never the exception's words, nor those of one that was being handled: they may quote arguments and results.
    """
    kind = (step, type(fault))
    if kind in _reported or len(_reported) >= _REPORTS:
        return
    _reported.add(kind)
    try:
        place = "".join(traceback.format_tb(fault.__traceback__)) if _logger.isEnabledFor(logging.DEBUG) else ""
        _logger.warning(
            "telemetry failed to %s (%s); the call is not affected, and this is said once%s",
            step,
            type(fault).__qualname__,
            f"\n{place}" if place else "",
        )
    except Exception:  # a filter or handler of the application that raises must not be felt either
        pass


def suppressed(context: Context) -> bool:
    """Whether somebody asked instrumentations to be quiet here."""
    return bool(context.get(_QUIET) or context.get(_QUIET_TOO))


def host(context: Context, tool: str) -> Span | None:
    """The current span if another instrumentation opened it for this very tool and it is still open."""
    span = get_current_span(context)
    if not span.is_recording():
        return None
    # An SDK property, not API; the proxies of other instrumentations have it too.
    values = getattr(span, "attributes", None)
    if not values or not _is_tool_span(values, tool) or _told_of(span, context):
        return None  # it tells of an outer guarded call; this one is nested in that
    return span


def hidden_host(context: Context, tool: str) -> tuple[Span | None, Context]:
    """The same where an instrumentation does not make its spans current; else the context in which ours belongs."""
    span = _hidden()
    if span is None:
        return None, context
    named = getattr(span, "name", None) == tool or _is_tool_span(getattr(span, "attributes", None) or {}, tool)
    if named and span.is_recording() and not _told_of(span, context):
        return span, context
    return None, _below(span, context)


def _hidden() -> Span | None:
    module = sys.modules.get(names.KEEPS_ITS_SPANS)
    try:
        # Asked while it is not in use, it would print that it is not.
        if not getattr(module, names.KEEPS_ITS_SPANS_BY)().is_instrumented_by_opentelemetry:
            return None
        span: Span | None = module.get_current_span()  # type: ignore[union-attr]
        return span if span is not None and span.get_span_context().is_valid else None
    except Exception as fault:
        swallowed("ask another instrumentation for its span", fault)
        return None


def _below(span: Span, context: Context) -> Context:
    """The context in which a hidden span is current, unless what is current there began later or is ours."""
    current = get_current_span(context)
    around, inner = current.get_span_context(), span.get_span_context()
    if around.is_valid:
        apart = around.trace_id != inner.trace_id or context.get(_GUARDED) == around.span_id
        if apart or getattr(current, "start_time", 0) >= getattr(span, "start_time", 0):
            return context
    return set_span_in_context(span, context)


def _told_of(span: Span, context: Context) -> bool:
    """Whether the span already is that of a guarded call around this one."""
    return context.get(_GUARDED) == span.get_span_context().span_id or _scope_name(span) == names.SCOPE_NAME


def _is_tool_span(values: Any, tool: str) -> bool:
    for mark, value, tool_names in names.HOST_MARKS:
        if values.get(mark) == value:
            said = next((said for said in map(values.get, tool_names) if said is not None), None)
            return said is None or said in {tool, text(tool)}
    return False


def _scope_name(span: Span) -> str:
    return str(getattr(getattr(span, "instrumentation_scope", None), "name", ""))


class Live:
    """The span of a call that is being made: our own, unless a class below says otherwise."""

    __slots__ = ("_context", "_ended", "labels", "run_id", "session_id", "span")

    own: ClassVar[bool] = True  # we opened it: it carries gen_ai attributes, is made current, and is ours to end
    silent: ClassVar[bool] = False
    timed: bool = True  # nobody else records the duration histogram for this call

    def __init__(self, span: Span, labels: Labels, session_id: str | None, run_id: str | None) -> None:
        self.span = span
        self.labels = labels
        self.session_id = session_id
        self.run_id = run_id
        self._context: Context | None = None
        self._ended = False

    def attach(self) -> object:
        """Make the span current and mark it as guarded; returns the token for ``detach``."""
        try:
            values: dict[str, object] = {**get_current(), _GUARDED: self.span.get_span_context().span_id}
            if self.own or get_current_span() is not self.span:  # a hidden one; others are current already
                values[_SPAN] = self.span
            self._context = Context(values)
            return attach(self._context)
        except Exception as fault:
            swallowed("make a span current", fault)
            return None

    def detach(self, token: object) -> None:
        """Undo ``attach``; to be called in the same frame."""
        if token is None:
            return
        try:
            detach(cast("Token[Context]", token))
        except Exception as fault:
            swallowed("leave a span", fault)

    def link(self) -> str | None:
        """Trace id, span id and flags as ``{32 hex}-{16 hex}-{2 hex}``; None if the span has none."""
        try:
            here = self.span.get_span_context()
            text_of = f"{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"
        except Exception as fault:
            swallowed("name a span", fault)
            return None
        return text_of if here.is_valid else None

    def context(self) -> Context | None:
        """A context in which this span is current, for exemplars and events; None: the one that is current anyway."""
        if self._context is None:
            self._context = set_span_in_context(self.span)
        return self._context

    def blame(self, values: Values, error_type: str) -> bool:
        """Add error.type unless the host has told its own; returns whether the status is ours to set."""
        values[names.ERROR_TYPE] = error_type
        return True

    def fail(self, description: str | None) -> None:
        """Set the status ERROR."""
        self.span.set_status(StatusCode.ERROR, None if description is None else text(description))

    def point_at(self, link: str | None) -> None:
        """Link to the span that ``link`` names, unless it names none, or this one."""
        other = None if link is None else parse(link)
        if other is not None and other.span_id != self.span.get_span_context().span_id:
            self.span.add_link(other)

    def finish(self) -> None:
        """End the span if it is ours, once; a host's is its own to end."""
        if not self._ended:
            self._ended = True
            self.span.end()


class Enriched(Live):
    """The span of another instrumentation, which opened it for this call and will end it."""

    __slots__ = ("timed",)
    own = False

    def __init__(self, span: Span, labels: Labels, session_id: str | None, run_id: str | None) -> None:
        super().__init__(span, labels, session_id, run_id)
        self.timed = not _scope_name(span).startswith(names.RECORDS_DURATION)

    def blame(self, values: Values, error_type: str) -> bool:
        """Add error.type unless the host has told its own; returns whether the status is ours to set."""
        if (getattr(self.span, "attributes", None) or {}).get(names.ERROR_TYPE) is not None:
            return False
        return super().blame(values, error_type)

    def finish(self) -> None:
        """Leave the span open."""


class Silent(Live):
    """No span: the tracer has no provider behind it, or is switched off. One serves all calls of a tool."""

    __slots__ = ()
    silent = True

    def attach(self) -> None:
        """Leave the current span current."""

    def link(self) -> None:
        """There is nothing to link to."""

    def context(self) -> None:
        """There is no other context than the current one."""

    def finish(self) -> None:
        """There is nothing to end."""


def silence(labels: Labels) -> Live:
    """The live span of calls that have none."""
    if labels.silent is None:
        labels.silent = Silent(INVALID_SPAN, labels, None, None)
    return labels.silent


def came_to_nothing(span: Span, context: Context) -> bool:
    """Whether a started span is none of its own: there is no provider, or it is switched off.

    Making it current would hide the real span around it from the tool.
    """
    if span.is_recording():
        return False
    given = span.get_span_context()
    return not given.is_valid or given.span_id == get_current_span(context).get_span_context().span_id


def parse(link: str) -> SpanContext | None:
    """What ``Live.link`` wrote; None if the text is something else."""
    if not _LINK.fullmatch(link):
        return None
    trace_id, span_id, flags = (int(part, 16) for part in link.split("-"))
    # Remote: the circuit may have been opened by another process of the same session.
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
