"""A guarded client: what the host sees of refusals and stops, what counts as what, and what is left alone."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import json
import random

import anyio
import pytest
from mcp import types
from opentelemetry import baggage, context
from otel_toolguard_mcp import guard_client, guard_server, raise_if_open

from otel_toolguard import Policy, Session, SessionStopped, SettingsError
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing import capture_spans
from otel_toolguard.testing.scripts import always_new

from . import hosts as h
from .fakes import Fake, by_fake


def serving(*functions, **annotations):
    """A server of these functions, and a guard for its clients that opens no session."""
    tools = [h.Tool.from_function(function, annotations=annotations.get(function.__name__)) for function in functions]
    return h.MCPServer("tools", tools=tools)


def search(q: str = "word") -> str:
    """Looks something up."""
    return f"nothing about {q}"


def boom(q: str = "word") -> str:
    """Fails."""
    raise ValueError(f"no {q}")


async def slow(q: str = "word") -> str:
    """Takes for ever."""
    await asyncio.sleep(3600)
    return q


def noting():
    """A tool's function, and the arguments that it was called with."""
    ran = []

    async def look(q: str) -> str:
        await asyncio.sleep(0)
        ran.append(q)
        return q

    return ran, look


@pytest.mark.parametrize("way", h.WAYS)
def test_stop_raises_from_call_tool(way):
    """A host without any model boundary of its own is stopped by the call after the one that tripped, and ever after."""
    found = h.asked_in_turn(serving(search), [("search", {})] * 6, way, lambda one: guard_client(one, h.repeat(3)))
    assert [one if isinstance(one, type) else h.text(one) for one in found] == [
        *["nothing about word"] * 3, *[SessionStopped] * 3,
    ]  # fmt: skip


@pytest.mark.parametrize("way", h.WAYS)
def test_refusal_is_an_error_result(way):
    """A refused call is answered by an error result with the body as text and as structured content; others go on."""
    policy = h.ceiling(tools={"search": 1})
    calls = [("search", {"q": "secret"}), ("search", {"q": "secret"}), ("boom", {})]
    first, second, third = h.asked_in_turn(serving(search, boom), calls, way, lambda one: guard_client(one, policy))
    assert (h.failed(first), h.failed(second), h.failed(third)) == (False, True, True)
    body = json.loads(h.text(second))
    assert body == h.structured(second)
    assert (body["error"], body["executed"], body["rule"], body["scope"]) == (
        "circuit_open", False, "call_ceiling", "tool",
    )  # fmt: skip
    assert "secret" not in h.text(second)
    assert "circuit_open" not in h.text(third)


