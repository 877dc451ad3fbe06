"""MCP's own spans: the server's is enriched, the client's stands below ours."""

from __future__ import annotations

import asyncio

import mcp
import pytest
from inside import Inside
from mcp.server import MCPServer
from opentelemetry.trace import SpanKind
from otel_toolguard_mcp import guard_server

from otel_toolguard import Session, guard_tool


def serve(tool):
    server = MCPServer("shop")
    server.tool()(tool)
    return server


async def ask(server, words):
    async with mcp.Client(server) as client:
        for word in words:
            await client.call_tool("search", {"q": word})


@pytest.fixture
def run(layers):
    def run_server(tool, words):
        server = serve(tool.__wrapped__ if layers == "adapter" else tool)
        try:
            asyncio.run(ask(server if layers == "decorator" else guard_server(server), words))
        except Exception as error:
            return error
        return None

    return run_server


class TestInside(Inside):
    """The decorator on a server's tool, the guard of the server or both, inside the span of the request."""

    def test_their_span_is_the_request_s(self, run, search, seen):
        """What is enriched is the server's span of the request, in its own kind."""
        with Session("s1"):
            run(search, ["a"])
        assert [(span.name, span.kind) for span in seen.told()] == [("tools/call search", SpanKind.SERVER)]


def test_a_guarded_call_of_a_remote_tool(search, seen):
    """A guarded function that asks a server is one span of ours; the request below it is the server's, in one trace."""

    async def both():
        async with mcp.Client(serve(search)) as client:

            @guard_tool(name="look_up")
            async def look_up(q):
                return await client.call_tool("search", {"q": q})

            await look_up("a")

    with Session("s1"):
        asyncio.run(both())
    (ours,) = seen.ours()
    (theirs,) = [span for span in seen.told() if span.context.span_id != ours.context.span_id]
    assert (ours.name, theirs.name) == ("execute_tool look_up", "tools/call search")
    assert theirs.context.trace_id == ours.context.trace_id
