"""A guarded server: what its clients are answered, and whose calls it counts together."""

from __future__ import annotations

import asyncio
import json
import warnings

import pytest
from mcp import types
from mcp.server.lowlevel import Server
from otel_toolguard_mcp import guard_client, guard_server

from otel_toolguard import Policy, Session, SessionStopped, SettingsError, current_session, guard_tool
from otel_toolguard.calls import warned
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing import capture_spans

from . import hosts as h


def search(q: str = "word") -> str:
    """Looks something up."""
    return f"nothing about {q}"


def boom(q: str = "word") -> str:
    """Fails in a way that may pass."""
    raise TimeoutError(f"no {q} in time")


guarded_search = guard_tool(search)
TABLE = {"search": guarded_search}


def high(*functions):
    """A server of these functions, by name, description and types."""
    server = h.MCPServer("high")
    for function in functions or (search, boom):
        server.add_tool(function)
    return server


def listing():
    """What a low-level server says of its tool."""
    schema = {"type": "object", "properties": {"q": {"type": "string", "default": "word"}}}
    said = {"name": "search", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
    return [types.Tool.model_validate(said)]


def low(call=search, *, guard=None):
    """A low-level server whose handlers are registered before it is guarded, or after."""

    def content(name, arguments):
        function = TABLE[name] if call is TABLE else call
        return [types.TextContent(type="text", text=function(**(arguments or {})))]

    if h.NEW:

        async def listed(ctx, params):
            return types.ListToolsResult(tools=listing())

        async def called(ctx, params):
            return types.CallToolResult(content=content(params.name, params.arguments))

        server = Server("low", on_list_tools=listed)
        if guard:
            guard_server(server, guard)
        server.add_request_handler("tools/call", types.CallToolRequestParams, called)
        return server
    server = Server("low")
    if guard:
        guard_server(server, guard)

    @server.list_tools()
    async def listed_before():
        return listing()

    @server.call_tool()
    async def called_before(name, arguments):
        return content(name, arguments)

    return server


SERVERS = {
    "high": lambda policy: guard_server(high(), policy),
    "low": lambda policy: guard_server(low(), policy),
    "low, handlers added later": lambda policy: low(guard=policy),
    "twice": lambda policy: guard_server(guard_server(low(), policy), policy),
    "high, by its low-level server": lambda policy: guard_server(h.low_level(high()), policy),
}


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("way", h.WAYS)
def test_stop_is_an_error_result(kind, way):
    """A client that knows of no guard is told of the stop by error results, as text and as structured content."""
    found = h.asked_in_turn(SERVERS[kind](h.repeat(3)), [("search", {})] * 6, way)
    assert [h.failed(one) for one in found] == [False] * 3 + [True] * 3
    for refused in found[3:]:
        body = json.loads(h.text(refused))
        assert body == h.structured(refused)
        assert (body["error"], body["executed"], body["tool"], body["scope"]) == (
            "circuit_open", False, "search", "run",
        )  # fmt: skip


def test_refusal_leaves_other_tools_alone():
    """A ceiling of one tool refuses that tool only."""
    server = guard_server(high(search, boom), h.ceiling(tools={"search": 1}))
    found = h.asked_in_turn(server, [("search", {}), ("search", {}), ("boom", {})])
    assert [json.loads(h.text(one))["scope"] if "circuit_open" in h.text(one) else None for one in found] == [
        None, "tool", None,
    ]  # fmt: skip


@pytest.mark.parametrize("way", h.WAYS)
def test_batch_is_cut_at_the_ceiling(way):
    """Of ten calls at once exactly five bodies run at a ceiling of five; each call gets its answer."""
    ran = []

    async def look(q: str) -> str:
        await asyncio.sleep(0.001)
        ran.append(q)
        return q

    async def ask():
        async with h.connected(guard_server(high(look), h.ceiling(5)), way) as client:
            return await asyncio.gather(*[client.call_tool("look", {"q": str(n)}) for n in range(10)])

    found = asyncio.run(ask())
    assert (len(ran), sum(h.failed(one) for one in found)) == (5, 5)


def test_schemas_are_whole():
    """What a guarded server lists is byte for byte what it lists without the guard and the decorator."""

    async def listed(server):
        async with h.connected(server) as client:
            return [tool.model_dump_json() for tool in (await client.list_tools()).tools]

    bare = asyncio.run(listed(high()))
    assert asyncio.run(listed(guard_server(high()))) == bare
    assert asyncio.run(listed(guard_server(high(guard_tool(search), guard_tool(boom))))) == bare


def test_failures_are_what_the_tool_raised():
    """The guard knows the exception, though the answer to the client may not tell it."""
    with capture_spans() as captured:
        h.asked_in_turn(guard_server(high()), [("boom", {}), ("unknown", {}), ("boom", {"q": 1})])
    told = [(one.attributes.get(names.ERROR_TYPE), one.attributes.get(names.FAILURE)) for one in captured.spans()]
    assert told[0] == ("TimeoutError", "transient")
    assert [failure for _, failure in told[1:]] == ["permanent", "permanent"]


def test_unknown_tools_are_never_reached():
    """Calls of tools that a server has not got are failures, but no streak of a tool that fails."""
    policy = Policy(plugins=[{"plugin": "failure_streak", "limit": 3, "across_tools": True}])
    found = h.asked_in_turn(guard_server(high(), policy), [(f"unknown_{n}", {}) for n in range(6)])
    assert not any("circuit_open" in h.text(one) for one in found)


def test_caught_failure_of_an_inner_tool_is_no_failure():
    """A tool that calls another one through its server, and lives with its failure, has not failed."""
    server = high(search, boom)

    async def careful() -> str:
        try:
            await server.call_tool("boom", {})
        except Exception:
            return "never mind"
        return "?"

    server.add_tool(careful)
    with capture_spans() as captured:
        h.asked_in_turn(guard_server(server), [("careful", {})])
    assert captured.outcomes() == ["ok"]


def test_store_that_refuses_is_answered(monkeypatch):
    """Where a store refuses by raising, the client is answered as for any stop."""

    def refuses(*_asked):
        raise SessionStopped(trip)

    trips = []
    with Session(policy=h.ceiling(1), on_trip=trips.append) as session:
        h.asked_in_turn(guard_server(high()), [("search", {})] * 2)
        (trip,) = trips
        monkeypatch.setattr(type(session.guard), "transact", refuses)
        (found,) = h.asked_in_turn(guard_server(high()), [("search", {})])
    assert h.failed(found)
    assert h.structured(found)["error"] == "circuit_open"


@pytest.mark.parametrize("kind", ["high", "low", "low, by a table"])
@pytest.mark.parametrize("client", [False, True])
@pytest.mark.parametrize("way", h.WAYS)
def test_decorated_functions_are_counted_once(kind, client, way):
    """With the decorator on the function, the guard on the server and one on the client, a call is one call, one span."""
    server = {"high": lambda: high(guarded_search), "low": lambda: low(guarded_search), "low, by a table": lambda: low(
        TABLE
    )}[kind]()  # fmt: skip
    guard = guard_client if client else (lambda one: one)
    with capture_spans() as captured, Session(policy=h.ceiling(99)) as session:
        h.asked_in_turn(guard_server(server), [("search", {}), ("search", {"q": "x"})], way, guard)
        report = session.report()
    assert (report["calls"], report["retries"], len(captured.spans())) == (2, 0, 2)


def test_stop_inside_a_tool_is_told():
    """A tool whose own guarded calls were stopped is answered by what stopped them, and its run is over."""

    @guard_tool
    def step(n: int) -> str:
        return "same"

    def work() -> str:
        for _ in range(9):
            step(1)
        return "done"

    server = guard_server(high(work, search), h.repeat(3))
    first, second = h.asked_in_turn(server, [("work", {}), ("search", {})])
    assert [json.loads(h.text(one))["rule"] for one in (first, second)] == ["repeat_guard"] * 2
    assert h.structured(first)["tool"] == "step"


def test_server_under_a_block_counts_there():
    """A server that runs inside a block counts there, and tools see that session."""
    seen = []

    def look() -> str:
        seen.append(current_session().id)
        return "x"

    with Session("job-1", policy=h.ceiling(2)):
        found = h.asked_in_turn(guard_server(high(look)), [("look", {})] * 3)
    assert seen == ["job-1"] * 2
    assert h.failed(found[2])


@pytest.mark.parametrize("way", h.WAYS)
def test_connections_are_counted_apart(way):
    """Two clients of one server do not use up each other's limits, and no id that is new in each call is the key."""
    server = guard_server(high(), h.ceiling(2))
    for _ in range(2):
        found = h.asked_in_turn(server, [("search", {"q": str(n)}) for n in range(3)], way)
        assert [h.failed(one) for one in found] == [False, False, True]


@pytest.mark.parametrize("way", h.WAYS)
def test_meta_entry_names_the_session(way):
    """Calls that name a session in their metadata are counted together over connections, others apart from them."""
    server = guard_server(high(), h.ceiling(session=3), meta_key="app/conversation")

    async def ask(name, number):
        async with h.connected(server, way) as client:
            meta = {"app/conversation": name}
            return [h.failed(await client.call_tool("search", {"q": str(n)}, meta=meta)) for n in range(number)]

    assert asyncio.run(ask(f"one {way}", 2)) == [False, False]
    assert asyncio.run(ask(f"one {way}", 2)) == [False, True]
    assert asyncio.run(ask(f"other {way}", 2)) == [False, False]


def test_runs_of_a_guarded_client_are_told():
    """In another process a client's runs arrive as runs: a stop in one of them is not the end of the next."""
    server = guard_server(high(), h.repeat(3), meta_key="app/conversation")

    async def ask(run, number):
        async with h.connected(server) as client:
            meta = {"app/conversation": "one", "otel-toolguard/call": f"{run}.1"}
            return [h.failed(await client.call_tool("search", {}, meta=meta)) for _ in range(number)]

    assert asyncio.run(ask("run-1", 4)) == [False] * 3 + [True]
    assert asyncio.run(ask("run-2", 3)) == [False] * 3
    assert asyncio.run(ask("run-1", 1)) == [True]


def test_unplaced_calls_are_traced():
    """A call that belongs to no session runs, has its span, and it is said once how to open one."""
    warned.discard("search")
    server = guard_server(high(), h.ceiling(1))
    h.low_level(server)._toolguard.keys.place = lambda ctx, meta: None
    with capture_spans() as captured, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = h.asked_in_turn(server, [("search", {})] * 3)
    assert [h.failed(one) for one in found] == [False] * 3
    assert captured.outcomes() == ["ok"] * 3
    assert "search" in warned


@pytest.mark.parametrize("way", h.WAYS)
def test_hostile_requests_are_the_servers_own(way):
    """What is no proper call is answered as without the guard, and does not stop the server."""
    odd = [
        ("search", {"q": 7}), ("search", {"q": {"deep": [[[{}]]] * 50}}), ("", {}), ("x" * 100_000, {}),
        ("search", {"nobody": "x" * 1_000_000}), ("search", {"q": "\u0000"}),
    ]  # fmt: skip

    def told(server):
        async def ask():
            found = []
            async with h.connected(server, way) as client:
                for name, arguments in odd:
                    try:
                        found.append(h.failed(await client.call_tool(name, arguments)))
                    except Exception as error:
                        found.append(type(error))
                found.append(h.text(await client.call_tool("search", {})))
            return found

        return asyncio.run(ask())

    assert told(guard_server(high(), Policy(profile="conservative"))) == told(high())


@pytest.mark.parametrize("way", h.WAYS)
def test_result_that_is_no_json_is_the_servers_own(way):
    """A handler whose structured content cannot be sent fails as without the guard, and is counted as a failure."""

    def told(guard):
        def content(*_asked):
            return types.CallToolResult.model_construct(content=[], structuredContent={"x": object()},
                                                        structured_content={"x": object()})  # fmt: skip

        async def ask():
            server = low(search)
            if h.NEW:

                async def called(ctx, params):
                    return content()

                server.add_request_handler("tools/call", types.CallToolRequestParams, called)
            else:

                @server.call_tool()
                async def called_before(name, arguments):
                    return {"x": object()}

            async with h.connected(guard(server), way) as client:
                try:
                    return h.failed(await client.call_tool("search", {}))
                except Exception as error:
                    return type(error), str(error)

        return asyncio.run(ask())

    with Session(policy=h.ceiling(9)) as session:
        assert told(guard_server) == told(lambda server: server)
        assert session.report()["tools"]["search"]["failed"] == 1


@pytest.mark.parametrize("way", h.WAYS)
def test_nudge_stands_beside_the_result(way):
    """A rule that only nudges adds its sentence to what the server answers."""
    server = guard_server(high(), h.repeat(3, on_limit="nudge"))
    found = h.asked_in_turn(server, [("search", {})] * 3, way)
    assert [len(one.content) for one in found] == [1, 1, 2]
    assert not any(map(h.failed, found))


def test_what_is_no_server():
    """Anything else is refused with a sentence that names what is taken."""
    with pytest.raises(SettingsError, match="MCPServer or FastMCP, not dict"):
        guard_server({})