@pytest.mark.parametrize("way", h.WAYS)
def test_any_limit_and_batch(way):
    """For random limits and batches as many bodies run as the ceiling says, each call is answered, then it is over."""
    chance = random.Random(way)
    for _ in range(12):
        limit, batch = chance.randint(1, 12), chance.randint(1, 7)
        ran, look = noting()
        host = h.Host(functools.partial(serving, look), guard_client, always_new("look", batch=batch))
        with Session(policy=h.ceiling(limit)) as session, pytest.raises(SessionStopped):
            asyncio.run(host.converse(way))
        asked = [call for turn in host.history for call in turn.calls]
        assert (len(ran), host.asked) == (limit, limit // batch + 1)
        assert all(call.answer for call in asked)
        assert sum(call.failed for call in asked) == len(asked) - limit == session.report()["refused"]


def test_connection_is_a_session_of_its_own():
    """Outside any block two connections are counted apart, also that of a copied client."""
    fake = Fake(types.CallToolResult(content=[]))
    guard_client(fake, h.ceiling(2))
    other = copy.copy(fake)
    found = by_fake(fake, *[("search", {})] * 3, policy=h.ceiling(2))

    async def goes_on():
        return [await other.call_tool("search", {}) for _ in range(2)]

    assert isinstance(found[2], SessionStopped)
    assert len(asyncio.run(goes_on())) == 2


def test_block_is_a_run_of_all_its_connections():
    """Inside a block calls of several clients are one run, and its stop holds for all of them."""
    one, other = (guard_client(Fake(types.CallToolResult(content=[]))) for _ in range(2))

    async def ask():
        with Session(policy=h.ceiling(2)):
            await one.call_tool("search", {})
            await other.call_tool("look", {})
            for client in (one, other):
                with pytest.raises(SessionStopped):
                    await client.call_tool("search", {})
        with Session(policy=h.ceiling(2)):
            await one.call_tool("search", {})

    asyncio.run(ask())


def test_baggage_names_the_session():
    """Outside any block W3C baggage may name the session, over all connections; each is a run."""
    token = context.attach(baggage.set_baggage("session.id", "conversation-7"))
    try:
        for used in (0, 2):
            found = by_fake(Fake(types.CallToolResult(content=[])), *[("look", {})] * 2, policy=h.ceiling(session=3))
            assert [isinstance(one, SessionStopped) for one in found] == [used + n >= 3 for n in range(2)]
    finally:
        context.detach(token)


def test_gate_for_a_model_boundary():
    """raise_if_open raises once the run was stopped, before the next call, and knows nothing of unguarded clients."""
    client = guard_client(Fake(types.CallToolResult(content=[])), h.repeat(3))

    async def ask():
        for _ in range(3):
            raise_if_open(client)
            await client.call_tool("search", {})

    asyncio.run(ask())
    with pytest.raises(SessionStopped) as stopped:
        raise_if_open(client)
    assert stopped.value.trip.rule == "repeat_guard"
    raise_if_open(Fake())


def test_what_fails_counts_as_failed():
    """Error results, protocol errors and time limits are failures; what may pass at the next try is told apart."""

    def denied() -> str:
        raise error(-32000, "not for you")

    def error(code, message):
        data = types.ErrorData(code=code, message=message)
        return h.ERROR.from_error_data(data) if h.NEW else h.ERROR(data)

    async def ask():
        with capture_spans() as captured, Session(policy=Policy(plugins=[{"plugin": "tool_stats"}])) as session:
            async with h.connected(serving(search, boom, slow, denied), guard=guard_client) as client:
                for name in ("search", "boom", "denied", "unknown"):
                    try:
                        await client.call_tool(name, {})
                    except h.ERROR:
                        pass
                with pytest.raises(h.ERROR):
                    await client.call_tool("slow", {}, read_timeout_seconds=h.seconds(0.01))
            return session.report(), captured.spans()

    report, spans = asyncio.run(ask())
    assert {name: row["failed"] for name, row in report["tools"].items()} == {
        "search": 0, "boom": 1, "denied": 1, "unknown": 1, "slow": 1,
    }  # fmt: skip
    told = {span.attributes[names.TOOL_NAME]: span.attributes.get(names.FAILURE) for span in spans}
    assert told == {"search": None, "boom": "permanent", "denied": "permanent", "unknown": "permanent",
                    "slow": "transient"}  # fmt: skip


def test_cancelled_call_is_no_failure():
    """A call that its caller gives up is cancelled, however it is cancelled; one cancelled from inside has failed."""

    async def ask():
        with capture_spans() as captured, Session(policy=h.ceiling(9)) as session:
            async with h.connected(serving(slow), guard=guard_client) as client:
                with anyio.move_on_after(0.01) as scope:
                    await client.call_tool("slow", {})
                assert scope.cancelled_caught
                task = asyncio.create_task(client.call_tool("slow", {}))
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(asyncio.CancelledError):
                await guard_client(Fake(asyncio.CancelledError())).call_tool("slow", {})
            return captured.outcomes(), session.report()["in_flight"]

    assert asyncio.run(ask()) == (["cancelled", "cancelled", "failed"], 0)


def test_call_that_is_dropped():
    """A call whose coroutine is closed half-way, from another context, is closed: no failure, nothing left in flight."""

    class Waiting(Fake):
        async def call_tool(self, name, arguments=None, *, meta=None):
            await asyncio.sleep(0)

    with capture_spans() as captured, Session(policy=h.ceiling(9)) as session:
        call = guard_client(Waiting(None)).call_tool("search", {})
        contextvars.copy_context().run(call.send, None)
        call.close()
        report = session.report()
    assert captured.outcomes() == ["closed"]
    assert (report["calls"], report["failed"], report["in_flight"]) == (1, 0, 0)


@pytest.mark.parametrize("way", h.WAYS)
def test_progress_goes_through(way):
    """A progress callback hears what the tool reports, as without the guard."""

    async def work(ctx: h.Context) -> str:
        for part in range(3):
            await ctx.report_progress(part, 3)
        return "done"

    heard = []

    async def progress(done, total, message):
        heard.append((done, total))

    async def ask():
        async with h.connected(guard_server(serving(work)), way, guard_client) as client:
            result = await client.call_tool("work", {}, progress_callback=progress)
            await asyncio.sleep(0.01)
            return h.text(result)

    assert asyncio.run(ask()) == "done"
    assert heard == [(0, 3), (1, 3), (2, 3)]


def test_meta_tells_trace_and_call():
    """The request carries the trace context of the call's span and an opaque entry; the caller's own entries win."""
    fake = Fake(types.CallToolResult(content=[]))
    own = {"traceparent": "mine", "app/key": 1, names.CALL_ID: "call-7"}

    async def ask():
        client = guard_client(fake)
        with capture_spans() as captured, Session("conversation-42"):
            await client.call_tool("search", {})
            await client.call_tool("search", {}, meta=own)
            return captured.spans()

    first, second = asyncio.run(ask())
    span = first.context
    assert fake.meta[0]["traceparent"] == f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    assert "conversation-42" not in str(fake.meta)
    assert own.items() <= fake.meta[1].items()
    assert set(fake.meta[1]) - set(own) == {"otel-toolguard/call"}
    assert (first.attributes.get(names.CALL_ID), second.attributes[names.CALL_ID]) == (None, "call-7")


@pytest.mark.skipif(not h.NEW, reason="1.x has no Client")
def test_session_of_a_client_is_guarded_too():
    """The session behind a guarded client is no way round the guard."""

    async def ask():
        async with h.connected(serving(search), "client", lambda one: guard_client(one, h.ceiling(2))) as client:
            await client.call_tool("search", {"q": "1"})
            await client.session.call_tool("search", {"q": "2"})
            with pytest.raises(SessionStopped):
                await client.session.call_tool("search", {"q": "3"})

    asyncio.run(ask())


def test_object_and_signature_stay():
    """The client is the same object of the same class's kind, its method looks as before, and its schemas are whole."""
    from inspect import iscoroutinefunction, signature

    client = Fake(None)
    guarded = guard_client(guard_client(client))
    assert guarded is client
    assert isinstance(guarded, Fake)
    assert (type(guarded).__name__, type(guarded).__module__) == (Fake.__name__, Fake.__module__)
    assert signature(type(guarded).call_tool) == signature(Fake.call_tool)
    assert iscoroutinefunction(guarded.call_tool)
    with pytest.raises(SettingsError, match="not str"):
        guard_client("http://localhost")


def test_nudge_stands_beside_the_result():
    """A rule that only nudges adds its sentence to the content; a result that a server keeps is not changed."""
    kept = types.CallToolResult(content=[types.TextContent(type="text", text="same")])
    found = by_fake(Fake(kept), *[("search", {})] * 4, policy=h.repeat(3, on_limit="nudge"))
    assert len(kept.content) == 1
    assert [len(one.content) for one in found[:2]] == [1, 1]
    assert found[2].content[0].text == "same"
    assert len(found[2].content) == 2


def test_observing_stops_nothing():
    """In the mode observe nothing is refused."""
    kept = types.CallToolResult(content=[])
    watching = Policy(mode="observe", plugins=[{"plugin": "repeat_guard", "limit": 3}])
    found = by_fake(Fake(kept), *[("search", {})] * 9, policy=watching)
    assert found == [kept] * 9


def test_exit_code_in_structured_content():
    """An exit code other than 0 in the structured content is a failure, as everywhere."""
    result = types.CallToolResult.model_validate({"content": [], "structuredContent": {"exit_code": 2, "out": ""}})
    with Session(policy=h.ceiling(9)) as session:
        by_fake(Fake(result), ("run", {}))
        assert session.report()["tools"]["run"]["failed"] == 1


def test_call_of_an_agents_tool_is_counted_once():
    """Where a guarded tool of an agent makes the very call, that counts; a call of its own within is another one."""
    from otel_toolguard import guard_tool

    client = guard_client(Fake(types.CallToolResult(content=[])))

    @guard_tool(name="server__search")
    async def by_agent(q):
        await client.call_tool("search", {"q": q})
        await client.call_tool("search", {"q": q})  # a retry of it
        await client.call_tool("search", {"q": "other"})

    with Session(policy=h.ceiling(9)) as session:
        asyncio.run(by_agent(q="x"))
        assert {name: row["calls"] for name, row in session.report()["tools"].items()} == {
            "server__search": 1, "search": 1,
        }  # fmt: skip


@pytest.mark.parametrize("way", h.WAYS)
def test_call_within_the_same_call(way):
    """A tool that calls itself over the very same client with the same arguments makes calls of its own."""
    kept = []

    async def again(q: str) -> str:
        return h.text(await kept[0].call_tool("again", {"q": q}))

    def keeping(client):
        kept.append(guard_client(client, h.ceiling(5)))
        return kept[0]

    with Session(policy=h.ceiling(5)) as session:
        h.asked_in_turn(guard_server(serving(again)), [("again", {"q": "x"})], way, keeping)
        assert session.report()["calls"] == 5


def test_refusals_end_a_run_that_asks_on():
    """A model that asks on for what is refused is stopped, and from then on the client raises."""
    policy = Policy(
        plugins=[{"plugin": "call_ceiling", "tools": {"search": 1}}, {"plugin": "max_refusals", "limit": 2}]
    )
    found = by_fake(Fake(types.CallToolResult(content=[])), *[("search", {"q": n}) for n in range(6)], policy=policy)
    assert [type(one) is SessionStopped for one in found] == [False] * 3 + [True] * 3
    assert [h.failed(one) for one in found[:3]] == [False, True, True]
