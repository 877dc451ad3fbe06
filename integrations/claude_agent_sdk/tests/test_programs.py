"""Programs at random: whatever is combined, limits are exact, and each call is counted, answered and traced once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from claude_agent_sdk import ClaudeAgentOptions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otel_toolguard_claude_agent_sdk import (
    ClaudeAgentStopped,
    ToolGuardClaudeAgentSDKInstrumentor,
    guard_options,
    guarded_stream,
)

from otel_toolguard import CircuitOpen, Session, guard_tool

from . import scripted as s

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def as_it_is(given):
    return given


async def read(_said):
    await asyncio.sleep(0)
    return "nothing"


def made(draw, script):
    """A scripted Claude Code and options for it, both put together at random; and the name of its tool."""
    cli = s.ScriptedCLI(
        script, own={"Read": read}, batches=draw(st.booleans()), apart=draw(st.booleans()), dies=draw(st.booleans()),
        prefixed=draw(st.booleans()), prompt_ids=draw(st.booleans()), tells_ids=draw(st.booleans()),
        in_turn=draw(st.booleans()), session_id=draw(st.sampled_from([None, "always the same"])),
    )  # fmt: skip
    if draw(st.booleans()):
        return cli, {}, "Read"

    async def look(q="word"):
        return await read(q)

    tool = s.tool_of(guard_tool(look) if draw(st.booleans()) else look)
    return cli, s.serve(cli, [tool]), "mcp__tools__look" if cli.prefixed else "look"


def goes(draw, cli, options):
    """Runs it, guarded by hand, without a word of code, or both."""
    way, by_hand = draw(st.sampled_from(list(s.WAYS))), draw(st.booleans())
    instrumentor = ToolGuardClaudeAgentSDKInstrumentor()
    zero_code = not by_hand or draw(st.booleans())
    guard, wrap = (guard_options, guarded_stream) if by_hand else (as_it_is, as_it_is)
    if zero_code:
        instrumentor.instrument()
    try:
        asyncio.run(s.WAYS[way](cli, guard(ClaudeAgentOptions(**options)), "Find it.", wrap))
    finally:
        if zero_code:
            instrumentor.uninstrument()


def check(cli, traced, request):
    """Each call has one answer, and one span in its place."""
    asked = Counter(entry[1]["id"] for entry in cli.history if entry[0] == "call")
    assert Counter(entry[1] for entry in s.answers(cli.history)) == asked
    assert Counter(span.attributes["gen_ai.tool.call.id"] for span in traced.spans()) == asked
    assert {span.parent.span_id for span in traced.spans()} == {request.get_span_context().span_id}


@QUICK
@given(limit=st.integers(1, 12), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), data=st.data())
def test_ceiling_of_any_program(limit, sizes, data, traced):
    """As many bodies run as the ceiling allows, and the model is asked no more after the stop."""
    traced.clear()
    cli, options, name = made(
        data.draw, lambda turn: [(name, {"q": f"{turn}.{n}"}) for n in range(sizes[turn % len(sizes)])]
    )
    asked = []
    told = Session(policy=s.ceiling(limit), telemetry=traced.telemetry, on_trip=lambda _: asked.append(cli.asked))
    in_trace, stops = traced.tracer.start_as_current_span("request"), pytest.raises(ClaudeAgentStopped)
    with told as session, in_trace as request, stops as stopped:
        goes(data.draw, cli, options)
    assert isinstance(stopped.value, CircuitOpen)
    report = session.report()
    assert (cli.ran, report["calls"], report["in_flight"], cli.asked) == (limit, limit, 0, asked[0])
    check(cli, traced, request)


@QUICK
@given(limit=st.integers(2, 6), batch=st.integers(1, 5), data=st.data())
def test_loop_of_any_program(limit, batch, data, traced):
    """The same turn again and again is stopped when it has come round as often as the limit says."""
    traced.clear()
    cli, options, name = made(data.draw, lambda _turn: [(name, {"q": "same"})] * batch)
    told = Session(policy=s.repeat(limit), telemetry=traced.telemetry)
    with told, traced.tracer.start_as_current_span("request") as request, pytest.raises(ClaudeAgentStopped):
        goes(data.draw, cli, options)
    assert (cli.asked, cli.ran) == (limit, limit * batch)
    check(cli, traced, request)
