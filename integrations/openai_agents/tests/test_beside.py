"""Beside what the SDK has itself: guardrails, memories, approvals, conditions, classes of the user's own."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
from typing import Any

import agents as sdk
import pytest
from agents import Agent, SQLiteSession
from agents.exceptions import AgentsException, MaxTurnsExceeded
from otel_toolguard_openai_agents import guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Policy, Session

from . import scripted as s

PUTS = {
    "agent": lambda agent: (guard_agent(agent), {}),
    "hooks": lambda agent: (agent, {"hooks": guarded_hooks()}),
}


def judging(kind, trips, heard):
    """A guardrail of the kind, which trips or lets pass."""

    async def judge(context, agent, given):
        heard.append(kind)
        return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=trips)

    def judge_tool(data):
        heard.append(kind)
        made = sdk.ToolGuardrailFunctionOutput
        return made.raise_exception() if trips else made.allow()

    marks = {
        "input": sdk.input_guardrail, "output": sdk.output_guardrail, "tool input": sdk.tool_input_guardrail,
        "tool output": sdk.tool_output_guardrail,
    }  # fmt: skip
    return marks[kind](judge_tool if kind.startswith("tool") else judge)


def with_guardrail(script, kind, guardrail):
    """An agent with that guardrail, on its tool or on itself."""
    seen = s.look_up()
    agent = s.agent(script, [seen.tool])
    where = seen.tool if kind.startswith("tool") else agent
    name = kind.replace("tool ", "tool_") + "_guardrails"
    setattr(where, name, [guardrail])
    return agent, seen


KINDS = ("input", "output", "tool input", "tool output")


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", s.WAYS)
def test_guardrail_that_trips_is_the_sdks_stop(run, kind, put):
    """A guardrail that trips ends the run as it does without the guard, and is no circuit that opened."""
    ends = []
    for guard in (lambda agent: (agent, {}), PUTS[put]):
        heard = []
        bare, seen = with_guardrail([[("search", {})]], kind, judging(kind, trips=True, heard=heard))
        agent, more = guard(bare)
        with Session() as session, pytest.raises(AgentsException) as caught:
            run(agent, "Find the word.", **more)
        ends.append((type(caught.value), str(caught.value), heard, seen.bodies))
        assert (session.trip, session.report()["failed"]) == (None, 0)
    assert ends[0] == ends[1]
    assert not isinstance(caught.value, CircuitOpen)


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", s.WAYS)
def test_guardrail_that_lets_pass(run, kind, put):
    """With a guardrail that lets everything pass a loop is stopped all the same, and the guardrail is heard."""
    heard = []
    bare, seen = with_guardrail(s.for_ever("search"), kind, judging(kind, trips=False, heard=heard))
    agent, more = PUTS[put](bare)
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) as caught:
        run(agent, "Find the word.", **more)
    assert (seen.bodies, bare.model.asked) == (3, 3)
    assert len(heard) == {"input": 1, "output": 0}.get(kind, 3)
    assert s.mispaired(caught.value.to_input_list()) == ""


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("run", s.WAYS)
def test_stored_memory_goes_on(run, put, tmp_path):
    """A conversation in the SDK's own database is whole after a stop, and its next message is a clean run."""
    memory, seen = SQLiteSession("chat", tmp_path / "chat.db"), s.look_up()
    agent, more = PUTS[put](s.agent(s.always_new("search", batch=3), [seen.tool]))
    with Session(policy=s.ceiling(run=5)):
        with pytest.raises(CircuitOpen) as caught:
            run(agent, "Find the word.", session=memory, **more)
        kept = asyncio.run(memory.get_items())
        assert s.mispaired(kept) == ""
        assert sorted(s.answers(kept)) == sorted(s.answers(caught.value.to_input_list()))
        agent.model.script = [None] * 2 + [[("search", {"q": "other"})], "Summed up."]
        assert run(agent, "Sum up.", session=memory, **more).final_output == "Summed up."
    assert (seen.bodies, len(s.answers(kept))) == (6, 6)
    memory.close()


class OnAServer(s.ScriptedModel):
    """A model whose provider keeps the conversation: it is given only what is new."""

    keeps_history = False

    async def get_response(self, *given, **named):
        made = await super().get_response(*given, **named)
        made.response_id = f"resp-{self.asked}"
        return made


KEPT_THERE = ({"previous_response_id": "resp-0"}, {"conversation_id": "conv-1"}, {"auto_previous_response_id": True})


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("more", KEPT_THERE, ids=lambda more: next(iter(more)))
@pytest.mark.parametrize("run", s.WAYS)
def test_conversation_that_the_provider_keeps(run, more, put):
    """Where the provider keeps the history, a stop has the answers that it was not sent yet, in the run's data."""
    seen = s.look_up()
    model = OnAServer(s.for_ever("search", batch=2))
    agent, hooks = PUTS[put](Agent(name="agent", model=model, tools=[seen.tool]))
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) as caught:
        run(agent, "Find the word.", **more, **hooks)
    sent = {item["call_id"] for given in model.histories for item in given if "call_id" in item}
    answers = s.answers(caught.value.to_input_list())
    assert (model.asked, len(sent), len(answers)) == (3, 4, 6)
    assert set(answers) - sent == {"call-3-0", "call-3-1"}


