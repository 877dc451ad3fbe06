"""A run that goes on for ever ends at its limit, at once, and what it leaves behind can be used."""

from __future__ import annotations

import pickle
import uuid

import pytest
from langchain.agents import create_agent
from langgraph import runtime as langgraph_runtime
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from otel_toolguard_langchain import LangChainStopped, ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session, SessionStopped, find_trip

from . import scripted as s

LIMIT = 4
CAN_DRAIN = hasattr(langgraph_runtime, "RunControl")


def thread():
    return {"configurable": {"thread_id": uuid.uuid4().hex}}


@pytest.mark.parametrize(("tools", "run"), s.TOOLS_AND_WAYS)
def test_loop_stops_at_its_limit(tools, run):
    """Every way to run an agent ends in one CircuitOpen: limit bodies, no further model call, no id unanswered."""
    seen, model = tools(), s.model(s.for_ever("search"))
    agent = create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware(s.repeat(LIMIT))])
    with pytest.raises(CircuitOpen) as caught:
        run(agent, s.ask())
    assert (seen.bodies, model.asked) == (LIMIT, LIMIT)
    assert type(caught.value) is LangChainStopped
    assert caught.value.trip.rule == "repeat_guard"
    assert (caught.value.trip.scope, caught.value.trip.limit, caught.value.trip.at_call) == ("run", LIMIT, LIMIT)
    assert s.mispaired(caught.value.partial["messages"]) == ""
    assert len(s.answers(caught.value.partial["messages"])) == LIMIT


def test_stop_is_ours_and_langgraphs():
    """The stop's bases are exactly SessionStopped and GraphBubbleUp; elsewhere it unpickles as SessionStopped."""
    assert LangChainStopped.__bases__ == (SessionStopped, GraphBubbleUp)
    seen = s.look_up()
    agent = create_agent(s.model(s.for_ever("search")), [seen.tool], middleware=[ToolGuardMiddleware(s.repeat(2))])
    with pytest.raises(GraphBubbleUp) as caught:
        agent.invoke(s.ask())
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is SessionStopped
    assert again.trip == caught.value.trip == find_trip(caught.value)
    assert str(caught.value) == caught.value.trip.why


def _ended(agent, run, config):
    result = run(agent, s.ask(), config)
    last = result["messages"][-1]
    return last.response_metadata["toolguard"]["rule"], result["messages"]


def _raised(agent, run, config):
    with pytest.raises(CircuitOpen) as caught:
        run(agent, s.ask(), config)
    return find_trip(caught.value).rule, caught.value.partial["messages"]


def _drained(agent, run, config):
    if not CAN_DRAIN:
        return _raised(agent, run, config)
    from langgraph.errors import GraphDrained

    with pytest.raises(GraphDrained) as caught:
        run(agent, s.ask(), config)
    return find_trip(caught.value.reason).rule, agent.get_state(config).values["messages"]


def _interrupted(agent, run, config):
    run(agent, s.ask(), config)
    state = agent.get_state(config)
    return state.interrupts[0].value["rule"], state.values["messages"]


MODES = {"raise": _raised, "drain": _drained, "end": _ended, "interrupt": _interrupted}


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("stop", MODES)
def test_every_stop_mode(stop, run):
    """Each mode makes no further model call, leaves no id unanswered and hands over the record, after a batch of 3."""
    seen, model, config = s.look_up(), s.model(s.always_new("search", batch=3)), thread()
    guard = ToolGuardMiddleware(s.ceiling(7), stop=stop)
    agent = create_agent(model, [seen.tool], middleware=[guard], checkpointer=InMemorySaver())
    rule, messages = MODES[stop](agent, run, config)
    assert rule == "call_ceiling"
    assert (seen.bodies, model.asked) == (7, 3)
    assert s.mispaired(messages) == ""
    assert len(s.answers(messages)) == 9
    assert s.mispaired(agent.get_state(config).values["messages"]) == ""


