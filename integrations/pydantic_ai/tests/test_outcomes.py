"""What counts as a failure, what as a pause, and what as neither; what the model is told."""

from __future__ import annotations

import json

import pytest
from otel_toolguard_pydantic_ai import ToolGuard
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    Tool,
    ToolDenied,
    ToolReturn,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import AgentRunError, ApprovalRequired, CallDeferred, ToolFailed

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.testing.scripts import DONE, always_new, for_ever

from . import scripted as s

MANY = 50  # more retries than any limit here


def fails(q: str) -> str:
    """Fails for good."""
    raise ToolFailed("no such word")


def retries(q: str) -> str:
    """Asks the model to try again."""
    raise ModelRetry("another word")


@guard_tool
def exits(q: str) -> dict:
    """Runs a program that fails."""
    return {"exit_code": 2, "stdout": q}


def fine(q: str) -> str:
    """Answers."""
    return "nothing"


TOOLS = [Tool(one, max_retries=MANY) for one in (fails, retries, exits, fine)]
FAILURES = {
    "ToolFailed": ("fails", {"q": "a"}),
    "ModelRetry": ("retries", {"q": "a"}),
    "exit code": ("exits", {"q": "a"}),
    "arguments that are not valid": ("fine", {"wrong": 1}),
    "arguments that are no JSON": ("fine", '{"q": '),
    "a tool that there is not": ("unheard_of", {"q": "a"}),
}


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("case", FAILURES)
def test_failed_answers(case, run, traced):
    """What the framework answers as a failure is one, has one span, and repeated it stops the run."""
    name, arguments = FAILURES[case]
    model = s.ScriptedModel(for_ever(name, {}) if isinstance(arguments, dict) else None)
    model.script = lambda _: [(name, arguments)]
    agent = Agent(model, tools=TOOLS, capabilities=[ToolGuard()], retries=MANY)
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen) as stopped:
        run(agent, "Find the word.")
    assert model.asked == 3
    assert session.report()["tools"][name]["failed"] == 3
    assert traced.outcomes() == ["failed"] * 3
    assert s.mispaired(stopped.value.partial["messages"]) == ""
    ids = [span.attributes["gen_ai.tool.call.id"] for span in traced.spans()]
    assert ids == ["call-1-0", "call-2-0", "call-3-0"]


@pytest.mark.parametrize(
    "case", ["arguments that are not valid", "arguments that are no JSON", "a tool that there is not"]
)
def test_calls_that_never_reached_a_tool(case, traced):
    """They leave the streaks of their tool alone, though they are failures."""
    name, arguments = FAILURES[case]
    model = s.ScriptedModel(lambda turn: [(name, arguments)] if turn <= 10 else None)
    agent = Agent(model, tools=TOOLS, capabilities=[ToolGuard()], retries=MANY)
    policy = Policy(plugins=[{"plugin": "failure_streak", "limit": 3}, {"plugin": "tool_stats"}])
    with Session(policy=policy, telemetry=traced.telemetry) as session:
        assert s.run_sync(agent, "Find the word.").output == DONE
    assert session.report()["tools"][name]["failed"] == 10
    assert "wrong" not in str([span.status.description for span in traced.spans()])


@pytest.mark.parametrize("case", ["arguments that are not valid", "a tool that there is not"])
def test_invalid_calls_beside_good_ones(case):
    """Calls of one turn that never reach a tool are one batch with those that do, and all are answered."""
    name, arguments = FAILURES[case]
    model = s.ScriptedModel(lambda _: [("fine", {"q": "a"}), (name, arguments), ("fine", {"q": "a"})])
    agent = Agent(model, tools=TOOLS, capabilities=[ToolGuard()], retries=MANY)
    with Session(policy=s.ceiling(7)) as session, pytest.raises(CircuitOpen) as stopped:
        s.run_sync(agent, "Find the word.")
    assert (model.asked, session.report()["calls"], session.report()["refused"]) == (3, 7, 2)
    assert s.mispaired(stopped.value.partial["messages"]) == ""


def test_refused_call_with_invalid_arguments():
    """Past a limit it is told so instead of being asked to try again, and draws on no retry budget."""
    model = s.ScriptedModel(lambda turn: [("fine", {"q": "a"} if turn == 1 else {"wrong": turn})] if turn < 4 else None)
    policy = s.ceiling(tools={"fine": 1})
    agent = Agent(model, tools=[Tool(fine)], capabilities=[ToolGuard(policy)], retries=0)
    answers = s.answers(s.run_sync(agent, "Find the word.").all_messages())
    assert [answer.outcome for answer in answers.values()] == ["success", "failed", "failed"]
    assert json.loads(s.told(answers["call-3-0"]))["error"] == "circuit_open"


def test_refusal_is_a_failed_result():
    """The model reads why a call was refused, in a result marked as failed, and may do without that tool."""
    model = s.ScriptedModel([[("fine", {"q": "a"}), ("fine", {"q": "b"})]])
    agent = Agent(model, tools=[Tool(fine)], capabilities=[ToolGuard(s.ceiling(tools={"fine": 1}))])
    result = s.run_sync(agent, "Find the word.")
    assert result.output == DONE
    refused = s.answers(result.all_messages())["call-1-1"]
    assert refused.outcome == "failed"
    told = json.loads(refused.content)
    assert (told["error"], told["executed"], told["scope"]) == ("circuit_open", False, "tool")
    assert len(refused.content) <= 600


NUDGING = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3, "on_limit": "nudge"}, {"plugin": "tool_stats"}])


def rich(q: str) -> ToolReturn:
    """Answers with more than the model's value."""
    return ToolReturn("nothing", content=["see here"], metadata={"secret": 1})


