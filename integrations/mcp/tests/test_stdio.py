"""Client and server in two processes, over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import mcp
import pytest
from mcp.client.stdio import stdio_client
from opentelemetry.trace import format_trace_id
from otel_toolguard_mcp import guard_client

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.testing import capture_spans

from . import hosts as h

PROGRAM = Path(__file__).with_name("serving.py")
WAYS = ("client", "session") if h.NEW else ("session",)


@contextlib.asynccontextmanager
async def over_stdio(way, *, server=("bare",), guard=lambda client: client):
    """A client of a server in a process of its own."""
    of = mcp.StdioServerParameters(
        command=sys.executable, args=["-W", "ignore", str(PROGRAM), *server], env={**os.environ, "PYTHONUTF8": "1"}
    )
    if way == "client":
        async with guard(mcp.Client(of)) as client:
            yield client
        return
    async with stdio_client(of) as (read, write), mcp.ClientSession(read, write) as session:
        await session.initialize()
        yield guard(session)


async def search(client, times):
    """What becomes of the same call, over and over."""
    found = []
    for _ in range(times):
        try:
            result = await client.call_tool("search", {})
        except CircuitOpen as stopped:
            found.append(stopped.trip.rule)
        else:
            found.append(h.failed(result))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_client_stops_before_the_server_is_asked(way):
    """A refused call never reaches the other process."""

    async def ask():
        with Session(policy=h.repeat(3)):
            async with over_stdio(way, guard=guard_client) as client:
                found = await search(client, 5)
        async with over_stdio(way) as client:
            assert h.text(await client.call_tool("ran", {})) == "0"
        return found

    assert asyncio.run(ask()) == [False] * 3 + ["repeat_guard"] * 2


@pytest.mark.parametrize("way", WAYS)
def test_server_refuses_in_its_own_process(way):
    """A guarded server stops an unguarded client's loop; the connection lives on, for other processes it starts anew."""

    async def ask():
        async with over_stdio(way, server=("guarded", "3")) as client:
            return [await search(client, 5), h.failed(await client.call_tool("search", {"q": "other"}))]

    assert [asyncio.run(ask()) for _ in range(2)] == [[[False] * 3 + [True] * 2, True]] * 2


@pytest.mark.parametrize("way", WAYS[:1])
def test_both_ends_have_limits_of_their_own(way):
    """The client's rules hold first where they are stricter; a run of the client's is a run to the server."""

    async def ask():
        runs = []
        async with over_stdio(way, server=("guarded", "4"), guard=guard_client) as client:
            for limit in (3, 9, 3):
                with Session(policy=h.repeat(limit)):
                    runs.append(await search(client, 6))
        return runs

    one, other, again = asyncio.run(ask())
    assert one == again == [False] * 3 + ["repeat_guard"] * 3
    assert other == [False] * 4 + [True] * 2


@pytest.mark.parametrize("way", WAYS[:1])
def test_trace_goes_on_in_the_other_process(way):
    """The server's side belongs to the trace of the client's call, whether the SDK carries it or not."""

    async def ask():
        with capture_spans() as captured, Session():
            async with over_stdio(way, server=("guarded", "9"), guard=guard_client) as client:
                told = h.text(await client.call_tool("trace", {}))
            (span,) = captured.spans("trace")
            return told, format_trace_id(span.context.trace_id)

    told, own = asyncio.run(ask())
    assert told == own


@pytest.mark.parametrize("way", WAYS[:1])
def test_server_that_dies_is_a_failure(way):
    """A call whose server is gone has failed and is no longer in flight."""

    async def ask():
        with Session(policy=h.ceiling(9)) as session:
            with contextlib.suppress(OSError, ExceptionGroup):  # the SDK may complain of the pipe when it closes
                async with over_stdio(way, guard=guard_client) as client:
                    with pytest.raises(Exception, match=r"closed|Closed"):
                        await client.call_tool("die", {})
            return session.report()

    report = asyncio.run(ask())
    assert (report["calls"], report["failed"], report["in_flight"]) == (1, 1, 0)
