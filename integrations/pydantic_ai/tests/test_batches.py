"""Batches: exact ceilings and whole histories, whatever the sizes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otel_toolguard_pydantic_ai import ToolGuard
from pydantic_ai import Agent, Tool, ToolOutput

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.testing.scripts import always_new

from . import scripted as s

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("run", [s.run_sync, s.run, s.run_stream, s.iterate])
@QUICK
@given(
    limit=st.integers(1, 12),
    batches=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    kind=st.sampled_from(["sync", "async"]),
)
def test_ceiling_is_exact(run, limit, batches, kind):
    """As many bodies run as the ceiling allows, each call has its answer, and the model is asked no more after it."""
    seen = s.look_up(kind)
    model = s.ScriptedModel(
        lambda turn: [("search", {"q": f"{turn}.{n}"}) for n in range(batches[turn % len(batches)])]
    )
    agent = Agent(model, tools=[seen.tool], capabilities=[ToolGuard()])
    asked = []
    told = Session(policy=s.ceiling(limit), on_trip=lambda _: asked.append(model.asked))
    with told, pytest.raises(CircuitOpen) as stopped:
        run(agent, "Find the word.")
    kept = stopped.value.partial["messages"]
    assert seen.bodies == limit
    assert model.asked == asked[0]
    assert s.mispaired(kept) == ""
    good = [answer for answer in s.answers(kept).values() if answer.outcome == "success"]
    assert len(good) == limit


@QUICK
@given(limit=st.integers(2, 6), batch=st.integers(1, 5))
def test_equal_calls_of_a_turn_are_one_lap(limit, batch):
    """Equal calls of one turn come round once, however they overlap."""
    seen, model = s.look_up("async"), s.ScriptedModel(lambda _: [("search", {})] * batch)
    agent = Agent(model, tools=[seen.tool], capabilities=[ToolGuard(s.repeat(limit))])
    with pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert (model.asked, seen.bodies) == (limit, limit * batch)


def test_eight_at_once_at_a_limit_of_six():
    """Of eight calls in one turn six start, two are refused before their bodies, and nobody is started in vain."""
    started, ended = [], []

    async def search(q: str) -> str:
        started.append(q)
        await asyncio.sleep(0)
        ended.append(q)
        return q

    agent = Agent(
        s.ScriptedModel(always_new("search", batch=8)), tools=[Tool(search)], capabilities=[ToolGuard(s.ceiling(6))]
    )
    with pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert started == ended
    assert len(started) == 6


def test_one_after_the_other():
    """Tools that must not run side by side are counted the same."""
    seen = s.look_up()
    seen.tool.sequential = True
    agent = Agent(
        s.ScriptedModel(always_new("search", batch=4)), tools=[seen.tool], capabilities=[ToolGuard(s.ceiling(5))]
    )
    with pytest.raises(CircuitOpen) as stopped:
        s.run_sync(agent, "Find the word.")
    assert seen.bodies == 5
    assert len(s.answers(stopped.value.partial["messages"])) == 8


def answer(text: str) -> str:
    """Gives the answer."""
    return text


@pytest.mark.parametrize("strategy", ["early", "exhaustive"])
def test_output_tools_are_not_calls(strategy):
    """A turn that gives the answer by an output tool ends the run as ever, and only real tools are counted."""
    seen = s.look_up()
    model = s.ScriptedModel([[("search", {"q": "a"})], [("answer", {"text": "it"}), ("search", {"q": "b"})]])
    agent = Agent(
        model, tools=[seen.tool], output_type=ToolOutput(answer, name="answer"), end_strategy=strategy,
        capabilities=[ToolGuard()],
    )  # fmt: skip
    with Session() as session:
        assert s.run_sync(agent, "Find the word.").output == "it"
    assert session.report()["calls"] == seen.bodies
    assert list(session.report()["tools"]) == ["search"]
