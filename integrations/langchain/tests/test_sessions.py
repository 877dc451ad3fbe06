"""Which session and which run a call belongs to."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session, current_session

from . import scripted as s


def three_calls():
    """A model that asks for the same call three times and is done."""
    return s.model(lambda turn: [("search", {})] if turn % 4 else None)


def places(traced):
    """(session, run) of each span, in order."""
    return [(span.attributes["toolguard.session.id"], span.attributes["toolguard.run.id"]) for span in traced.spans()]


@pytest.mark.parametrize("run", s.WAYS)
def test_runs_in_one_block_are_siblings(run, traced):
    """Two agents in one block: one session, a run each, no loop rule carried over, calls counted together."""
    seen = s.look_up()
    with Session("conversation-1" + uuid.uuid4().hex, policy=s.repeat(4), telemetry=traced.telemetry) as session:
        for _ in range(2):
            agent = create_agent(three_calls(), [seen.tool], middleware=[ToolGuardMiddleware()])
            assert run(agent, s.ask())["messages"][-1].content == "Done."
    found = places(traced)
    assert {one for one, _ in found} == {session.id}
    assert len({run_id for _, run_id in found}) == 2
    assert session.report()["calls"] == 6


def test_thread_names_the_session(traced):
    """Without a block the thread id names the session; each invocation is a run of its own."""
    name, seen = uuid.uuid4().hex, s.look_up()
    guard = ToolGuardMiddleware(s.repeat(4), telemetry=traced.telemetry)
    agent = create_agent(three_calls(), [seen.tool], middleware=[guard])
    for _ in range(2):
        agent.invoke(s.ask(), {"configurable": {"thread_id": name}})
    found = places(traced)
    assert {one for one, _ in found} == {name}
    assert len({run_id for _, run_id in found}) == 2
    assert Session(name, policy=s.repeat(4)).report()["calls"] == 6


def test_neither_block_nor_thread(traced):
    """Without both each run is a session of its own."""
    seen = s.look_up()
    guard = ToolGuardMiddleware(s.ceiling(session=3), telemetry=traced.telemetry)
    agent = create_agent(three_calls(), [seen.tool], middleware=[guard])
    for _ in range(3):
        agent.invoke(s.ask())
    assert len({one for one, _ in places(traced)}) == 3


@pytest.mark.parametrize("kind", ["tasks", "threads"])
@pytest.mark.parametrize("where", ["one block", "one thread id", "nothing"])
def test_concurrent_runs_are_distinct(kind, where, traced):
    """Two runs at once keep rings and stop apart: one loops and is stopped, the other finishes."""
    seen = s.look_up()
    policy = s.repeat(5)
    guard = ToolGuardMiddleware(policy, telemetry=traced.telemetry)
    looping = create_agent(s.model(s.for_ever("search")), [seen.tool], middleware=[guard])
    finishing = create_agent(s.model([[("search", {})]] * 4), [seen.tool], middleware=[guard])
    config = {"configurable": {"thread_id": uuid.uuid4().hex}} if where == "one thread id" else {}

    async def tasks():
        return await asyncio.gather(
            looping.ainvoke(s.ask(), config), finishing.ainvoke(s.ask(), config), return_exceptions=True
        )

    def threads():
        results = [None, None]

        def go(at, agent):
            try:
                results[at] = agent.invoke(s.ask(), config)
            except CircuitOpen as error:
                results[at] = error

        one = threading.Thread(target=session.bind(go) if session else go, args=(0, looping))
        one.start()
        go(1, finishing)
        one.join()
        return results

    session = Session(policy=policy, telemetry=traced.telemetry) if where == "one block" else None
    if session is None:
        stopped, finished = asyncio.run(tasks()) if kind == "tasks" else threads()
    else:
        with session:
            stopped, finished = asyncio.run(tasks()) if kind == "tasks" else threads()
    assert isinstance(stopped, CircuitOpen)
    assert finished["messages"][-1].content == "Done."
    assert len({run_id for _, run_id in places(traced)}) == 2
    assert seen.bodies == 9


def test_resumed_run_is_the_same_run(traced):
    """A run resumed after a question goes on with its rings: laps before and after the pause add up."""

    @tool
    def search(q: str = "word") -> str:
        """Looks something up."""
        return "nothing"

    @tool
    def ask_person() -> str:
        """Asks."""
        return interrupt("well?")

    model = s.model(lambda turn: [("search", {"q": str(turn)})] if turn != 3 else [("ask_person", {})])
    config = {"configurable": {"thread_id": uuid.uuid4().hex}}
    guard = ToolGuardMiddleware(s.ceiling(6), telemetry=traced.telemetry)
    agent = create_agent(model, [search, ask_person], middleware=[guard], checkpointer=InMemorySaver())
    agent.invoke(s.ask(), config)
    with pytest.raises(CircuitOpen) as caught:
        agent.invoke(Command(resume="go on"), config)
    assert caught.value.trip.at_call == 6
    assert len(set(places(traced))) == 1


def test_run_that_began_before_the_guard():
    """A thread paused in a process without the guard is guarded when it is resumed in one with it."""
    memory, config = InMemorySaver(), {"configurable": {"thread_id": uuid.uuid4().hex}}
    seen = s.look_up()

    @tool
    def ask_person() -> str:
        """Asks."""
        return interrupt("well?")

    model = s.model(lambda turn: [("ask_person", {})] if turn == 1 else [("search", {})])
    create_agent(model, [seen.tool, ask_person], checkpointer=memory).invoke(s.ask(), config)
    guard = ToolGuardMiddleware(s.repeat(3))
    agent = create_agent(model, [seen.tool, ask_person], middleware=[guard], checkpointer=memory)
    with pytest.raises(CircuitOpen):
        agent.invoke(Command(resume="go on"), config)
    assert seen.bodies == 3


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_tools_see_their_session(run):
    """Inside a tool current_session() is the session that counts the call."""
    seen = []

    @tool
    def who() -> str:
        """Says where it is."""
        seen.append(current_session().id)
        return "here"

    name = uuid.uuid4().hex
    agent = create_agent(s.model([[("who", {})]]), [who], middleware=[ToolGuardMiddleware()])
    run(agent, s.ask(), {"configurable": {"thread_id": name}})
    assert seen == [name]


def test_many_runs_of_one_session_are_forgotten():
    """A session that lives through hundreds of runs keeps a bounded number of them, the counts of all."""
    seen = s.look_up()
    with Session() as session:
        agent = create_agent(
            s.model(lambda turn: [("search", {})] if turn % 2 else None),
            [seen.tool],
            middleware=[ToolGuardMiddleware()],
        )
        for _ in range(320):
            agent.invoke(s.ask())
        assert session.guard.transact(lambda state: (len(state.runs) < 300, state.calls)) == (True, 320)


def test_rules_turned_off(monkeypatch):
    """TOOLGUARD_MODE=off and =observe let everything run."""
    for mode in ("off", "observe"):
        monkeypatch.setenv("TOOLGUARD_MODE", mode)
        seen, model = s.look_up(), s.model(lambda turn: [("search", {})] if turn <= 20 else None)
        create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware()]).invoke(s.ask(), {"recursion_limit": 99})
        assert seen.bodies == 20


def test_trip_names_the_agent():
    """The trip says which agent asked, where the framework knows its name."""
    agent = create_agent(
        s.model(s.for_ever("search")), [s.look_up().tool], middleware=[ToolGuardMiddleware(s.repeat(3))], name="clerk"
    )
    with pytest.raises(CircuitOpen) as caught:
        agent.invoke(s.ask())
    assert caught.value.trip.agent in ("clerk", None)
