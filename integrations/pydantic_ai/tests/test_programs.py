"""Programs at random: whatever is combined, limits are exact, and each call is counted, answered and traced once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otel_toolguard_pydantic_ai import PydanticAIStopped, ToolGuard, ToolGuardPydanticAIInstrumentor
from pydantic_ai import Agent, InstrumentationSettings, ModelResponse, Tool, UsageLimits
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset

from otel_toolguard import CircuitOpen, Session, guard_tool

from . import scripted as s

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
NO_LIMITS = UsageLimits(request_limit=None)
HOMES = {
    "agent": lambda tool: {"tools": [tool]},
    "toolset": lambda tool: {"toolsets": [FunctionToolset([tool])]},
    "combined": lambda tool: {"toolsets": [CombinedToolset([FunctionToolset([tool])])]},
    "filtered": lambda tool: {"toolsets": [FunctionToolset([tool]).filtered(lambda _ctx, _tool: True)]},
}


def made(data, script, traced):
    """An agent with one tool, put together at random; and whether the tool's call is also traced by the framework."""
    seen = s.look_up(data.draw(st.sampled_from(["sync", "async"])))
    function = guard_tool(seen.tool.function) if data.draw(st.booleans()) else seen.tool.function
    tool = Tool(function, name="search", max_retries=99)
    home = HOMES[data.draw(st.sampled_from(list(HOMES)))]
    by_hand = data.draw(st.booleans())
    agent = Agent(s.ScriptedModel(script), capabilities=[ToolGuard()] if by_hand else [], retries=99, **home(tool))
    native = data.draw(st.booleans())
    if native:
        agent.instrument = InstrumentationSettings(tracer_provider=traced.provider)
    return agent, seen, by_hand, native


@pytest.fixture
def zero_code():
    """Puts the adapter's zero-code guard on, and takes it off again."""
    instrumentor = ToolGuardPydanticAIInstrumentor()

    def run(wanted, work):
        if wanted:
            instrumentor.instrument()
        try:
            work()
        finally:
            if wanted:
                instrumentor.uninstrument()

    return run


@QUICK
@given(
    run=st.sampled_from(s.WAYS), limit=st.integers(1, 14), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    bad=st.sets(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=6), data=st.data(),
)  # fmt: skip
def test_ceiling_of_any_program(run, limit, sizes, bad, data, traced, zero_code):
    """Of calls good and bad as many are let through as the ceiling allows, and nothing is asked after the stop."""

    def script(turn):
        found = []
        for n in range(sizes[turn % len(sizes)]):
            wrong = ("unheard_of", {}) if n % 2 else ("search", {"wrong": f"{turn}.{n}"})
            found.append(wrong if (turn, n) in bad else ("search", {"q": f"{turn}.{n}"}))
        return found

    traced.clear()
    agent, seen, by_hand, native = made(data, script, traced)
    both, asked = data.draw(st.booleans()), []
    told = Session(
        policy=s.ceiling(limit), telemetry=traced.telemetry, on_trip=lambda _: asked.append(agent.model.asked)
    )
    in_trace, stops = traced.tracer.start_as_current_span("request"), pytest.raises(PydanticAIStopped)
    with told as session, in_trace as request, stops as stopped:
        zero_code(both or not by_hand, lambda: run(agent, "Find the word.", usage_limits=NO_LIMITS))
    report, kept = session.report(), stopped.value.partial["messages"]
    calls = [call for message in kept if isinstance(message, ModelResponse) for call in message.tool_calls]
    good = [call for call in calls if call.tool_name == "search" and "wrong" not in call.args_as_dict()]
    assert isinstance(stopped.value, CircuitOpen)
    assert (report["calls"], report["in_flight"], agent.model.asked) == (limit, 0, asked[0])
    assert seen.bodies <= len(good)
    assert s.mispaired(kept) == ""
    ids = Counter(span.attributes["gen_ai.tool.call.id"] for span in traced.spans())
    assert ids == Counter(call.tool_call_id for call in calls)
    if not native:
        assert {span.parent.span_id for span in traced.spans()} == {request.get_span_context().span_id}


@QUICK
@given(
    run=st.sampled_from(s.WAYS), limit=st.integers(2, 7), batch=st.integers(1, 5), data=st.data(),
)  # fmt: skip
def test_loop_of_any_program(run, limit, batch, data, traced, zero_code):
    """The same turn again and again is stopped when it has come round as often as the limit says."""
    traced.clear()
    agent, seen, by_hand, _ = made(data, lambda _turn: [("search", {})] * batch, traced)
    both = data.draw(st.booleans())
    with Session(policy=s.repeat(limit), telemetry=traced.telemetry), pytest.raises(PydanticAIStopped) as stopped:
        zero_code(both or not by_hand, lambda: run(agent, "Find the word.", usage_limits=NO_LIMITS))
    assert (agent.model.asked, seen.bodies, len(traced.spans())) == (limit, limit * batch, limit * batch)
    kept = stopped.value.partial["messages"]
    assert s.mispaired(kept) == ""
    agent.model.script = lambda _turn: None
    assert run(agent, "Sum up.", message_history=kept) is not None
