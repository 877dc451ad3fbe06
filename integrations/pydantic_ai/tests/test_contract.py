"""The contract that every adapter keeps, for Pydantic AI."""

from __future__ import annotations

import functools
import inspect
import json
from dataclasses import asdict
from types import SimpleNamespace

from otel_toolguard_pydantic_ai import ToolGuard, ToolGuardPydanticAIInstrumentor
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, Tool, UsageLimits
from pydantic_ai.capabilities import AbstractCapability, Hooks
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.messages import ModelResponse

from otel_toolguard.testing import AdapterContract, Exchange

from . import scripted as s

WAYS = {one.__name__: one for one in s.WAYS}


class Retrying(AbstractCapability):
    """A user's own retry of whatever a tool raises that is no answer already."""

    async def wrap_tool_execute(self, ctx, *, call, tool_def, args, handler):
        try:
            return await handler(args)
        except ValueError:
            return await handler(args)


class Answering(AbstractCapability):
    """Makes an answer of whatever a tool raises."""

    async def on_tool_execute_error(self, ctx, *, call, tool_def, args, error):
        return f"failed: {error}"


class Stubborn(AbstractCapability):
    """Makes a last answer of whatever goes wrong in a model request."""

    async def on_model_request_error(self, ctx, *, request_context, error):
        raise error


class Listening(AbstractCapability):
    """Counts executions of tools."""

    def __init__(self):
        self.started = 0

    async def after_tool_execute(self, ctx, *, call, tool_def, args, result):
        self.started += 1
        return result


def hooks():
    """The decorator form of the same."""
    made = Hooks()

    @made.on.tool_execute_error
    async def _(ctx, *, call, tool_def, args, error):
        raise error

    return made


NEIGHBOURS = {
    "": list,
    "a retry of tools": lambda: [Retrying()],
    "errors made answers": lambda: [Answering()],
    "hooks for model errors": lambda: [Stubborn()],
    "hooks by decorator": lambda: [hooks()],
    "the user's hooks": lambda: [Listening()],
    "limits that are not reached": list,
    "instrumentation": list,
    "a limit of tool calls": list,
    "a limit of requests": list,
}
LIMITS = {
    "limits that are not reached": UsageLimits(request_limit=90, tool_calls_limit=90),
    "a limit of tool calls": UsageLimits(tool_calls_limit=4),
    "a limit of requests": UsageLimits(request_limit=4),
}
GUARDS = {
    "bare": list,
    "guarded": lambda: [ToolGuard()],
    "twice": lambda: [ToolGuard(), ToolGuard()],
    "zero-code": list,
    "zero-code and by hand": lambda: [ToolGuard()],
    "agent and run": lambda: [ToolGuard()],
}


class TestPydanticAI(AdapterContract):
    """All of it on the installed release."""

    folder = "pydantic_ai"
    distribution = "pydantic-ai-slim"
    sync_ways = tuple(one.__name__ for one in s.SYNC)
    async_ways = tuple(one.__name__ for one in s.ASYNC)
    guards = ("twice", "zero-code", "zero-code and by hand", "agent and run")
    besides = tuple(name for name in NEIGHBOURS if name and not name.startswith("a limit"))
    caps = tuple(name for name in NEIGHBOURS if name.startswith("a limit"))
    approvals = ("requires_approval", "ApprovalRequired in the tool")

    def tool(self, function):
        return Tool(function)

    def failing_tool(self, function):
        @functools.wraps(function)
        def answered(q: str = "word") -> str:
            try:
                return function(q)
            except ValueError as error:
                raise ToolFailed(str(error)) from error

        @functools.wraps(function)
        async def answered_async(q: str = "word") -> str:
            try:
                return await function(q)
            except ValueError as error:
                raise ToolFailed(str(error)) from error

        return Tool(answered_async if inspect.iscoroutinefunction(function) else answered)

    def agent(self, tools, script, *, guard="guarded", beside="", prefix="call"):
        return self._made(tools, script, guard=guard, beside=beside, prefix=prefix)

    def _made(self, tools, script, *, guard="guarded", beside="", prefix="call", **more):
        model = s.ScriptedModel(script, prefix)
        extra = NEIGHBOURS[beside]()
        made = Agent(model, tools=tools, capabilities=[*extra, *GUARDS[guard]()], **more)
        if beside == "instrumentation":
            made.instrument = True
        options = {"usage_limits": LIMITS.get(beside, UsageLimits(request_limit=None))}
        if guard == "agent and run":
            options["capabilities"] = [ToolGuard()]
        heard = [one for one in extra if isinstance(one, Listening)]
        return SimpleNamespace(
            agent=made, model=model, options=options, heard=heard, zero_code=guard.startswith("zero-code"), state=None
        )

    def agent_tool(self, name, inner, way):
        async def delegate() -> str:
            """Has another agent do it."""
            return (await inner.agent.run("Find the word.")).output

        return Tool(delegate, name=name)

    def _run(self, agent, way, text, **more):
        instrumentor = ToolGuardPydanticAIInstrumentor()
        mine = agent.zero_code and not instrumentor.is_instrumented_by_opentelemetry
        if mine:
            instrumentor.instrument()
        try:
            return WAYS[way](agent.agent, text, **agent.options, **more)
        finally:
            if mine:
                instrumentor.uninstrument()

    def run(self, agent, way, text, kept=None):
        return self._run(agent, way, text, message_history=kept).all_messages()

    def kept(self, agent, error):
        return error.partial["messages"]

    def exchanges(self, kept):
        found, given = [], s.answers(kept)
        for call in [call for message in kept if isinstance(message, ModelResponse) for call in message.tool_calls]:
            answer = given.pop(call.tool_call_id, None)
            said = None if answer is None else s.told(answer)
            failed = answer is not None and getattr(answer, "outcome", "failed") != "success"
            found.append(Exchange(call.tool_call_id, call.tool_name, said, failed))
        return found + [Exchange(call_id, "", s.told(answer)) for call_id, answer in given.items()]

    def text(self, kept):
        return kept[-1].parts[-1].content

    def asked(self, agent):
        return agent.model.asked

    def shown(self, agent):
        return json.dumps([asdict(one) for one in agent.model.tools], default=str)

    def heard(self, agent):
        return agent.heard[0].started if agent.heard else None

    def approval_agent(self, function, script, approval):
        if approval == "requires_approval":
            tools = [Tool(function, requires_approval=True)]
        else:

            def search(ctx: RunContext, q: str = "word") -> str:
                """Looks something up."""
                if not ctx.tool_call_approved:
                    raise ApprovalRequired
                return function(q)

            tools = [Tool(search)]
        return self._made(tools, script, output_type=[str, DeferredToolRequests])

    def pause(self, agent, way):
        agent.state = self._run(agent, way, "Find the word.")
        assert any(message.kind == "response" for message in agent.state.all_messages())

    def approve(self, agent, way):
        kept = agent.state.all_messages()
        waiting = [call.tool_call_id for call in kept_calls(kept) if call.tool_call_id not in s.answers(kept)]
        assert len(waiting) == 1
        approvals = DeferredToolResults(approvals=dict.fromkeys(waiting, True))
        agent.state = self._run(agent, way, None, message_history=kept, deferred_tool_results=approvals)
        return agent.state.all_messages()

    def instrumentor(self):
        return ToolGuardPydanticAIInstrumentor()

    def bindings(self):
        return {"Agent.iter": vars(Agent)["iter"]}


def kept_calls(messages):
    return [call for message in messages if isinstance(message, ModelResponse) for call in message.tool_calls]
