"""Tool objects under guard: the function inside a copy is guarded, once, whoever else guards; nothing passes unseen."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, Tool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from otel_toolguard_langchain import ToolGuardMiddleware
from pydantic import Field

from otel_toolguard import (
    MemoryStore,
    Policy,
    Session,
    SessionStopped,
    SettingsError,
    ToolGuardError,
    assert_guarded,
    guard_tool,
    tool_objects,
)

LIMIT = 3
RULES = Policy(plugins=[{"plugin": "repeat_guard", "limit": LIMIT}, {"plugin": "tool_stats"}])


def opened():
    return Session("s", policy=RULES, store=MemoryStore())


def calls(session):
    return {name: row["calls"] for name, row in session.report()["tools"].items()}


class Asks(BaseChatModel):
    """Asks for one tool once, then says that it is done."""

    name_asked: str
    arguments: dict[str, Any]

    @property
    def _llm_type(self):
        return "asks"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        asked = any(isinstance(message, ToolMessage) for message in messages)
        call = {"name": self.name_asked, "args": self.arguments, "id": "c1"}
        message = AIMessage("Done.") if asked else AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])


@tool
def sync(q: str, n: int = 3) -> str:
    """Looks."""
    return q


@tool
async def later(q: str) -> str:
    """Looks, later."""
    await asyncio.sleep(0)
    return q


async def also_later(q: str, n: int = 3) -> str:
    return q


class Own(BaseTool):
    """Implements the tool in a class."""

    name: str = "own"
    description: str = "Looks by itself."
    seen: list[str] = Field(default_factory=list)

    def _run(self, q: str, n: int = 3) -> str:
        self.seen.append(q)
        return q


class Heir(Own):
    """Inherits one method, and another calls it."""

    name: str = "heir"

    async def _arun(self, q: str, n: int = 3) -> str:
        return self._run(q, n)


class Caller(Own):
    """Overrides, and calls what it overrides."""

    name: str = "caller"

    def _run(self, q: str, n: int = 3) -> str:
        return super()._run(q, n)


class Decorated(Own):
    """Bears the decorator on its method."""

    name: str = "decorated"

    @guard_tool(name="decorated")
    def _run(self, q: str, n: int = 3) -> str:
        return q


TOOLS = {
    "sync": lambda: sync,
    "async": lambda: later,
    "both": lambda: StructuredTool.from_function(sync.func, also_later, name="both", description="Both."),
    "one text": lambda: Tool("text", lambda q: q, "Takes a text."),
    "class": Own,
    "class with both": Heir,
    "class that calls above": Caller,
}
ARGUMENTS = {"one text": {"__arg1": "x"}}
ASYNC_ONLY = ("async",)


def asked(agent, asynchronous):
    given = {"messages": [("user", "go")]}
    return asyncio.run(agent.ainvoke(given)) if asynchronous else agent.invoke(given)


def agent_with(given, kind, middleware=()):
    model = Asks(name_asked=given.name, arguments=ARGUMENTS.get(kind, {"q": "x"}))
    return create_agent(model, [given], middleware=list(middleware))


def told(given):
    return json.dumps(
        [convert_to_openai_tool(given), given.name, given.description, given.get_input_schema().model_json_schema()]
    )


@pytest.mark.parametrize("kind", TOOLS)
def test_a_copy_is_guarded_and_the_tool_stays_as_it_is(kind):
    """The copy is told of byte for byte like the tool, is of its class, and is not copied again; the tool is bare."""
    bare = TOOLS[kind]()
    before = told(bare), dict(vars(bare))
    guarded = guard_tool(bare)
    assert guarded is not bare
    assert isinstance(guarded, type(bare))
    assert type(guarded).__qualname__ == type(bare).__qualname__
    assert guard_tool(guarded) is guarded
    assert told(guarded) == before[0]
    assert (told(bare), vars(bare)) == before
    with opened() as session:
        asyncio.run(bare.ainvoke(ARGUMENTS.get(kind, {"q": "x"})))
        assert calls(session) == {}


COPIES = {
    "itself": lambda given: given,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "model_copy": lambda given: given.model_copy(),
    "deep model_copy": lambda given: given.model_copy(deep=True),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("middleware", [False, True], ids=["alone", "beside the middleware"])
@pytest.mark.parametrize("kind", TOOLS)
def test_a_call_of_an_agent_is_counted_once(kind, middleware, asynchronous):
    """Sync or async, with the middleware or without, however the tool was copied: one call, under the tool's name."""
    if kind in ASYNC_ONLY and not asynchronous:
        return
    guarded = guard_tool(TOOLS[kind]())
    for how in COPIES.values():
        given = how(guarded)
        with opened() as session:
            agent = agent_with(given, kind, [ToolGuardMiddleware()] if middleware else [])
            assert asked(agent, asynchronous)["messages"][-2].content == "x"
            assert calls(session) == {given.name: 1}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("middleware", [False, True], ids=["alone", "beside the middleware"])
