"""Agents inside tools: a stop anywhere ends the whole tree, and every history stays whole."""

from __future__ import annotations

import contextlib
import threading

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session, SessionStopped, find_trip, guard_tool

from . import scripted as s


def sub_agent(inner, run, name="delegate"):
    """A tool that runs an agent."""
    if run in s.SYNC:

        @tool(name)
        def delegate(task: str) -> str:
            """Has another agent do it."""
            return inner.invoke(s.ask(task))["messages"][-1].content

    else:

        @tool(name)
        async def delegate(task: str) -> str:
            """Has another agent do it."""
            return (await inner.ainvoke(s.ask(task)))["messages"][-1].content

    return delegate


@pytest.mark.parametrize("where", ["no session block", "in a session block"])
@pytest.mark.parametrize("run", s.WAYS)
def test_inner_stop_ends_the_outer_run(run, where):
    """A loop of the inner agent ends the outer run too: no further call of either model, both histories whole."""
    seen, inner_model = s.look_up(), s.model(s.for_ever("search"))
    caught_inside = []
    inner = create_agent(inner_model, [seen.tool], middleware=[ToolGuardMiddleware(s.repeat(3))])
    sibling = s.look_up()
    sibling.tool.name = "sibling"
    outer_model = s.model(lambda turn: [("sibling", {}), ("delegate", {"task": "look"})])

    def keeps(trip):
        caught_inside.append(trip)

    def go():
        guard = ToolGuardMiddleware(s.repeat(3), on_trip=keeps)
        return run(create_agent(outer_model, [sub_agent(inner, run), sibling.tool], middleware=[guard]), s.ask())

    block = Session(policy=s.repeat(3), on_trip=keeps) if where == "in a session block" else contextlib.nullcontext()
    with block, pytest.raises(CircuitOpen) as caught:
        go()
    assert (inner_model.asked, outer_model.asked) == (3, 1)
    assert (seen.bodies, sibling.bodies) == (3, 1)
    assert s.mispaired(caught.value.partial["messages"]) == ""
    assert len(caught_inside) == 1
    assert caught.value.trip.tool == "search"


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_both_histories_are_whole(run):
    """The inner agent's kept thread is as whole as the outer one's."""
    seen, config = s.look_up(), {"configurable": {"thread_id": "inner"}}
    inner = create_agent(
        s.model(s.for_ever("search", batch=2)), [seen.tool], middleware=[ToolGuardMiddleware(s.ceiling(5))],
        checkpointer=InMemorySaver(),
    )  # fmt: skip

    @tool
    def delegate(task: str) -> str:
        """Has another agent do it."""
        return inner.invoke(s.ask(task), config)["messages"][-1].content

    outer = create_agent(
        s.model(s.for_ever("delegate", {"task": "a"})), [delegate], middleware=[ToolGuardMiddleware(s.ceiling(5))]
    )
    with pytest.raises(CircuitOpen) as caught:
        run(outer, s.ask())
    assert s.mispaired(caught.value.partial["messages"]) == ""
    assert s.mispaired(inner.get_state(config).values["messages"]) == ""
    assert seen.bodies == 4  # the delegate call is the fifth


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_tool_that_swallows_the_inner_stop(run):
    """Even if the tool catches the inner stop, the outer run makes no further model call."""
    inner_model = s.model(s.for_ever("search"))
    inner = create_agent(inner_model, [s.look_up().tool], middleware=[ToolGuardMiddleware()])

    @tool
    def delegate(task: str) -> str:
        """Has another agent do it."""
        try:
            return inner.invoke(s.ask(task))["messages"][-1].content
        except Exception:
            return "it did not work"

    model = s.model(s.for_ever("delegate", {"task": "a"}))
    agent = create_agent(model, [delegate], middleware=[ToolGuardMiddleware(s.repeat(3))])
    with pytest.raises(SessionStopped):
        run(agent, s.ask())
    assert (inner_model.asked, model.asked) == (3, 1)


