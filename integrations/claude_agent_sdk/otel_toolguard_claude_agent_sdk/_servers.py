"""In-process MCP servers: the body of a tool runs inside the call that the hooks have admitted."""

from __future__ import annotations

import inspect
from typing import Any

from mcp import types

import otel_toolguard.adapter as kit
from otel_toolguard_claude_agent_sdk._stream import KEPT, current

CALL, ID, HELD = "tools/call", "claudecode/toolUseId", "_toolguard_claude_agent_sdk"
DEPTH = 4  # of functions between a server's handler and the guarded one

waiting: kit.Recent[str, tuple[str, Any, kit.Attempt]] = kit.Recent(KEPT)  # calls whose body has not begun: name, input


def prepare(server: Any) -> None:
    """Has a server run the bodies of its tools inside their calls; it stays the same object."""
    if hasattr(server, HELD):
        return
    setattr(server, HELD, True)
    if hasattr(server, "middleware"):  # MCP 2
        server.middleware.append(lambda ctx, call_next: _inside(ctx.method, ctx.params, ctx.meta, call_next, ctx))
    elif (handler := server.request_handlers.get(types.CallToolRequest)) is not None:

        async def inside(request: Any) -> Any:
            asked = request.params.model_dump(by_alias=True)
            return await _inside(CALL, asked, None, handler, request)

        inside.__wrapped__ = handler  # type: ignore[attr-defined]
        server.request_handlers[types.CallToolRequest] = inside


async def _inside(method: str, asked: Any, meta: Any, send: Any, request: Any) -> Any:
    if method != CALL:
        return await send(request)
    name, said, told = asked.get("name"), asked.get("arguments") or {}, asked.get("_meta") or meta or {}
    fits = (key for key in waiting if (one := waiting.get(key)) and one[0].split("__")[-1] == name and one[1] == said)
    call = waiting.pop(told.get(ID) or next(fits, ""))  # Claude Code tells; others may not
    token = current.set(None)  # an agent inside the body is not the one that calls it
    if call is not None:
        call[2].enter()
    try:
        return await send(request)
    finally:
        if call is not None:
            call[2].leave()
        current.reset(token)


def tool_of(full: str, servers: list[Any]) -> kit.GuardedTool:
    """A tool by the name that the model knows, with the guarded function behind it where a decorator is on it."""
    body, name = None, full.rsplit("__", maxsplit=1)[-1]
    try:
        for server in servers:
            entry = server.get_request_handler(CALL) if hasattr(server, "get_request_handler") else None
            handler = entry.handler if entry else getattr(server, "request_handlers", {}).get(types.CallToolRequest)
            body = body or _guarded(handler, name, DEPTH)
    except Exception as fault:  # whoever wrote a server may have done anything
        kit.unfelt("look for a tool", fault)
    tool = kit.GuardedTool(full, body)
    tool.body = tool.body or kit.AnyOf(full)
    return tool


def _guarded(value: Any, name: str, depth: int) -> Any:
    """The guarded function of a tool: its handler in the SDK, or one of its name that a handler leads to."""
    handler = getattr(value.get(name), "handler", None) if isinstance(value, dict) else value
    if hasattr(type(handler), "guarded_tool") and (handler is not value or handler.guarded_tool.name == name):
        return handler
    inner = inspect.unwrap(handler) if depth and inspect.isfunction(handler) else None
    seen = inspect.getclosurevars(inner) if inspect.isfunction(inner) else None
    leads = (*seen.nonlocals.values(), *seen.globals.values()) if seen is not None else ()
    found = (_guarded(one, name, depth - 1) for one in leads)
    return next((one for one in found if one is not None), None)
