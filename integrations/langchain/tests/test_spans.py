"""One span and one count for each attempt, in the right place of the trace, however the guard was put on."""

from __future__ import annotations

import warnings

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, StructuredTool, Tool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session, guard_tool

from . import scripted as s


def plain(q: str, n: int = 1) -> str:
    """Looks something up."""
    return f"{q}{n}"


async def plain_async(q: str, n: int = 1) -> str:
    """Looks something up."""
    return f"{q}{n}"


def through(function):
    """A decorator of the user's own."""
    import functools

    @functools.wraps(function)
    def outer(*args, **kwargs):
        return function(*args, **kwargs)

    return outer


class Subclass(BaseTool):
    name: str = "search"
    description: str = "Looks something up."

    @guard_tool(name="search")
    def _run(self, q: str, n: int = 1) -> str:
        return f"{q}{n}"


class AsyncSubclass(Subclass):
    @guard_tool(name="search")
    async def _arun(self, q: str, n: int = 1) -> str:
        return f"{q}{n}"


class BareSubclass(BaseTool):
    name: str = "search"
    description: str = "Looks something up."

    def _run(self, q: str, n: int = 1) -> str:
        return f"{q}{n}"


def renamed(function):
    made = tool(function)
    made.name = "search"
    return made


guarded, guarded_async = guard_tool(name="search")(plain), guard_tool(name="search")(plain_async)
FORMS = {
    "bare @tool": lambda: renamed(plain),
    "@tool above @guard_tool": lambda: renamed(guarded),
    "async @tool above @guard_tool": lambda: renamed(guarded_async),
    "a decorator between the two": lambda: renamed(through(guarded)),
    "from_function": lambda: StructuredTool.from_function(guarded, name="search"),
    "from_function with both": lambda: StructuredTool.from_function(guarded, guarded_async, name="search"),
    "raw guarded function": lambda: guard_tool(search),
    "single-input Tool": lambda: Tool(name="search", func=guarded, description="Looks something up."),
    "subclass": Subclass,
    "subclass with _arun": AsyncSubclass,
    "bare subclass": BareSubclass,
}


def search(q: str, n: int = 1) -> str:
    """Looks something up."""
    return f"{q}{n}"


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_one_span_and_one_count(form, run, traced):
    """Each call is one span below the user's span and one count, with or without the decorator inside."""
    if form == "async @tool above @guard_tool" and run in s.SYNC:
        run = s.ainvoke
    arguments = {"__arg1": "a"} if form == "single-input Tool" else {"q": "a"}
    model = s.model([[("search", arguments)], [("search", arguments)] * 2])
    with Session(telemetry=traced.telemetry) as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = create_agent(model, [FORMS[form]()], middleware=[ToolGuardMiddleware()])
        with traced.tracer.start_as_current_span("request") as outer:
            result = run(agent, s.ask())
    assert {message.content for message in s.answers(result["messages"]).values()} == {"a1"}
    spans = traced.spans()
    assert [span.name for span in spans] == ["execute_tool search"] * 3
    assert {span.parent.span_id for span in spans} == {outer.get_span_context().span_id}
    assert {span.attributes["gen_ai.tool.call.id"] for span in spans} == {"call-1-0", "call-2-0", "call-2-1"}
    assert len({span.attributes["toolguard.signature"] for span in spans}) == 1
    assert session.report()["calls"] == 3
    assert session.report()["in_flight"] == 0


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_refused_calls_have_spans_of_their_own(run, traced):
    """Executed and refused calls of a batch are one span each, with the answers' outcomes."""
    with Session(policy=s.ceiling(2), telemetry=traced.telemetry):
        agent = create_agent(
            s.model(s.always_new("search", batch=5)), [s.look_up().tool], middleware=[ToolGuardMiddleware()]
        )
        with pytest.raises(CircuitOpen):
            run(agent, s.ask())
    assert sorted(traced.outcomes()) == ["ok"] * 2 + ["refused"] * 3


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_tool_spans_are_current_inside_the_tool(run, traced):
    """What the tool itself traces, a sub-agent's calls included, hangs below the tool's span."""
    inner = create_agent(s.model([[("search", {})]]), [s.look_up().tool], middleware=[ToolGuardMiddleware()])

    @tool
    def delegate() -> str:
        """Has another agent do it."""
        return inner.invoke(s.ask())["messages"][-1].content

    with Session(telemetry=traced.telemetry):
        model = s.model([[("delegate", {})]])
        run(create_agent(model, [delegate], middleware=[ToolGuardMiddleware()]), s.ask())
    by_name = {span.name: span for span in traced.spans()}
    outer, nested = by_name["execute_tool delegate"], by_name["execute_tool search"]
    assert nested.parent.span_id == outer.context.span_id
    assert nested.attributes["toolguard.run.id"] != outer.attributes["toolguard.run.id"]


@pytest.mark.parametrize("form", ["@tool above @guard_tool", "from_function", "subclass"])
def test_schema_is_the_bare_tools(form):
    """What the model is shown of a guarded tool is byte for byte what it is shown of the bare one."""
    bare = {"from_function": lambda: StructuredTool.from_function(plain, name="search"), "subclass": BareSubclass}
    expected = bare.get(form, FORMS["bare @tool"])()
    made = FORMS[form]()
    assert repr(convert_to_openai_tool(made)) == repr(convert_to_openai_tool(expected))
    assert made.get_input_jsonschema() == expected.get_input_jsonschema() or form == "subclass"


def test_middleware_changes_no_schema():
    """The tools that the model is bound to are the very objects that were given."""
    bound = []
    seen = s.look_up()

    class Looking(s.ScriptedModel):
        def bind_tools(self, tools, **kwargs):
            bound.extend(tools)
            return self

    model = Looking(script=lambda turn: None)
    create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware()]).invoke(s.ask())
    assert bound == [seen.tool]
    assert bound[0] is seen.tool


def test_conversation_id_is_the_threads_only(traced):
    """The conversation on the span is the caller's thread; a run without one belongs to no conversation."""
    guard = ToolGuardMiddleware(telemetry=traced.telemetry)
    agent = create_agent(
        s.model(lambda turn: [("search", {})] if turn % 2 else None), [s.look_up().tool], middleware=[guard]
    )
    agent.invoke(s.ask(), {"configurable": {"thread_id": "thread-7"}})
    agent.invoke(s.ask())
    first, second = traced.spans()
    assert first.attributes["gen_ai.conversation.id"] == "thread-7"
    assert "gen_ai.conversation.id" not in second.attributes
