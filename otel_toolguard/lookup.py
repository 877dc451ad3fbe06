"""Where a call belongs if no block is open around it: to the session that baggage names, else to the current trace."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from otel_toolguard.place import here
from otel_toolguard.session import Session
from otel_toolguard.settings import ENVIRONMENT
from otel_toolguard.telemetry.context import session_in_context

if TYPE_CHECKING:
    from otel_toolguard.place import Place

OF_TRACE = "trace:"
SESSIONS_KEPT = 1024  # handles; what they count is kept by the store


def place_here() -> Place | None:
    """Where a call that is made now belongs; None if nothing says so.

    The block or framework run that is open around it comes first. Else W3C baggage may name a session
    (``session.id``), of which each trace is a run. Else the current trace is a session of one run.
    """
    place = here.get()
    if place is not None:
        return place
    named, trace_id = session_in_context()
    if named is None and trace_id is None:
        return None
    session = _session(named or f"{OF_TRACE}{trace_id}", tuple(map(os.environ.get, ENVIRONMENT)), _telemetry_wanted())
    return session.place(trace_id or "baggage")


def current_session() -> Session | None:
    """The session that a call made now would belong to; None if it would belong to none."""
    place = place_here()
    session: Session | None = place.session if place is not None else None
    return session


def _telemetry_wanted() -> str | None:
    return os.environ.get("TOOLGUARD_TELEMETRY")


@lru_cache(maxsize=SESSIONS_KEPT)
def _session(session_id: str, _environment: tuple[str | None, ...], _telemetry: str | None) -> Session:
    session = Session(session_id)
    if session_id.startswith(OF_TRACE):
        session.guard.conversation_id = None  # nobody named a conversation
    return session
