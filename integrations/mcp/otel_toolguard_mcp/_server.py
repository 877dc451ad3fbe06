"""Guards the tool calls that a server answers: the SDK's servers of both major versions, and those of fastmcp."""

from __future__ import annotations

import functools
import hashlib
import inspect
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from mcp import types
from opentelemetry.trace import get_current_span

import otel_toolguard.adapter as kit
from otel_toolguard import SettingsError
from otel_toolguard.telemetry import attributes as names
from otel_toolguard_mcp._mapping import CALL, HELD, KEPT, ServerAnswers, Tools, call_id, refusal, said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from otel_toolguard import Policy, Trip
    from otel_toolguard.telemetry import Telemetry

S = TypeVar("S")
METHOD, THE_CALL = "mcp.method.name", "tools/call"


def guard_server(
    server: S, policy: Policy | None = None, *, meta_key: str | None = None,
    on_trip: Callable[[Trip], Any] | None = None, telemetry: Telemetry | None = None,
) -> S:  # fmt: skip
    """Guards every tool call that a server answers: refusals and stops are ``is_error`` results that say why.

    Args:
        server: The SDK's ``Server``, ``FastMCP`` or ``MCPServer``, or a ``FastMCP`` of the package fastmcp; it is
            changed and stays the same object.
        policy: The rules outside any open ``Session``. None takes environment, file and default profile.
        meta_key: The entry of a request's ``_meta`` that names the session. Without it a session is an authenticated
            subject, else what W3C baggage names, else a connection (a guarded client tells its runs), else a trace.
        on_trip: Called with the ``Trip`` of each circuit that opens in those sessions.
        telemetry: Where their spans go; None is the process's OpenTelemetry providers.

    Raises:
        SettingsError: It is no such server.
    """
    low: Any = getattr(server, "_lowlevel_server", None) or getattr(server, "_mcp_server", None) or server
    guard: ServerGuard | None = getattr(low, HELD, None)
    known = guard is not None and all(given is None for given in (policy, meta_key, on_trip, telemetry))
    if guard is None:
        guard = ServerGuard(low)
        if isinstance(getattr(low, "middleware", None), list):
            low.middleware.append(guard)  # last, so that tracing and whatever unseals a request stand around it
        elif isinstance(getattr(low, "request_handlers", None), dict):
            low.request_handlers = _Handlers(guard, low.request_handlers)
        else:
            raise SettingsError(f"guard_server takes a Server, MCPServer or FastMCP, not {type(server).__name__}")
        setattr(low, HELD, guard)
    manager = getattr(server, "_tool_manager", None)
    if manager is not None and HELD not in vars(manager):
        vars(manager)[HELD] = True
        kit.overlay(manager, {"call_tool": _overheard})
    guard.server = guard.server if server is low else server
    guard.keys = guard.keys if known else Keys(kit.FrameworkRuns(policy, on_trip, telemetry), meta_key)
    return server


class _Handlers(dict[Any, Any]):
    """The handlers of a server of 1.x; those of tools are guarded, whenever they are registered."""

    def __init__(self, guard: ServerGuard, handlers: Mapping[Any, Any]) -> None:
        super().__init__()
        self._guards = {types.CallToolRequest: guard.call, types.ListToolsRequest: guard.listing}
        for kind, handler in handlers.items():
            self[kind] = handler

    def __setitem__(self, kind: Any, handler: Any) -> None:
        guard = self._guards.get(kind)
        super().__setitem__(kind, functools.partial(guard, handler) if guard is not None else handler)


class Keys:
    """Finds the place of a request: the block that is open around the server, else the first of these that is known.

    A session is an authenticated subject, what ``meta_key`` or W3C baggage names, a guarded client's run, a connection,
    or the caller's trace; never the transport's session alone, for the newer protocol has none, or one for each call.
    """

    def __init__(self, runs: kit.FrameworkRuns, meta_key: str | None) -> None:
        self._runs = runs
        self._meta_key = meta_key
        self._connections: kit.Recent[int, tuple[Any, str]] = kit.Recent(KEPT)

    def place(self, ctx: Any, meta: Mapping[str, Any]) -> kit.Place | None:
        """Where a request's call is made; None where nothing says so."""
        outer = kit.here.get()
        if outer is not None:
            return outer
        baggage, trace = kit.session_in_context()
        named, told = meta.get(self._meta_key or ""), meta.get(CALL)
        named = named if isinstance(named, str) and named else baggage
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
        lasting = getattr(session, "_connection", None)  # of 2.x, which makes a session for each request
        if lasting is not None:  # and the newer protocol that as well
            session = lasting.outbound if getattr(lasting, "has_standalone_channel", True) else ctx.lifespan_context
        return self._connections.of(id(session), lambda: (session, secrets.token_hex(8)))[1]  # kept with its id


