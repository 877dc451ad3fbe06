"""Agents inside tools: a stop anywhere ends the whole tree, a pause or a refusal does not."""

from __future__ import annotations

import contextlib

import pytest
from otel_toolguard_pydantic_ai import ToolGuard
from pydantic_ai import Agent, RunContext, Tool

from otel_toolguard import CircuitOpen, Session, guard_tool
from otel_toolguard.testing.scripts import DONE, always_new, for_ever, in_turn

from . import scripted as s


def delegating(inner, name="delegate", *, hides=False):
    """A tool that has another agent do the work, and perhaps makes an answer of whatever goes wrong."""

    async def delegate(ctx: RunContext, q: str = "word") -> str:
        """Has another agent do it."""
        try:
            return (await inner.run(q, usage=ctx.usage)).output
        except Exception as error:
            if hides:
                return f"failed: {error}"
            raise

    return Tool(delegate, name=name)


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("hides", [False, True], ids=["raises", "hides it"])
@pytest.mark.parametrize("session", [False, True], ids=["no block", "a block"])
def test_inner_loop_ends_the_outer_run(session, hides, run):
    """The stop of a nested run ends the outer one before its next request, even where the tool hides the exception."""
    model, outer = s.ScriptedModel(for_ever("search"), "inner"), s.ScriptedModel(for_ever("delegate"))
    guard = ToolGuard(s.repeat(3))
    inner = Agent(model, tools=[s.look_up().tool], capabilities=[guard])
    agent = Agent(outer, tools=[delegating(inner, hides=hides)], capabilities=[guard])
    block = Session(policy=s.repeat(3)) if session else contextlib.nullcontext()
    with block, pytest.raises(CircuitOpen) as stopped:
        run(agent, "Find the word.")
    assert stopped.value.trip.tool == "search"
    kept = stopped.value.partial["messages"]
    assert s.mispaired(kept) == ""
    assert [call.tool_name for message in kept if message.kind == "response" for call in message.tool_calls] == [
        "delegate"
    ]
    assert (model.asked, outer.asked) == (3, 1)


@pytest.mark.parametrize("run", s.WAYS)
def test_ceiling_is_drawn_from_the_tree(run):
    """Calls of nested runs count towards the outer run's ceiling."""
    model = s.ScriptedModel(always_new("search", batch=2), "inner")
    seen = s.look_up("async")
    inner = Agent(model, tools=[seen.tool], capabilities=[ToolGuard()])
    agent = Agent(
        s.ScriptedModel(always_new("delegate", batch=2)), tools=[delegating(inner)], capabilities=[ToolGuard()]
    )
    with Session(policy=s.ceiling(7)) as session, pytest.raises(CircuitOpen):
        run(agent, "Find the word.")
    assert session.report()["calls"] == 7
    assert seen.bodies == 5


def test_runs_of_an_inner_agent_are_apart():
    """Each nested run has rings of its own: an inner agent that is asked again does what it did before."""
    turns = [[("search", {})], [("search", {})], None]
    model = s.ScriptedModel(lambda turn: turns[(turn - 1) % 3], "inner")
    inner = Agent(model, tools=[s.look_up().tool], capabilities=[ToolGuard()])
    outer = s.ScriptedModel(lambda turn: [("delegate", {"q": str(turn)})] if turn <= 6 else None)
    agent = Agent(outer, tools=[delegating(inner)], capabilities=[ToolGuard()])
    with Session(policy=s.repeat(3)) as session:
        assert s.run_sync(agent, "Find the word.").output == DONE
    assert session.trip is None
    assert session.report()["tools"]["search"]["calls"] == 12


def test_delegation_without_end_is_a_loop_of_the_outer_run():
    """An outer model that has the same done again and again is stopped by its own ring."""
    inner = Agent(s.ScriptedModel(lambda _: None, "inner"), capabilities=[ToolGuard()])
    agent = Agent(s.ScriptedModel(for_ever("delegate")), tools=[delegating(inner)], capabilities=[ToolGuard()])
    with Session(policy=s.repeat(4)), pytest.raises(CircuitOpen) as stopped:
        s.run(agent, "Find the word.")
    assert (stopped.value.trip.tool, stopped.value.trip.at_call) == ("delegate", 4)


def test_unguarded_inner_agent():
    """Calls of an agent without a guard are not counted; its tools with a decorator are, for the outer run's session."""

    @guard_tool
    def search(q: str = "word") -> str:
        return "nothing"

    model = s.ScriptedModel(for_ever("search"), "inner")
    agent = Agent(
        s.ScriptedModel(for_ever("delegate")), tools=[delegating(Agent(model, tools=[Tool(search)]))],
        capabilities=[ToolGuard()],
    )  # fmt: skip
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) as stopped:
        s.run(agent, "Find the word.")
    assert stopped.value.trip.tool == "search"


def test_two_agents_by_turns():
    """Two agents that a program runs one after the other in one block are two runs."""
    agents = [
        Agent(
            s.ScriptedModel(in_turn(("search", {})), f"agent{n}"), tools=[s.look_up().tool], capabilities=[ToolGuard()]
        )
        for n in range(2)
    ]
    with Session(policy=s.repeat(3)) as session:
        for agent in agents:
            with pytest.raises(CircuitOpen):
                s.run_sync(agent, "Find the word.")
        assert session.report()["calls"] == 6
