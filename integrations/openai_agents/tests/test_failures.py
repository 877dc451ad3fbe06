"""Failures are seen as what they are, whatever the SDK makes of them for the model."""

from __future__ import annotations

import asyncio

import pytest
from agents import ToolGuardrailFunctionOutput, UserError, tool_input_guardrail
from agents.exceptions import ToolTimeoutError
from otel_toolguard_openai_agents import guard_agent

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.telemetry import attributes as names

from . import scripted as s


def broken(q: str = "word") -> str:
    """Fails."""
    raise ConnectionResetError(f"no line to {q}")


async def broken_async(q: str = "word") -> str:
    """Fails."""
    raise ConnectionResetError(f"no line to {q}")


def reraising(context, error):
    raise error


HANDLERS = {
    "the SDK's": {},
    "none": {"failure_error_function": None},
    "the user's": {"failure_error_function": lambda context, error: "It did not work."},
    "the user's, which raises": {"failure_error_function": reraising},
}


def traced_run(agent, traced, run=s.run, policy=None, **more):
    """What became of a run in a session: its result or its exception, and the session's report."""
    with Session(policy=policy or s.ceiling(50), telemetry=traced.telemetry) as session:
        try:
            ended = run(agent, "Go on.", **more)
        except (Exception, asyncio.CancelledError) as error:
            ended = error
    return ended, session.report()


@pytest.mark.parametrize("function", [broken, broken_async])
@pytest.mark.parametrize("handler", HANDLERS)
def test_exception_is_seen_below_every_handler(handler, function, traced):
    """Whatever the SDK answers the model, the span has the real exception, and run and history end as without guard."""
    ends = []
    for put in (lambda agent: agent, guard_agent):
        agent = put(s.agent([[(function.__name__, {})]], [s.bare(function, **HANDLERS[handler])]))
        ended, report = traced_run(agent, traced)
        history = s.answers(ended.to_input_list()) if not isinstance(ended, Exception) else str(ended)
        ends.append((type(ended), history, agent.model.asked))
    assert ends[0] == ends[1]
    (span,) = traced.spans()
    assert span.attributes["error.type"] == "ConnectionResetError"
    assert (report["tools"][function.__name__]["failed"], traced.outcomes()) == (1, ["failed"])


@pytest.mark.parametrize("decorated", ["function", "tool object"])
def test_exception_is_seen_beside_the_decorator(decorated, traced):
    """With a decorator on the function, or on the tool object, a failure is one failed call."""
    from otel_toolguard import guard_tool

    tool = s.bare(guard_tool(broken)) if decorated == "function" else guard_tool(s.bare(broken))
    _, report = traced_run(guard_agent(s.agent([[("broken", {})]] * 2, [tool])), traced)
    assert (report["calls"], report["failed"], traced.outcomes()) == (2, 2, ["failed", "failed"])
    assert {span.attributes["error.type"] for span in traced.spans()} == {"ConnectionResetError"}


def test_default_handler_does_not_hide_a_storm(traced):
    """Failures that all read alike to the model, over new arguments, are counted and end the run."""
    from otel_toolguard import Policy

    policy = Policy(plugins=[{"plugin": "failure_streak", "limit": 4}])

    def denied(q: str) -> str:
        """Fails."""
        raise PermissionError(q)

    agent = guard_agent(s.agent(s.always_new("denied"), [s.bare(denied)]))
    ended, _ = traced_run(agent, traced, policy=policy)
    assert isinstance(ended, CircuitOpen)
    assert (ended.trip.rule, agent.model.asked) == ("failure_streak", 4)


@pytest.mark.parametrize("behavior", ["error_as_result", "raise_exception"])
def test_timeout_is_a_failure(behavior, traced):
    """A tool that the SDK cancels because it takes too long has failed, and may work the next time."""

    async def slow() -> str:
        """Takes for ever."""
        await asyncio.Event().wait()

    tool = s.bare(slow, timeout=0.01, timeout_behavior=behavior)
    ended, _ = traced_run(guard_agent(s.agent([[("slow", {})]], [tool])), traced)
    assert isinstance(ended, ToolTimeoutError) == (behavior == "raise_exception")
    (span,) = traced.spans()
    assert span.attributes[names.OUTCOME] == "failed"
    assert "Timeout" in span.attributes["error.type"]