def data(q: str) -> dict:
    """Answers with data."""
    return {"hits": []}


@pytest.mark.parametrize("tool", [fine, fails, retries, rich, data], ids=lambda one: one.__name__)
def test_nudge_stands_beside_the_answer(tool):
    """A nudge reaches the model in the very next request, whatever the tool answers with, and changes no value."""
    name = tool.__name__
    model = s.ScriptedModel(lambda turn: [(name, {"q": "a"})] if turn <= 3 else None)
    agent = Agent(model, tools=[Tool(tool, max_retries=MANY)], capabilities=[ToolGuard(NUDGING)])
    with Session(policy=NUDGING) as session:
        messages = s.run_sync(agent, "Find the word.").all_messages()
    assert session.report()["nudges"] == {"repeat_guard": 1}
    requests = [str(message.parts) for message in messages if message.kind == "request"]
    assert ["in a row" in one for one in requests] == [False, False, False, True]
    if tool is data:
        assert {json.dumps(answer.content) for answer in s.answers(messages).values()} == {'{"hits": []}'}


class Fresh(AbstractCapability):
    """Retries whatever a tool raises, once."""

    async def wrap_tool_execute(self, ctx, *, call, tool_def, args, handler):
        try:
            return await handler(args)
        except OSError:
            return await handler(args)


def test_each_execution_counts(traced):
    """Where another capability runs a tool again, each execution is an attempt and a span of its own."""
    bodies = []

    def flaky(q: str) -> str:
        bodies.append(q)
        if len(bodies) == 1:
            raise ConnectionResetError(q)
        return q

    agent = Agent(s.ScriptedModel([[("flaky", {"q": "a"})]]), tools=[Tool(flaky)], capabilities=[ToolGuard(), Fresh()])
    with Session(telemetry=traced.telemetry) as session:
        assert s.run_sync(agent, "Find the word.").output == DONE
    assert traced.outcomes() == ["failed", "ok"]
    assert session.report()["calls"] == len(bodies) == 2


def waits(ctx: RunContext, q: str) -> str:
    """Waits for a person, or for another program."""
    if not ctx.tool_call_approved:
        raise (ApprovalRequired if q == "a" else CallDeferred)
    return q


@pytest.mark.parametrize("run", [s.run_sync, s.run, s.iterate])
def test_pauses_are_no_failures(run, traced):
    """Approvals and deferrals pass as they are; denied or answered from outside, no body runs and nothing counts."""
    model = s.ScriptedModel([[("waits", {"q": "a"}), ("waits", {"q": "b"}), ("fine", {"q": "c"})]])
    agent = Agent(
        model, tools=[Tool(waits), Tool(fine)], output_type=[str, DeferredToolRequests], capabilities=[ToolGuard()]
    )
    with Session(telemetry=traced.telemetry) as session:
        paused = run(agent, "Find the word.")
        assert len(paused.output.approvals) == len(paused.output.calls) == 1
        assert (session.report()["failed"], session.report()["in_flight"]) == (0, 0)
        results = DeferredToolResults(approvals={"call-1-0": ToolDenied("no")}, calls={"call-1-1": "from outside"})
        ended = run(agent, message_history=paused.all_messages(), deferred_tool_results=results)
        report = session.report()
    assert ended.output == DONE
    assert (report["calls"], report["failed"], report["refused"]) == (1, 0, 0)
    assert sorted(traced.outcomes()) == ["interrupted", "interrupted", "ok"]


def test_paused_run_keeps_its_rings():
    """A loop that a person approves again and again is one run, and is stopped."""
    model = s.ScriptedModel(for_ever("search"))
    seen = s.look_up()
    seen.tool.requires_approval = True
    agent = Agent(
        model, tools=[seen.tool], output_type=[str, DeferredToolRequests], capabilities=[ToolGuard(s.repeat(4))]
    )

    def approve_all():
        result = s.run_sync(agent, "Find the word.")
        for _ in range(20):
            given = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
            result = s.run_sync(agent, message_history=result.all_messages(), deferred_tool_results=given)

    with pytest.raises(CircuitOpen):
        approve_all()
    assert seen.bodies == model.asked == 4


def test_ceiling_goes_on_counting_after_a_pause():
    """With one call allowed, a pause for a person gives no second one."""
    model, seen = s.ScriptedModel(always_new("search")), s.look_up()
    seen.tool.requires_approval = True
    guard = ToolGuard(s.ceiling(1))
    agent = Agent(model, tools=[seen.tool], output_type=[str, DeferredToolRequests], capabilities=[guard])
    result = s.run_sync(agent, "Find the word.")
    approved = DeferredToolResults(approvals={"call-1-0": True})
    result = s.run_sync(agent, message_history=result.all_messages(), deferred_tool_results=approved)
    approved = DeferredToolResults(approvals={"call-2-0": True})
    with pytest.raises(CircuitOpen):
        s.run_sync(agent, message_history=result.all_messages(), deferred_tool_results=approved)
    assert (seen.bodies, model.asked) == (1, 2)


def test_exception_of_a_tool_comes_out_as_it_is():
    """What is no answer to the model reaches the caller unchanged, and the calls of the next run go on."""

    def broken(q: str) -> str:
        raise KeyError(q)

    agent = Agent(s.ScriptedModel([[("broken", {"q": "a"})]]), tools=[Tool(broken)], capabilities=[ToolGuard()])
    with Session() as session, pytest.raises(KeyError) as raised:
        s.run_sync(agent, "Find the word.")
    assert not isinstance(raised.value, AgentRunError)
    assert raised.value.args == ("a",)
    assert (session.report()["failed"], session.trip) == (1, None)
