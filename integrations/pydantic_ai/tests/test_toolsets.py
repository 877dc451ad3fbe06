"""Tools wherever Pydantic AI takes them from, and which calls of them are the same call."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import pytest
from otel_toolguard_pydantic_ai import ToolGuard
from pydantic import BaseModel, Field
from pydantic_ai import Agent, RunContext, Tool, ToolReturn
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from otel_toolguard import CircuitOpen, Session, ToolGuardError, assert_guarded, guard_tool
from otel_toolguard.testing.scripts import DONE, for_ever

from . import scripted as s


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Query(BaseModel):
    q: str
    n: int = 3


@dataclass
class Deps:
    secret: str


def plain(q: str, n: int = 3, colour: Colour = Colour.RED) -> str:
    """Looks something up."""
    return q


def with_context(ctx: RunContext[Deps], q: str, n: int = 3) -> str:
    """Is given the run's context first."""
    assert ctx.deps.secret == "hunter2"
    return q


def with_field(q: str, n: Annotated[int, Field(default=3)]) -> str:
    """Says its default in the annotation."""
    return q


def with_model(query: Query) -> str:
    """Takes one model, whose fields are the arguments."""
    return query.q


def with_anything(**rest) -> str:
    """Takes what its schema says."""
    return rest["q"]


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer", "default": 3}}}
TOOLS = {
    "plain": lambda: Tool(plain, name="search"),
    "plain, guarded": lambda: Tool(guard_tool(plain), name="search"),
    "with context": lambda: Tool(with_context, name="search"),
    "with context, guarded": lambda: Tool(guard_tool(with_context), name="search"),
    "default in the annotation": lambda: Tool(with_field, name="search"),
    "one model": lambda: Tool(with_model, name="search"),
    "by a JSON schema": lambda: Tool.from_schema(with_anything, "search", "Looks.", SCHEMA),
}


@pytest.mark.parametrize("case", TOOLS)
def test_which_calls_are_the_same(case, traced):
    """A default said or left out, and the order of arguments, make no other call; another value does."""
    asks = [{"q": "a"}, {"q": "a", "n": 3}, {"n": 3, "q": "a"}, {"q": "a", "n": 4}]
    if case.startswith("plain"):
        asks += [{"q": "a", "colour": "red"}, {"q": "a", "n": 4, "colour": "red"}]
    model = s.ScriptedModel([[("search", one)] for one in asks])
    agent = Agent(model, tools=[TOOLS[case]()], deps_type=Deps, capabilities=[ToolGuard()])
    with Session(telemetry=traced.telemetry):
        assert s.run_sync(agent, "Find the word.", deps=Deps("hunter2")).output == DONE
    spans = traced.spans()
    assert len(spans) == len(asks)
    signatures = [span.attributes["toolguard.signature"] for span in spans]
    assert len(set(signatures)) == 2
    assert signatures[0] == signatures[1] == signatures[2] != signatures[3]
    assert "hunter2" not in str([dict(span.attributes) for span in spans])


VALID = SchemaValidator(core_schema.dict_schema())


def fetch(what: str, key: str, q: str) -> str:
    """Gets something."""
    return f"{what} of {q}"


def test_partials_are_tools_of_their_own(traced):
    """Two partials of one function have counters of their own, and what they were given is on no span."""
    tools = [Tool(guard_tool(partial(fetch, one, "hunter2"), name=one), name=one) for one in ("weather", "forecast")]
    model = s.ScriptedModel([[("weather", {"q": "a"})], [("forecast", {"q": "a"})]] * 2)
    agent = Agent(model, tools=tools, capabilities=[ToolGuard()])
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session:
        answers = s.answers(s.run_sync(agent, "Find the word.").all_messages())
    assert [answer.content for answer in answers.values()] == ["weather of a", "forecast of a"] * 2
    assert {name: one["calls"] for name, one in session.report()["tools"].items()} == {"weather": 2, "forecast": 2}
    assert len(traced.spans()) == 4
    assert "hunter2" not in "".join(span.to_json() for span in traced.spans())


class Remote(AbstractToolset):
    """A toolset without functions, as of a server of another process."""

    @property
    def id(self):
        return "remote"

    async def get_tools(self, ctx):
        annotations = {"readOnlyHint": True}
        shown = ToolDefinition(name="search", parameters_json_schema=SCHEMA, metadata={"annotations": annotations})
        return {"search": ToolsetTool(toolset=self, tool_def=shown, max_retries=1, args_validator=VALID)}

    async def call_tool(self, name, tool_args, ctx, tool):
        return {"hits": []}


async def made_for_each_run(ctx):
    """A toolset that is made when a run begins."""
    return FunctionToolset([Tool(plain, name="search")])


def functions():
    return FunctionToolset([Tool(plain, name="search")])


