"""How a stopped run ends, and what it leaves behind."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from agents import Runner
from agents.exceptions import AgentsException
from otel_toolguard_openai_agents import OpenAIAgentsStopped, guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Session, SessionStopped, find_trip, guard_tool
from otel_toolguard.testing.adapter_contract import told

from . import scripted as s


def stopped_run(script, policy, run=s.run, batch=1, **more):
    """The stop of a guarded agent, the agent, and its tool."""
    seen = s.look_up()
    agent = guard_agent(s.agent(script, [seen.tool]), policy=policy)
    with pytest.raises(CircuitOpen) as caught:
        run(agent, "Find the word.", **more)
    return caught.value, agent, seen


def test_stop_is_ours_and_the_sdks():
    """The stop is a SessionStopped and an AgentsException, says the trip's sentence, and travels as a SessionStopped."""
    error, _, _ = stopped_run(s.for_ever("search"), s.repeat(3))
    assert type(error) is OpenAIAgentsStopped
    assert isinstance(error, SessionStopped)
    assert isinstance(error, AgentsException)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is SessionStopped
    assert again.trip == error.trip == find_trip(error)
    assert str(error) == error.trip.why


@pytest.mark.parametrize("run", s.WAYS)
def test_partial_is_the_run_data(run):
    """The stop carries the SDK's own record of the run, of which every call has an answer."""
    error, agent, seen = stopped_run(s.always_new("search", batch=3), s.ceiling(7), run)
    assert error.partial is error.run_data
    assert error.partial.last_agent is agent
    assert (len(error.partial.raw_responses), agent.model.asked, seen.bodies) == (3, 3, 7)
    assert s.mispaired(error.to_input_list()) == ""
    assert len(s.answers(error.to_input_list())) == 9


def test_stop_without_run_data_has_an_empty_history():
    """A stop that no run has carried yet knows no history."""
    error, _, _ = stopped_run(s.for_ever("search"), s.repeat(3))
    assert OpenAIAgentsStopped(error.trip).to_input_list() == []
    assert OpenAIAgentsStopped(error.trip).partial is None


def test_hooks_are_not_told_of_a_model_call_that_is_not_made():
    """The agent's own on_llm_start hears of the calls that are made, and of no other."""
    from agents import AgentHooks

    class Own(AgentHooks):
        heard = 0

        async def on_llm_start(self, context, agent, system_prompt, input_items):
            self.heard += 1

    own, seen = Own(), s.look_up()
    agent = guard_agent(s.agent(s.for_ever("search"), [seen.tool], hooks=own), policy=s.repeat(3))
    with pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert own.heard == agent.hooks.heard == agent.model.asked == 3


@pytest.mark.parametrize("run", s.WAYS)
def test_memory_is_whole_after_a_stop(run):
    """With the SDK's memory the conversation itself can go on: the next message on it is a new, clean run."""
    memory, seen = s.Memory(), s.look_up()
    model_says = [[("search", {})], [("search", {})], [("search", {})], [("search", {})], "Summed up."]
    agent = guard_agent(s.agent(model_says, [seen.tool]), policy=s.repeat(3))
    with pytest.raises(CircuitOpen):
        run(agent, "Find the word.", session=memory)
    assert s.mispaired(memory.items) == ""
    assert run(agent, "Sum up.", session=memory).final_output == "Summed up."
    assert (seen.bodies, agent.model.asked) == (4, 5)


def test_session_ceiling_trips_again_at_once():
    """A ceiling of the session goes on counting: in the next run no body starts and one model call is made."""
    seen = s.look_up()
    agent = guard_agent(s.agent(s.always_new("search"), [seen.tool]), policy=s.ceiling(session=4))
    for total in (5, 6):
        with pytest.raises(SessionStopped) as caught:
            s.run(agent, "Find the word.", context={"session_id": "one"})
        assert (seen.bodies, agent.model.asked) == (4, total)
        assert caught.value.trip.scope == "session"


def test_operator_stops_a_run():
    """session.stop from a tool's thread ends the run at the next model call."""
    with Session() as session:

        def halt() -> str:
            """Stops everything."""
            session.stop("enough")
            return "stopped"

        agent = guard_agent(s.agent(s.for_ever("halt"), [s.bare(halt)]))
        with pytest.raises(SessionStopped, match="enough"):
            s.run(agent, "Go on.")
    assert agent.model.asked == 1


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("run", s.WAYS)
def test_refusal_as_the_last_word_is_no_success(run, hooks):
    """Where a tool's answer ends the run, the answer of a stop is raised, not returned as the run's output."""
    seen = s.look_up()
    bare = s.agent(s.always_new("search"), [seen.tool], tool_use_behavior="stop_on_first_tool")
    agent, more = (bare, {"hooks": guarded_hooks()}) if hooks else (guard_agent(bare), {})
    with Session(policy=s.ceiling(session=1)):
        assert run(agent, "Find the word.", **more).final_output == "nothing about 1.0"
        with pytest.raises(CircuitOpen):
            run(agent, "Find the word.", **more)
    assert seen.bodies == 1


