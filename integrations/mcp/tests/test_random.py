"""A host as its users write it, over guarded clients and servers, with limits and batches by chance."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from itertools import count

import pytest
from otel_toolguard_mcp import ToolGuardMCPInstrumentor, guard_client, guard_server, raise_if_open

from otel_toolguard import CircuitOpen, Session, SessionStopped, guard_tool
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing import capture_spans

from . import hosts as h

TURNS = 40
PLACES = ("client", "server", "both", "zero-code", "both, zero-code")


class Model:
    """Asks in each turn for some new calls, for ever."""

    def __init__(self, chance):
        self.chance, self.asked, self.ids = chance, 0, count(1)

    def __call__(self):
        self.asked += 1
        return [
            (f"call-{next(self.ids)}", self.chance.choice(("look", "find")))
            for _ in range(self.chance.randint(1, 8))
        ]  # fmt: skip


def tools(ran, *, decorated):
    """A server of two tools that note each of their bodies."""
    server = h.MCPServer("tools")

    async def look(q: str) -> str:
        ran.append(("look", q))
        await asyncio.sleep(0)
        return q

    def find(q: str) -> str:
        ran.append(("find", q))
        return q

    for function in (look, find):
        server.add_tool(guard_tool(function) if decorated else function)
    return server


async def one(client, history, call_id, name):
    """Makes a call, and notes its answer; a stop is one, too."""
    try:
        result = await client.call_tool(name, {"q": call_id}, meta={names.CALL_ID: call_id})
    except CircuitOpen as stopped:
        history[call_id] = (type(stopped), stopped.to_tool_message())
    else:
        history[call_id] = ("circuit_open" if "circuit_open" in h.text(result) else "ran", h.text(result))


async def converse(client, model, history, captured, asked):
    """The loop: the gate, the model, its calls at once, and so on."""
    for _ in range(TURNS):
        raise_if_open(client)
        calls = model()
        asked.update(calls)
        with captured.tracer.start_as_current_span("turn"):
            await asyncio.gather(*[one(client, history, *call) for call in calls])


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", h.WAYS)
def test_any_program(way, where, seed):
    """Exactly as many bodies run as the ceiling says, every call is answered, is one span, and the caller gets the stop."""
    chance = random.Random(f"{way} {where} {seed}")
    limit, decorated, refusing = chance.randint(1, 30), chance.random() < 0.5, chance.random() < 0.4
    policy = h.ceiling(tools={"look": limit}) if refusing else h.ceiling(limit)
    ran, history, asked, model = [], {}, {}, Model(chance)
    by_hand = where.removesuffix(", zero-code")
    if where == "client" and not h.NEW:
        decorated = False  # a server of 1.x works in a task that knows nothing of the client's; only its guard can tell
    raises = where != "server"
    instrumentor = ToolGuardMCPInstrumentor()

    async def host():
        server = tools(ran, decorated=decorated)
        if by_hand in ("server", "both"):
            guard_server(server, policy)
        guard = guard_client if by_hand in ("client", "both") else (lambda client: client)
        async with h.connected(server, way, guard) as client:
            await converse(client, model, history, captured, asked)

    block = Session(policy=policy) if where != "server" or decorated else nullcontext()
    with capture_spans() as captured:
        if "zero-code" in where:
            instrumentor.instrument()
        try:
            with block, nullcontext() if refusing or not raises else pytest.raises(SessionStopped):
                asyncio.run(host())
        finally:
            if "zero-code" in where:
                instrumentor.uninstrument()
    counted = [name for name, _ in ran if name == "look" or not refusing]
    made = sum(name == "look" or not refusing for name in asked.values())
    assert len(counted) == min(limit, made)
    assert set(history) == set(asked)
    assert {q for _, q in ran} == {call_id for call_id, (kind, _) in history.items() if kind == "ran"}
    assert all(text for _, text in history.values())
    if raises and not refusing:
        assert sum(kind is SessionStopped for kind, _ in history.values()) == made - limit
        assert model.asked < TURNS
    spans = [span for name in ("look", "find") for span in captured.spans(name)]
    refused = made - len(counted)
    assert len(spans) == len(ran) + min(refused, 10)
    if by_hand in ("client", "both", "zero-code"):
        turns = {span.context.span_id for span in captured.all_spans() if span.name == "turn"}
        assert {span.parent.span_id for span in spans} <= turns
        assert len({span.attributes[names.CALL_ID] for span in spans}) == len(spans)