TOOLSETS = {
    "functions": ("search", functions),
    "prefixed": ("web_search", lambda: functions().prefixed("web")),
    "renamed": ("find", lambda: functions().renamed({"find": "search"})),
    "filtered": ("search", lambda: functions().filtered(lambda _ctx, tool: tool.name == "search")),
    "prefixed, guarded": (
        "web_search",
        lambda: FunctionToolset([Tool(guard_tool(plain), name="search")]).prefixed("web"),
    ),
    "combined": ("search", lambda: CombinedToolset([functions(), functions().prefixed("web")])),
    "remote": ("search", Remote),
    "dynamic": ("search", lambda: made_for_each_run),
}


@pytest.mark.parametrize("run", [s.run_sync, s.run_stream, s.iterate])
@pytest.mark.parametrize("case", TOOLSETS)
def test_every_toolset_is_guarded(case, run, traced):
    """Whatever toolset a call goes to, the model's name for the tool counts it, once."""
    name, toolset = TOOLSETS[case]
    model = s.ScriptedModel(for_ever(name, {"q": "a"}))
    agent = Agent(model, toolsets=[toolset()], capabilities=[ToolGuard()])
    with Session(policy=s.repeat(4), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        run(agent, "Find the word.")
    assert session.report()["tools"][name]["calls"] == model.asked == len(traced.spans()) == 4


def test_toolset_of_one_run():
    """Toolsets that are given to a run are guarded, too."""
    model = s.ScriptedModel(for_ever("search", {"q": "a"}))
    agent = Agent(model, capabilities=[ToolGuard(s.repeat(4))])
    with pytest.raises(CircuitOpen):
        s.run_sync(agent, "Find the word.", toolsets=[functions()])
    assert model.asked == 4


def test_hints_of_a_server(traced):
    """What a server says about its tool decides the tool's class, where its name says less."""
    agent = Agent(
        s.ScriptedModel([[("search", {"q": "a"})]]), toolsets=[Remote()],
        capabilities=[ToolGuard(telemetry=traced.telemetry)],
    )  # fmt: skip
    s.run_sync(agent, "Find the word.")
    (span,) = traced.spans()
    assert span.attributes["toolguard.tool.class"] == "read"


def test_mcp_server(traced):
    """A server of the Model Context Protocol: its errors are failures, its calls are counted, its history is whole."""
    import fastmcp  # Pydantic AI talks to such servers by way of it
    from pydantic_ai.mcp import MCPToolset

    server, bodies = fastmcp.FastMCP("words"), []

    @server.tool
    def search(q: str) -> str:
        bodies.append(q)
        if q == "bad":
            raise ValueError("no such word")
        return "nothing"

    asks = [("search", {"q": "bad"}), ("search", {"q": "good"})]
    model = s.ScriptedModel(lambda turn: [asks[turn > 1]])
    agent = Agent(model, toolsets=[MCPToolset(server)], capabilities=[ToolGuard()], retries=3)
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen) as stopped:
        s.run(agent, "Find the word.")
    assert bodies == ["bad", "good", "good", "good"]
    assert traced.outcomes() == ["failed", "ok", "ok", "ok"]
    assert session.report()["tools"]["search"]["failed"] == 1
    assert s.mispaired(stopped.value.partial["messages"]) == ""


def changing(q: str) -> ToolReturn:
    """Answers the same, with data for the application that is never the same."""
    return ToolReturn("nothing", metadata={"at": object()})


def showing(q: str) -> ToolReturn:
    """Answers the same, with something new for the model beside it."""
    return ToolReturn("ok", content=next(WORDS))


WORDS = iter(["alder", "birch", "cedar", "elder", "hazel", "maple", "rowan"])


@pytest.mark.parametrize(("tool", "asked"), [(changing, 3), (showing, 6)], ids=["metadata", "content"])
def test_what_an_answer_says(tool, asked):
    """News for the model is progress; what only the application sees is not."""
    model = s.ScriptedModel(lambda turn: [("search", {"q": "a"})] if turn < 6 else None)
    agent = Agent(model, tools=[Tool(tool, name="search")], capabilities=[ToolGuard(s.repeat(3))])
    try:
        s.run_sync(agent, "Find the word.")
    except CircuitOpen:
        pass
    assert model.asked == asked


def test_result_key_of_the_decorator():
    """A result_key on the decorator compares what the function returned."""
    words = iter(["alder", "birch", "cedar", "elder", "hazel"])

    @guard_tool(result_key=lambda result: result["total"])
    def search(q: str) -> dict:
        return {"total": 0, "note": next(words)}

    model = s.ScriptedModel(for_ever("search", {"q": "a"}))
    agent = Agent(model, tools=[Tool(search)], capabilities=[ToolGuard(s.repeat(3))])
    with pytest.raises(CircuitOpen):
        s.run_sync(agent, "Find the word.")
    assert model.asked == 3


def test_assert_guarded_knows_the_guard():
    """The check for start-up passes an agent with the capability, and names the tools of the same one without."""

    def search(q: str) -> str:
        return q

    assert_guarded(Agent(TestModel(), tools=[search], capabilities=[ToolGuard()]))
    with pytest.raises(ToolGuardError, match="search"):
        assert_guarded(Agent(TestModel(), tools=[search]))
