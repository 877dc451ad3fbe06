"""Tool objects of the frameworks under guard: called by the framework itself, guarded once, and looked into."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import threading
from typing import Any

import agents
import pytest
from agents.models.interface import Model
from frameworks import MAKERS, Context, MCPServer, McpTool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset, PrefixedToolset

from otel_toolguard import (
    MemoryStore,
    Policy,
    Session,
    SettingsError,
    ToolGuardError,
    assert_guarded,
    find_trip,
    guard_tool,
)

agents.set_tracing_disabled(True)
LIMIT = 3
ROUNDS = 6
RULES = [{"plugin": "repeat_guard", "limit": LIMIT}, {"plugin": "tool_stats"}]


def opened(*rules):
    return Session("s", policy=Policy(plugins=rules or RULES), store=MemoryStore())


class Scripted(Model):
    """Asks for the same tool again and again, then says that it is done."""

    def __init__(self, name, arguments, rounds=ROUNDS):
        self.name, self.arguments, self.rounds, self.asked = name, arguments, rounds, 0

    async def get_response(self, *args, **kwargs):
        self.asked += 1
        if self.asked <= self.rounds:
            item: Any = ResponseFunctionToolCall(
                type="function_call", name=self.name, call_id=f"c{self.asked}", arguments=self.arguments
            )
        else:
            text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
            item = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return agents.ModelResponse(output=[item], usage=agents.Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def look(q: str, n: int = 3) -> str:
    """Looks."""
    return q


async def look_later(q: str, n: int = 3) -> str:
    """Looks, later."""
    await asyncio.sleep(0)
    return q


def looking(ctx: RunContext[int], q: str) -> str:
    """Looks with a context."""
    return f"{q} {ctx.deps}"


async def by_hand(ctx, text):
    return json.loads(text)["q"]


def manual():
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    }
    return agents.FunctionTool("manual", "Made by hand.", schema, by_hand)


class OwnInvoker(agents.FunctionTool):
    """A tool whose invoker is a method of its own."""

    def __init__(self):
        super().__init__(
            "own", "Its own.", {"type": "object", "properties": {}}, self._invoke, strict_json_schema=False
        )
        self.calls = 0

    async def _invoke(self, ctx, text):
        self.calls += 1
        return "same"


OPENAI = {
    "sync": lambda: agents.function_tool(look),
    "async": lambda: agents.function_tool(look_later),
    "by hand": manual,
}
COPIES = {
    "itself": lambda tool: tool,
    "copy": copy.copy,
    "replace": dataclasses.replace,
    "deepcopy": copy.deepcopy,
}


def context(tool, text, n):
    return agents.tool_context.ToolContext(
        context=None, tool_name=tool.name, tool_call_id=f"c{n}", tool_arguments=text, usage=None
    )


def run_openai(tool, arguments='{"q": "x"}', rounds=ROUNDS):
    model = Scripted(tool.name, arguments, rounds)
    return model, agents.Agent("a", model=model, tools=[tool])


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", OPENAI)
def test_an_openai_tool_and_its_copies_are_guarded_once(kind, how):
    """However the tool is copied, each invocation is one call, equal ones are refused past the limit by raising."""
    bare = OPENAI[kind]()
    tool = COPIES[how](guard_tool(bare))
    assert guard_tool(tool) is tool
    with opened() as session:
        for n in range(LIMIT):
            assert asyncio.run(tool.on_invoke_tool(context(tool, '{"q": "x"}', n), '{"q": "x"}')) == "x"
        assert session.report()["calls"] == LIMIT
        assert set(session.trip.members[0].arguments) - {"n"} == {"q"}
        with pytest.raises(Exception, match="came round") as stopped:
            asyncio.run(tool.on_invoke_tool(context(tool, '{"q": "x"}', 9), '{"q": "x"}'))
        assert find_trip(stopped.value) is not None
    with opened() as session:
        asyncio.run(bare.on_invoke_tool(context(bare, '{"q": "x"}', 0), '{"q": "x"}'))
        assert session.report()["calls"] == 0


async def test_a_stop_ends_an_openai_run():
    """The framework lets the stop out of the run, with the trip on it; no further model call is made."""
    model, agent = run_openai(guard_tool(agents.function_tool(look)))
    with opened() as session, pytest.raises(Exception, match="came round") as stopped:
        await agents.Runner.run(agent, "go", max_turns=ROUNDS + 1)
    assert find_trip(stopped.value).rule == "repeat_guard"
    assert (session.report()["calls"], model.asked) == (LIMIT, LIMIT + 1)


async def test_a_refusal_is_an_answer_to_an_openai_agent():
    """A call that alone is refused is answered with the reason, and the run goes on to its end."""
    _, agent = run_openai(guard_tool(agents.function_tool(look)))
    with opened({"plugin": "call_ceiling", "tools": {"look": 2}}) as session:
        result = await agents.Runner.run(agent, "go", max_turns=ROUNDS + 1)
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert result.final_output == "Done."
    assert outputs[:2] == ["x", "x"]
    assert all(json.loads(output)["error"] == "circuit_open" for output in outputs[2:])
    assert (len(outputs), session.report()["calls"]) == (ROUNDS, 2)


def test_defaults_and_bad_json_of_an_openai_tool():
    """A default said or left out is one call; arguments that are no JSON object are signed by their text."""
    tool = guard_tool(agents.function_tool(strict_mode=False)(look))
    with opened() as session:
        for n, text in enumerate(['{"q": "x"}', '{"n": 3, "q": "x"}', '{"q":"x","n":3}']):
            asyncio.run(tool.on_invoke_tool(context(tool, text, n), text))
        assert session.trip is not None
    with opened() as session:
        for n in range(LIMIT):
            assert "rror" in asyncio.run(tool.on_invoke_tool(context(tool, "{broken", n), "{broken"))
        assert session.report()["in_flight"] == 0


def test_a_method_as_invoker_stays_with_its_copy():
    """A class that invokes itself is copied with its method; where the framework cannot copy it, that is an error."""
    bare = OwnInvoker()
    try:
        copy.copy(bare)
    except TypeError:  # earlier releases copy by calling the class
        with pytest.raises(SettingsError, match="cannot be copied"):
            guard_tool(bare)
        return
    tool = guard_tool(bare)
    with opened() as session:
        assert asyncio.run(tool.on_invoke_tool(context(tool, "{}", 1), "{}")) == "same"
        assert session.report()["calls"] == 1
    assert (isinstance(tool, OwnInvoker), tool.calls, bare.calls) == (True, 1, 0)


@pytest.mark.parametrize("function", [look, look_later, looking])
@pytest.mark.parametrize("above", [True, False], ids=["object", "function"])
async def test_a_pydantic_tool_is_guarded_once(function, above):
    """In a run of the agent each call is counted once and without its context; the loop ends with the trip."""
    tool = guard_tool(Tool(function)) if above else Tool(guard_tool(function))
    assert guard_tool(tool) is tool
    turns = []

    def model(messages, info):
        turns.append(1)
        return ModelResponse(parts=[ToolCallPart(function.__name__, {"q": "x"})])

    agent = Agent(FunctionModel(model), tools=[tool], deps_type=int)
    with opened() as session:
        with pytest.raises(Exception, match="came round") as stopped:
            await agent.run("go", deps=1)
        assert find_trip(stopped.value) is session.trip or find_trip(stopped.value) == session.trip
        assert session.report()["calls"] == LIMIT
        assert "ctx" not in session.trip.members[0].arguments
    assert len(turns) == LIMIT + 1


@pytest.mark.parametrize("bound_above", [True, False], ids=["bound object", "bound function"])
def test_bound_tools_run_in_their_session_from_a_raw_thread(bound_above):
    """session.bind on a tool object binds the function inside a copy; calls from a thread without context count."""
    made = {
        "openai": lambda session: agents.function_tool(look),
        "pydantic": lambda session: Tool(look),
        "mcp": lambda session: McpTool.from_function(look),
    }
    for kind, make in made.items():
        session = opened()
        tool = guard_tool(make(session))
        tool = session.bind(tool) if bound_above else guard_tool(session.bind(make(session)))
        answers = []

        async def call(kind=kind, tool=tool):
            if kind == "openai":
                return await tool.on_invoke_tool(context(tool, '{"q": "x"}', 1), '{"q": "x"}')
            if kind == "mcp":
                return await tool.run({"q": "x"}, Context())
            deps: Any = None
            return await tool.function_schema.call({"q": "x", "n": 3}, deps)

        thread = threading.Thread(target=lambda call=call, answers=answers: answers.append(asyncio.run(call())))
        thread.start()
        thread.join()
        assert (kind, answers, session.report()["calls"]) == (kind, ["x"], 1)


@pytest.mark.parametrize("function", [look, look_later])
async def test_a_tool_of_an_mcp_server_is_guarded_once(function):
    """A guarded tool object that is handed to the server counts each call of a client once, the bare one none."""
    bare = McpTool.from_function(function)
    server = MCPServer("s", tools=[guard_tool(bare)])
    with opened() as session:
        for _ in range(2):
            await server.call_tool(function.__name__, {"q": "x"})
        assert session.report()["calls"] == 2
        await MCPServer("t", tools=[bare]).call_tool(function.__name__, {"q": "x"})
        assert session.report()["calls"] == 2


async def test_a_context_of_an_mcp_server_is_no_argument():
    """The server's context reaches the function, and is not part of the call."""

    def with_context(q: str, ctx: Context) -> str:
        """Looks."""
        assert ctx is not None
        return q

    with_context.__annotations__ = {"q": str, "ctx": Context, "return": str}
    server = MCPServer("s", tools=[McpTool.from_function(guard_tool(with_context))])
    with opened() as session:
        for _ in range(LIMIT):
            await server.call_tool("with_context", {"q": "x"})
        assert list(session.trip.members[0].arguments) == ["q"]


