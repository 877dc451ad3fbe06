"""What a server says of its tools: class, risk and defaults."""

from __future__ import annotations

import asyncio

import pytest
from mcp import types
from otel_toolguard_mcp import guard_client, guard_server

from otel_toolguard import Session, guard_tool
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing import capture_spans

from . import hosts as h


def serving(*functions, **annotations):
    """A server of these functions, and a guard for its clients that opens no session."""
    tools = [h.Tool.from_function(function, annotations=annotations.get(function.__name__)) for function in functions]
    return h.MCPServer("tools", tools=tools)


def search(q: str = "word") -> str:
    """Looks something up."""
    return f"nothing about {q}"


@pytest.mark.parametrize(
    ("annotations", "tool_class", "risk"),
    [
        (None, "other", "reversible"),
        ({"readOnlyHint": True}, "read", "read_only"),
        ({"readOnlyHint": False, "destructiveHint": True}, "write", "irreversible"),
        ({"readOnlyHint": False, "destructiveHint": False}, "write", "reversible"),
        ({"openWorldHint": True}, "network", "reversible"),
        ({"idempotentHint": True}, "other", "reversible"),
        ({"readOnlyHint": False, "idempotentHint": True}, "write", "reversible"),
    ],
)
@pytest.mark.parametrize("guarding", ["client", "server"])
def test_annotations_say_class_and_risk(annotations, tool_class, risk, guarding):
    """What a server says of a tool decides its class and risk where the name says nothing, on either side."""

    async def zork() -> str:
        await asyncio.sleep(0.01)
        return "x"

    said = types.ToolAnnotations.model_validate(annotations) if annotations else None
    trips = []

    async def ask():
        server = serving(zork, zork=said)
        with Session(policy=h.ceiling(1), on_trip=trips.append):
            guard = guard_client if guarding == "client" else (lambda one: one)
            if guarding == "server":
                guard_server(server)
            async with h.connected(server, guard=guard) as client:
                await client.list_tools()
                await asyncio.gather(*[client.call_tool("zork", {}) for _ in range(2)], return_exceptions=True)

    asyncio.run(ask())
    (running,) = trips[0].in_flight
    assert (trips[0].tool_class, running.tool_class, running.risk) == (tool_class, tool_class, risk)


def test_annotations_of_a_decorated_tool():
    """A decorator that says nothing of the class leaves it to the annotations; what it says holds."""
    classes = {}
    said = types.ToolAnnotations.model_validate({"readOnlyHint": True})
    for told in ({}, {"tool_class": "build"}):

        @guard_tool(**told)
        def zork() -> str:
            return "x"

        with Session(policy=h.ceiling(9)) as session:
            h.asked_in_turn(guard_server(serving(zork, zork=said)), [("zork", {})])
            classes[len(told)] = session.report()["classes"]
    assert {count: list(found) for count, found in classes.items()} == {0: ["read"], 1: ["build"]}


def test_omitted_and_explicit_default_are_one_call():
    """Once the tools were listed, an argument left out and its default are the same call; so are {} and None."""
    calls = [("search", None), ("search", {}), ("search", {"q": "word"})]

    async def ask(*, listed):
        with Session(policy=h.ceiling(9)), capture_spans() as captured:
            async with h.connected(serving(search), guard=guard_client) as client:
                if listed:
                    await client.list_tools()
                for name, arguments in calls:
                    await client.call_tool(name, arguments)
            return [span.attributes[names.SIGNATURE] for span in captured.spans()]

    assert len(set(asyncio.run(ask(listed=True)))) == 1
    unlisted = asyncio.run(ask(listed=False))  # results are checked against a listing that the SDK asks for by itself
    assert unlisted[0] == unlisted[1]
