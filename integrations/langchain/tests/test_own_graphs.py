"""Tool nodes in graphs of a user's own: stopped before the next step, whatever makes the model's messages."""

from __future__ import annotations

import json
import uuid

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command, interrupt
from otel_toolguard_langchain import LangChainStopped, tool_node_wrappers

from otel_toolguard import CircuitOpen, Session, find_trip

from . import graphs as g
from . import scripted as s
from .test_stop import CAN_DRAIN, thread

FEW = {"recursion_limit": 60}


@pytest.mark.parametrize("kind", g.MODELS)
@pytest.mark.parametrize(("tools", "run"), s.TOOLS_AND_WAYS)
def test_loop_stops_at_its_limit(tools, run, kind):
    """The caller sees one CircuitOpen: limit bodies, no further model call of any kind, no id unanswered."""
    seen, model = tools(), s.model(s.for_ever("search"))
    graph = g.graph(model, g.tools_in([seen.tool], s.repeat(4)), kind=g.MODELS[kind])
    with pytest.raises(CircuitOpen) as caught:
        run(graph, s.ask(), FEW)
    assert type(caught.value) is LangChainStopped
    assert (seen.bodies, model.asked, caught.value.trip.at_call) == (4, 4, 4)
    assert s.mispaired(caught.value.partial["messages"]) == ""
    assert len(s.answers(caught.value.partial["messages"])) == 4


@pytest.mark.parametrize("kind", g.MODELS)
@pytest.mark.parametrize("handle", [True, False, "It did not work.", ValueError])
@pytest.mark.parametrize(("tools", "run"), s.TOOLS_AND_WAYS)
def test_ceiling_in_a_batch(tools, run, handle, kind):
    """Of a batch that passes the ceiling the rest is refused and answered, whatever the node does with errors."""
    seen, model = tools(), s.model(s.always_new("search", batch=10))
    node = g.tools_in([seen.tool], s.ceiling(5), handle=handle)
    with pytest.raises(CircuitOpen) as caught:
        run(g.graph(model, node, kind=g.MODELS[kind]), s.ask(), FEW)
    got = s.answers(caught.value.partial["messages"])
    assert (seen.bodies, model.asked, len(got)) == (5, 1, 10)
    refused = [one for one in got.values() if one.status == "error"]
    assert {json.loads(one.content)["error"] for one in refused} == {"circuit_open"}
    assert {one.response_metadata["toolguard"]["rule"] for one in refused} == {"call_ceiling"}
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("kind", g.MODELS)
@pytest.mark.parametrize("stop", ["raise", "drain", "interrupt"])
@pytest.mark.parametrize("run", s.WAYS)
def test_every_stop(run, stop, kind):
    """Each way to stop makes no further model call and leaves a thread that the next run goes on from."""
    seen, config = s.look_up(), thread() | FEW
    model = s.model(lambda turn: [("search", {"q": f"{turn}.{n}"}) for n in range(3)] if turn != 4 else None)
    node = g.tools_in([seen.tool], s.ceiling(7), stop=stop)
    graph = g.graph(model, node, kind=g.MODELS[kind], checkpointer=InMemorySaver())
    if stop == "interrupt":
        run(graph, s.ask(), config)
        assert graph.get_state(config).interrupts[0].value["rule"] == "call_ceiling"
    else:
        with pytest.raises(GraphBubbleUp) as caught:
            run(graph, s.ask(), config)
        assert isinstance(caught.value, CircuitOpen) is (stop == "raise" or not CAN_DRAIN)
        assert (find_trip(caught.value) or find_trip(caught.value.reason)).rule == "call_ceiling"
    state = graph.get_state(config)
    assert (seen.bodies, model.asked) == (7, 3)
    assert s.mispaired(state.values["messages"]) == ""
    assert run(graph, s.ask("Sum up."), config)["messages"][-1].content == "Done."


def test_end_is_no_way_to_stop_a_graph_of_ones_own():
    """A stop that such a graph has no way for is an error that names those it has."""
    with pytest.raises(ValueError, match="valid are raise, drain, interrupt"):
        tool_node_wrappers(stop="end")


