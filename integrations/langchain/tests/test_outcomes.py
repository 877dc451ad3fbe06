"""What counts as a failure, what as a pause, and what as neither."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from opentelemetry.trace import StatusCode
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool

from . import scripted as s


@tool
def raises(q: str) -> str:
    """Always raises."""
    raise ValueError("no such word")


@tool
def admits(q: str) -> str:
    """Always raises what LangChain turns into an answer."""
    raise ToolException("no such word")


admits.handle_tool_error = True


@tool(response_format="content_and_artifact")
def says(q: str):
    """Answers with an error message of its own."""
    return "no such word", {"error": True}


@tool
def returns_error(q: str, call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Returns a message that says it failed."""
    return ToolMessage("no such word", tool_call_id=call_id, status="error", id=uuid.uuid4().hex)


@tool
@guard_tool
def exits(q: str) -> dict:
    """Runs a program that fails."""
    return {"exit_code": 2, "stdout": q}


FAILURES = {
    "answers with ToolException": ("admits", {"q": "a"}, "tool_error"),
    "returns an error message": ("returns_error", {"q": "a"}, "tool_error"),
    "bad arguments": ("admits", {"wrong": 1}, "tool_error"),
    "unknown tool": ("unheard_of", {}, "tool_error"),
    "exit code, seen by the decorator below": ("exits", {"q": "a"}, "tool_error"),
}


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
@pytest.mark.parametrize("case", FAILURES)
def test_failed_answers(case, run, traced):
    """An error that comes back as an answer is a failure, on the span too, and repeated it stops the run."""
    name, arguments, error = FAILURES[case]
    model = s.model(s.for_ever(name, arguments))
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session:
        agent = create_agent(model, [admits, returns_error, exits], middleware=[ToolGuardMiddleware()])
        with pytest.raises(CircuitOpen):
            run(agent, s.ask())
    assert model.asked == 3
    assert session.report()["tools"][name]["failed"] == 3
    spans = traced.spans()
    assert traced.outcomes() == ["failed"] * 3
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}
    assert {span.attributes["error.type"] for span in spans} == {error}


@pytest.mark.parametrize("run", s.WAYS)
def test_raising_tool(run, traced):
    """An exception reaches the caller as it is, is counted, and makes its span an error."""
    with Session(telemetry=traced.telemetry) as session:
        agent = create_agent(s.model(s.for_ever("raises", {"q": "a"})), [raises], middleware=[ToolGuardMiddleware()])
        with pytest.raises(ValueError, match="no such word") as caught:
            run(agent, s.ask())
    assert type(caught.value) is ValueError
    assert session.report()["tools"]["raises"]["failed"] == 1
    assert [span.attributes["error.type"] for span in traced.spans()] == ["ValueError"]


def test_artifacts_and_messages_that_are_no_errors(traced):
    """An artifact that speaks of errors is no failure: only the message's status says so."""
    agent = create_agent(
        s.model([[("says", {"q": "a"})]]), [says], middleware=[ToolGuardMiddleware(telemetry=traced.telemetry)]
    )
    agent.invoke(s.ask())
    assert traced.outcomes() == ["ok"]


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke, s.stream, s.astream])
def test_interrupt_passes(run, traced):
    """A tool that asks a person pauses the run; it is no failure, and the resumed call is the same call, counted once."""
    executions = []

    @tool
    def delete(path: str) -> str:
        """Deletes a file once a person has agreed."""
        executions.append(path)
        return f"{path}: {interrupt('delete it?')}"

    seen = s.look_up()
    model = s.model([[("delete", {"path": "a"}), ("search", {})], [("search", {"q": "b"})]])
    config = {"configurable": {"thread_id": uuid.uuid4().hex}}
    with Session(uuid.uuid4().hex, policy=s.ceiling(3), telemetry=traced.telemetry) as session:
        guard = ToolGuardMiddleware()
        agent = create_agent(model, [delete, seen.tool], middleware=[guard], checkpointer=InMemorySaver())
        run(agent, s.ask(), config)
        assert agent.get_state(config).interrupts[0].value == "delete it?"
        assert "delete" not in session.report()["tools"]
        result = run(agent, Command(resume="yes"), config)
        assert result["messages"][-1].content == "Done."
        assert s.answers(result["messages"])["call-1-0"].content == "a: yes"
        report = session.report()
    assert executions == ["a", "a"]
    assert report["trips"] == []
    assert (report["in_flight"], report["refused"]) == (0, 0)
    assert sorted(traced.outcomes()) == ["interrupted", "ok", "ok", "ok"]
    assert len({span.attributes["toolguard.run.id"] for span in traced.spans()}) == 1


