"""The contract that every adapter keeps, for LangChain."""

from __future__ import annotations

import functools
import json
import uuid
from types import SimpleNamespace
from typing import Any

from langchain import agents
from langchain.agents import factory, middleware
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import ToolException, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from otel_toolguard_langchain import ToolGuardLangChainInstrumentor, ToolGuardMiddleware
from pydantic import Field

from otel_toolguard.testing import AdapterContract, Exchange
from otel_toolguard.testing.scripts import turn_of

from . import scripted as s

WAYS = {run.__name__: run for run in s.WAYS}


class Model(s.ScriptedModel):
    """The scripted model, which also remembers the tools that it was shown."""

    tools: list[Any] = Field(default_factory=list)

    def bind_tools(self, tools, **kwargs):
        self.tools[:] = tools
        return self


class Second(ToolGuardMiddleware):
    """Another guard: LangChain itself refuses two of one class."""


class Listening(BaseCallbackHandler):
    """A user's callback that counts executions of tools."""

    def __init__(self):
        self.started = 0

    def on_tool_start(self, serialized, input_str, **kwargs):
        self.started += 1


class Answering(AgentMiddleware):
    """Error middleware that makes an answer of every exception, like LangChain's own from 1.1 on."""

    def wrap_tool_call(self, request, handler):
        try:
            return handler(request)
        except Exception as error:
            return self.answer(request, error)

    async def awrap_tool_call(self, request, handler):
        try:
            return await handler(request)
        except Exception as error:
            return self.answer(request, error)

    def answer(self, request, error):
        return ToolMessage(f"failed: {error}", tool_call_id=request.tool_call["id"], status="error")


class Retrying(AgentMiddleware):
    """A user's own retry of whatever goes wrong around a model call."""

    def wrap_model_call(self, request, handler):
        for _ in range(2):
            try:
                return handler(request)
            except Exception:
                continue
        return handler(request)

    async def awrap_model_call(self, request, handler):
        for _ in range(2):
            try:
                return await handler(request)
            except Exception:
                continue
        return await handler(request)


def own_errors():
    given = getattr(middleware, "ToolErrorMiddleware", None)
    return [given(on_error=lambda error, request: f"failed: {error}")] if given else [Answering()]


def own_model_retry():
    given = getattr(middleware, "ModelRetryMiddleware", None)
    return [given(max_retries=2, initial_delay=0)] if given else [Retrying()]


NEIGHBOURS = {
    "": list,
    "tool retry": lambda: [ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)],
    "model retry": own_model_retry,
    "a model retry of the user's own": lambda: [Retrying()],
    "errors made answers": own_errors,
    "errors made answers, by the user": lambda: [Answering()],
    "caps that are not reached": lambda: [
        ToolCallLimitMiddleware(run_limit=50), ModelCallLimitMiddleware(run_limit=50),
    ],
    "the user's callbacks": list,
    "a cap of tool calls": lambda: [ToolCallLimitMiddleware(run_limit=4, exit_behavior="end")],
    "a cap of tool calls that raises": lambda: [ToolCallLimitMiddleware(run_limit=4, exit_behavior="error")],
    "a cap of model calls": lambda: [ModelCallLimitMiddleware(run_limit=4, exit_behavior="end")],
    "a cap of model calls that raises": lambda: [ModelCallLimitMiddleware(run_limit=4, exit_behavior="error")],
}  # fmt: skip
GUARDS = {
    "bare": list,
    "guarded": lambda: [ToolGuardMiddleware()],
    "twice": lambda: [ToolGuardMiddleware(), Second()],
    "zero-code": list,
    "zero-code and by hand": lambda: [ToolGuardMiddleware()],
}


