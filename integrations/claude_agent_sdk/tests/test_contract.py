"""The contract that every adapter keeps, for the Claude Agent SDK."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import ClassVar

import claude_agent_sdk as sdk
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, HookMatcher, PermissionResultAllow
from otel_toolguard_claude_agent_sdk import ToolGuardClaudeAgentSDKInstrumentor, guard_options, guarded_stream

from otel_toolguard.testing import AdapterContract, Exchange

from . import scripted as s


def twice(options):
    return guard_options(guard_options(options))


def streamed_twice(messages):
    return guarded_stream(guarded_stream(messages))


def as_it_is(given):
    return given


GUARDS = {  # on the options, on the stream
    "bare": (as_it_is, as_it_is),
    "guarded": (guard_options, guarded_stream),
    "options twice": (twice, guarded_stream),
    "stream twice": (guard_options, streamed_twice),
    "zero-code": (as_it_is, as_it_is),
    "zero-code and by hand": (guard_options, guarded_stream),
}


class TestClaudeAgentSDK(AdapterContract):
    """All of it on the installed release."""

    folder = "claude_agent_sdk"
    distribution = "claude-agent-sdk"
    async_ways = tuple(s.WAYS)
    guards = tuple(GUARDS)[2:]
    besides = ("the user's hooks", "a hook that raises", "a cap that is not reached", "a CLI that ends badly")
    caps = ("max_turns",)
    approvals = ("can_use_tool",)
    missing: ClassVar = {"f": "the SDK has no way to run from sync code"}

    def tool(self, function):
        return s.tool_of(function)

    failing_tool = tool  # what a handler raises is an answer in any case

    def agent(self, tools, script, *, guard="guarded", beside="", prefix="call", **more):
        made = SimpleNamespace(guard=guard, heard=None, prefix=prefix)
        made.cli = s.ScriptedCLI(
            script, prefix=prefix, dies=beside == "a CLI that ends badly",
            max_turns={"max_turns": 4, "a cap that is not reached": 90}.get(beside),
        )  # fmt: skip
        hooks = {}
        if beside == "the user's hooks":
            made.heard = []

            async def hears(given, _call_id, _context):
                made.heard.append(given["tool_use_id"])
                return {}

            hooks = {"PostToolUse": [HookMatcher(hooks=[hears])], "PostToolUseFailure": [HookMatcher(hooks=[hears])]}
        elif beside == "a hook that raises":

            async def raises(_given, _call_id, _context):
                raise RuntimeError("a bug of the user's")

            hooks = {"PreToolUse": [HookMatcher(hooks=[raises])], "PostToolUse": [HookMatcher(hooks=[raises])]}
        made.options = {**s.serve(made.cli, tools), "hooks": hooks or None, **more}
        return made

    def agent_tool(self, name, inner, way):
        async def delegate():
            messages = await self._go(inner, way, "Find the word.")
            return messages[-1].result

        return s.tool_of(delegate, name)

    async def _go(self, agent, way, text):
        on_options, on_stream = GUARDS[agent.guard]
        return await s.WAYS[way](agent.cli, on_options(ClaudeAgentOptions(**agent.options)), text, on_stream)

    def run(self, agent, way, text, kept=None):
        instrumentor = ToolGuardClaudeAgentSDKInstrumentor()
        mine = agent.guard.startswith("zero-code") and not instrumentor.is_instrumented_by_opentelemetry
        if mine:
            instrumentor.instrument()
        try:
            asyncio.run(self._go(agent, way, text))
        finally:
            if mine:
                instrumentor.uninstrument()
        return list(agent.cli.history)

    def kept(self, agent, error):
        assert error.partial["session_id"] == agent.cli.session_id
        return list(agent.cli.history)

    def exchanges(self, kept):
        given = {entry[1]: entry[2] for entry in s.answers(kept)}
        found = []
        for _, call in [entry for entry in kept if entry[0] == "call"]:
            answer = given.pop(call["id"], None)
            said = (None, None) if answer is None else (answer["content"], answer["is_error"])
            found.append(Exchange(call["id"], call["name"], *said))
        return found + [Exchange(call_id, "", answer["content"]) for call_id, answer in given.items()]

    def text(self, kept):
        return kept[-1][1]

    def asked(self, agent):
        return agent.cli.asked

    def shown(self, agent):
        return json.dumps(agent.cli.tools)

    def heard(self, agent):
        return len(agent.heard) if agent.heard is not None else None

    def approval_agent(self, function, script, approval):
        async def person(_name, _said, _context):
            made.answer = asyncio.get_running_loop().create_future()
            made.waits.set()
            await made.answer
            return PermissionResultAllow()

        made = self.agent([self.tool(function)], script, can_use_tool=person)
        made.cli.needs_person = {"search"}
        made.runner, made.task = asyncio.Runner(), None
        return made

    async def _until_it_waits(self, agent, way):
        if agent.task is None:
            agent.waits = asyncio.Event()
            agent.task = asyncio.create_task(self._go(agent, way, "Find the word."))
        else:
            agent.waits.clear()
            agent.answer.set_result(None)
        waits = asyncio.create_task(agent.waits.wait())
        await asyncio.wait({agent.task, waits}, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()

    def pause(self, agent, way):
        agent.runner.run(self._until_it_waits(agent, way))

    def approve(self, agent, way):
        agent.runner.run(self._until_it_waits(agent, way))
        if agent.task.done():
            agent.task.result()
            agent.runner.close()
        return list(agent.cli.history)

    def instrumentor(self):
        return ToolGuardClaudeAgentSDKInstrumentor()

    def bindings(self):
        own = vars(ClaudeSDKClient)
        names = ("connect", "receive_messages", "receive_response")
        return {"query": sdk.query, "query of the tests": s.query, **{name: own[name] for name in names}}
