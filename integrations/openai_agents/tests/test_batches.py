"""Calls and answers pair up, and ceilings hold, whatever the limits and the sizes of batches."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from otel_toolguard_openai_agents import guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Session

from . import scripted as s


def tools(kind):
    """A tool of the kind, and how often its body ran."""
    ran = []

    def search(q: str) -> str:
        """Looks something up."""
        ran.append(q)
        return f"nothing about {q}"

    async def search_async(q: str) -> str:
        """Looks something up."""
        for _ in range(random.Random(q).randrange(4)):
            await asyncio.sleep(0)
        ran.append(q)
        return f"nothing about {q}"

    return s.bare(search if kind == "sync" else search_async, name_override="search"), ran


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    limit=st.integers(1, 12), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    kind=st.sampled_from(["sync", "async"]), run=st.sampled_from(s.WAYS), hooks=st.booleans(),
)  # fmt: skip
def test_ceiling_and_pairing(limit, sizes, kind, run, hooks):
    """Exactly the ceiling's bodies start, each id of the history has one answer, and no model call follows the stop."""
    tool, ran = tools(kind)
    script = [[("search", {"q": f"{turn}.{n}"}) for n in range(size)] for turn, size in enumerate(sizes)]
    bare = s.agent(script, [tool])
    agent, more = (bare, {"hooks": guarded_hooks()}) if hooks else (guard_agent(bare), {})
    with Session(policy=s.ceiling(limit)) as session:
        if sum(sizes) <= limit:
            history = run(agent, "Find the word.", **more).to_input_list()
            asked = len(sizes) + 1
        else:
            with pytest.raises(CircuitOpen) as caught:
                run(agent, "Find the word.", **more)
            history = caught.value.to_input_list()
            asked = next(n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) > limit)
    report = session.report()
    assert (len(ran), agent.model.asked) == (min(limit, sum(sizes)), asked)
    assert s.mispaired(history) == ""
    assert len(s.answers(history)) == sum(sizes[:asked])
    assert (report["calls"], report["in_flight"]) == (len(ran), 0)


@pytest.mark.parametrize("seed", range(6))
def test_kept_history_is_accepted_again_and_again(seed):
    """However a conversation is stopped, and stopped again, a provider accepts what is kept as the next input."""
    chance = random.Random(seed)
    tool, _ = tools(chance.choice(["sync", "async"]))
    history = [{"role": "user", "content": "Find the word."}]
    for prefix in ("a", "b", "c"):
        batch, run = chance.randrange(1, 5), chance.choice(s.WAYS)
        bare = s.agent(
            chance.choice([s.for_ever("search", {"q": "x"}, batch=batch), s.always_new("search", batch=batch)]), [tool]
        )
        bare.model.prefix = prefix
        policy = chance.choice([s.repeat(chance.randrange(2, 5)), s.ceiling(chance.randrange(1, 9))])
        if policy.rules[0] == "repeat_guard":
            bare.model.script = s.for_ever("search", {"q": "x"}, batch=batch)
        with pytest.raises(CircuitOpen) as caught:
            run(guard_agent(bare, policy=policy), history)
        history = caught.value.to_input_list()
        assert s.mispaired(history) == ""


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("run", s.WAYS)
def test_equal_calls_of_one_turn_are_no_loop(run, kind):
    """Five equal calls in one turn are one lap, also where the model then does something else."""
    tool, ran = tools(kind)
    agent = guard_agent(s.agent([[("search", {"q": "a"})] * 5, [("search", {"q": "b"})]], [tool]))
    with Session(policy=s.repeat(3)):
        assert run(agent, "Find the word.").final_output == s.DONE
    assert len(ran) == 6
