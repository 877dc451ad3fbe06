"""Agents that hand off to agents, and agents that are tools: all are guarded, and none that was given is changed."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from agents import AgentHooks, handoff
from agents.lifecycle import RunHooksBase
from otel_toolguard_openai_agents import guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Session, guard_tool

from . import scripted as s


def ring(*, objects=False, size=3, script=None):
    """Agents that hand off to each other in a ring, each of which searches once; and their one tool."""
    seen = s.look_up()
    agents = [s.agent(None, [seen.tool], name=f"agent_{n}") for n in range(size)]
    for n, one in enumerate(agents):
        after = agents[(n + 1) % size]
        one.handoffs.append(handoff(after) if objects else after)
        one.model.script = script or (
            lambda turn, to=after.name: [[("search", {})], [(f"transfer_to_{to}", {})]][~turn % 2]
        )
        one.model.prefix = one.name
    return agents, seen


@pytest.mark.parametrize("way", ["agent", "hooks"])
@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("run", s.WAYS)
def test_ring_of_handoffs_is_one_run(run, objects, way):
    """Calls of agents that hand the work round and round are calls of one run, whose limit ends it."""
    agents, seen = ring(objects=objects)
    more = {"hooks": guarded_hooks()} if way == "hooks" else {}
    first = guard_agent(agents[0]) if way == "agent" else agents[0]
    with Session(policy=s.repeat(4)), pytest.raises(CircuitOpen) as caught:
        run(first, "Find the word.", **more)
    assert seen.bodies == 4
    assert sum(one.model.asked for one in agents) == 7
    assert s.mispaired(caught.value.to_input_list()) == ""


def test_copies_form_the_same_graph():
    """The copies hand off to each other as the originals do, each agent is copied once, and a copy is not copied."""
    agents, _ = ring()
    first = guard_agent(agents[0])
    walked = [first]
    for _ in agents:
        walked.append(walked[-1].handoffs[0])
    assert walked[-1] is first
    assert len({id(one) for one in walked}) == len(agents)
    assert guard_agent(first) is first
    assert guard_agent(walked[1]) is walked[1]


def fields(agent):
    """All that can be seen of an agent, object by object."""
    kept = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
    lists = {name: list(value) for name, value in kept.items() if isinstance(value, list)}
    tools = [dict(vars(tool)) for tool in agent.tools]
    return kept, lists, tools, type(agent), dict(vars(agent))


def test_the_agent_given_is_not_changed():
    """Agents, lists, tools and hand-offs are after guarding and running what they were before, object by object."""
    agents, seen = ring(objects=True, script=[[("search", {})]])
    inner = s.agent([], [seen.tool], name="inner")
    agents[0].tools.append(inner.as_tool("ask", "Asks."))
    before = [fields(one) for one in (*agents, inner)]
    first = guard_agent(agents[0])
    first.tools.append(seen.tool)
    first.handoffs.clear()
    s.run(guard_agent(agents[0]), "Find the word.", hooks=guarded_hooks())
    for one, (_, lists, tools, kind, everything) in zip((*agents, inner), before, strict=True):
        assert type(one) is kind
        assert {name: id(value) for name, value in vars(one).items() if name in everything} == {
            name: id(value) for name, value in everything.items()
        }
        for name, value in lists.items():
            assert all(a is b for a, b in zip(getattr(one, name), value, strict=True)), name
        for tool, was in zip(one.tools, tools, strict=True):
            assert all(vars(tool)[name] is value for name, value in was.items())


def test_copy_of_a_copy_is_guarded():
    """agent.clone() of a guarded agent is guarded, and so is what a subclass of Agent adds."""

    @dataclasses.dataclass
    class Special(s.Agent):
        note: str = "kept"

    seen = s.look_up()
    bare = Special(name="special", model=s.ScriptedModel(s.for_ever("search")), tools=[seen.tool], note="mine")
    agent = guard_agent(bare, policy=s.repeat(3)).clone(instructions="Look.")
    assert isinstance(agent, Special)
    assert agent.note == "mine"
    with pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert seen.bodies == 3


@pytest.mark.parametrize("way", ["agent", "hooks", "inner too"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("run", s.WAYS)
def test_agent_that_is_a_tool_is_guarded(run, depth, way):
    """The loop of an agent inside a tool, or inside a tool's tool, ends the whole tree with no further model call."""
    seen = s.look_up()
    models, agent = [], s.agent(s.for_ever("search"), [seen.tool], name="agent_0", prefix="call_0")
    models.append(agent.model)
    for n in range(depth):
        if way == "inner too":
            agent = guard_agent(agent)
        tool = agent.as_tool("ask", "Asks.", max_turns=50)
        agent = s.agent(s.for_ever("ask", {"input": "word"}), [tool], name=f"agent_{n + 1}", prefix=f"call_{n + 1}")
        models.append(agent.model)
    more = {"hooks": guarded_hooks()} if way == "hooks" else {}
    given = agent if way == "hooks" else guard_agent(agent)
    with Session(policy=s.repeat(3)) as session, pytest.raises(CircuitOpen) as caught:
        run(given, "Find the word.", **more)
    assert [model.asked for model in models] == [3] + [1] * depth
    assert (seen.bodies, session.report()["calls"]) == (3, 3 + depth)
    assert s.mispaired(caught.value.to_input_list()) == ""


