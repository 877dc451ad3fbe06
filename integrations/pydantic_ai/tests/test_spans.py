"""Spans: one for each attempt, in its place, and never a second one beside Pydantic AI's own."""

from __future__ import annotations

import pytest
from opentelemetry.trace import StatusCode
from otel_toolguard_pydantic_ai import ToolGuard
from pydantic_ai import Agent, InstrumentationSettings, ModelRetry, Tool
from pydantic_ai.capabilities import Instrumentation

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.testing.scripts import always_new, for_ever

from . import scripted as s


def instrumented(how, model, tools, traced, **more):
    """An agent that Pydantic AI itself traces, by setting or by capability."""
    settings = InstrumentationSettings(tracer_provider=traced.provider)
    before = [Instrumentation(settings=settings)] if how == "capability before" else []
    after = [Instrumentation(settings=settings)] if how == "capability after" else []
    agent = Agent(model, tools=tools, capabilities=[*before, ToolGuard(), *after], **more)
    if how == "setting":
        agent.instrument = settings
    return agent


HOW = ("setting", "capability before", "capability after")


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("how", HOW)
def test_own_spans_are_added_to(how, run, traced):
    """Each attempt has one span, Pydantic AI's, with the guard's attributes; a refused one is an error."""
    model = s.ScriptedModel(always_new("search", batch=2))
    agent = instrumented(how, model, [s.look_up().tool], traced)
    with Session(policy=s.ceiling(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen):
        run(agent, "Find the word.")
    spans = traced.spans()
    assert {span.instrumentation_scope.name for span in spans} == {"pydantic-ai"}
    assert sorted(traced.outcomes()) == ["ok", "ok", "ok", "refused"]
    assert len({span.attributes["gen_ai.tool.call.id"] for span in spans}) == 4
    (refused,) = [span for span in spans if span.attributes["toolguard.outcome"] == "refused"]
    assert refused.status.status_code is StatusCode.ERROR
    agents = {span.context.span_id for span in traced.named("invoke_agent", "agent run")}
    assert {span.parent.span_id for span in spans} <= agents | {one.context.span_id for one in traced.named("running")}


@pytest.mark.parametrize("how", HOW)
def test_no_span_of_a_request_that_is_not_made(how, traced):
    """A stopped run shows as many model requests as there were."""
    model = s.ScriptedModel(for_ever("search"))
    agent = instrumented(how, model, [s.look_up().tool], traced)
    with Session(policy=s.repeat(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen):
        s.run_sync(agent, "Find the word.")
    assert model.asked == len(traced.named("chat")) == 3


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("name", "arguments"), [("search", {"q": [1]}), ("unheard_of", {})])
def test_call_that_reached_no_tool_has_one_span(name, arguments, how, traced):
    """Whether the framework tells of such a call or the guard does, it is one span."""
    model = s.ScriptedModel(lambda _: [(name, arguments)])
    agent = instrumented(how, model, [s.look_up().tool], traced, retries=20)
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        s.run_sync(agent, "Find the word.")
    ids = [span.attributes["gen_ai.tool.call.id"] for span in traced.spans()]
    assert ids == ["call-1-0", "call-2-0", "call-3-0"]
    assert session.report()["failed"] == 3


@pytest.mark.parametrize("run", s.WAYS)
def test_place_in_the_trace(run, traced):
    """Without instrumentation of the framework's own the span is the user's child, and what a tool traces is its."""

    def search(q: str) -> str:
        with traced.tracer.start_as_current_span("inside"):
            return q

    agent = Agent(s.ScriptedModel([[("search", {"q": "a"})]]), tools=[Tool(search)], capabilities=[ToolGuard()])
    with Session(telemetry=traced.telemetry), traced.tracer.start_as_current_span("request") as request:
        run(agent, "Find the word.")
    (span,) = traced.spans()
    assert span.parent.span_id == request.get_span_context().span_id
    (inside,) = traced.named("inside")
    assert inside.parent.span_id == span.context.span_id


def test_names_and_conversation(traced):
    """Spans name the agent, and the conversation where its id names the session."""
    agent = Agent(
        s.ScriptedModel([[("search", {"q": "a"})]]), name="clerk", tools=[s.look_up().tool],
        capabilities=[ToolGuard(telemetry=traced.telemetry)],
    )  # fmt: skip
    s.run_sync(agent, "Find the word.", conversation_id="conversation-42")
    (span,) = traced.spans()
    assert span.attributes["gen_ai.agent.name"] == "clerk"
    assert span.attributes["gen_ai.conversation.id"] == "conversation-42"


def test_values_stay_untold(traced):
    """Neither arguments nor what a failing tool or validation says of them is on any span of the guard's."""

    def leaks(q: str) -> str:
        raise ModelRetry(f"no {q}")

    model = s.ScriptedModel([[("leaks", {"q": "hunter2"})], [("leaks", {"hunter2": "hunter2"})]])
    agent = Agent(model, tools=[Tool(leaks)], capabilities=[ToolGuard()], retries=5)
    with Session(telemetry=traced.telemetry):
        s.run_sync(agent, "Find the word.")
    assert len(traced.spans()) == 2
    assert "hunter2" not in "".join(span.to_json() for span in traced.spans())
