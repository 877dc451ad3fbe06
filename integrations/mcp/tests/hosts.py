"""Servers, the ways to reach them, and a host: the loop of a scripted model and an MCP client that its users write."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace

import anyio
import mcp
from mcp import ClientSession
from mcp.shared.memory import create_client_server_memory_streams
from otel_toolguard_mcp import raise_if_open

from otel_toolguard import CircuitOpen, Policy, current_session
from otel_toolguard.telemetry.attributes import CALL_ID
from otel_toolguard.testing.scripts import DONE, turn_of

try:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.tools import Tool
except ImportError:  # 1.x
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.tools import Tool

__all__ = ["NEW", "Context", "MCPServer", "Tool"]

NEW = hasattr(mcp, "Client")
WAYS = ("client", "legacy client", "session") if NEW else ("session",)


ERROR = mcp.MCPError if NEW else mcp.McpError


def seconds(number):
    """A time limit in the release's own unit."""
    return number if NEW else dt.timedelta(seconds=number)


def repeat(limit, **more):
    """A policy of one rule: the same call with the same result."""
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit, **more}, {"plugin": "tool_stats"}])


def ceiling(run=None, **more):
    """A policy of one rule: a number of calls."""
    given = {"run": run} if run is not None else {}
    return Policy(plugins=[{"plugin": "call_ceiling", **given, **more}, {"plugin": "tool_stats"}])


def low_level(server):
    """The low-level server behind any of them."""
    return getattr(server, "_lowlevel_server", None) or getattr(server, "_mcp_server", None) or server


def failed(result):
    """Whether a result is marked as an error."""
    return result.is_error if NEW else result.isError


def structured(result):
    """The structured content of a result."""
    return result.structured_content if NEW else result.structuredContent


def text(result):
    """The texts of a result."""
    return "\n".join(block.text for block in result.content)


@asynccontextmanager
async def connected(server, way="session", guard=lambda client: client, **more):
    """A client of the server, over one of the in-process transports."""
    if way != "session":
        async with guard(mcp.Client(server, mode="legacy" if way == "legacy client" else "auto", **more)) as client:
            yield client
        return
    low, error = low_level(server), None
    async with create_client_server_memory_streams() as (near, far), anyio.create_task_group() as tasks:
        tasks.start_soon(low.run, far[0], far[1], low.create_initialization_options())
        async with ClientSession(near[0], near[1], **more) as session:
            await session.initialize()
            try:
                yield guard(session)
            except CircuitOpen as stopped:  # task groups would wrap it
                error = stopped
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error


def asked_in_turn(server, calls, way="session", guard=lambda client: client, **more):
    """The results of calls, or the class of what ended them."""

    async def ask():
        found = []
        async with connected(server, way, guard, **more) as client:
            for name, arguments in calls:
                try:
                    found.append(await client.call_tool(name, arguments))
                except CircuitOpen as stopped:
                    found.append(type(stopped))
        return found

    return asyncio.run(ask())


class Host:
    """A program that lets a scripted model call the tools of a server.

    Args:
        make: Makes the server.
        guard: Puts a guard on the client.
        script: What the model says.
        prefix: What call ids begin with.
        call: Makes a call, in the user's own way.
        turns: The host's own cap.
    """

    def __init__(self, make, guard, script, *, prefix="call", call=None, turns=None, more=None):
        self.make, self.guard, self.script, self.prefix = make, guard, script, prefix
        self.call = call or (lambda client, *args, **kwargs: client.call_tool(*args, **kwargs))
        self.turns, self.more = turns, more or {}
        self.asked = self.heard = 0
        self.shown, self.history = "", []

    async def converse(self, way, kept=None, *, fresh=True):
        """Runs to the end, in a run of its own; what stops it leaves every call answered."""
        self.history = history = list(kept or ())
        session = current_session() if fresh else None
        with session or nullcontext():
            async with connected(self.make(), way, self.guard, **self.more) as client:
                listed = (await client.list_tools()).tools
                self.shown = json.dumps([tool.model_dump(mode="json", by_alias=True) for tool in listed])
                while self.turns is None or self.asked < self.turns:
                    raise_if_open(client)
                    assert all(each.answer for turn in history for each in turn.calls), "400: a call has no answer"
                    self.asked += 1
                    turn = turn_of(self.script, self.asked)
                    calls = [
                        SimpleNamespace(id=f"{self.prefix}-{self.asked}-{n}", name=name, given=given, answer=None)
                        for n, (name, given) in enumerate(turn or ())
                    ]
                    history.append(SimpleNamespace(text=None if calls else DONE, calls=calls))
                    if not calls:
                        break
                    await asyncio.gather(*[self.answer(client, call) for call in calls])
        return history

    async def answer(self, client, call):
        """Makes one call of the model's."""
        try:
            result = await self.call(client, call.name, call.given, meta={CALL_ID: call.id})
        except CircuitOpen as stopped:
            call.answer, call.failed = stopped.to_tool_message(), True
        else:
            call.answer, call.failed = text(result), failed(result)