@pytest.mark.parametrize("calls_super", [True, False])
@pytest.mark.parametrize("run", s.WAYS)
def test_class_of_agents_with_tools_of_its_own(run, calls_super):
    """Tools that a subclass of Agent comes up with when it is asked are guarded like those it was given."""
    seen = s.look_up()

    @dataclasses.dataclass
    class Inventive(Agent):
        async def get_all_tools(self, run_context):
            return [*(await super().get_all_tools(run_context) if calls_super else []), seen.tool]

    bare = Inventive(name="agent", model=s.ScriptedModel(s.for_ever("search")))
    agent = guard_agent(bare)
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        run(agent, "Find the word.")
    assert isinstance(agent, Inventive)
    assert (seen.bodies, bare.model.asked) == (3, 3)


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("run", s.WAYS)
def test_tool_that_is_enabled_at_times(run, put):
    """Whether a tool is offered is asked in each turn as without the guard, and while it is it is guarded."""
    seen, asked, other = s.look_up(), [], s.look_up("other")

    def enabled(context, agent):
        asked.append(agent.name)
        return True

    seen.tool.is_enabled, other.tool.is_enabled = enabled, False
    bare = s.agent(s.for_ever("search"), [seen.tool, other.tool])
    agent, more = PUTS[put](bare)
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        run(agent, "Find the word.", **more)
    assert (seen.bodies, bare.model.asked, {tool.name for tool in bare.model.shown}) == (3, 3, {"search"})
    assert len(asked) >= 3


@pytest.mark.parametrize("through_json", [False, True])
@pytest.mark.parametrize("run", s.WAYS)
def test_approval_behind_a_handoff(run, through_json):
    """A run that waits behind a hand-off, stored or not, goes on guarded, and what is kept of it is whole."""
    ran = []

    def erase(q: str) -> str:
        """Removes something."""
        ran.append(q)
        return "done"

    clerk = s.agent(s.for_ever("erase", {"q": "a"}), [s.bare(erase, needs_approval=True)], name="clerk", prefix="clerk")
    agent = guard_agent(s.agent([[("transfer_to_clerk", {})]], handoffs=[clerk], name="first"))
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) as caught:
        s.approved(agent, run, through_json=through_json)
    assert (len(ran), clerk.model.asked) == (3, 3)
    assert s.mispaired(caught.value.to_input_list()) == ""


@pytest.mark.parametrize("run", s.WAYS)
def test_rejected_call_was_not_made(run):
    """A call that a person rejects is answered by the SDK: no body, no attempt, no failure."""
    seen = s.look_up()
    seen.tool.needs_approval = True
    agent = guard_agent(s.agent([[("search", {})]], [seen.tool]))
    with Session() as session:
        state = run(agent, "Find the word.").to_state()
        state.reject(state.get_interruptions()[0])
        result = run(agent, state)
    assert (result.final_output, seen.bodies, session.report()["calls"]) == (s.DONE, 0, 0)
    assert s.mispaired(result.to_input_list()) == ""


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("run", s.WAYS)
def test_cap_of_turns_that_is_reached_first(run, put, handled):
    """The SDK's own cap ends a run that is below our limits as it does without the guard, also where it is handled."""
    seen = s.look_up()
    agent, more = PUTS[put](s.agent(s.for_ever("search"), [seen.tool]))
    more = {**more, "max_turns": 2}
    with Session(policy=s.repeat(3)) as session:
        if handled:
            result = run(agent, "Find the word.", error_handlers={"max_turns": lambda data: "enough"}, **more)
            assert result.final_output == "enough"
        else:
            with pytest.raises(MaxTurnsExceeded):
                run(agent, "Find the word.", **more)
    assert (seen.bodies, session.trip) == (2, None)


@pytest.mark.parametrize("run", s.WAYS)
def test_lists_given_to_a_guarded_agent_stay_the_users(run):
    """Lists that are given to a guarded agent or its clone keep what they hold, and what is put on a copy stays there."""
    seen, clerk = s.look_up(), s.agent([], name="clerk")
    tools, handoffs = [seen.tool], [clerk]
    bare = s.agent([[("search", {})]])
    agent = guard_agent(bare)
    agent.handoffs.append(clerk)
    assert bare.handoffs == []
    clone = agent.clone(tools=tools, handoffs=handoffs)
    with Session() as session:
        assert run(clone, "Find the word.").final_output == s.DONE
    assert session.report()["calls"] == 1
    assert tools[0] is seen.tool
    assert handoffs[0] is clerk


@pytest.mark.parametrize("run", s.WAYS)
def test_what_a_run_used_can_travel(run):
    """What the SDK counts for a run can be copied, pickled and compared as without the guard."""
    agent = s.agent([[("search", {})]], [s.look_up().tool])
    bare = run(agent, "Find the word.").context_wrapper.usage
    agent.model.histories.clear()
    used = run(guard_agent(agent), "Find the word.").context_wrapper.usage
    assert used == bare
    for copied in (copy.copy(used), copy.deepcopy(used), pickle.loads(pickle.dumps(used))):
        assert copied == bare
    assert dataclasses.asdict(used) == dataclasses.asdict(bare)


ANSWERS = {
    "a number": 3, "an object": {"found": 0}, "a list": ["a", "b"], "a part": sdk.ToolOutputText(text="nothing"),
    "parts": [sdk.ToolOutputText(text="nothing")], "none": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", ANSWERS)
def test_advice_beside_every_kind_of_answer(kind):
    """Whatever a tool returns, the model is shown the advice of a rule beside it."""

    def search() -> Any:
        """Looks something up."""
        return ANSWERS[kind]

    policy = Policy(plugins=[{"plugin": "repeat_guard", "limit": 2, "on_limit": "nudge"}])
    agent = guard_agent(s.agent([[("search", {})]] * 3, [sdk.function_tool(search)]), policy=policy)
    given = list(s.answers(s.run(agent, "Find the word.").to_input_list()).values())
    assert len(str(given[1])) > len(str(given[0])) + 60
    assert {"a number": "3", "an object": "found", "a list": "b", "none": ""}.get(kind, "nothing") in str(given[1])
