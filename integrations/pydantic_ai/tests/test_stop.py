"""How a stopped run ends, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading

import pytest
from otel_toolguard_pydantic_ai import PydanticAIStopped, ToolGuard, _capability
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    Tool,
    UsageLimits,
    capture_run_messages,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import AgentRunError, UsageLimitExceeded
from pydantic_ai.messages import ModelResponse, TextPart

from otel_toolguard import CircuitOpen, Session, SessionStopped, find_trip
from otel_toolguard.testing.scripts import DONE, always_new, for_ever

from . import scripted as s


@pytest.mark.parametrize("run", s.WAYS)
def test_exception_is_both(run):
    """The caller catches one exception that is the guard's and the framework's own, unwrapped, with all it kept."""
    seen, model = s.look_up(), s.ScriptedModel(for_ever("search"))
    agent = Agent(model, tools=[seen.tool], capabilities=[ToolGuard(s.repeat(3))])
    with pytest.raises(PydanticAIStopped) as caught:
        run(agent, "Find the word.", conversation_id="conversation-42")
    stop = caught.value
    assert isinstance(stop, SessionStopped)
    assert isinstance(stop, AgentRunError)
    assert stop.message == str(stop) == stop.trip.why
    assert stop.trip.session_id == stop.partial["conversation_id"] == "conversation-42"
    assert stop.trip.run_id == stop.partial["run_id"]
    assert stop.partial["usage"].requests == model.asked == 3
    assert s.mispaired(stop.partial["messages"]) == ""
    assert len(s.answers(stop.partial["messages"])) == seen.bodies == 3


@pytest.mark.parametrize("run", s.WAYS)
def test_messages_that_the_framework_captures(run):
    """What capture_run_messages has after a stop is what the exception kept, each call answered."""
    agent = Agent(
        s.ScriptedModel(always_new("search", batch=4)), tools=[s.look_up().tool],
        capabilities=[ToolGuard(s.ceiling(6))],
    )  # fmt: skip
    with capture_run_messages() as captured, pytest.raises(CircuitOpen) as stopped:
        run(agent, "Find the word.")
    assert s.mispaired(captured) == ""
    assert list(captured) == stopped.value.partial["messages"]
    assert len(s.answers(captured)) == 8


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("prompt", ["Sum up.", None])
def test_next_run_starts_clean(run, prompt):
    """A run on the kept history is a run of its own, with a new prompt or without one, in the same conversation."""
    model = s.ScriptedModel([[("search", {})]] * 5)
    agent = Agent(model, tools=[s.look_up().tool], capabilities=[ToolGuard(s.repeat(3))])
    with pytest.raises(CircuitOpen) as stopped:
        run(agent, "Find the word.")
    kept = stopped.value.partial
    whole = run(agent, prompt, message_history=kept["messages"])
    assert whole.all_messages()[-1].parts[-1].content == DONE
    assert model.asked == 6
    assert {message.conversation_id for message in whole.new_messages()} == {kept["conversation_id"]}


def test_session_ceiling_outlasts_the_run():
    """A ceiling of the session goes on counting in the next run of the conversation, and ends that before its model."""
    model = s.ScriptedModel(always_new("search"))
    policy = s.ceiling(session=4)
    agent = Agent(model, tools=[s.look_up().tool], capabilities=[ToolGuard(policy)])
    with pytest.raises(CircuitOpen):
        s.run_sync(agent, "Find the word.", conversation_id="one")
    asked = model.asked
    with pytest.raises(CircuitOpen) as again:
        s.run_sync(agent, "Once more.", conversation_id="one")
    assert again.value.trip.scope == "session"
    assert model.asked <= asked + 1
    s.run_sync(Agent(s.ScriptedModel([[("search", {})]]), tools=[s.look_up().tool]), "x", conversation_id="two")


@pytest.mark.parametrize("run", s.WAYS)
def test_stop_from_outside(run):
    """session.stop() by an operator ends the run before its next model request."""
    model = s.ScriptedModel(always_new("search"))

    def search(q: str) -> str:
        if q.startswith("3"):
            session.stop("the budget is spent")
        return q

    agent = Agent(model, tools=[Tool(search)], capabilities=[ToolGuard()])
    with Session() as session, pytest.raises(CircuitOpen) as stopped:
        run(agent, "Find the word.")
    assert stopped.value.trip.loop_type == "stopped_by_operator"
    assert model.asked == 3


def test_in_a_thread():
    """A run in a thread of its own, where no block is known, is stopped as well."""
    model, ends = s.ScriptedModel(for_ever("search")), []
    agent = Agent(model, tools=[s.look_up().tool], capabilities=[ToolGuard(s.repeat(3))])

    def work():
        try:
            s.run_sync(agent, "Find the word.")
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(ends[0], CircuitOpen)
    assert model.asked == 3


def test_runs_side_by_side_are_apart():
    """Concurrent runs of one agent have rings of their own, inside one session and without."""

    async def both():
        made = [
            Agent(s.ScriptedModel([[("search", {})]] * 3, prefix=f"run{n}"), tools=[tool], capabilities=[guard])
            for n in range(8)
        ]
        return await asyncio.gather(*(agent.run("Find the word.") for agent in made))

    tool, guard = s.look_up("async").tool, ToolGuard(s.repeat(4))
    with Session(policy=s.repeat(4)) as session:
        assert {result.output for result in asyncio.run(both())} == {DONE}
    assert session.report()["calls"] == 24
    assert {result.output for result in asyncio.run(both())} == {DONE}


class Swallows(AbstractCapability):
    """Makes a last answer of whatever it is asked about."""

    async def on_model_request_error(self, ctx, *, request_context, error):
        return ModelResponse([TextPart("swallowed")])


class Summarising(AbstractCapability):
    """Calls a model of its own ahead of each request."""

    def __init__(self):
        self.asked = 0

    async def before_model_request(self, ctx, request_context):
        self.asked += 1
        return request_context


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("order", [0, 1])
def test_first_before_each_request(run, order):
    """Wherever the guard stands, no other capability swallows the stop, or pays for a request that is not made."""
    model, other = s.ScriptedModel(for_ever("search")), Summarising()
    given = [Swallows(), other]
    given.insert(2 * order, ToolGuard(s.repeat(3)))
    agent = Agent(model, tools=[s.look_up().tool], capabilities=given)
    with pytest.raises(CircuitOpen):
        run(agent, "Find the word.")
    assert model.asked == other.asked == 3


@pytest.mark.parametrize("run", s.WAYS)
def test_own_limits_and_retries_beside_it(run):
    """Usage limits and retry budgets end a run as they do without the guard, each with its own exception."""
    agent = Agent(s.ScriptedModel(always_new("search")), tools=[s.look_up().tool], capabilities=[ToolGuard()])
    with pytest.raises(UsageLimitExceeded) as ended:
        run(agent, "Find the word.", usage_limits=UsageLimits(tool_calls_limit=3))
    assert find_trip(ended.value) is None

    def picky(q: str) -> str:
        raise ModelRetry("another word")

    agent = Agent(s.ScriptedModel(always_new("picky")), tools=[Tool(picky)], capabilities=[ToolGuard()], retries=2)
    with pytest.raises(AgentRunError, match="exceeded max retries") as ended:
        run(agent, "Find the word.")
    assert not isinstance(ended.value, CircuitOpen)


@pytest.mark.parametrize("run", s.WAYS)
def test_one_history_for_two_runs(run):
    """Runs that begin with one and the same list of messages are each guarded, the first one's results kept or not."""
    model = s.ScriptedModel(lambda turn: [("search", {})] if turn != 2 else None)
    agent = Agent(model, tools=[s.look_up().tool], capabilities=[ToolGuard(s.repeat(3))])
    kept = run(agent, "Find the word.")
    history = kept.all_messages()
    for _ in range(2):
        before = model.asked
        with pytest.raises(CircuitOpen):
            run(agent, "Once more.", message_history=history)
        assert model.asked == before + 3


