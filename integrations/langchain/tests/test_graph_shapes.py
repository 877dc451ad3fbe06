"""Tool nodes in graphs of other shapes than the usual loop, and what the gate keeps of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import operator
import uuid
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Command, RetryPolicy, Send
from otel_toolguard_langchain import ToolGuardMiddleware, tool_node_wrappers
from pydantic import BaseModel

from otel_toolguard import CircuitOpen, Session

from . import graphs as g
from . import scripted as s
from .test_stop import thread

FEW = {"recursion_limit": 60}


@pytest.mark.parametrize("run", s.WAYS)
def test_a_tool_node_that_is_sent_single_calls(run):
    """Where each call is an execution of the node of its own, all of a turn are answered and the next step is not made."""

    class State(MessagesState):
        log: Annotated[list[str], operator.add]

    def each(state):
        asked = state["messages"][-1].tool_calls
        return [Send("tools", [{**call, "type": "tool_call"}]) for call in asked] or END

    seen, model = s.look_up(), s.model(s.always_new("search", batch=5))
    builder = StateGraph(State)
    builder.add_node("model", g.langchain_model(model))
    builder.add_node("tools", g.tools_in([seen.tool], s.ceiling(7)))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", each, ["tools", END])
    builder.add_edge("tools", "model")
    with pytest.raises(CircuitOpen) as caught:
        run(builder.compile(), s.ask(), FEW)
    assert (seen.bodies, model.asked) == (7, 2)
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("how", ["a node that is a graph", "a function that calls one", "sent single calls"])
@pytest.mark.parametrize("kind", g.MODELS.values(), ids=g.MODELS)
@pytest.mark.parametrize("run", s.WAYS)
def test_tools_in_a_graph_of_their_own(run, kind, how):
    """Tools in a graph within the graph of the model belong to the run of that, whose next step is not made."""
    seen, model = s.look_up(), s.model(s.always_new("search", batch=3))
    tools = StateGraph(MessagesState)
    tools.add_node("tools", g.tools_in([seen.tool], s.ceiling(7)))
    tools.add_edge(START, "tools")
    inner = tools.compile()

    def function(state):
        return {"messages": inner.invoke({"messages": state["messages"]})["messages"][len(state["messages"]) :]}

    def each(state):
        last = state["messages"][-1]
        return [
            Send("inner", {"messages": [last.model_copy(update={"tool_calls": [call]})]}) for call in last.tool_calls
        ]

    builder = StateGraph(MessagesState)
    builder.add_node("model", kind(model))
    builder.add_node("inner", inner if how == "a node that is a graph" else function)
    builder.add_edge(START, "model")
    if how == "sent single calls":
        builder.add_conditional_edges("model", each, ["inner"])
    else:
        builder.add_edge("model", "inner")
    builder.add_edge("inner", "model")
    with pytest.raises(CircuitOpen) as caught:
        run(builder.compile(), s.ask(), FEW)
    assert (seen.bodies, model.asked) == (7, 3)
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("outer_kind", ["agent", "graph"])
@pytest.mark.parametrize("run", s.WAYS)
def test_a_graph_in_a_tool(run, outer_kind):
    """A stop of a graph inside a tool ends the outer run too, which answers its own call first."""
    seen, inner_model, model = s.look_up(), s.model(s.for_ever("search")), s.model(s.for_ever("delegate"))
    inner = g.graph(inner_model, g.tools_in([seen.tool], s.repeat(3)))

    @tool
    def delegate() -> str:
        """Has another graph do it."""
        return inner.invoke(s.ask(), FEW)["messages"][-1].content

    if outer_kind == "agent":
        from langchain.agents import create_agent

        outer = create_agent(model, [delegate], middleware=[ToolGuardMiddleware(s.repeat(3))])
    else:
        outer = g.graph(model, g.tools_in([delegate], s.repeat(3)))
    with pytest.raises(CircuitOpen) as caught:
        run(outer, s.ask(), FEW)
    assert (seen.bodies, inner_model.asked, model.asked) == (3, 3, 1)
    assert caught.value.trip.tool == "search"
    assert s.mispaired(caught.value.partial["messages"]) == ""


def test_graphs_in_parallel_calls_are_runs_of_their_own():
    """Two graphs that run at once in two calls of one turn do not count each other's calls as repeats."""
    seen = s.look_up()

    @tool
    def delegate(task: str) -> str:
        """Has another graph do it."""
        inner = g.graph(s.model([[("search", {})], [("search", {})]], prefix=task), g.tools_in([seen.tool]))
        return inner.invoke(s.ask(), FEW)["messages"][-1].content

    model = s.model([[("delegate", {"task": "a"}), ("delegate", {"task": "b"})]])
    with Session(policy=s.repeat(3)) as session:
        g.graph(model, g.tools_in([delegate])).invoke(s.ask(), FEW)
        assert (session.trip, seen.bodies) == (None, 4)


