"""Spans: one for each attempt, in its place, also beside the spans of others."""

from __future__ import annotations

import asyncio

import pytest
from agents import Runner
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from otel_toolguard_openai_agents import guard_agent

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.telemetry import Telemetry
from otel_toolguard.telemetry import attributes as names

from . import scripted as s


@pytest.mark.parametrize("run", s.WAYS)
def test_spans_of_a_tree(run, traced):
    """Spans of an inner agent's calls are below the span of the outer call, that one below the caller's."""
    seen = s.look_up()
    inner = s.agent([[("search", {"q": "a"}), ("search", {"q": "b"})]], [seen.tool], name="inner", prefix="inner")
    agent = guard_agent(s.agent([[("ask", {"input": "x"})]], [inner.as_tool("ask", "Asks.")]))
    with traced.tracer.start_as_current_span("request") as request, Session(telemetry=traced.telemetry):
        run(agent, "Find the word.")
    (above,) = [span for span in traced.spans() if span.name == "execute_tool ask"]
    below = [span for span in traced.spans() if span.name == "execute_tool search"]
    assert above.parent.span_id == request.get_span_context().span_id
    assert {span.parent.span_id for span in below} == {above.context.span_id}
    assert [span.attributes[names.CALL_ID] for span in below] == ["inner-1-0", "inner-1-1"]
    assert len({span.attributes[names.RUN_ID] for span in traced.spans()}) == 2
    assert above.attributes["toolguard.tool.class"] == "agent"


def test_span_names_the_agent(traced):
    """Each span says which agent asked."""
    clerk = s.agent([[("search", {})]], [s.look_up().tool], name="clerk", prefix="clerk")
    first = s.agent([[("search", {})], [("transfer_to_clerk", {})]], [s.look_up().tool], handoffs=[clerk], name="first")
    with Session(telemetry=traced.telemetry):
        s.run(guard_agent(first), "Find the word.")
    assert [span.attributes["gen_ai.agent.name"] for span in traced.spans()] == ["first", "clerk"]


def test_refused_calls_are_linked_to_the_trip(traced):
    """Refused calls are error spans linked to the span of the call that tripped."""
    agent = guard_agent(s.agent(s.always_new("search", batch=4), [s.look_up().tool]))
    with Session(policy=s.ceiling(2), telemetry=traced.telemetry), pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    refused = [span for span in traced.spans() if span.attributes[names.OUTCOME] == "refused"]
    assert traced.outcomes().count("ok") == len(refused) == 2
    assert {link.context.span_id for span in refused for link in span.links} <= {one.context.span_id for one in refused}


def test_span_of_another_instrumentation_is_enriched(traced):
    """Where a tool span of another instrumentation is current it gets our attributes, and there is no second one."""
    seen = s.look_up()
    agent = guard_agent(s.agent([[("search", {})]], [seen.tool]))

    async def go():
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
        with traced.tracer.start_as_current_span("execute_tool search", attributes=attributes):
            return await Runner.run(agent, "Find the word.")

    with Session(telemetry=traced.telemetry):
        asyncio.run(go())
    (span,) = traced.spans()
    assert span.attributes[names.OUTCOME] == "ok"


def test_streamed_run_read_outside_the_block(traced):
    """A streamed run belongs to the block in which it was begun, wherever its events are read."""

    async def go():
        with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session:
            result = Runner.run_streamed(
                guard_agent(s.agent(s.for_ever("search"), [s.look_up().tool])), "Find.", max_turns=50
            )
        with pytest.raises(CircuitOpen):
            async for _ in result.stream_events():
                pass
        return session.id

    session_id = asyncio.run(go())
    assert {span.attributes["toolguard.session.id"] for span in traced.spans()} == {session_id}
    assert traced.outcomes() == ["ok"] * 3


def test_stream_left_early_ends_its_spans(traced):
    """Where the reader of a stream cancels the run, no span and no call stays open."""

    async def go():
        with Session(telemetry=traced.telemetry) as session:
            result = Runner.run_streamed(
                guard_agent(s.agent(s.always_new("search"), [s.look_up().tool])), "Find.", max_turns=50
            )
            async for event in result.stream_events():
                if event.type == "run_item_stream_event":
                    result.cancel()
                    break
            await asyncio.sleep(0.05)
            return session.report()

    report = asyncio.run(go())
    assert report["in_flight"] == 0
    assert report["failed"] == 0


class Measuring(Telemetry):
    """Telemetry that notes how many calls each run came to, and whether it was stopped, when that is told."""

    def __init__(self):
        super().__init__(tracer_provider=TracerProvider(), meter_provider=NoOpMeterProvider())
        self.runs = []

    def run_ended(self, *, calls, peak_repeats, tripped, distinct):
        self.runs.append((calls, tripped))


@pytest.mark.parametrize("run", s.WAYS)
def test_a_run_is_measured_when_it_is_over(run):
    """A run that came to its end, one that was stopped and one inside another's call are each measured once."""
    telemetry, seen = Measuring(), s.look_up()
    run(guard_agent(s.agent([[("search", {})], [("search", {"q": "b"})]], [seen.tool]), telemetry=telemetry), "Find.")
    assert telemetry.runs == [(2, False)]
    stopped = s.agent(s.for_ever("search"), [seen.tool])
    with pytest.raises(CircuitOpen):
        run(guard_agent(stopped, policy=s.repeat(3), telemetry=telemetry), "Find.")
    assert telemetry.runs == [(2, False), (3, True)]
    inner = s.agent([[("search", {})]], [seen.tool], name="inner", prefix="inner")
    run(
        guard_agent(s.agent([[("ask", {"input": "x"})]], [inner.as_tool("ask", "Asks.")]), telemetry=telemetry), "Find."
    )
    assert telemetry.runs[2:] == [(1, False), (2, False)]


def test_a_run_that_was_handed_on_is_one_run():
    """After a hand-off the run goes on, and is measured with the calls of both agents when it is over."""
    telemetry, seen = Measuring(), s.look_up()
    clerk = s.agent([[("search", {})]], [seen.tool], name="clerk", prefix="clerk")
    first = s.agent([[("search", {})], [("transfer_to_clerk", {})]], [seen.tool], handoffs=[clerk], name="first")
    s.run(guard_agent(first, telemetry=telemetry), "Find the word.")
    assert telemetry.runs == [(2, False)]