def test_guard_of_a_run_goes_with_it():
    """Nothing of a run's guard is left when the run and its result are gone."""
    agent = Agent(s.ScriptedModel([[("search", {})]]), tools=[s.look_up().tool], capabilities=[ToolGuard()])
    gc.collect()
    before = set(_capability._guarding)
    s.run_sync(agent, "Find the word.")
    gc.collect()
    assert set(_capability._guarding) <= before


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("ends", ["done", "stopped", "fails"])
def test_end_of_a_run_is_measured(run, ends, measured):
    """A run that is over is measured once, however it ended."""

    def search(q: str = "word") -> str:
        if ends == "fails":
            raise KeyError(q)
        return "nothing"

    script = for_ever("search") if ends == "stopped" else [[("search", {})]]
    agent = Agent(
        s.ScriptedModel(script), tools=[Tool(search)], capabilities=[ToolGuard(s.repeat(3), telemetry=measured)]
    )
    expected = {"done": None, "stopped": CircuitOpen, "fails": KeyError}[ends]
    with pytest.raises(expected) if expected is not None else contextlib.nullcontext():
        run(agent, "Find the word.")
    assert measured.runs == [3 if ends == "stopped" else 1]


def test_pause_is_no_end(measured):
    """A run that waits for a person is measured when it has gone on to its end, as one."""
    seen = s.look_up()
    seen.tool.requires_approval = True
    agent = Agent(
        s.ScriptedModel([[("search", {})], [("search", {})]]), tools=[seen.tool],
        output_type=[str, DeferredToolRequests], capabilities=[ToolGuard(telemetry=measured)],
    )  # fmt: skip
    result = s.run_sync(agent, "Find the word.")
    while isinstance(result.output, DeferredToolRequests):
        assert measured.runs == []
        given = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
        result = s.run_sync(agent, message_history=result.all_messages(), deferred_tool_results=given)
    assert (measured.runs, seen.bodies) == ([2], 2)