@pytest.mark.parametrize("kind", g.MODELS)
def test_a_graph_that_is_a_node(kind):
    """The loop may be a part of a larger graph: the stop leaves both."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    part = g.graph(model, g.tools_in([seen.tool], s.repeat(4)), kind=g.MODELS[kind])
    builder = StateGraph(MessagesState)
    builder.add_node("part", part)
    builder.add_node("after", lambda _state: pytest.fail("the run was stopped"))
    builder.add_edge(START, "part")
    builder.add_edge("part", "after")
    with pytest.raises(CircuitOpen):
        builder.compile().invoke(s.ask(), FEW)
    assert (seen.bodies, model.asked) == (4, 4)


@pytest.mark.parametrize("form", ["tasks", "one node"])
def test_a_loop_within_one_step(form):
    """Where the user's own code is the loop, the next call of a LangChain model is the gate."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    node = g.tools_in([seen.tool], s.repeat(4))
    if form == "tasks":

        @task
        def ask_model(messages):
            return model.invoke(messages)

        @task
        def call_tools(given):
            return node.invoke(given)

    kept: Any = []

    def loop(messages):
        while True:
            asked = ask_model(messages).result() if form == "tasks" else model.invoke(messages)
            messages = kept[:] = add_messages(messages, [asked])
            given = {"messages": messages}
            answered = call_tools(given).result() if form == "tasks" else node.invoke(given)
            messages = kept[:] = add_messages(messages, answered["messages"])

    if form == "tasks":
        graph, given = entrypoint()(loop), add_messages([], [("user", "Find it.")])
    else:
        builder = StateGraph(MessagesState)
        builder.add_node("all", lambda state: loop(state["messages"]))
        builder.add_edge(START, "all")
        graph, given = builder.compile(), s.ask()
    with pytest.raises(CircuitOpen) as caught:
        graph.invoke(given, FEW)
    assert (seen.bodies, model.asked) == (4, 4)
    assert s.mispaired(kept) == s.mispaired(caught.value.partial["messages"]) == ""


def test_a_tool_may_ask_a_model_after_the_stop():
    """A call that runs beside the one that tripped is not cancelled: its own model answers it."""
    import threading

    stopped, inner = threading.Event(), s.model([])

    @tool
    def think() -> str:
        """Asks a model once the run has been stopped."""
        assert stopped.wait(10)
        return inner.invoke("well?").content

    seen = s.look_up()
    model = s.model(lambda _turn: [("think", {}), ("search", {"q": "1"}), ("search", {"q": "2"})])
    node = g.tools_in([think, seen.tool], s.ceiling(2), on_trip=lambda _trip: stopped.set())
    with pytest.raises(CircuitOpen) as caught:
        g.graph(model, node).invoke(s.ask(), FEW | {"max_concurrency": 4})
    answers = [one.content for one in s.answers(caught.value.partial["messages"]).values()]
    assert (answers[0], inner.asked, model.asked) == ("Done.", 1, 1)


def test_a_step_beside_the_tools_is_not_held_up():
    """A node of the same step as the tools runs to its end; only what comes after is not begun."""
    ran = []
    seen, model = s.look_up(), s.model(s.always_new("search", batch=3))
    builder = StateGraph(MessagesState)
    builder.add_node("model", g.langchain_model(model))
    builder.add_node("tools", g.tools_in([seen.tool], s.ceiling(2)))
    builder.add_node("beside", lambda _state: ran.append("beside"))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("model", "beside")
    builder.add_edge("tools", "model")
    with pytest.raises(CircuitOpen):
        builder.compile().invoke(s.ask(), FEW)
    assert (ran, seen.bodies, model.asked) == (["beside"], 2, 1)


