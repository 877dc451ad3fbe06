"""What the current OpenTelemetry context says about where a call belongs."""

from __future__ import annotations

from opentelemetry import baggage, trace

BAGGAGE_KEY = "session.id"  # the general semantic conventions' name for a session
ID_LIMIT = 256  # characters; baggage comes from outside


def session_in_context() -> tuple[str | None, str | None]:
    """(the session's id that W3C baggage names, the current trace's id as 32 hex digits); None where there is none.

    Never raises.
    """
    try:
        named = baggage.get_baggage(BAGGAGE_KEY)
        context = trace.get_current_span().get_span_context()
        trace_id = trace.format_trace_id(context.trace_id) if context.is_valid else None
    except Exception:
        return None, None
    return (named[:ID_LIMIT] if isinstance(named, str) and named else None), trace_id
