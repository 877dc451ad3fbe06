"""Whatever peers and programs hand over, the guard neither fails nor changes it."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest
from mcp import types
from otel_toolguard_mcp import guard_client

from otel_toolguard import Policy, Session
from otel_toolguard.testing import capture_spans

from . import hosts as h
from .fakes import Fake, by_fake


def nested(depth):
    """JSON that is deep."""
    value: object = "x"
    for _ in range(depth):
        value = {"a": [value]}
    return value


class Unfriendly:
    """A value that refuses to be looked at."""

    def __eq__(self, other):
        raise RuntimeError("no")

    def __hash__(self):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")

    def __bool__(self):
        raise RuntimeError("no")


class Trap:
    """A result whose fields raise."""

    def __getattr__(self, name):
        raise RuntimeError(name)


cyclic: dict[str, object] = {}
cyclic["me"] = cyclic
block = {"type": "text", "text": "x"}
RESULTS = {
    "none": None,
    "text": "no result at all",
    "huge": {"content": [{"type": "text", "text": "x" * 3_000_000}]},
    "many": {"content": [block] * 20_000, "isError": True},
    "deep": {"content": [], "structuredContent": nested(5_000)},
    "cyclic": {"content": [], "structuredContent": cyclic},
    "no JSON": {"content": [], "structuredContent": {1: {2, 3}, "x": object(), "nan": math.nan, "b": b"\xff"}},
    "unfriendly": {"content": [Unfriendly()], "structuredContent": Unfriendly()},
    "no blocks": {"content": "text", "isError": "yes"},
    "odd blocks": {"content": [None, 7, {"type": "text", "text": 7}], "isError": True},
    "surrogates": {"content": [{"type": "text", "text": "\ud800"}], "isError": True},
    "trap": Trap(),
    "list": [1, 2],
}


@pytest.mark.parametrize("name", RESULTS)
def test_hostile_results_pass(name):
    """Whatever a peer answers, the caller gets that very object, the guard goes on counting, and nothing is left open."""
    answer = RESULTS[name]
    with Session(policy=Policy(profile="strict")) as session, capture_spans(content=True):
        found = by_fake(Fake(answer), ("search", {}), ("look", {"q": 1}))
        report = session.report()
    assert all(one is answer for one in found)
    assert (report["calls"], report["in_flight"], report["refused"]) == (2, 0, 0)


@pytest.mark.parametrize(
    "arguments", [nested(5_000), cyclic, {"x": Unfriendly()}, {"a" * 100_000: "b" * 2_000_000}, [1], "text", {1: 2}]
)
def test_hostile_arguments_pass(arguments):
    """Whatever the arguments are, they reach the SDK as they are, and the call is counted once."""
    answer = types.CallToolResult(content=[])
    with Session(policy=Policy(profile="strict")) as session:
        assert by_fake(Fake(answer), ("search", arguments)) == [answer]
        assert session.report()["calls"] == 1


LISTINGS = {
    "none": None,
    "number": 7,
    "nobody": [None],
    "trap": [Trap()],
    "all a trap": Trap(),
    "odd name": [{"name": ["search"]}],
    "odd parts": [{"name": "search", "annotations": "read", "inputSchema": 7}],
    "trap inside": [SimpleNamespace(name="search", annotations=Trap(), input_schema={"properties": [1]})],
    "odd defaults": [{"name": "search", "inputSchema": {"properties": {"q": {"default": Unfriendly()}, "r": 7}}}],
    "many": [{"name": f"tool-{n}"} for n in range(5_000)],
}


@pytest.mark.parametrize("name", LISTINGS)
def test_hostile_listings_pass(name, monkeypatch):
    """Whatever a server lists, the caller gets it, and calls are counted as before."""
    monkeypatch.setattr(Fake, "listing", LISTINGS[name])
    client = guard_client(Fake(types.CallToolResult(content=[])))
    assert asyncio.run(client.list_tools()) is LISTINGS[name]
    with Session(policy=h.ceiling(2)) as session:
        asyncio.run(client.call_tool("search", {}))
        assert session.report()["calls"] == 1


def test_name_that_is_none():
    """A call that names no tool is the SDK's to complain about."""
    with Session(policy=h.ceiling(1)) as session:
        by_fake(Fake("x"), (None, {}), (7, {}))
        assert session.report()["calls"] == 0