def test_a_graph_that_ends_with_its_tools_ends():
    """Where no step would come after the one that tripped, the graph returns."""
    seen, model = s.look_up(), s.model(s.always_new("search", batch=3))
    builder = StateGraph(MessagesState)
    builder.add_node("model", g.langchain_model(model))
    builder.add_node("tools", g.tools_in([seen.tool], s.ceiling(2)))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    assert s.mispaired(builder.compile().invoke(s.ask(), FEW)["messages"]) == ""
    assert seen.bodies == 2


def test_messages_under_another_name():
    """A tool node with a key of its own for its messages is guarded all the same, batches included."""

    class State(dict):
        __annotations__ = {"chat": Annotated[list[AnyMessage], add_messages]}

    seen, model = s.look_up(), s.model(s.for_ever("search", batch=4))
    builder = StateGraph(State)
    builder.add_node("model", lambda state: {"chat": [model.invoke(state["chat"])]})
    builder.add_node("tools", g.ToolNode([seen.tool], messages_key="chat", **tool_node_wrappers(s.repeat(3))))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", "model")
    with pytest.raises(CircuitOpen) as caught:
        builder.compile().invoke({"chat": [("user", "Find it.")]}, FEW)
    assert (model.asked, seen.bodies) == (3, 12)
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it has moved
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("run", s.WAYS)
def test_the_ready_made_agent_of_langgraph(run, version):
    """The older ready-made agent takes a guarded tool node, whether it runs a turn's calls in one node or in many."""
    seen, model = s.look_up(), s.model(s.always_new("search", batch=4))
    agent = g.prebuilt.create_react_agent(model, g.tools_in([seen.tool], s.ceiling(10)), version=version)
    with pytest.raises(CircuitOpen) as caught:
        run(agent, s.ask(), FEW)
    assert (seen.bodies, model.asked, len(s.answers(caught.value.partial["messages"]))) == (10, 3, 12)
    assert s.mispaired(caught.value.partial["messages"]) == ""


class Model(BaseModel):
    """A state that is an object."""

    messages: Annotated[list, add_messages]


@pytest.mark.parametrize("run", s.WAYS)
def test_a_retry_policy_does_not_retry_the_stop(run):
    """A node's retry policy for whatever goes wrong does not begin it again; a state that is an object is kept too."""
    seen, model = s.look_up(), s.model(s.always_new("search", batch=4))
    builder = StateGraph(Model)
    again = RetryPolicy(max_attempts=3, initial_interval=0, retry_on=Exception)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state.messages)]}, retry_policy=again)
    builder.add_node("tools", g.tools_in([seen.tool], s.ceiling(10)))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", "model")
    with pytest.raises(CircuitOpen) as caught:
        run(builder.compile(), s.ask(), FEW)
    assert (seen.bodies, model.asked, len(s.answers(caught.value.partial["messages"]))) == (10, 3, 12)


def test_two_tool_nodes_are_one_run():
    """Nodes that share their wrappers, or have wrappers of their own in one session, draw on one ceiling."""
    for shared in (True, False):
        one, two = s.look_up(), s.look_up()
        two.tool.name = "other"
        model = s.model(lambda turn: [(("search", "other")[turn % 2], {"q": str(turn)})] * 2)
        wrappers = tool_node_wrappers()
        builder = StateGraph(MessagesState)
        builder.add_node("model", g.langchain_model(model))
        for seen in (one, two):
            more = wrappers if shared else tool_node_wrappers()
            builder.add_node(seen.tool.name, g.ToolNode([seen.tool], **more))
            builder.add_edge(seen.tool.name, "model")
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", lambda state: state["messages"][-1].tool_calls[0]["name"])
        with Session(policy=s.ceiling(7)), pytest.raises(CircuitOpen):
            builder.compile().invoke(s.ask(), FEW)
        assert (one.bodies + two.bodies, model.asked) == (7, 4)