@pytest.mark.parametrize("order", ["bind of guard", "guard of bind"])
@pytest.mark.parametrize("kind", TOOLS)
def test_a_bound_tool_is_counted_once_and_in_its_session(kind, order, middleware, asynchronous):
    """session.bind binds the function inside a copy: from a raw thread, and in an agent, each call counts once."""
    if kind in ASYNC_ONLY and not asynchronous:
        return
    bare = TOOLS[kind]()
    session = opened()
    bound = session.bind(guard_tool(bare)) if order == "bind of guard" else guard_tool(session.bind(bare))
    assert told(bound) == told(bare)
    answers = []
    arguments = ARGUMENTS.get(kind, {"q": "x"})
    use = (lambda: asyncio.run(bound.ainvoke(arguments))) if asynchronous else (lambda: bound.invoke(arguments))
    thread = threading.Thread(target=lambda: answers.append(use()))
    thread.start()
    thread.join()
    assert (answers, calls(session)) == (["x"], {bare.name: 1})
    with session:
        asked(agent_with(bound, kind, [ToolGuardMiddleware()] if middleware else []), asynchronous)
    assert calls(session) == {bare.name: 2}


def test_a_loop_over_a_guarded_tool_is_stopped():
    """What is said to guard_tool about a tool object holds, and a loop of equal calls ends with the trip."""
    guarded = guard_tool(name="looked up", ignore=["n"])(sync)
    with opened() as session:
        for n in range(LIMIT):
            guarded.invoke({"q": "x", "n": n})
        with pytest.raises(SessionStopped):
            guarded.invoke({"q": "x", "n": 9})
    assert (session.trip.tool, session.trip.members[0].arguments) == ("looked up", {"q": "str(1)", "n": "int"})


def test_what_is_said_later_is_added_to_what_was_said():
    """A tool object or function that is guarded already is guarded anew where something is said about it."""

    @guard_tool(poll=7, name="first")
    def look(q: str) -> str:
        """Looks."""
        return q

    again = guard_tool(name="second")(look)
    assert (again.guarded_tool.name, again.guarded_tool.poll) == ("second", 7)
    assert look.guarded_tool.name == "first"
    above = guard_tool(risk="read_only")(tool(look))
    assert (above.func.guarded_tool.name, above.func.guarded_tool.poll) == ("look", 7)
    with opened() as session:
        again("x")
        above.invoke({"q": "x"})
        assert calls(session) == {"second": 1, "look": 1}


def test_a_decorated_method_of_a_tool_class_is_enough():
    """Where the class bears the decorator its objects are guarded already."""
    one = Decorated()
    assert guard_tool(one) is one
    with opened() as session:
        one.invoke({"q": "x"})
        assert calls(session) == {"decorated": 1}


# ------------------------------------------------------------------------------------------------ other kinds


class Toy:
    """A framework's tool object that an adapter makes known."""

    def __init__(self, function, name="toy"):
        self.name = name
        self.function = function
        self.args_schema = None

    def use(self, *args):
        return self.function(*args)


def rewrap(toy, wrap):
    return Toy(wrap(toy.function), toy.name)


@pytest.fixture
def toys(monkeypatch):
    """Makes the class known for one test."""
    monkeypatch.setattr(tool_objects, "_kinds", dict(tool_objects._kinds))
    tool_objects.register_tool_object(f"{__name__}.Toy", rewrap)


class Subtoy(Toy):
    """Is known by the class above."""


@pytest.mark.parametrize("kind", [Toy, Subtoy])
def test_an_adapter_can_make_a_kind_known(toys, kind):
    """Objects of a registered class, and of classes below it, are copied with their function guarded or bound."""
    toy = kind(lambda q: q)
    guarded = guard_tool(toy)
    session = opened()
    bound = session.bind(guarded)
    with session:
        assert [guarded.use("a"), bound.use("b"), toy.use("c")] == ["a", "b", "c"]
        assert calls(session) == {"toy": 2}
    assert_guarded([guarded, bound])
    with pytest.raises(ToolGuardError, match="not guarded: toy"):
        assert_guarded([guarded, toy])


class Unknown:
    """Looks like a tool object, and is of no known kind."""

    args_schema = None

    def __call__(self, q):
        return q