def test_last_word_before_a_trip_is_kept():
    """A run whose last answer trips a rule has ended by itself: its output stands."""
    seen = s.look_up()
    bare = s.agent(s.for_ever("search"), [seen.tool], tool_use_behavior="stop_on_first_tool")
    with Session(policy=s.ceiling(5)) as session:
        assert s.run(guard_agent(bare), "Find the word.").final_output == "nothing about word"
    assert session.trip is None


def test_refused_too_often_ends_the_run():
    """A model that asks again and again for a refused tool is stopped by max_refusals."""
    from otel_toolguard import Policy

    policy = Policy(plugins=[
        {"plugin": "call_ceiling", "tools": {"search": 1}}, {"plugin": "max_refusals", "limit": 3},
    ])  # fmt: skip
    error, agent, seen = stopped_run(s.always_new("search"), policy)
    assert (error.trip.rule, seen.bodies, agent.model.asked) == ("max_refusals", 1, 4)
    answers = [told(answer) for answer in s.answers(error.to_input_list()).values()]
    assert answers[:2] == ["", "tool"]


def test_observing_stops_nothing():
    """In observe mode the run goes on to its own end."""
    from otel_toolguard import Policy

    seen = s.look_up()
    policy = Policy(mode="observe", plugins=[{"plugin": "repeat_guard", "limit": 2}])
    agent = guard_agent(s.agent([[("search", {})]] * 6, [seen.tool]), policy=policy)
    assert s.run(agent, "Find the word.").final_output == s.DONE
    assert seen.bodies == 6


def test_refusal_of_a_helper_is_the_tools_answer():
    """A guarded helper that is refused inside a tool fails that call only, and the run goes on."""

    @guard_tool
    def fetch(url: str) -> str:
        """A helper that has a ceiling of its own."""
        return "page"

    def read(url: str) -> str:
        """Reads a page."""
        return fetch(url=url)

    agent = guard_agent(s.agent([[("read", {"url": str(n)})] for n in range(3)], [s.bare(read)]))
    with Session(policy=s.ceiling(tools={"fetch": 2})):
        result = s.run(agent, "Read on.")
    assert [told(answer) for answer in s.answers(result.to_input_list()).values()] == ["", "", "tool"]


@pytest.mark.parametrize("way", ["agent", "hooks", "streamed"])
def test_runs_of_one_agent_at_once(way):
    """Twenty runs of one agent at once share the session's ceiling to the call, and each leaves a whole history."""
    seen = s.look_up()
    bare = s.agent(s.always_new("search", batch=3), [seen.tool])
    bare.handoffs.append(s.agent([], name="clerk"))
    agent, more = (bare, {"hooks": guarded_hooks()}) if way == "hooks" else (guard_agent(bare), {})

    async def one():
        try:
            if way != "streamed":
                return await Runner.run(agent, "Find the word.", max_turns=50, **more)
            result = Runner.run_streamed(agent, "Find the word.", max_turns=50)
            async for _ in result.stream_events():
                pass
        except CircuitOpen as stop:
            return stop

    async def all_at_once():
        return await asyncio.gather(*(one() for _ in range(20)))

    with Session(policy=s.ceiling(session=100)) as session:
        stops = asyncio.run(all_at_once())
    assert {type(stop) for stop in stops} == {OpenAIAgentsStopped}
    assert (seen.bodies, session.report()["calls"]) == (100, 100)
    assert [s.mispaired(stop.to_input_list()) for stop in stops] == [""] * 20


def test_loops_of_runs_at_once_do_not_mix():
    """Equal calls of runs at once are no loop: each run has rules of its own."""
    agents = [guard_agent(s.agent([[("search", {})]] * 2, [s.look_up().tool])) for _ in range(5)]

    async def all_at_once():
        return await asyncio.gather(*(Runner.run(agent, "Find.") for agent in agents))

    with Session(policy=s.repeat(3)):
        assert [result.final_output for result in asyncio.run(all_at_once())] == [s.DONE] * 5