@pytest.mark.parametrize("stop", ["raise", "end"])
def test_stop_modes_without_memory(stop):
    """Raise and end need no checkpointer."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    agent = create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware(s.repeat(3), stop=stop)])
    assert MODES[stop](agent, s.invoke, None)[0] == "repeat_guard"
    assert model.asked == 3


def test_unknown_stop_mode():
    """A stop mode that does not exist is an error that names those that do."""
    with pytest.raises(ValueError, match="raise, drain, end, interrupt"):
        ToolGuardMiddleware(stop="explode")


def test_interrupt_stays_stopped_until_reset():
    """A run paused by a stop stays stopped when resumed, and goes on once a person has reset the session."""
    seen, config = s.look_up(), thread()
    model = s.model(lambda turn: [("search", {})] if turn <= 3 else None)
    guard = ToolGuardMiddleware(s.repeat(3), stop="interrupt")
    agent = create_agent(model, [seen.tool], middleware=[guard], checkpointer=InMemorySaver())
    assert agent.invoke(s.ask(), config)["__interrupt__"][0].value["rule"] == "repeat_guard"
    Session(config["configurable"]["thread_id"], policy=s.repeat(3)).reset("looked at it: the service is slow")
    assert agent.invoke(Command(resume="go on"), config)["messages"][-1].content == "Done."
    assert model.asked == 4

    other = thread()
    agent.invoke(s.ask(), other)
    model.histories.clear()
    agent.invoke(s.ask(), other)
    with pytest.raises(CircuitOpen):
        agent.invoke(Command(resume="go on"), other)


@pytest.mark.parametrize("run", s.WAYS)
def test_kept_messages_work_in_the_next_run(run):
    """A provider accepts the kept messages, and the new run starts with clean loop rules."""
    seen = s.look_up()
    with Session(policy=s.repeat(3)) as session:
        agent = create_agent(s.model(s.for_ever("search")), [seen.tool], middleware=[ToolGuardMiddleware()])
        with pytest.raises(CircuitOpen) as caught:
            run(agent, s.ask())
        kept = caught.value.partial["messages"]
        model = s.model([[("search", {})], [("search", {})]], prefix="later")
        again = create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware()])
        result = run(again, {"messages": [*kept, ("user", "Sum up.")]})
        assert result["messages"][-1].content == "Done."
        assert seen.bodies == 3 + 2
        assert session.report()["calls"] == 5


def test_kept_thread_works_in_the_next_run():
    """With a checkpointer the thread itself is whole: the next message on it is a new, clean run."""
    seen, config = s.look_up(), thread()
    model = s.model(lambda turn: [("search", {})] if turn != 5 else None)
    guard = ToolGuardMiddleware(s.repeat(3))
    agent = create_agent(model, [seen.tool], middleware=[guard], checkpointer=InMemorySaver())
    with pytest.raises(CircuitOpen) as caught:
        agent.invoke(s.ask(), config)
    assert caught.value.partial["thread_id"] == config["configurable"]["thread_id"]
    assert agent.invoke(s.ask("Sum up."), config)["messages"][-1].content == "Done."
    assert (seen.bodies, model.asked) == (4, 5)


def test_continued_run_stays_stopped():
    """Going on with a stopped run, rather than starting a new one, makes no model call."""
    seen, config = s.look_up(), thread()
    model = s.model(s.for_ever("search"))
    guard = ToolGuardMiddleware(s.repeat(3))
    agent = create_agent(model, [seen.tool], middleware=[guard], checkpointer=InMemorySaver())
    for _ in range(3):
        with pytest.raises(CircuitOpen):
            agent.invoke(None if model.asked else s.ask(), config)
    assert (seen.bodies, model.asked) == (3, 3)


def test_session_ceiling_trips_again_at_once():
    """A ceiling of the session goes on counting: in the next run no body starts and one model call is made."""
    seen, config = s.look_up(), thread()
    model = s.model(s.always_new("search"))
    guard = ToolGuardMiddleware(s.ceiling(session=4))
    agent = create_agent(model, [seen.tool], middleware=[guard], checkpointer=InMemorySaver())
    for total in (5, 6):
        with pytest.raises(SessionStopped) as caught:
            agent.invoke(s.ask(), config)
        assert (seen.bodies, model.asked) == (4, total)
        assert caught.value.trip.scope == "session"
        assert s.mispaired(caught.value.partial["messages"]) == ""


def test_operator_stops_a_run():
    """session.stop from a tool's thread ends the run at the next model boundary."""
    from langchain_core.tools import tool

    model = s.model(s.for_ever("halt"))
    with Session() as session:

        @tool
        def halt() -> str:
            """Stops everything."""
            session.stop("enough")
            return "stopped"

        agent = create_agent(model, [halt], middleware=[ToolGuardMiddleware()])
        with pytest.raises(SessionStopped, match="enough"):
            agent.invoke(s.ask())
    assert model.asked == 1


def test_healthy_run_is_not_touched():
    """A run that stays below its limits returns what it returns without the guard."""
    texts = []
    for middleware in ([], [ToolGuardMiddleware()]):
        seen = s.look_up()
        model = s.model([[("search", {"q": "a"}), ("search", {"q": "b"})], [("search", {"q": "c"})]])
        result = create_agent(model, [seen.tool], middleware=middleware).invoke(s.ask())
        assert list(result) == ["messages"]
        texts.append([message.content for message in result["messages"]])
    assert texts[0] == texts[1]
