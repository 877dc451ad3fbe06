"""Agents and graphs drawn at random: whatever they are made of, a runaway ends exactly at its ceiling."""

from __future__ import annotations

import os
import random
import threading
import uuid
from typing import Annotated, Any

import pytest
from langchain import tools as langchain_tools
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from otel_toolguard_langchain import ToolGuardMiddleware
from pydantic import BaseModel

from otel_toolguard import CircuitOpen, Session

from . import graphs as g
from . import scripted as s

SEEDS = range(int(os.environ.get("TOOLGUARD_TEST_SEEDS", "40")))


class Report(BaseModel):
    """What the agent is to hand in."""

    text: str


class Sees(AgentMiddleware):
    """A middleware of the user's own, which does nothing."""

    def wrap_tool_call(self, request, handler):
        return handler(request)

    async def awrap_tool_call(self, request, handler):
        return await handler(request)


class Program:
    """One program, drawn from a seed."""

    def __init__(self, seed):
        self.draw = draw = random.Random(seed)
        self.run = draw.choice(s.WAYS)
        self.limit = draw.randint(1, 30)
        self.sizes = [draw.randint(1, 12) for _ in range(200)]
        self.bodies = 0
        self.checkpointer = draw.choice([None, InMemorySaver()])
        self.config = {"recursion_limit": 400, "configurable": {"thread_id": f"{seed}-{uuid.uuid4().hex}"}}
        self.in_a_session = draw.random() < 0.5
        self.is_agent = draw.random() < 0.5
        self.tools = [make(self) for make in draw.sample(TOOLS, draw.randint(1, len(TOOLS)))]
        self.model = s.model(self.turn)
        self.policy = s.ceiling(self.limit)
        self.app = self.agent() if self.is_agent else self.graph()

    _lock = threading.Lock()

    def began(self):
        with self._lock:
            self.bodies += 1

    def turn(self, turn):
        """A batch of calls, of any of the tools."""
        return [(self.draw.choice(self.tools).name, {"q": f"{turn}.{n}"}) for n in range(self.sizes[turn])]

    def agent(self):
        draw, stack = self.draw, [ToolGuardMiddleware(self.policy)]
        more = [Sees(), ToolCallLimitMiddleware(run_limit=999), ModelCallLimitMiddleware(run_limit=999)]
        retry = [ToolRetryMiddleware(max_retries=1, initial_delay=0)]
        stack = [*draw.sample(more, draw.randint(0, 3)), *draw.choice([[], retry]), *stack]
        form = draw.choice([None, ToolStrategy(Report)])
        return create_agent(
            self.model, self.tools, middleware=stack, response_format=form, checkpointer=self.checkpointer
        )

    def graph(self):
        node = g.tools_in(self.tools, self.policy, handle=self.draw.choice([True, "No."]))
        return g.graph(self.model, node, kind=self.draw.choice(list(g.MODELS.values())), checkpointer=self.checkpointer)


def plain(program):
    @tool
    def plain(q: str) -> str:
        """Answers."""
        program.began()
        return f"nothing about {q}"

    return plain


def both(program):
    """A tool that is sync and async."""
    from langchain_core.tools import StructuredTool

    def run(q: str) -> str:
        program.began()
        return q

    async def run_async(q: str) -> str:
        program.began()
        return q

    return StructuredTool.from_function(run, run_async, name="both", description="Answers.")


def failing(program):
    @tool
    def failing(q: str) -> str:
        """Fails with an answer."""
        from langchain_core.tools import ToolException

        program.began()
        raise ToolException(q)

    failing.handle_tool_error = True
    return failing


def injected(program):
    theirs = langchain_tools if program.is_agent else g.prebuilt  # old releases of the two have classes of their own
    state_of, runtime_of = theirs.InjectedState, theirs.ToolRuntime

    def injected(q, state, runtime, call_id):
        """Is given more than the model said, and answers with a command."""
        from langchain_core.messages import ToolMessage

        assert state["messages"]
        assert runtime.tool_call_id == call_id
        program.began()
        return Command(update={"messages": [ToolMessage(q, tool_call_id=call_id)]})

    injected.__annotations__ = {
        "q": str, "state": Annotated[Any, state_of], "runtime": runtime_of,
        "call_id": Annotated[str, InjectedToolCallId], "return": Command,
    }  # fmt: skip
    return tool(injected)


def delegating(program):
    """A tool that asks a sub-agent, whose calls are drawn from the same ceiling."""

    @tool
    def delegating(q: str) -> str:
        """Has another agent do it."""
        program.began()
        inner = s.model([[("plain", {"q": f"{q}.inner"})]], prefix=q)
        agent = create_agent(inner, [plain(program)], middleware=[ToolGuardMiddleware(program.policy)])
        return agent.invoke(s.ask())["messages"][-1].content

    return delegating


TOOLS = [plain, both, failing, injected, delegating]


@pytest.mark.parametrize("seed", SEEDS)
def test_program(seed):
    """Bodies as many as the ceiling, no model call after, each id answered, a CircuitOpen, and a history to go on from."""
    program = Program(seed)
    block = Session(policy=program.policy) if program.in_a_session else None
    if block is not None:
        block.__enter__()
    try:
        with pytest.raises(CircuitOpen) as caught:
            program.run(program.app, s.ask(), program.config)
    finally:
        if block is not None:
            block.__exit__(None, None, None)
    assert program.bodies == program.limit
    kept = caught.value.partial["messages"]
    assert s.mispaired(kept) == ""
    turns = [one for one in kept if getattr(one, "tool_calls", None)]
    assert program.model.asked == len(turns)
    assert any(one.status == "error" for one in s.answers(kept).values())
    program.model.script = lambda _turn: None
    if program.checkpointer is not None:
        values = program.app.get_state(program.config).values["messages"]
        assert s.mispaired(values) == ""
        kept = []
    result = program.run(program.app, {"messages": [*kept, ("user", "Sum up.")]}, program.config)
    assert result["messages"][-1].content == "Done."


def test_other_rules_at_random():
    """A loop of random period and batch size stops at the same call in an agent and in a graph of one's own."""
    draw = random.Random(5)
    for _ in range(25):
        limit, period, size = draw.randint(2, 6), draw.randint(1, 3), draw.randint(1, 4)
        run, found = draw.choice(s.WAYS), []
        for kind in ("agent", *g.MODELS):
            seen = s.look_up()
            model = s.model(lambda turn, p=period, n=size: [("search", {"q": str(turn % p)})] * n)
            if kind == "agent":
                app = create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware(s.repeat(limit))])
            else:
                app = g.graph(model, g.tools_in([seen.tool], s.repeat(limit)), kind=g.MODELS[kind])
            with pytest.raises(CircuitOpen) as caught:
                run(app, s.ask(), {"recursion_limit": 400})
            assert s.mispaired(caught.value.partial["messages"]) == ""
            found.append((seen.bodies, model.asked, caught.value.trip.period))
        assert len(set(found)) == 1, (limit, period, size, found)
