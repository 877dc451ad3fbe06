"""Which calls are the same call, and which answers the same answer."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import pytest
from langchain.agents import AgentState, create_agent
from langchain.tools import InjectedState, InjectedToolCallId, ToolRuntime
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002  (LangChain reads the annotation)
from langchain_core.tools import InjectedToolArg, StructuredTool, tool
from langgraph.types import Command
from otel_toolguard_langchain import ToolGuardMiddleware
from pydantic import BaseModel, Field

from otel_toolguard import CircuitOpen, Session, guard_tool

from . import scripted as s


class Query(BaseModel):
    q: str
    pages: list[int] = Field(default_factory=list)
    n: int = 3


def signatures(given_tool, asks, traced, run=s.invoke):
    """The distinct signatures of these calls."""
    model = s.model([[ask] for ask in asks])
    with Session(telemetry=traced.telemetry):
        run(create_agent(model, [given_tool], middleware=[ToolGuardMiddleware()]), s.ask())
    spans = traced.spans()
    assert len(spans) == len(asks)
    return len({span.attributes["toolguard.signature"] for span in spans})


def search(q: str, n: int = 3) -> str:
    """Looks something up."""
    return q


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer", "default": 3}}}
DEFAULTS = {
    "by the function": lambda: tool(search),
    "by the function, guarded": lambda: tool(guard_tool(search)),
    "by a model": lambda: StructuredTool.from_function(
        lambda q, **rest: q, name="search", description="Looks.", args_schema=Query
    ),
    "by a JSON schema": lambda: StructuredTool.from_function(
        lambda q, n=3: q, name="search", description="Looks.", args_schema=SCHEMA
    ),
}


@pytest.mark.parametrize("case", DEFAULTS)
def test_default_said_or_left_out(case, traced):
    """A default that the model says and one that it leaves out are the same call; another value is another call."""
    asks = [
        ("search", {"q": "a"}),
        ("search", {"q": "a", "n": 3}),
        ("search", {"n": 3, "q": "a"}),
        ("search", {"q": "a", "n": 4}),
    ]
    assert signatures(DEFAULTS[case](), asks, traced) == 2


class State(AgentState):
    budget: int


class Secret(InjectedToolArg):
    """What an application injects."""


@tool
@guard_tool
def injected(
    q: str,
    state: Annotated[dict, InjectedState],
    call_id: Annotated[str, InjectedToolCallId],
    runtime: ToolRuntime,
    config: RunnableConfig,
) -> str:
    """Is given much that the model did not say."""
    assert call_id == runtime.tool_call_id
    assert state["messages"]
    assert "metadata" in config
    return q


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_injected_values_are_not_arguments(run, traced):
    """State, runtime, config and call id are new in each call, and yet equal arguments are one signature."""
    assert signatures(injected, [("injected", {"q": "a"})] * 3, traced, run) == 1


def test_injected_values_without_the_middleware(traced):
    """The decorator alone leaves them out too."""
    model = s.model([[("injected", {"q": "a"})]] * 3)
    with Session(telemetry=traced.telemetry):
        create_agent(model, [injected]).invoke(s.ask())
    assert len({span.attributes["toolguard.signature"] for span in traced.spans()}) == 1
    assert len(traced.spans()) == 3


@tool
def message_with_new_id(q: str, call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Answers with a message of its own."""
    return ToolMessage("nothing", tool_call_id=call_id, id=uuid.uuid4().hex)


@tool
def command(q: str, call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Answers with a command."""
    return Command(update={"messages": [ToolMessage("nothing", tool_call_id=call_id)], "budget": 3})


@tool
def blocks(q: str) -> list:
    """Answers with content blocks that carry ids."""
    return [{"type": "text", "text": "nothing", "id": f"lc_{uuid.uuid4()}"}]


@tool
def structured(q: str) -> dict:
    """Answers with data."""
    return {"hits": [], "total": 0}


@tool(response_format="content_and_artifact")
def artifact(q: str) -> tuple[str, Any]:
    """Answers with a text and something that the model does not see."""
    return "nothing", object()


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
@pytest.mark.parametrize("made", [message_with_new_id, command, blocks, structured, artifact], ids=lambda t: t.name)
def test_equal_answers_are_a_loop(made, run, traced):
    """Whatever shape a tool answers in, the same answer again and again reaches the limit."""
    model = s.model(s.for_ever(made.name, {"q": "a"}))
    guard = ToolGuardMiddleware(s.repeat(4), telemetry=traced.telemetry)
    agent = create_agent(model, [made], middleware=[guard], state_schema=State)
    with pytest.raises(CircuitOpen) as caught:
        run(agent, s.ask())
    assert model.asked == 4
    assert traced.outcomes() == ["ok"] * 4
    assert s.mispaired(caught.value.partial["messages"]) == ""


@tool
def screenshot(q: str, call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Answers "ok", and puts what is to be seen in a message of the user's."""
    view = HumanMessage(f"page {uuid.uuid4().int % 10**9} of words: {next(WORDS)}")
    return Command(update={"messages": [ToolMessage("ok", tool_call_id=call_id), view]})


@tool
def spend(q: str, runtime: ToolRuntime, call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Answers "ok", and changes the agent's state."""
    left = runtime.state.get("budget", 9) - 1
    return Command(update={"messages": [ToolMessage("ok", tool_call_id=call_id)], "budget": left})


WORDS = iter(f"{a}{b}{c}" for a in "ambertonic" for b in "copper" for c in "stone")


@pytest.mark.parametrize("made", [screenshot, spend], ids=lambda t: t.name)
def test_news_beside_the_answer_is_progress(made):
    """A command that brings something new, in a message or in the state, is no repetition."""
    model = s.model([[(made.name, {"q": "a"})]] * 6)
    agent = create_agent(model, [made], middleware=[ToolGuardMiddleware(s.repeat(3))], state_schema=State)
    assert agent.invoke(s.ask())["messages"][-1].content == "Done."


def test_result_key_of_the_decorator():
    """A result_key on the decorator compares what the function returned, not the text that LangChain made of it."""
    words = iter(["alder", "birch", "cedar", "elder", "hazel"])

    @tool
    @guard_tool(result_key=lambda result: result["total"])
    def search(q: str) -> dict:
        """Looks something up."""
        return {"total": 0, "note": next(words)}

    model = s.model(s.for_ever("search", {"q": "a"}))
    with pytest.raises(CircuitOpen):
        create_agent(model, [search], middleware=[ToolGuardMiddleware(s.repeat(3))]).invoke(s.ask())
    assert model.asked == 3


def test_decorator_of_a_subclass_is_heard(traced):
    """What the decorator on a subclass's _run says about the tool holds under the middleware too."""
    from langchain_core.tools import BaseTool

    class Poller(BaseTool):
        name: str = "lookup"
        description: str = "Asks again and again."

        @guard_tool(name="lookup", tool_class="network", poll=True)
        def _run(self, q: str) -> str:
            return "pending"

    model = s.model(lambda turn: [("lookup", {"q": "a"})] if turn <= 6 else None)
    guard = ToolGuardMiddleware(s.repeat(3), telemetry=traced.telemetry)
    result = create_agent(model, [Poller()], middleware=[guard]).invoke(s.ask())
    assert result["messages"][-1].content == "Done."
    assert {span.attributes["toolguard.tool.class"] for span in traced.spans()} == {"network"}
