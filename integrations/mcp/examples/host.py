"""A host whose model asks for the same search for ever, without the guard and with it; offline, for it is scripted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
from mcp import ClientSession
from mcp.shared.memory import create_client_server_memory_streams
from otel_toolguard_mcp import guard_client, raise_if_open

from otel_toolguard import CircuitOpen, Session

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp before 2.0
    from mcp.server.fastmcp import FastMCP as MCPServer

TURNS = 50


def search(q: str) -> str:
    """Looks something up."""
    print("searching for", q)
    return "nothing found"


@asynccontextmanager
async def connected() -> Any:
    """A session with a server in this process; with `mcp.Client(server)` of mcp 2 it is one line."""
    server = MCPServer("library")
    server.add_tool(search)
    low = getattr(server, "_lowlevel_server", None) or server._mcp_server  # noqa: SLF001
    async with create_client_server_memory_streams() as (near, far), anyio.create_task_group() as tasks:
        tasks.start_soon(low.run, *far, low.create_initialization_options())
        async with ClientSession(*near) as client:
            await client.initialize()
            yield client
        tasks.cancel_scope.cancel()


async def converse(client: ClientSession, history: list[Any], *, wise_at: int | None = None) -> str:
    """The host's loop, with an obstinate model; it is done once the history is ``wise_at`` turns long."""
    for turn in count(1):
        raise_if_open(client)  # before each model call; without it the next call_tool raises
        if turn > TURNS:
            return f"{TURNS} turns, and no end"
        if len(history) == wise_at:
            return f"done after {turn} more"
        name, arguments = "search", {"q": "the answer"}  # what the model says
        answer = await client.call_tool(name, arguments)
        history.append((name, arguments, answer.content))
    return ""


async def main() -> None:
    async with connected() as client:
        print("without the guard:", await converse(client, []))
        guard_client(client)
        history: list[Any] = []
        with Session("conversation-42") as session:
            try:
                await converse(client, history)
            except CircuitOpen as stop:
                print("stopped:", stop.trip.why)
            print("report:", session.report()["tools"])
        with Session("conversation-42"):  # the same conversation, a new run
            kept = len(history)
            print(kept, "turns kept; the next run:", await converse(client, history, wise_at=kept + 1))


if __name__ == "__main__":
    asyncio.run(main())
