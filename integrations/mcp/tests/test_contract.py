"""The contract that every adapter keeps, for MCP.

MCP knows tools and no model: the model belongs to a host, whose loop is in ``hosts``. Its model boundary is
``raise_if_open``; where a host has none, the next ``call_tool`` raises instead.
"""

from __future__ import annotations

import asyncio

import mcp
import pytest
from mcp.server.lowlevel import Server
from otel_toolguard_mcp import ToolGuardMCPInstrumentor, guard_client, guard_server

from otel_toolguard import CircuitOpen
from otel_toolguard.telemetry.attributes import CALL_ID
from otel_toolguard.testing import AdapterContract, Exchange

from . import hosts as h

GUARDS = {
    "bare": (0, 0),
    "guarded": (1, 1),  # both ends of the connection: the client counts, the server recognises the call
    "client only": (1, 0),
    "twice": (2, 2),
    "zero-code": (0, 0),
    "zero-code and by hand": (1, 1),
}
MISSING = {"f": "MCP's SDK is async, and a result comes in one piece"}
if not h.NEW:
    MISSING["h"] = "a call cannot be paused before 2.x; what it asks the client meanwhile is part of it"


def times(count, guard):
    """The guard, put on so often."""

    def put(thing):
        for _ in range(count):
            thing = guard(thing)
        return thing

    return put


async def patiently(client, *args, **kwargs):
    """A user's retry of what the protocol failed at."""
    for _ in range(2):
        try:
            return await client.call_tool(*args, **kwargs)
        except h.ERROR:
            continue
    return await client.call_tool(*args, **kwargs)


class TestMCP(AdapterContract):
    """All of it on the installed release."""

    folder = "mcp"
    distribution = "mcp"
    async_ways = h.WAYS
    guards = tuple(name for name in GUARDS if name not in ("bare", "guarded"))
    besides = ("a retry", "progress", "a timeout", "middleware")
    caps = ("a cap of turns",)
    approvals = ("input required",) if h.NEW else ()
    missing = MISSING

    def tool(self, function):
        return h.Tool.from_function(function)

    def failing_tool(self, function):
        return self.tool(function)

    def agent(self, tools, script, *, guard="guarded", beside="", prefix="call"):
        on_client, on_server = GUARDS[guard]
        heard = []

        def make():
            server = h.MCPServer("tools", tools=list(tools))
            if beside == "middleware" and h.NEW:
                server.middleware.append(lambda ctx, call_next: call_next(ctx))
            return times(on_server, guard_server)(server)

        async def listening(client, *args, **kwargs):
            async def progress(*_told):
                heard.append(1)

            return await client.call_tool(*args, progress_callback=progress, **kwargs)

        host = h.Host(
            make, times(on_client, guard_client), script, prefix=prefix,
            call={"a retry": patiently, "progress": listening}.get(beside),
            turns=4 if beside == "a cap of turns" else None,
            more={"read_timeout_seconds": h.seconds(60)} if beside == "a timeout" else {},
        )  # fmt: skip
        host.zero_code = guard.startswith("zero-code")
        return host

    def agent_tool(self, name, inner, way):
        async def delegate() -> str:
            """Has another agent do it."""
            return self.text(await inner.converse(way))

        return h.Tool.from_function(delegate, name=name)

    def run(self, agent, way, text, kept=None):
        instrumentor = ToolGuardMCPInstrumentor()
        if agent.zero_code:
            instrumentor.instrument()
        try:
            return asyncio.run(agent.converse(way, kept))
        finally:
            if agent.zero_code:
                instrumentor.uninstrument()

    def kept(self, agent, error):
        return agent.history

    def exchanges(self, kept):
        return [Exchange(call.id, call.name, call.answer, call.failed) for turn in kept for call in turn.calls]

    def text(self, kept):
        return kept[-1].text

    def asked(self, agent):
        return agent.asked

    def shown(self, agent):
        return agent.shown

    def approval_agent(self, function, script, approval):
        from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

        async def search(ctx: h.Context, q: str = "word"):
            if not ctx.input_responses:
                schema = {"type": "object", "properties": {}}
                asks = ElicitRequest(params=ElicitRequestFormParams(message=f"look up {q}?", requested_schema=schema))
                return InputRequiredResult(input_requests={"ok": asks})
            return function(q)

        agent = self.agent([self.tool(search)], script)
        agent.turn = 0
        return agent

    def pause(self, agent, way):
        if way != "client":
            pytest.skip("(h) only the newer protocol can pause a call")
        assert self._go_on(agent, approved=False) is None

    def approve(self, agent, way):
        return self._go_on(agent, approved=True)

    def _go_on(self, agent, *, approved):
        """Makes the calls of the script one after the other, to the next one that waits for a person."""
        from mcp.types import ElicitResult

        async def go(approved):
            async with h.connected(agent.make(), "client", agent.guard) as client:
                while agent.turn < len(agent.script):
                    ((name, given),) = agent.script[agent.turn]
                    call = h.SimpleNamespace(id=f"call-{agent.turn}", name=name, given=given, failed=False)
                    more = {"input_responses": {"ok": ElicitResult(action="accept", content={})}} if approved else {}
                    answer = await client.session.call_tool(
                        name, given, meta={CALL_ID: call.id}, allow_input_required=True, **more
                    )
                    if answer.result_type == "input_required":
                        return None
                    approved, call.answer = False, h.text(answer)
                    agent.history.append(h.SimpleNamespace(text=None, calls=[call]))
                    agent.turn += 1
            return [*agent.history, h.SimpleNamespace(text=h.DONE, calls=[])]

        return asyncio.run(go(approved)) or (agent.history if approved else None)

    def instrumentor(self):
        return ToolGuardMCPInstrumentor()

    def bindings(self):
        kinds = [mcp.ClientSession, Server, h.MCPServer, *([mcp.Client] if h.NEW else [])]
        return {f"{kind.__name__}.__init__": vars(kind)["__init__"] for kind in kinds}


def test_the_callers_exception_is_plain():
    """A client that was guarded before it was entered lets a stop out of its block as it is, in no group."""
    if not h.NEW:
        pytest.skip("a session's transport is a block of its own before 2.x")

    async def loops():
        async with guard_client(mcp.Client(h.MCPServer("none")), h.repeat(3)) as client:
            for _ in range(9):
                await client.call_tool("nothing", {})

    with pytest.raises(CircuitOpen):
        asyncio.run(loops())