@pytest.mark.parametrize(("decision", "bodies"), [("approve", 1), ("reject", 0)])
@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_human_in_the_loop(run, decision, bodies):
    """LangChain's approval middleware works as without the guard: approved calls count once, rejected ones never."""
    seen = s.look_up()
    config = {"configurable": {"thread_id": uuid.uuid4().hex}}
    with Session(uuid.uuid4().hex) as session:
        agent = create_agent(
            s.model([[("search", {})]]), [seen.tool], checkpointer=InMemorySaver(),
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True}), ToolGuardMiddleware()],
        )  # fmt: skip
        assert "__interrupt__" in run(agent, s.ask(), config)
        answer = {"type": decision} | ({"message": "no"} if decision == "reject" else {})
        result = run(agent, Command(resume={"decisions": [answer]}), config)
    assert s.mispaired(result["messages"]) == ""
    assert (seen.bodies, session.report()["calls"]) == (bodies, bodies)


def test_refused_calls_do_not_run_again_when_resumed():
    """A resumed run keeps its rules: a tool closed before the pause is closed after it."""
    seen = s.look_up()

    @tool
    def ask_person() -> str:
        """Asks."""
        return interrupt("well?")

    model = s.model([[("search", {"q": "1"}), ("search", {"q": "2"})], [("ask_person", {})], [("search", {"q": "3"})]])
    config = {"configurable": {"thread_id": uuid.uuid4().hex}}
    guard = ToolGuardMiddleware(s.ceiling(tools={"search": 1}))
    agent = create_agent(model, [seen.tool, ask_person], middleware=[guard], checkpointer=InMemorySaver())
    agent.invoke(s.ask(), config)
    result = agent.invoke(Command(resume="go on"), config)
    assert result["messages"][-1].content == "Done."
    assert seen.bodies == 1
    assert [m.status for m in s.answers(result["messages"]).values()].count("error") == 2


async def test_cancelled_run(traced):
    """A cancelled run's call is cancelled, not failed, and its place is given back."""
    import asyncio

    started = asyncio.Event()

    @tool
    async def slow() -> str:
        """Takes long."""
        started.set()
        await asyncio.sleep(60)
        return "late"

    with Session(telemetry=traced.telemetry) as session:
        agent = create_agent(s.model(s.for_ever("slow")), [slow], middleware=[ToolGuardMiddleware()])
        task = asyncio.create_task(agent.ainvoke(s.ask()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert traced.outcomes() == ["cancelled"]
    report = session.report()
    assert (report["tools"]["slow"]["failed"], report["in_flight"]) == (0, 0)


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
@pytest.mark.parametrize("answer", ["nothing found", [{"type": "text", "text": "nothing found"}]])
def test_a_nudge_stands_in_the_tool_s_answer(run, answer):
    """With on_limit = "nudge" the run goes on, and the model reads the advice beside what the tool said."""

    @tool
    def search(q: str) -> Any:
        """Looks something up."""
        return answer

    policy = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3, "on_limit": "nudge"}, {"plugin": "tool_stats"}])
    model = s.model(lambda turn: [("search", {"q": "x"})] if turn <= 4 else None)
    with Session(policy=policy) as session:
        messages = run(create_agent(model, [search], middleware=[ToolGuardMiddleware()]), s.ask())["messages"]
        assert session.report()["nudges"] == {"repeat_guard": 1}
    contents = [str(one.content) for one in messages if isinstance(one, ToolMessage)]
    assert [len(content) > len(str(answer)) for content in contents] == [False, False, True, False]
    assert all("nothing found" in content for content in contents)