async def test_runs_at_once():
    """Thirty runs at once, in one session and in none, each stop at their own limit with their own history."""
    seen = s.look_up_async()

    async def one(name, **more):
        model = s.model(s.for_ever("search"), prefix=name)
        with pytest.raises(CircuitOpen) as caught:
            await g.graph(model, g.tools_in([seen.tool], **more)).ainvoke(s.ask(), FEW)
        return model.asked, s.mispaired(caught.value.partial["messages"])

    alone = await asyncio.gather(*(one(f"a{n}", policy=s.repeat(3)) for n in range(30)))
    with Session(policy=s.repeat(3)):
        together = await asyncio.gather(*(one(f"b{n}") for n in range(30)))
    assert set(alone + together) == {(3, "")}
    assert seen.bodies == 180


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
@pytest.mark.parametrize("stop", ["raise", "drain", "interrupt"])
def test_a_step_of_two_nodes_is_not_begun(stop, run):
    """Where two nodes would come after the tools neither runs, whichever way the run is stopped, and resuming raises."""
    seen, model, ran, config = s.look_up(), s.model(s.always_new("search", batch=3)), [], thread() | FEW
    builder = StateGraph(MessagesState)
    builder.add_node("model", g.langchain_model(model))
    builder.add_node("tools", g.tools_in([seen.tool], s.ceiling(2), stop=stop))
    for name in ("one", "two"):
        builder.add_node(name, lambda _state: ran.append(1))
        builder.add_edge("tools", name)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    if stop == "interrupt":
        run(graph, s.ask(), config)
        assert {one.value["rule"] for one in graph.get_state(config).interrupts} == {"call_ceiling"}
    else:
        with pytest.raises(GraphBubbleUp):
            run(graph, s.ask(), config)
    assert s.mispaired(graph.get_state(config).values["messages"]) == ""
    with pytest.raises(CircuitOpen):
        run(graph, None, config)
    assert (ran, seen.bodies, model.asked) == ([], 2, 1)


def test_graphs_without_a_guard_are_left_alone():
    """The gate lets pass whatever no wrapper has told it of."""
    seen, model = s.look_up(), s.model(lambda turn: [("search", {})] if turn <= 20 else None)
    result = g.graph(model, g.ToolNode([seen.tool])).invoke(s.ask(), FEW)
    assert (result["messages"][-1].content, seen.bodies) == ("Done.", 20)


def test_many_runs_are_not_kept_for_ever():
    """What the gate remembers of graphs that were run is bounded."""
    from otel_toolguard_langchain import _graphs

    gate = _graphs.ToolGuardGate()
    for _ in range(2 * _graphs.KEPT):
        told = {_graphs.NODE: uuid.uuid4().hex, "langgraph_node": "a", "langgraph_step": 1, "thread_id": "t"}
        gate.on_chain_start(None, None, run_id=uuid.uuid4(), parent_run_id=uuid.uuid4(), metadata=told, name="a")
    assert max(len(kept) for kept in vars(gate).values()) <= _graphs.KEPT


def test_a_run_that_is_over_is_let_go():
    """The gate holds on to no callback handler of a run that has ended, however it ended."""
    from otel_toolguard_langchain import _graphs

    tracer = BaseCallbackHandler()
    for model in (s.model([[("search", {})]]), s.model(s.for_ever("search"))):
        with contextlib.suppress(CircuitOpen):
            g.graph(model, g.tools_in([s.look_up().tool], s.repeat(3))).invoke(s.ask(), FEW | {"callbacks": [tracer]})
    kept = [run for part in vars(_graphs.GATE).values() for run in part.values() if hasattr(run, "handlers")]
    assert kept
    assert not any(tracer in run.handlers for run in kept)


def test_the_gate_lets_odd_callers_pass():
    """Whatever else calls LangChain's callbacks, with metadata of its own or copies of its configuration, is not disturbed."""
    from otel_toolguard_langchain import _graphs

    assert copy.deepcopy({"callbacks": [_graphs.GATE]})["callbacks"][0] is _graphs.GATE
    for told in (None, {}, {_graphs.NODE: "x"}, {_graphs.NODE: "x", "langgraph_node": "a"}):
        for inputs in (None, {}, "text", Command(), [1]):
            key = uuid.uuid4()
            _graphs.GATE.on_chain_start(None, inputs, run_id=key, parent_run_id=uuid.uuid4(), metadata=told, name="a")
            _graphs.GATE.on_chat_model_start(None, [[]], run_id=key, metadata=told)
            _graphs.GATE.on_llm_start(None, ["text"], run_id=key, metadata=told)
            _graphs.GATE.on_chain_end(None, run_id=key)