# ------------------------------------------------------------------------------------------------ assert_guarded


def unguarded_in(agent):
    with pytest.raises(ToolGuardError, match="not guarded") as caught:
        assert_guarded(agent)
    return str(caught.value)


def test_tools_of_an_openai_agent_are_looked_at():
    """Tools, tools of agents behind hand-offs and behind tools are named; what cannot be looked into is too."""
    guarded, bare = guard_tool(agents.function_tool(look)), agents.function_tool(look_later)
    assert_guarded(agents.Agent("a", tools=[guarded, agents.function_tool(guard_tool(name="x")(look)), guarded][:1]))
    assert "look_later" in unguarded_in(agents.Agent("a", tools=[guarded, bare]))
    inner = agents.Agent("inner", tools=[bare])
    assert "look_later" in unguarded_in(agents.Agent("a", tools=[guarded], handoffs=[inner]))
    assert "look_later" in unguarded_in(agents.Agent("a", tools=[guarded], handoffs=[agents.handoff(inner)]))
    assert "look_later" in unguarded_in(agents.Agent("a", tools=[guard_tool(inner.as_tool("ask", "Asks."))]))
    assert "WebSearchTool" in unguarded_in(agents.Agent("a", tools=[guarded, agents.WebSearchTool()]))
    inner.handoffs = [inner]
    assert "look_later" in unguarded_in(inner)
    with pytest.raises(SettingsError, match="no tool"):
        assert_guarded(agents.Agent("a"))


