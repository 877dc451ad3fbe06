"""Beside MCP's own instrumentation: enriched, never doubled; and the caller's trace where there is none."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.trace import SpanKind
from otel_toolguard_mcp import guard_client, guard_server

from otel_toolguard import Session, guard_tool
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing import capture_spans

from . import hosts as h

PARENT = f"00-{'1' * 32}-{'2' * 16}-01"


def server(*, traced=None):
    """A server with one tool, which opens a span of its own."""
    made = h.MCPServer("tools")

    @made.tool()
    @guard_tool
    def search(q: str = "word") -> str:
        if traced is not None:
            with traced.tracer.start_as_current_span("inside"):
                pass
        return f"nothing about {q}"

    return made


@pytest.fixture
def captured(monkeypatch):
    """Captured spans, those of the SDK's own instrumentation included."""
    with capture_spans() as captured:
        if h.NEW:
            from mcp.shared import _otel

            monkeypatch.setattr(_otel, "_tracer", captured.tracer_provider.get_tracer("mcp-python-sdk"))
        yield captured


@pytest.mark.skipif(not h.NEW, reason="1.x makes no spans")
@pytest.mark.parametrize("way", h.WAYS)
def test_span_of_the_sdk_is_enriched(captured, way):
    """On a server the SDK's span of the request is the call's span: it gets our attributes, and there is no other."""
    h.asked_in_turn(guard_server(server(), h.repeat(3)), [("search", {})] * 4, way)
    spans = captured.spans("search")
    assert [(span.kind, span.name) for span in spans] == [(SpanKind.SERVER, "tools/call search")] * 4
    assert captured.outcomes() == ["ok"] * 3 + ["refused"]
    assert all(names.SIGNATURE in span.attributes for span in spans)
    assert [span.attributes.get(names.TRIPPED) for span in spans] == [None, None, True, None]


@pytest.mark.skipif(not h.NEW, reason="1.x makes no spans")
@pytest.mark.parametrize("way", h.WAYS)
def test_both_sides_have_one_span_each(captured, way):
    """With both ends guarded the client's call has our span, the server's request the SDK's, below it and untouched."""
    with Session():
        h.asked_in_turn(guard_server(server(traced=captured)), [("search", {})], way, guard_client)
    ours, theirs = sorted(captured.spans("search"), key=lambda span: span.kind.value)
    assert (ours.kind, theirs.kind) == (SpanKind.INTERNAL, SpanKind.SERVER)
    assert names.OUTCOME in ours.attributes
    assert names.OUTCOME not in theirs.attributes
    by_id = {span.context.span_id: span for span in captured.all_spans()}
    above = [theirs]
    while above[-1].parent is not None:
        above.append(by_id[above[-1].parent.span_id])
    assert above[-1] is ours
    (inside,) = [span for span in captured.all_spans() if span.name == "inside"]
    assert inside.parent.span_id == theirs.context.span_id


@pytest.mark.parametrize("way", h.WAYS)
def test_span_is_below_the_caller(captured, way):
    """The trace context in a request's metadata is the parent of the server's span, also where the SDK ignores it."""

    async def ask():
        async with h.connected(guard_server(server()), way) as client:
            with captured.tracer.start_as_current_span("the server's own"):
                return await client.call_tool("search", {}, meta={"traceparent": PARENT})

    asyncio.run(ask())
    (span,) = captured.spans("search")
    if way != "legacy client" and not (h.NEW and way == "session"):  # there the SDK puts its own client span between
        assert (span.parent.span_id, span.context.trace_id) == (int("2" * 16, 16), int("1" * 32, 16))


@pytest.mark.parametrize(
    "given", ["", "00-zz", "x" * 100_000, 7, None, ["00"], {"a": 1}, "00-" + "0" * 32 + "-" + "0" * 16]
)
def test_hostile_trace_context(captured, given):
    """Trace context that is none is left aside."""

    async def ask(guard):
        async with h.connected(guard_server(server()), h.WAYS[0], guard) as client:
            meta = {"traceparent": given, "tracestate": given, "baggage": given, "otel-toolguard/call": given}
            return await client.call_tool("search", {}, meta=meta)

    for guard in (guard_client, lambda client: client):
        captured.clear()
        assert not h.failed(asyncio.run(ask(guard)))
        assert "ok" in captured.outcomes()


def test_content_is_not_told(captured):
    """Neither arguments nor results stand on a span."""
    with Session():
        h.asked_in_turn(server(), [("search", {"q": "a secret"})], guard=guard_client)
    assert "a secret" not in str([dict(span.attributes) for span in captured.all_spans()])