class TestLangChain(AdapterContract):
    """All of it on the installed release."""

    folder = "langchain"
    distribution = "langchain"
    sync_ways = tuple(run.__name__ for run in s.SYNC)
    async_ways = tuple(run.__name__ for run in s.WAYS if run not in s.SYNC)
    guards = ("twice", "zero-code", "zero-code and by hand")
    besides = tuple(name for name in NEIGHBOURS if name and not name.startswith("a cap"))
    caps = tuple(name for name in NEIGHBOURS if name.startswith("a cap"))
    approvals = ("approval middleware", "interrupt in the tool")

    def tool(self, function):
        return tool(function)

    def failing_tool(self, function):
        @functools.wraps(function)
        def answered(q: str = "word") -> str:
            try:
                return function(q)
            except ValueError as error:
                raise ToolException(str(error)) from error

        @functools.wraps(function)
        async def answered_async(q: str = "word") -> str:
            try:
                return await function(q)
            except ValueError as error:
                raise ToolException(str(error)) from error

        made = tool(answered_async if _is_async(function) else answered)
        made.handle_tool_error = True
        return made

    def agent(self, tools, script, *, guard="guarded", beside="", prefix="call"):
        stack = [*NEIGHBOURS[beside](), *GUARDS[guard]()]
        return self._made(tools, script, stack, zero_code=guard.startswith("zero-code"), prefix=prefix, beside=beside)

    def _made(self, tools, script, stack, *, zero_code=False, prefix="call", beside="", **more):
        model = Model(script=lambda turn: turn_of(script, turn), prefix=prefix)
        instrumentor = ToolGuardLangChainInstrumentor()
        if zero_code:
            instrumentor.instrument()
        try:
            made = agents.create_agent(model, tools, middleware=stack, **more)
        finally:
            if zero_code:
                instrumentor.uninstrument()
        heard = [Listening()] if beside == "the user's callbacks" else []
        config = {"callbacks": heard, "recursion_limit": 200, "configurable": {"thread_id": uuid.uuid4().hex}}
        return SimpleNamespace(agent=made, model=model, config=config, heard=heard)

    def agent_tool(self, name, inner, way):
        if way in self.sync_ways:

            @tool(name)
            def delegate() -> str:
                """Has another agent do it."""
                return inner.agent.invoke(s.ask())["messages"][-1].content

        else:

            @tool(name)
            async def delegate() -> str:
                """Has another agent do it."""
                return (await inner.agent.ainvoke(s.ask()))["messages"][-1].content

        return delegate

    def run(self, agent, way, text, kept=None):
        given = {"messages": [*(kept or ()), ("user", text)]}
        return WAYS[way](agent.agent, given, agent.config)["messages"]

    def kept(self, agent, error):
        return error.partial["messages"]

    def exchanges(self, kept):
        answers = s.answers(kept)
        asked = [call for message in kept if isinstance(message, AIMessage) for call in message.tool_calls]
        found = []
        for call in asked:
            answer = answers.pop(call["id"], None)
            said = None if answer is None else str(answer.content)
            found.append(Exchange(call["id"], call["name"], said, answer is not None and answer.status == "error"))
        return found + [Exchange(call_id, "", str(answer.content)) for call_id, answer in answers.items()]

    def text(self, kept):
        return kept[-1].content

    def asked(self, agent):
        return agent.model.asked

    def shown(self, agent):
        return json.dumps([convert_to_openai_tool(one) for one in agent.model.tools])

    def heard(self, agent):
        return agent.heard[0].started if agent.heard else None

    def approval_agent(self, function, script, approval):
        if approval == "approval middleware":
            stack = [HumanInTheLoopMiddleware(interrupt_on={"search": True}), ToolGuardMiddleware()]
            made = self._made([tool(function)], script, stack, checkpointer=InMemorySaver())
            made.answer = {"decisions": [{"type": "approve"}]}
            return made

        @functools.wraps(function)
        def asks(q: str = "word") -> str:
            interrupt(f"look up {q}?")
            return function(q)

        made = self._made([tool(asks)], script, [ToolGuardMiddleware()], checkpointer=InMemorySaver())
        made.answer = "yes"
        return made

    def pause(self, agent, way):
        WAYS[way](agent.agent, s.ask(), agent.config)
        assert agent.agent.get_state(agent.config).interrupts

    def approve(self, agent, way):
        WAYS[way](agent.agent, Command(resume=agent.answer), agent.config)
        return agent.agent.get_state(agent.config).values["messages"]

    def instrumentor(self):
        return ToolGuardLangChainInstrumentor()

    def bindings(self):
        return {f"{module.__name__}.create_agent": module.create_agent for module in (agents, factory)}


def _is_async(function):
    return function.__code__.co_flags & 0x80