def test_an_mcp_server_of_an_openai_agent_cannot_be_looked_into():
    """Tools of an MCP server are known only when it is asked: they count as not guarded."""

    class Server(agents.mcp.MCPServerStdio):
        def __init__(self):
            self._name = "files"

        @property
        def name(self):
            return self._name

    agent = agents.Agent("a", tools=[guard_tool(agents.function_tool(look))], mcp_servers=[Server()])
    assert "MCP server files" in unguarded_in(agent)


def test_toolsets_of_a_pydantic_agent_are_looked_at():
    """Functions, tools and toolsets inside toolsets are looked at; a toolset of another kind counts as not guarded."""
    guarded, bare = guard_tool(Tool(look)), Tool(look_later)
    assert_guarded(Agent("test", tools=[guarded, guard_tool(looking)]))
    assert "look_later" in unguarded_in(Agent("test", tools=[guarded, bare]))
    nested = PrefixedToolset(CombinedToolset([FunctionToolset([bare])]), "x")
    assert "look_later" in unguarded_in(Agent("test", tools=[guarded], toolsets=[nested]))
    made = Agent("test", tools=[guarded], toolsets=[lambda ctx: FunctionToolset([bare])])
    assert "cannot be looked into" in unguarded_in(made)
    with pytest.raises(SettingsError, match="no tool"):
        assert_guarded(Agent("test"))


def test_a_list_of_tools_of_several_frameworks_is_looked_at():
    """Each tool object in a list is looked at, whatever framework it is of."""
    tools = {name: make(look) for name, make in MAKERS.items()}
    assert_guarded([guard_tool(tool) for tool in tools.values()])
    for name, tool in tools.items():
        assert "look" in unguarded_in([guard_tool(tool) if other != name else tool for other, tool in tools.items()])
        assert "look" in unguarded_in(tool)