def test_cancelled_run_is_no_failure(traced):
    """A call in a run that somebody cancels is cancelled: its span ends, and it is no failure."""

    async def cancelled():
        begun = asyncio.Event()

        async def wait() -> str:
            """Takes for ever."""
            begun.set()
            await asyncio.Event().wait()

        agent = guard_agent(s.agent([[("wait", {})]], [s.bare(wait, failure_error_function=None)]))
        with Session(telemetry=traced.telemetry) as session:
            task = asyncio.create_task(s.Runner.run(agent, "Go on."))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            return session.report()

    report = asyncio.run(cancelled())
    assert (traced.outcomes(), report["failed"], report["in_flight"]) == (["cancelled"], 0, 0)


def test_cancellation_that_nobody_asked_for(traced):
    """A CancelledError from inside a tool is that tool's failure, answered as the SDK answers it without the guard."""
    ends = []
    for put in (lambda agent: agent, guard_agent):

        async def torn() -> str:
            """Ends with a cancellation that comes from below."""
            raise asyncio.CancelledError

        ended, report = traced_run(put(s.agent([[("torn", {})]], [s.bare(torn)])), traced)
        ends.append(type(ended) if isinstance(ended, BaseException) else ended.to_input_list())
    assert ends[0] == ends[1]
    assert (traced.outcomes(), report["failed"]) == (["failed"], 1)


def test_sibling_of_a_raising_tool(traced):
    """Where one tool's failure ends the run, each call that began has its span, and none stays open."""
    begun = []

    async def wait() -> str:
        """Takes for ever."""
        begun.append(asyncio.Event())
        begun[0].set()
        await asyncio.Event().wait()

    async def fail() -> str:
        """Fails once the other has begun."""
        await begun[0].wait()
        raise KeyError("gone")

    tools = [s.bare(wait, failure_error_function=None), s.bare(fail, failure_error_function=None)]
    ended, report = traced_run(guard_agent(s.agent([[("wait", {}), ("fail", {})]], tools)), traced)
    assert isinstance(ended, UserError)
    assert sorted(traced.outcomes()) == ["cancelled", "failed"]
    assert (report["failed"], report["in_flight"]) == (1, 0)


def test_arguments_that_do_not_parse(traced):
    """Arguments that are no JSON object are signed by their text; the model is told, and repeating them is a loop."""
    seen = s.look_up()
    agent = guard_agent(s.agent(s.for_ever("search", '{"q": "wo'), [seen.tool]))
    agent.model.script = lambda turn: [("search", '{"q": "wo')]
    ended, _ = traced_run(agent, traced, policy=s.repeat(3))
    assert isinstance(ended, CircuitOpen)
    assert (seen.bodies, agent.model.asked, traced.outcomes()) == (0, 3, ["failed"] * 3)


def test_unknown_tool_is_the_sdks_affair():
    """A tool that does not exist ends the run as it does without the guard."""
    ends = []
    for put in (lambda agent: agent, guard_agent):
        with pytest.raises(Exception) as caught:
            s.run(put(s.agent([[("nothing", {})]], [s.look_up().tool])), "Go on.")
        ends.append((type(caught.value), str(caught.value)))
    assert ends[0] == ends[1]


def test_call_that_a_guardrail_rejects_was_not_made(traced):
    """A call that a guardrail of the tool answers instead never comes to the guard, and is no failure."""

    @tool_input_guardrail
    def no(data):
        return ToolGuardrailFunctionOutput.reject_content("not allowed")

    seen = s.look_up()
    seen.tool.tool_input_guardrails = [no]
    result, report = traced_run(guard_agent(s.agent([[("search", {})]], [seen.tool])), traced)
    assert list(s.answers(result.to_input_list()).values()) == ["not allowed"]
    assert (report["calls"], traced.spans(), seen.bodies) == (0, [], 0)


def test_failing_inner_agent_is_a_failed_call(traced):
    """An agent that is a tool and fails is a failed call of the outer run, which goes on."""
    inner = s.agent([[("broken", {})]], [s.bare(broken, failure_error_function=None)], name="inner")
    outer = s.agent([[("ask", {"input": "word"})]], [inner.as_tool("ask", "Asks.")])
    result, report = traced_run(guard_agent(outer), traced)
    assert result.final_output == s.DONE
    assert (report["tools"]["ask"]["failed"], report["tools"]["broken"]["failed"]) == (1, 1)