class ServerGuard:
    """One server's guard; for a server of 2.x a middleware."""

    keys: Keys

    def __init__(self, low: Any) -> None:
        self.server = self._low = low
        self._tools = Tools()
        self._found: kit.Recent[str, Any] = kit.Recent(KEPT)

    async def __call__(self, ctx: Any, call_next: Any) -> Any:
        """Requests and notifications of 2.x."""
        asked = ctx.params if ctx.request_id is not None else None
        if ctx.method == "tools/list" and ctx.request_id is not None:
            return await self.listing(call_next, ctx)
        if ctx.method != THE_CALL or not isinstance(asked, Mapping):
            return await call_next(ctx)
        send = functools.partial(call_next, ctx)
        return await self._through(ctx, asked.get("name"), asked.get("arguments"), ctx.meta, send)

    async def call(self, handler: Any, request: Any) -> Any:
        """A call of 1.x."""
        asked, ctx = request.params, None
        with suppress(LookupError):  # a program may call the handler by itself
            ctx = self._low.request_context
        meta = asked.meta.model_dump() if asked.meta is not None else None
        answer = await self._through(ctx, asked.name, asked.arguments, meta, functools.partial(handler, request))
        wrapped: Any = types.ServerResult
        return wrapped(answer) if isinstance(answer, types.CallToolResult) else answer

    async def listing(self, send: Any, asked: Any) -> Any:
        """A listing, which tells what the tools are like."""
        answer = await send(asked)
        self._tools.note(answer)
        self._found = kit.Recent(KEPT)
        return answer

    async def _through(self, ctx: Any, name: Any, arguments: Any, meta: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        if not isinstance(name, str):
            return await send()
        given = meta if isinstance(meta, Mapping) else {}
        found = await self._find(name)
        tool = self._tools.of(name, found)

        def admit() -> kit.Attempt:
            _mark(name)
            place = self.keys.place(ctx, given)
            if place is None:
                return kit.Attempt(kit.outside(tool.tool), None, tool.tool, said(arguments), body=tool.body)
            return tool.attempt(place, said(arguments), call_id=call_id(given), reached=found is not None)

        async def sent(attempt: kit.Attempt) -> Any:
            attempt.body = tool.body  # where a client of this process counts the call it knows only the name
            return await send()

        traced = METHOD in (getattr(get_current_span(), "attributes", None) or {})
        with kit.continued(given, traced=traced):  # the SDK goes on in the caller's trace, but not in every release
            try:
                return await kit.once(
                    id(self), name, arguments, token=given.get(CALL), admit=admit, answers=ServerAnswers, send=sent
                )
            except kit.CircuitOpen as error:  # by which a store says that it refuses
                return refusal(error)

    async def _find(self, name: str) -> Any:
        """The server's own object of a tool; None if there is none, False where that cannot be told."""
        server = getattr(self._low, "fastmcp", self.server)
        get = getattr(getattr(server, "_tool_manager", server), "get_tool", None)
        if get is None:
            return False
        try:
            found = self._found.get(name) or get(name)
            if not inspect.isawaitable(found):
                return found
            awaited = await found
        except Exception:  # there is none, or the caller may not see it
            return None
        return self._found.of(name, lambda: awaited)  # a proxy asks another server; once is enough


async def _overheard(inner: Any, _manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a tool, and tells the call what it raised: the answer to a client may leave that out."""
    fault, place = None, kit.here.get()
    try:
        return await inner(*args, **kwargs)
    except Exception as error:
        fault = error
        raise
    finally:
        if place is not None and place.inside is not None:
            place.inside.fault = fault


def _mark(name: str) -> None:
    """Says of fastmcp's span of this request what fastmcp itself says later, so that it is known for the call's."""
    span = get_current_span()
    known = (getattr(span, "attributes", None) or {}) if span.is_recording() else {}
    if known.get(METHOD) == THE_CALL and names.OPERATION not in known:
        span.set_attributes({names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: name})


def _subject(ctx: Any) -> str | None:
    """Who calls, by the access token; not the client alone, which may serve many."""
    scope = getattr(getattr(ctx, "request", None), "scope", None) or {}
    token = getattr(scope.get("user"), "access_token", None)
    claims = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None) or claims.get("sub")
    return _digest("subject", claims.get("iss"), token.client_id, subject) if token and subject else None


def _digest(*parts: Any) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=8).hexdigest()
