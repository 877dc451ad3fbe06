"""Whose calls a server answers: which session, and which run of it, a request belongs to.

Never the transport's session id alone: the newer protocol has none, or another one for each call.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter import FrameworkRuns
from otel_toolguard.attempt import here
from otel_toolguard.telemetry.context import session_in_context
from otel_toolguard_mcp._calls import CALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_toolguard import Policy, Trip
    from otel_toolguard.adapter import Place
    from otel_toolguard.telemetry import Telemetry

KEPT = 1024  # connections that are remembered


class Keys:
    """Finds the place of a request: the block that is open around the server, else the first of these that is known.

    A session is an authenticated subject, what ``meta_key`` or W3C baggage names, a guarded client's run, a connection,
    or the caller's trace.
    """

    def __init__(
        self, policy: Policy | None, on_trip: Callable[[Trip], Any] | None, telemetry: Telemetry | None,
        meta_key: str | None,
    ) -> None:  # fmt: skip
        self._runs = FrameworkRuns(policy, on_trip, telemetry)
        self._meta_key = meta_key
        self._connections: OrderedDict[int, tuple[Any, str]] = OrderedDict()

    def place(self, ctx: Any, meta: Mapping[str, Any]) -> Place | None:
        """Where a request's call is made; None where nothing says so."""
        outer = here.get()
        if outer is not None:
            return outer
        baggage, trace = session_in_context()
        named = meta.get(self._meta_key) if self._meta_key else None
        named = named if isinstance(named, str) and named else baggage
        told = meta.get(CALL)
        run = (told.partition(".")[0] if isinstance(told, str) else "") or self._connection(ctx)
        session = _subject(ctx) or named or run or trace
        if session is None:
            return None
        place = self._runs.place(run or session, session)
        if session != named:
            place.guard.conversation_id = None  # nobody named a conversation
        return place

    def _connection(self, ctx: Any) -> str | None:
        """A name for the client's connection, None if there is none that lasts longer than a call."""
        request, session = getattr(ctx, "request", None), getattr(ctx, "session", None)
        if request is not None:
            given = getattr(request, "headers", {}).get("mcp-session-id")
            given = given or getattr(request, "query_params", {}).get("session_id")
            return _digest("connection", given) if given else None
        of_request = getattr(session, "_connection", None)  # made for each request where the protocol has no sessions
        connection = session if of_request is None else of_request.outbound
        if not getattr(of_request, "has_standalone_channel", True):
            connection = ctx.lifespan_context
        known = self._connections.get(id(connection)) or (connection, secrets.token_hex(8))
        self._connections[id(connection)] = known  # kept alive, so that no other object gets its id meanwhile
        self._connections.move_to_end(id(connection))
        if len(self._connections) > KEPT:
            self._connections.popitem(last=False)
        return known[1]


def _subject(ctx: Any) -> str | None:
    """Who calls, by the access token; not the client alone, which may serve many."""
    scope = getattr(getattr(ctx, "request", None), "scope", None) or {}
    token = getattr(scope.get("user"), "access_token", None)
    claims = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None) or claims.get("sub")
    return _digest("subject", claims.get("iss"), token.client_id, subject) if token and subject else None


def _digest(*parts: Any) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=8).hexdigest()
