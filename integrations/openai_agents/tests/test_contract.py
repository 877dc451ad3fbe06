"""The contract that every adapter keeps, for the OpenAI Agents SDK."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace

from agents import (
    AgentBase,
    AgentHooks,
    GuardrailFunctionOutput,
    RunHooks,
    Runner,
    ToolGuardrailFunctionOutput,
    input_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agents.run import AgentRunner
from otel_toolguard_openai_agents import ToolGuardOpenAIAgentsInstrumentor, guard_agent, guarded_hooks

from otel_toolguard.testing import AdapterContract, Exchange
from otel_toolguard.testing.adapter_contract import told

from . import scripted as s

WAYS = {run.__name__: run for run in s.WAYS}


@dataclass
class Task:
    """What an agent that is a tool is asked for; it need not be said."""

    input: str = "Find the word."


class OwnAgentHooks(AgentHooks):
    """A user's hooks, which count the tools that answered."""

    def __init__(self):
        self.ended = 0

    async def on_tool_end(self, context, agent, tool, result):
        self.ended += not told(str(result))


class OwnRunHooks(RunHooks):
    """The same for a run."""

    def __init__(self):
        self.ended = 0

    async def on_tool_end(self, context, agent, tool, result):
        self.ended += not told(str(result))


@input_guardrail
async def harmless(context, agent, given):
    """A guardrail of the user's that lets everything pass."""
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)


@tool_input_guardrail
def allowed(data):
    """A guardrail of a tool that lets everything pass."""
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def shown(data):
    """The same for what it answers."""
    return ToolGuardrailFunctionOutput.allow()


GUARDS = {
    "bare": lambda agent: (agent, {}),
    "guarded": lambda agent: (guard_agent(agent), {}),
    "twice": lambda agent: (guard_agent(guard_agent(agent)), {}),
    "run hooks": lambda agent: (agent, {"hooks": guarded_hooks()}),
    "run hooks and agent": lambda agent: (guard_agent(agent), {"hooks": guarded_hooks(guarded_hooks())}),
    "zero-code": lambda agent: (agent, {}),
    "zero-code and agent": lambda agent: (guard_agent(agent), {}),
    "zero-code and run hooks": lambda agent: (agent, {"hooks": guarded_hooks()}),
    "all": lambda agent: (guard_agent(agent), {"hooks": guarded_hooks()}),
}


def with_agents_hooks():
    hooks = OwnAgentHooks()
    return {"hooks": hooks}, {}, hooks


def with_runs_hooks():
    hooks = OwnRunHooks()
    return {}, {"hooks": hooks}, hooks


# What is said to the agent and to the run, and the hooks that count.
NEIGHBOURS = {
    "the agent's own hooks": with_agents_hooks,
    "the run's own hooks": with_runs_hooks,
    "guardrails": lambda: ({"input_guardrails": [harmless]}, {}, None),
    "guardrails of tools": lambda: ({}, {}, None),
    "a cap that is not reached": lambda: ({}, {"max_turns": 50}, None),
    "a memory": lambda: ({}, {"session": s.Memory()}, None),
    "its own handler of failures": lambda: ({}, {}, None),
    "a cap of turns that raises": lambda: ({}, {"max_turns": 4}, None),
    "a cap of turns with a handler": lambda: (
        {}, {"max_turns": 4, "error_handlers": {"max_turns": lambda data: "enough"}}, None,
    ),
}  # fmt: skip


def with_guardrails(tool):
    tool.tool_input_guardrails, tool.tool_output_guardrails = [allowed], [shown]


def with_handler(tool):
    tool._failure_error_function = lambda context, error: f"it failed: {error}"
    tool._use_default_failure_error_function = False


CHANGES = {"guardrails of tools": with_guardrails, "its own handler of failures": with_handler}


class TestOpenAIAgents(AdapterContract):
    """All of it on the installed release."""

    folder = "openai_agents"
    distribution = "openai-agents"
    sync_ways = ("run_sync",)
    async_ways = ("run", "run_streamed")
    guards = tuple(name for name in GUARDS if name not in ("bare", "guarded"))
    besides = tuple(name for name in NEIGHBOURS if not name.startswith("a cap of"))
    caps = tuple(name for name in NEIGHBOURS if name.startswith("a cap of"))
    approvals = ("always", "asked of a function")

    def tool(self, function):
        return s.bare(function, failure_error_function=None)

    def failing_tool(self, function):
        return s.bare(function)

    def agent(self, tools, script, *, guard="guarded", beside="", prefix="call"):
        more, options, heard = NEIGHBOURS[beside]() if beside else ({}, {}, None)
        for tool in tools:
            CHANGES.get(beside, lambda tool: None)(tool)
        made = s.agent(script, tools, prefix=prefix, **more)
        agent, hooks = GUARDS[guard](made)
        return SimpleNamespace(
            agent=agent, model=made.model, options={**hooks, **options}, heard=heard,
            zero_code=guard.startswith("zero-code") or guard == "all", state=None,
        )  # fmt: skip

    def agent_tool(self, name, inner, way):
        stream = (lambda event: None) if way == "run_streamed" else None
        return inner.agent.as_tool(
            name, "Has another agent do it.", on_stream=stream, parameters=Task, max_turns=100, **inner.options
        )

    def _go(self, agent, way, given):
        instrumentor = ToolGuardOpenAIAgentsInstrumentor()
        mine = agent.zero_code and not instrumentor.is_instrumented_by_opentelemetry
        if mine:
            instrumentor.instrument()
        try:
            return WAYS[way](agent.agent, given, **agent.options)
        finally:
            if mine:
                instrumentor.uninstrument()

    def run(self, agent, way, text, kept=None):
        given = [*(kept or ()), {"role": "user", "content": text}]
        return self._go(agent, way, given).to_input_list()

    def kept(self, agent, error):
        return error.to_input_list()

    def exchanges(self, kept):
        answers = s.answers(kept)
        calls = [item for item in kept if str(item.get("type")).endswith("_call")]
        found = [Exchange(call["call_id"], call["name"], answers.pop(call["call_id"], None)) for call in calls]
        return found + [Exchange(call_id, "", str(answer)) for call_id, answer in answers.items()]

    def text(self, kept):
        return kept[-1]["content"][0]["text"]

    def asked(self, agent):
        return agent.model.asked

    def shown(self, agent):
        return json.dumps([
            [tool.name, tool.description, tool.params_json_schema, tool.strict_json_schema] for tool in agent.model.shown
        ])  # fmt: skip

    def heard(self, agent):
        return None if agent.heard is None else agent.heard.ended

    def approval_agent(self, function, script, approval):
        async def asked(context, arguments, call_id):
            return True

        needs = True if approval == "always" else asked
        return self.agent([s.bare(function, needs_approval=needs)], script)

    def pause(self, agent, way):
        agent.state = self._go(agent, way, "Find the word.").to_state()

    def approve(self, agent, way):
        for waiting in agent.state.get_interruptions():
            agent.state.approve(waiting)
        result = self._go(agent, way, agent.state)
        agent.state = result.to_state()
        return result.to_input_list()

    def instrumentor(self):
        return ToolGuardOpenAIAgentsInstrumentor()

    def bindings(self):
        found = {f"Runner.{name}": vars(Runner)[name] for name in ("run", "run_sync", "run_streamed")}
        found |= {f"AgentRunner.{name}": vars(AgentRunner)[name] for name in ("run", "run_sync", "run_streamed")}
        return found | {"AgentBase.get_all_tools": vars(AgentBase)["get_all_tools"]}