def test_stopped_tree_starts_no_inner_model_call():
    """A sub-agent that starts after its run was stopped makes no model call at all."""
    stopped = threading.Event()
    first, late = s.model(s.for_ever("search")), s.model(s.for_ever("search"))
    one = create_agent(first, [s.look_up().tool], middleware=[ToolGuardMiddleware()])
    two = create_agent(late, [s.look_up().tool], middleware=[ToolGuardMiddleware()])

    @tool
    def later(task: str) -> str:
        """Has another agent do it, when the first one has been stopped."""
        assert stopped.wait(10)
        return two.invoke(s.ask(task))["messages"][-1].content

    model = s.model([[("later", {"task": "b"}), ("delegate", {"task": "a"})]])
    agent = create_agent(model, [later, sub_agent(one, s.invoke)], middleware=[ToolGuardMiddleware()])
    with Session(policy=s.repeat(3), on_trip=lambda _trip: stopped.set()), pytest.raises(CircuitOpen) as caught:
        agent.invoke(s.ask())
    assert (model.asked, first.asked, late.asked) == (1, 3, 0)
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("order", ["guard innermost", "guard outermost"])
@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_retry_middleware_does_not_restart_a_stopped_sub_agent(run, order):
    """A retry around or below the guard makes no further call of the inner model after the stop."""
    inner_model = s.model(s.for_ever("search"))
    inner = create_agent(inner_model, [s.look_up().tool], middleware=[ToolGuardMiddleware()])
    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0)
    guard = ToolGuardMiddleware(s.repeat(3))
    model = s.model(s.for_ever("delegate", {"task": "a"}))
    stack = [retry, guard] if order == "guard innermost" else [guard, retry]
    agent = create_agent(model, [sub_agent(inner, run)], middleware=stack)
    with pytest.raises(CircuitOpen) as caught:
        run(agent, s.ask())
    assert (inner_model.asked, model.asked) == (3, 1)
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
@pytest.mark.parametrize("stops", [("drain", "raise"), ("drain", "drain"), ("end", "raise"), ("raise", "end")])
def test_stop_modes_of_inner_and_outer(stops, run):
    """Whatever modes are mixed, the outer run ends after its one turn with every id answered and the record at hand."""
    seen, inner_model = s.look_up(), s.model(s.for_ever("search"))
    policy, config = s.repeat(3), {"configurable": {"thread_id": "outer"}}
    inner = create_agent(inner_model, [seen.tool], middleware=[ToolGuardMiddleware(policy, stop=stops[0])])
    model = s.model(s.for_ever("delegate", {"task": "a"}))
    with Session(policy=policy):
        guard = ToolGuardMiddleware(policy, stop=stops[1])
        agent = create_agent(model, [sub_agent(inner, run)], middleware=[guard], checkpointer=InMemorySaver())
        try:
            messages = run(agent, s.ask(), config)["messages"]
            found = messages[-1].response_metadata["toolguard"]["rule"]
        except GraphBubbleUp as error:
            found = (find_trip(error) or find_trip(error.reason)).rule
        else:
            assert stops[1] == "end"
    assert found == "repeat_guard"
    assert (inner_model.asked, model.asked) == (3, 1)
    assert s.mispaired(agent.get_state(config).values["messages"]) == ""


def test_ceiling_is_shared_with_sub_agents():
    """Calls of the inner run are drawn from the outer run's ceiling too."""
    seen, inner_model = s.look_up(), s.model(lambda turn: [("search", {"q": str(turn)})] if turn % 3 else None)
    inner = create_agent(inner_model, [seen.tool], middleware=[ToolGuardMiddleware()])
    model = s.model(lambda turn: [("delegate", {"task": str(turn)})])
    with Session(policy=s.ceiling(7)) as session, pytest.raises(CircuitOpen) as caught:
        create_agent(model, [sub_agent(inner, s.invoke)], middleware=[ToolGuardMiddleware()]).invoke(s.ask())
    assert session.report()["calls"] == 7
    assert seen.bodies == 4  # two each of the first two sub-agents; the third delegate call is the seventh
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_helper_refused_inside_a_tool(run):
    """A guarded helper that is refused inside a tool fails that call only; the run goes on."""

    @guard_tool
    def fetch(url: str) -> str:
        """A helper that has a ceiling of its own."""
        return "page"

    @tool
    def read(url: str) -> str:
        """Reads a page."""
        return fetch(url=url)

    model = s.model(lambda turn: [("read", {"url": str(turn)})] if turn <= 3 else None)
    with Session(policy=s.ceiling(tools={"fetch": 2})):
        agent = create_agent(model, [read], middleware=[ToolGuardMiddleware()])
        messages = run(agent, s.ask())["messages"]
    assert [m.status for m in s.answers(messages).values()] == ["success", "success", "error"]
    assert messages[-1].content == "Done."