@pytest.mark.parametrize("way", ["agent", "hooks"])
def test_agent_tool_with_the_decorator(way):
    """An agent's tool that bears the decorator is guarded once, its agent too, and it is itself not changed."""
    seen = s.look_up()
    inner = s.agent(s.for_ever("search"), [seen.tool], name="inner", prefix="inner")
    with Session(policy=s.repeat(3)) as session:
        plain = inner.as_tool("ask", "Asks.", max_turns=50)
        tool = guard_tool(plain)
        before = [dict(vars(tool)), dict(vars(plain)), dict(vars(plain.on_invoke_tool))]
        outer = s.agent(s.for_ever("ask", {"input": "word"}), [tool])
        agent, more = (guard_agent(outer), {}) if way == "agent" else (outer, {"hooks": guarded_hooks()})
        with pytest.raises(CircuitOpen):
            s.run(agent, "Find the word.", **more)
        assert session.report()["tools"]["ask"]["calls"] == 1
    assert (seen.bodies, outer.model.asked) == (3, 1)
    after = [dict(vars(tool)), dict(vars(plain)), dict(vars(plain.on_invoke_tool))]
    for was, now in zip(before, after, strict=True):
        assert {name: id(value) for name, value in was.items()} == {name: id(value) for name, value in now.items()}


def test_runs_of_an_inner_agent_are_runs_of_their_own():
    """Equal calls of an inner agent, asked anew each time, are no loop of one run; the tree's ceiling counts them."""
    seen = s.look_up()
    inner = s.agent(lambda turn: [("search", {})] if turn % 2 else None, [seen.tool], name="inner", prefix="inner")
    outer = s.agent(
        lambda turn: [("ask", {"input": str(turn)})] if turn <= 5 else None, [inner.as_tool("ask", "Asks.")]
    )
    agent = guard_agent(outer)
    with Session(policy=s.repeat(3)):
        assert s.run(agent, "Find the word.").final_output == s.DONE
    assert seen.bodies == 5
    outer.model.histories.clear()
    with Session(policy=s.ceiling(7)) as session, pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert session.report()["calls"] == 7


def test_handoff_made_at_run_time_is_guarded():
    """An agent that a hand-off makes only when it is invoked is guarded too, with its filter and callback kept."""
    called = []
    seen = s.look_up()
    clerk = s.agent(s.for_ever("search"), [seen.tool], name="clerk", prefix="clerk")

    def filtered(data):
        called.append("filter")
        return data

    given = handoff(clerk, on_handoff=lambda context: called.append("callback"), input_filter=filtered)
    given._agent_ref = None
    agent = guard_agent(s.agent([[("transfer_to_clerk", {})]], handoffs=[given]), policy=s.repeat(3))
    with pytest.raises(CircuitOpen) as caught:
        s.run(agent, "Find the word.")
    assert (seen.bodies, clerk.model.asked) == (3, 3)
    assert called == ["callback", "filter"]
    assert caught.value.partial.last_agent is not clerk


LATER = {
    "hooks": lambda agent: setattr(agent, "hooks", AgentHooks()),
    "no hooks": lambda agent: setattr(agent, "hooks", None),
    "tools": lambda agent: setattr(agent, "tools", list(agent.tools)),
    "a clone with hooks": lambda agent: agent.clone(hooks=AgentHooks()),
}


@pytest.mark.parametrize("change", LATER)
@pytest.mark.parametrize("run", s.WAYS)
def test_what_is_set_on_a_guarded_agent_later(run, change):
    """A guarded agent, or a clone of it, that is given other hooks or tools is guarded all the same."""
    seen = s.look_up()
    agent = guard_agent(s.agent(s.for_ever("search"), [seen.tool]), policy=s.repeat(3))
    with pytest.raises(CircuitOpen):
        run(LATER[change](agent) or agent, "Find the word.")
    assert (seen.bodies, agent.model.asked) == (3, 3)


def test_deep_copy_is_guarded():
    """A deep copy of a guarded agent is guarded, with hooks and lists of its own."""

    class Own(AgentHooks):
        pass

    agent = guard_agent(s.agent(s.for_ever("search"), [s.look_up().tool], hooks=Own()), policy=s.repeat(3))
    copied = copy.deepcopy(agent)
    assert copied.hooks is not agent.hooks
    with pytest.raises(CircuitOpen):
        s.run(copied, "Find the word.")
    assert (copied.model.asked, agent.model.asked) == (3, 0)


@pytest.mark.parametrize("objects", [False, True])
def test_handoff_added_to_a_guarded_agent_later(objects):
    """An agent that a guarded one may hand off to only since it was guarded is guarded as well."""
    seen = s.look_up()
    clerk = s.agent(s.for_ever("search"), [seen.tool], name="clerk", prefix="clerk")
    agent = guard_agent(s.agent([[("transfer_to_clerk", {})]]), policy=s.repeat(3))
    agent.handoffs.append(handoff(clerk) if objects else clerk)
    with pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert (seen.bodies, clerk.model.asked) == (3, 3)


class Own(RunHooksBase):
    """A user's hooks, which write down what they hear."""

    def __init__(self):
        self.heard = []


def _writing(name):
    async def write(self, context, *args, **named):
        self.heard.append((name, [getattr(one, "name", None) for one in (*args, *named.values())]))

    return write


for _name in [name for name in dir(RunHooksBase) if name.startswith("on_")]:
    setattr(Own, _name, _writing(_name))


def test_every_hook_of_the_user_is_called():
    """Chained to the guard, the user's run hooks hear of everything in the order they heard it without."""
    heard = []
    for put in (lambda hooks: hooks, guarded_hooks):
        agents, _ = ring(size=2, script=[[("search", {})], [("transfer_to_agent_1", {})]])
        agents[1].model.script = [[("search", {"q": "other"})]]
        own = Own()
        s.run(agents[0], "Find the word.", hooks=put(own))
        heard.append(own.heard)
    assert heard[0] == heard[1]
    assert {name for name, _ in heard[0]} == {name for name in dir(RunHooksBase) if name.startswith("on_")}
