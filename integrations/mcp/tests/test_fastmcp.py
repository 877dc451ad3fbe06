"""Servers and clients of the separate package fastmcp."""

from __future__ import annotations

import asyncio
import json
import warnings

import pytest
from otel_toolguard_mcp import guard_client, guard_server

from otel_toolguard import CircuitOpen, Session, guard_tool
from otel_toolguard.testing import capture_spans

from . import hosts as h

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fastmcp


def make(*, decorated=False):
    """A server with a tool that finds nothing and one that fails."""
    server = fastmcp.FastMCP("tools")

    def search(q: str = "word") -> str:
        """Looks something up."""
        return f"nothing about {q}"

    def boom() -> str:
        """Fails."""
        raise ValueError("no")

    server.tool(guard_tool(search) if decorated else search)
    server.tool(boom)
    return server


def asked(server, calls, guard=lambda client: client, **more):
    """The results of calls, or the class of what ended them."""

    async def ask():
        found = []
        async with guard(fastmcp.Client(server)) as client:
            for name, arguments in calls:
                try:
                    found.append(await client.call_tool(name, arguments, raise_on_error=False, **more))
                except CircuitOpen as stopped:
                    found.append(type(stopped).__name__)
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("client", [False, True])
def test_loop_is_stopped(decorated, client):
    """A server answers past the limit by error results that say why, a guarded client raises; one call is one span."""
    guard = guard_client if client else (lambda one: one)
    with capture_spans() as captured, Session(policy=h.repeat(3)) as session:
        found = asked(guard_server(make(decorated=decorated)), [("search", {})] * 5, guard)
        assert session.report()["calls"] == 3
    if client:
        assert found[3:] == ["SessionStopped"] * 2
    else:
        assert [one.is_error for one in found] == [False] * 3 + [True] * 2
        body = json.loads(found[3].content[0].text)
        assert body == found[3].structured_content
        assert (body["error"], body["rule"]) == ("circuit_open", "repeat_guard")
    assert captured.outcomes() == ["ok"] * 3 + ["refused"] * 2


def test_outside_any_block():
    """Without a block the connection is the session, and its limits are the guard's own."""
    found = asked(guard_server(make(), h.ceiling(2)), [("search", {"q": str(n)}) for n in range(3)])
    assert [one.is_error for one in found] == [False, False, True]


def test_copy_of_a_client_is_a_session_of_its_own():
    """What client.new() makes is guarded too, and counted apart."""
    server, client = make(), guard_client(fastmcp.Client(make()), h.ceiling(2))

    async def ask(one):
        async with one:
            return [await one.call_tool("search", {"q": str(n)}) for n in range(3)]

    for one in (client, client.new()):
        with pytest.raises(CircuitOpen):
            asyncio.run(ask(one))
    assert not asked(server, [("search", {})])[0].is_error


def test_failures_and_unknown_tools():
    """A tool that raises, and one that is not there, have failed."""
    with Session(policy=h.ceiling(9)) as session:
        asked(guard_server(make()), [("boom", {}), ("unknown", {}), ("search", {})])
        tools = session.report()["tools"]
    assert {name: row["failed"] for name, row in tools.items()} == {"boom": 1, "unknown": 1, "search": 0}


def test_span_of_fastmcp_is_enriched(monkeypatch):
    """Where fastmcp's span of a request is the call's span, it gets our attributes and there is no other."""
    telemetry = pytest.importorskip("fastmcp.server.telemetry")
    with capture_spans() as captured:
        monkeypatch.setattr(telemetry, "get_tracer", lambda *_: captured.tracer_provider.get_tracer("fastmcp"))
        asked(guard_server(make(), h.repeat(3)), [("search", {})] * 4)
        spans = captured.spans("search")
    if not hasattr(telemetry, "seam_span"):
        pytest.skip("this release opens its span only inside the call, and does not say that it is a tool's")
    assert captured.outcomes("search") == ["ok"] * 3 + ["refused"]
    assert {span.instrumentation_scope.name for span in spans} == {"fastmcp"}