def test_interrupt_stays_stopped_until_reset():
    """A graph paused by a stop raises if it is only resumed, and goes on once a person has reset the session."""
    for reset in (False, True):
        seen, config = s.look_up(), thread() | FEW
        model = s.model(lambda turn: [("search", {})] if turn <= 3 else None)
        node = g.tools_in([seen.tool], s.repeat(3), stop="interrupt")
        graph = g.graph(model, node, checkpointer=InMemorySaver())
        graph.invoke(s.ask(), config)
        if reset:
            Session(config["configurable"]["thread_id"], policy=s.repeat(3)).reset("the service is slow")
            assert graph.invoke(Command(resume="go on"), config)["messages"][-1].content == "Done."
        else:
            with pytest.raises(CircuitOpen):
                graph.invoke(Command(resume="go on"), config)
        assert model.asked == 3 + reset


def test_continued_run_stays_stopped_and_a_new_one_is_clean():
    """Going on with a stopped thread makes no model call; a new message on it begins a run of its own."""
    seen, config = s.look_up(), thread() | FEW
    model = s.model(lambda turn: [("search", {})] if turn != 5 else None)
    graph = g.graph(model, g.tools_in([seen.tool], s.repeat(3)), checkpointer=InMemorySaver())
    for given in (s.ask(), None, None):
        with pytest.raises(CircuitOpen) as caught:
            graph.invoke(given, config)
        assert (seen.bodies, model.asked) == (3, 3)
    assert caught.value.partial["thread_id"] == config["configurable"]["thread_id"]
    assert graph.invoke(s.ask("Sum up."), config)["messages"][-1].content == "Done."
    assert (seen.bodies, model.asked) == (4, 5)


@pytest.mark.parametrize("run", s.WAYS)
def test_runs_of_one_session_are_runs_of_their_own(run):
    """Two invocations in one open session count on their own, and both are in its report."""
    seen = s.look_up()
    with Session(policy=s.repeat(3)) as session:
        for _ in range(3):
            model = s.model([[("search", {})], [("search", {})]], prefix=uuid.uuid4().hex)
            run(g.graph(model, g.tools_in([seen.tool])), s.ask(), FEW)
        assert (session.trip, session.report()["calls"]) == (None, 6)


def test_kept_messages_work_in_the_next_run():
    """What a stop kept is the history of the next run, in the same session, without a checkpointer."""
    seen = s.look_up()
    with Session(policy=s.repeat(3)):
        with pytest.raises(CircuitOpen) as caught:
            g.graph(s.model(s.for_ever("search")), g.tools_in([seen.tool])).invoke(s.ask(), FEW)
        again = s.model([[("search", {})]], prefix="later")
        kept = caught.value.partial["messages"]
        result = g.graph(again, g.tools_in([seen.tool])).invoke({"messages": [*kept, ("user", "Sum up.")]}, FEW)
    assert result["messages"][-1].content == "Done."


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_a_person_is_asked(run):
    """A tool's interrupt pauses the graph and is no failure; resumed, it is the same run and the same call."""

    @tool
    def delete(path: str) -> str:
        """Deletes a file once a person has agreed."""
        return interrupt("delete it?")

    config = thread() | FEW
    model = s.model(lambda turn: [("delete", {"path": "a"})] if turn <= 9 else None)
    graph = g.graph(model, g.tools_in([delete], s.repeat(3), handle=False), checkpointer=InMemorySaver())
    with Session(uuid.uuid4().hex, policy=s.repeat(3)) as session:
        run(graph, s.ask(), config)
        for _ in range(2):
            run(graph, Command(resume="yes"), config)
        with pytest.raises(CircuitOpen) as caught:
            run(graph, Command(resume="yes"), config)
        report = session.report()
    assert (report["calls"], report["failed"], report["in_flight"], model.asked) == (3, 0, 0, 3)
    assert s.mispaired(caught.value.partial["messages"]) == ""
