"""In-process MCP servers: the body of a tool runs inside the call that the hooks have admitted."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from mcp import types

from otel_toolguard.adapter import Attempt, GuardedTool
from otel_toolguard.attempt import unfelt
from otel_toolguard.decorator import guard_within
from otel_toolguard_claude_agent_sdk._stream import current

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

CALL, ID, HELD = "tools/call", "claudecode/toolUseId", "_toolguard_claude_agent_sdk"
DEPTH = 3  # of functions between a server's handler and the guarded one

waiting: dict[str, tuple[str, Any, Attempt]] = {}  # admitted calls whose body has not begun: name, arguments


def prepare(server: Any) -> None:
    """Has a server run the bodies of its tools inside their calls; it stays the same object."""
    if hasattr(server, HELD):
        return
    setattr(server, HELD, True)
    if isinstance(getattr(server, "middleware", None), list):
        server.middleware.append(_around)
    elif (handler := getattr(server, "request_handlers", {}).get(types.CallToolRequest)) is not None:  # 1.x

        async def around(request: Any) -> Any:
            asked = request.params.model_dump(by_alias=True)
            return await _inside(asked, asked.get("_meta"), lambda: handler(request))

        around.__wrapped__ = handler  # type: ignore[attr-defined]
        server.request_handlers[types.CallToolRequest] = around


async def _around(ctx: Any, call_next: Any) -> Any:
    if ctx.method != CALL or ctx.request_id is None:
        return await call_next(ctx)
    return await _inside(ctx.params, ctx.params.get("_meta") or ctx.meta, lambda: call_next(ctx))


async def _inside(asked: Mapping[str, Any], meta: Any, send: Callable[[], Awaitable[Any]]) -> Any:
    name, said = asked.get("name"), asked.get("arguments") or {}
    fits = (key for key, (full, given, _) in waiting.items() if given == said and full.split("__")[-1] == name)
    told = (meta or {}).get(ID) or next(fits, "")  # Claude Code tells; others may not
    attempt = waiting.pop(told)[2] if told in waiting else None
    token = current.set(None)  # an agent inside the body is not the one that calls it
    if attempt is not None:
        attempt.enter()
    try:
        return await send()
    finally:
        if attempt is not None:
            attempt.leave()
        current.reset(token)


def tool_of(full: str, servers: Mapping[str, Any]) -> GuardedTool:
    """A tool, with the guarded function behind it where a decorator is on it."""
    try:
        for known_as, server in servers.items():
            name = full.removeprefix(f"mcp__{re.sub(r'[^a-zA-Z0-9_-]', '_', known_as)}__")
            entry = server.get_request_handler(CALL) if hasattr(server, "get_request_handler") else None
            handler: Any = (
                entry.handler if entry else getattr(server, "request_handlers", {}).get(types.CallToolRequest)
            )
            for guarded in _behind(inspect.unwrap(handler), name, DEPTH):
                return GuardedTool(full, guarded)
    except Exception as fault:
        unfelt("look for a tool", fault)
    return GuardedTool(full)


def _behind(function: Any, name: str, depth: int) -> Iterator[Any]:
    """The guarded functions of a tool's name that a handler leads to, or that are the SDK's handler of that tool."""
    seen = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    for value in (*seen.nonlocals.values(), *seen.globals.values()) if seen is not None else ():
        handler = getattr(value.get(name), "handler", None) if isinstance(value, dict) else None
        leads = value if handler is None else handler
        within = guard_within(leads) if callable(leads) else None
        if within is not None and (handler is not None or within.guarded_tool.name == name):
            yield within
        elif depth:
            yield from _behind(leads, name, depth - 1)
