"""Many calls in one turn: exactly as many bodies as the ceiling, and an answer to each call."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import ToolException, tool
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Policy, Session

from . import scripted as s


@pytest.mark.parametrize(("size", "limit"), [(64, 25), (10, 5)])
@pytest.mark.parametrize(("tools", "run"), s.TOOLS_AND_WAYS)
def test_ceiling_in_a_batch(tools, run, size, limit):
    """N bodies run, the others are refused, and each id has exactly one answer."""
    seen, model = tools(), s.model(s.always_new("search", batch=size))
    with Session(policy=s.ceiling(limit)) as session:
        agent = create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware()])
        with pytest.raises(CircuitOpen) as caught:
            run(agent, s.ask())
    messages = caught.value.partial["messages"]
    assert s.mispaired(messages) == ""
    got = s.answers(messages)
    assert (seen.bodies, model.asked, len(got)) == (limit, 1, size)
    refused = [json.loads(m.content) for m in got.values() if m.status == "error"]
    assert len(refused) == size - limit
    assert {(one["error"], one["executed"], one["scope"]) for one in refused} == {("circuit_open", False, "run")}
    report = session.report()
    assert (report["calls"], report["refused"], report["in_flight"]) == (limit, size - limit, 0)


def test_calls_that_overlap():
    """With bodies that wait for each other in threads the ceiling still holds to the call."""
    together, running = threading.Barrier(5, timeout=10), []

    @tool
    def search(q: str) -> str:
        """Looks something up."""
        running.append(q)
        together.wait()
        return q

    agent = create_agent(
        s.model(s.always_new("search", batch=10)), [search], middleware=[ToolGuardMiddleware(s.ceiling(5))]
    )
    with pytest.raises(CircuitOpen) as caught:
        agent.invoke(s.ask(), {"max_concurrency": 16})
    assert len(running) == 5
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_refusal_of_one_tool_lets_the_run_go_on(run):
    """A ceiling of one tool refuses that tool's calls only; the others run, the model is told, and the agent finishes."""
    seen, others = s.look_up(), []

    @tool
    def note(text: str) -> str:
        """Writes a note."""
        others.append(text)
        return f"noted {text}"

    model = s.model(
        [[("search", {"q": "1"}), ("note", {"text": "a"}), ("search", {"q": "2"})], [("note", {"text": "b"})]]
    )
    agent = create_agent(model, [seen.tool, note], middleware=[ToolGuardMiddleware(s.ceiling(tools={"search": 1}))])
    messages = run(agent, s.ask())["messages"]
    assert messages[-1].content == "Done."
    assert s.mispaired(messages) == ""
    refused = [json.loads(m.content) for m in s.answers(messages).values() if m.status == "error"]
    assert [(one["scope"], one["tool"]) for one in refused] == [("tool", "search")]
    assert (seen.bodies, sorted(others)) == (1, ["a", "b"])


def test_repeated_batch_is_one_lap():
    """Equal calls that run together are one lap: three turns of three calls reach a limit of 3, not of 9."""
    together, bodies = threading.Barrier(3, timeout=10), []

    @tool
    def search() -> str:
        """Looks something up."""
        bodies.append(1)
        together.wait()
        return "nothing"

    model = s.model(s.for_ever("search", batch=3))
    agent = create_agent(model, [search], middleware=[ToolGuardMiddleware(s.repeat(3))])
    with pytest.raises(CircuitOpen):
        agent.invoke(s.ask())
    assert (model.asked, len(bodies)) == (3, 9)


def test_cycle_through_shuffled_batches():
    """The order in which the threads of a turn happen to end does not hide a cycle."""
    together, ends = threading.Barrier(3, timeout=10), random.Random(7)

    @tool
    def search(q: str) -> str:
        """Looks something up."""
        together.wait()
        time.sleep(ends.random() / 200)
        return f"nothing about {q}"

    model = s.model(lambda turn: [("search", {"q": str(n)}) for n in range(3)])
    agent = create_agent(model, [search], middleware=[ToolGuardMiddleware(s.repeat(4))])
    with pytest.raises(CircuitOpen):
        agent.invoke(s.ask())
    assert model.asked == 4


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_fast_siblings_of_one_turn_are_one_lap(run):
    """Ten equal calls in one turn, too fast to overlap, are one lap: a healthy turn is not stopped, a loop of them is."""

    @tool
    def search(q: str) -> str:
        """Looks something up."""
        return "same"

    for turns, stopped in ((2, False), (3, True)):
        model = s.model(lambda turn, turns=turns: [("search", {"q": "x"})] * 10 if turn <= turns else None)
        with Session(
            policy=Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}, {"plugin": "tool_stats"}])
        ) as session:
            agent = create_agent(model, [search], middleware=[ToolGuardMiddleware()])
            if stopped:
                with pytest.raises(CircuitOpen):
                    run(agent, s.ask())
            else:
                run(agent, s.ask())
            assert session.report()["calls"] == 10 * turns


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_failing_siblings_of_one_turn_are_one_failure(run):
    """Thirty calls that fail in one turn count once against the streak."""
    policy = Policy(plugins=[{"plugin": "failure_streak", "limit": 3}, {"plugin": "tool_stats"}])

    @tool
    def failing(q: str) -> str:
        """Looks something up."""
        raise ToolException(q)

    failing.handle_tool_error = True
    model = s.model(lambda turn: [("failing", {"q": f"{turn}-{n}"}) for n in range(30)] if turn <= 2 else None)
    with Session(policy=policy) as session:
        run(create_agent(model, [failing], middleware=[ToolGuardMiddleware()]), s.ask())
        assert (session.trip, session.report()["failed"]) == (None, 60)


@pytest.mark.parametrize("turn", [["search", "other"], ["other", "search"]])
def test_a_sibling_that_never_comes_does_not_put_the_stop_off(turn):
    """Where another middleware answers one call of each turn, the trip still comes before the next model call."""

    class Answers(AgentMiddleware):
        def wrap_tool_call(self, request, handler):
            if request.tool_call["name"] == "other":
                return ToolMessage("answered", tool_call_id=request.tool_call["id"], name="other")
            return handler(request)

    @tool
    def search(q: str) -> str:
        """Looks something up."""
        return "same"

    @tool
    def other(q: str) -> str:
        """Is never run."""
        raise AssertionError(q)

    model, told = s.model(lambda _turn: [(name, {"q": "x"}) for name in turn]), []
    with Session(policy=s.repeat(3), on_trip=told.append):
        agent = create_agent(model, [search, other], middleware=[Answers(), ToolGuardMiddleware()])
        with pytest.raises(CircuitOpen) as caught:
            agent.invoke(s.ask())
    assert (model.asked, len(told), s.mispaired(caught.value.partial["messages"])) == (3, 1, "")
