"""The caller's trace and baggage, where a request tells of them and the framework leaves them aside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.context import attach, detach, get_current
from opentelemetry.propagate import extract
from opentelemetry.trace import get_current_span, set_span_in_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def continued(carrier: Mapping[str, Any], *, traced: bool = False) -> Iterator[None]:
    """Goes on in the trace, and with the baggage, of whoever filled the carrier; where it names none, in the current.

    Args:
        carrier: What the request tells; only texts in it are looked at.
        traced: Whether the current span belongs to the request already, so that only baggage is missing.
    """
    told = extract({key: value for key, value in carrier.items() if isinstance(value, str)}, context=get_current())
    token = attach(set_span_in_context(get_current_span(), told) if traced else told)
    try:
        yield
    finally:
        detach(token)