@pytest.mark.parametrize("thing", [3, "look", None, object(), {"name": "look"}, Unknown(), [sync]])
@pytest.mark.parametrize("take", [guard_tool, Session("s").bind], ids=["guard_tool", "bind"])
def test_what_cannot_be_taken_is_an_error_that_names_what_can(take, thing):
    """No object is passed through unguarded or unbound: the error names the kinds that are taken."""
    if thing is None and take is guard_tool:
        return
    with pytest.raises(
        SettingsError, match=r"takes a function or a tool object \(.*langchain_core.tools.base.BaseTool"
    ):
        take(thing)


@pytest.mark.parametrize("broken", [lambda toy, wrap: 1 / 0, lambda toy, wrap: toy], ids=["no copy", "no function"])
def test_a_tool_that_cannot_be_copied_is_an_error(toys, broken):
    """Nothing is guarded in place, and nothing is left bare: a tool without copy or function is an error."""
    tool_objects.register_tool_object(f"{__name__}.Toy", broken)
    with pytest.raises(SettingsError, match=r"Toy.* (cannot be copied|has no function)"):
        guard_tool(Toy(lambda q: q))


# ------------------------------------------------------------------------------------------------ assert_guarded


def unguarded_in(thing):
    with pytest.raises(ToolGuardError, match="not guarded") as caught:
        assert_guarded(thing)
    return str(caught.value)


def graph_of(*nodes):
    """A graph with these nodes, none of which is ever run."""
    graph = StateGraph(MessagesState)
    for n, node in enumerate(nodes):
        graph.add_node(f"node{n}", node)
        graph.add_edge(START, f"node{n}")
    return graph.compile()


def nothing(state):
    return state


LOOK = guard_tool(lambda q: q)


def test_functions_and_tools_in_a_list():
    """Guarded functions, methods, partials, bound ones, wrapped ones and tool objects pass; each bare one is named."""

    class Desk:
        @guard_tool
        def look(self, q):
            return q

        def bare(self, q):
            return q

    assert_guarded([LOOK, Desk().look, Desk.look, guard_tool(sync), tool(guard_tool(sync.func))])
    assert_guarded((LOOK,))
    assert_guarded({"look": LOOK})
    assert_guarded(LOOK)
    assert_guarded(Session("s").bind(LOOK))
    said = unguarded_in([LOOK, sync, Desk().bare, {"type": "web_search"}, len])
    assert all(name in said for name in ("sync", "bare", "[3] (builtins.dict", "len"))
    assert "lambda" not in said
    half = guard_tool(StructuredTool.from_function(sync.func, also_later, name="half", description="Half."))
    half.coroutine = also_later
    assert "half" in unguarded_in([half])


def test_the_tools_of_a_langchain_agent():
    """The tool node of the agent is looked into; with the guard's middleware the whole agent is guarded."""
    model = Asks(name_asked="sync", arguments={})
    assert_guarded(create_agent(model, [guard_tool(sync), guard_tool(later)]))
    assert "later" in unguarded_in(create_agent(model, [guard_tool(sync), later]))
    assert_guarded(create_agent(model, [sync, later], middleware=[ToolGuardMiddleware()]))


class More(ToolGuardMiddleware):
    """Is still the guard."""


def test_graphs_and_graphs_inside_graphs():
    """Tool nodes are looked into wherever they are; the middleware of one agent does not speak for another."""
    model = Asks(name_asked="sync", arguments={})
    assert_guarded(ToolNode([guard_tool(sync)]))
    assert_guarded(graph_of(nothing, ToolNode([guard_tool(sync)])))
    assert "later" in unguarded_in(graph_of(nothing, ToolNode([guard_tool(sync), later])))
    inside = create_agent(model, [sync], middleware=[More()])
    assert_guarded(graph_of(inside))
    assert "later" in unguarded_in(graph_of(inside, ToolNode([later])))


@pytest.mark.parametrize("thing", [3, "look", object(), None, Asks, Unknown(), Session("s")])
def test_what_cannot_be_looked_into_never_passes(thing):
    """An object that is no agent and no tool is an error that says what is taken."""
    with pytest.raises(SettingsError, match="cannot look into"):
        assert_guarded(thing)


@pytest.mark.parametrize("empty", [[], {}, set(), (), graph_of(nothing), ToolNode([])])
def test_nothing_to_look_at_proves_nothing(empty):
    """Without any tool there is nothing that could be said to be guarded."""
    with pytest.raises(SettingsError, match="no tool"):
        assert_guarded(empty)


class Hook:
    """What an adapter puts in the way of each call says so."""

    toolguard_guards = True

    def __call__(self, q):
        return q


def test_what_an_adapter_marks_counts_as_guarded(toys):
    """A hook of an adapter is taken at its word, as the tool, as a function inside one or as a wrapper of a node."""
    assert_guarded([Hook()])
    assert_guarded([Toy(Hook())])
    node = ToolNode([sync], wrap_tool_call=Hook())
    assert_guarded(node)
    assert_guarded(graph_of(node))
