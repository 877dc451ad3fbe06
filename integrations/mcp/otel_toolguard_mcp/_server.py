"""Guards the tool calls that a server answers: the SDK's servers of both major versions, and those of fastmcp."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from mcp import types
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from opentelemetry.trace import get_current_span

from otel_toolguard.adapter import Attempt, CircuitOpen
from otel_toolguard.attempt import unfelt
from otel_toolguard.calls import outside
from otel_toolguard.decorator import guards
from otel_toolguard.errors import SettingsError
from otel_toolguard.telemetry import attributes as names
from otel_toolguard_mcp import _keys
from otel_toolguard_mcp._calls import CALL, counting, passing, raised, run
from otel_toolguard_mcp._mapping import KEPT, Catalogue, call_id, refusal, said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from otel_toolguard import Policy, Trip
    from otel_toolguard.telemetry import Telemetry

S = TypeVar("S")
HELD = "_toolguard"
DEPTH = 2  # of functions that a low-level server has between its handler and the guarded ones
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
    if guard is not None and all(given is None for given in (policy, meta_key, on_trip, telemetry)):
        return server
    if guard is None:
        guard = ServerGuard(low)
        if isinstance(getattr(low, "middleware", None), list):
            low.middleware.append(guard)  # last, so that tracing and whatever unseals a request stand around it
        elif isinstance(getattr(low, "request_handlers", None), dict):
            low.request_handlers = _Handlers(guard, low.request_handlers)
        else:
            raise SettingsError(f"guard_server takes a Server, MCPServer or FastMCP, not {type(server).__name__}")
        setattr(low, HELD, guard)
    guard.server = server
    guard.keys = _keys.Keys(policy, on_trip, telemetry, meta_key)
    return server


class _Handlers(dict[Any, Any]):
    """The handlers of a server of 1.x; those of tools are guarded, whenever they are registered."""

    def __init__(self, guard: ServerGuard, handlers: Mapping[Any, Any]) -> None:
        super().__init__()
        self._guard = guard
        for kind, handler in handlers.items():
            self[kind] = handler

    def __setitem__(self, kind: Any, handler: Any) -> None:
        kinds = {types.CallToolRequest: self._guard.call, types.ListToolsRequest: self._guard.listing}
        super().__setitem__(kind, functools.partial(kinds[kind], handler) if kind in kinds else handler)


class ServerGuard:
    """One server's guard; for a server of 2.x a middleware."""

    keys: _keys.Keys

    def __init__(self, low: Any) -> None:
        self.low = low
        self.server: Any = low
        self._catalogue = Catalogue()
        self._found: dict[str, Any] = {}

    async def __call__(self, ctx: Any, call_next: Any) -> Any:
        """Requests and notifications of 2.x."""
        if ctx.method == "tools/list" and ctx.request_id is not None:
            return await self.listing(call_next, ctx)
        if ctx.method != THE_CALL or ctx.request_id is None or not isinstance(ctx.params, Mapping):
            return await call_next(ctx)
        send = functools.partial(call_next, ctx)
        return await self._through(ctx, ctx.params.get("name"), ctx.params.get("arguments"), ctx.meta, send)

    async def call(self, handler: Any, request: Any) -> Any:
        """A call of 1.x."""
        asked, ctx = request.params, self.low.request_context
        meta = ctx.meta.model_dump() if ctx.meta is not None else None
        answer = await self._through(ctx, asked.name, asked.arguments, meta, functools.partial(handler, request))
        wrapped: Any = types.ServerResult
        return wrapped(answer) if isinstance(answer, types.CallToolResult) else answer

    async def listing(self, send: Any, asked: Any) -> Any:
        """A listing, which tells what the tools are like."""
        answer = await send(asked)
        self._catalogue.note(answer)
        self._found.clear()
        return answer

    async def _through(self, ctx: Any, name: Any, arguments: Any, meta: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        if not isinstance(name, str):
            return await send()
        given = meta if isinstance(meta, Mapping) else {}
        found, body = False, None
        try:
            found, body = await self._find(name)
        except Exception as fault:
            unfelt("look for a tool", fault)
        guarded = self._catalogue.tool(name, found or None, body)
        layer = id(self)
        outer = counting(name, arguments, layer, given)
        with _caller(given):
            if outer is not None:  # a client of this process counts it; a decorator below shall know that, too
                outer.body = outer.body or guarded.body
                with passing(outer, layer, given.get(CALL)):
                    return await send()
            try:
                attempt = self._attempt(ctx, guarded, arguments, given, reached=found is not None)
            except CircuitOpen as error:
                return refusal(error)
            return refusal(attempt.error()) if attempt.refused is not None else await run(attempt, layer, send)

    def _attempt(self, ctx: Any, guarded: Any, arguments: Any, meta: Mapping[str, Any], *, reached: bool) -> Attempt:
        _mark(guarded.tool.name)
        place = self.keys.place(ctx, meta)
        if place is None:
            return Attempt(outside(guarded.tool), None, guarded.tool, said(arguments), body=guarded.body)
        made: Attempt = guarded.attempt(place, said(arguments), call_id=call_id(meta), reached=reached)
        return made

    async def _find(self, name: str) -> tuple[Any, Any]:
        """The server's own object of a tool, False where only the server knows if there is one, and its function."""
        behind = (getattr(one, "__self__", None) for one in _handlers(self.low))
        for owner in itertools.chain((self.server, getattr(self.low, "fastmcp", None)), behind):
            manager = getattr(owner, "_tool_manager", None)
            get = getattr(manager or owner, "get_tool", None)
            if get is None:
                continue
            _overhear(manager)
            found = self._found.get(name)
            try:
                got = found or get(name)
                found = await got if inspect.isawaitable(got) else got
                if got is not found and len(self._found) < KEPT:  # a proxy asks another server; once is enough
                    self._found[name] = found
            except Exception:  # there is none, or the caller may not see it
                found = None
            return found, getattr(found, "fn", None)
        seen = (value for handler in _handlers(self.low) for value in _seen_by(handler))
        return False, next((one for one in seen if guards(one) and one.guarded_tool.name == name), None)


def _handlers(low: Any) -> Iterator[Any]:
    """The functions that a low-level server calls for its tools."""
    entry = low.get_request_handler(THE_CALL) if hasattr(low, "get_request_handler") else None
    if entry is not None:
        yield entry.handler
    registered = getattr(low, "request_handlers", {}).get(types.CallToolRequest)
    if registered is not None:  # 1.x has it in a function of its own
        yield inspect.getclosurevars(registered.args[0]).nonlocals.get("func")


def _seen_by(function: Any, depth: int = 0) -> Iterator[Any]:
    """What a function names, and what the functions that it names do: among it what is guarded behind a tool."""
    try:
        found = inspect.getclosurevars(getattr(function, "__func__", function))
    except (TypeError, ValueError):  # no Python function, or one that is still being made
        return
    for value in (*found.nonlocals.values(), *found.globals.values()):
        yield from list(value.values()) if isinstance(value, dict) else (value,)
        if depth < DEPTH and inspect.isfunction(value):
            yield from _seen_by(value, depth + 1)


def _overhear(manager: Any) -> None:
    """Has a server's tools tell what they raise, which the answer to a client may leave out."""
    original = getattr(manager, "call_tool", None)
    if original is None or HELD in vars(manager):
        return

    @functools.wraps(original)
    async def call_tool(*args: Any, **kwargs: Any) -> Any:
        told = raised.get()
        try:
            return await original(*args, **kwargs)
        except Exception as error:
            if told is not None:
                told.append(error)
            raise

    vars(manager).update({HELD: True, "call_tool": call_tool})


@contextmanager
def _caller(meta: Mapping[str, Any]) -> Iterator[None]:
    """Continues the caller's trace, which the SDK does not in every release."""
    known = METHOD in (getattr(get_current_span(), "attributes", None) or {})
    remote = None if known else extract({key: value for key, value in meta.items() if isinstance(value, str)})
    token = attach(remote) if remote and get_current_span(remote).get_span_context().is_valid else None
    try:
        yield
    finally:
        if token is not None:
            detach(token)


def _mark(name: str) -> None:
    """Says of fastmcp's span of this request what fastmcp itself says later, so that it is known for the call's."""
    span = get_current_span()
    known = (getattr(span, "attributes", None) or {}) if span.is_recording() else {}
    if known.get(METHOD) == THE_CALL and names.OPERATION not in known:
        span.set_attributes({names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: name})
