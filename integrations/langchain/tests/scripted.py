"""A chat model that says what a script says, the ways to run an agent, and what a provider would say to its history."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import Field

from otel_toolguard import Policy


class ScriptedModel(BaseChatModel):
    """Asks for what ``script(turn)`` lists as (tool, arguments); says "Done." where it lists nothing.

    Like a provider it rejects a history in which calls and answers do not pair up.
    """

    script: Any
    prefix: str = "call"
    histories: list[Any] = Field(default_factory=list)

    @property
    def asked(self):
        """How often it was called."""
        return len(self.histories)

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        wrong = mispaired(messages)
        if wrong:
            raise ValueError(f"400: {wrong}")
        self.histories.append(list(messages))
        turn = len(self.histories)
        asks = self.script(turn)
        if not asks:
            message = AIMessage(content="Done.")
        else:
            calls = [
                {"name": name, "args": arguments, "id": f"{self.prefix}-{turn}-{n}"}
                for n, (name, arguments) in enumerate(asks)
            ]
            message = AIMessage(content="", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        return self._generate(messages)


def model(script, prefix="call"):
    """The model of a script: a function of the turn, or the turns' asks in a list."""
    turns = script if callable(script) else lambda turn: script[turn - 1] if turn <= len(script) else None
    return ScriptedModel(script=turns, prefix=prefix)


def for_ever(name, arguments=None, batch=1):
    """The same call, or batch of equal calls, in every turn."""
    return lambda turn: [(name, arguments or {})] * batch


def always_new(name, batch=1):
    """``batch`` calls a turn, none of them made before."""
    return lambda turn: [(name, {"q": f"{turn}.{n}"}) for n in range(batch)]


def look_up():
    """A tool that finds nothing, sync; ``.bodies`` of the namespace counts its executions."""
    seen = SimpleNamespace(bodies=0)
    lock = threading.Lock()

    @tool
    def search(q: str = "word") -> str:
        """Looks something up."""
        with lock:
            seen.bodies += 1
        return f"nothing about {q}"

    seen.tool = search
    return seen


def look_up_async():
    """The same, async."""
    seen = SimpleNamespace(bodies=0)

    @tool
    async def search(q: str = "word") -> str:
        """Looks something up."""
        await asyncio.sleep(0)
        seen.bodies += 1
        return f"nothing about {q}"

    seen.tool = search
    return seen


def repeat(limit):
    """A policy of one rule: the same call with the same result."""
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit}, {"plugin": "tool_stats"}])


def ceiling(run=None, **more):
    """A policy of one rule: a number of calls."""
    given = {"run": run} if run is not None else {}
    return Policy(plugins=[{"plugin": "call_ceiling", **given, **more}, {"plugin": "tool_stats"}])


def ask(text="Find the word."):
    """What a user says."""
    return {"messages": [("user", text)]}


def mispaired(messages):
    """What a provider would complain about; empty for a good history."""
    waiting: dict[str, int] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            if waiting.pop(message.tool_call_id, None) is None:
                return f"an answer to {message.tool_call_id}, which nobody waits for"
        elif waiting:
            return f"no answer to {sorted(waiting)}"
        if isinstance(message, AIMessage):
            ids = [call["id"] for call in message.tool_calls]
            if len(set(ids)) != len(ids):
                return f"one id for two calls: {ids}"
            waiting = dict.fromkeys(ids, 1)
    return f"no answer to {sorted(waiting)}" if waiting else ""


def answers(messages):
    """Content of each tool message by call id."""
    return {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}


def invoke(agent, given, config=None):
    return agent.invoke(given, config)


def stream(agent, given, config=None):
    return list(agent.stream(given, config, stream_mode="values"))[-1]


async def _events(agent, given, config):
    last = None
    async for event in agent.astream_events(given, config, version="v2"):
        if event["event"] == "on_chain_end" and not event["parent_ids"]:
            last = event["data"]["output"]
    return last


def ainvoke(agent, given, config=None):
    return asyncio.run(agent.ainvoke(given, config))


async def _astream(agent, given, config):
    return [item async for item in agent.astream(given, config, stream_mode="values")][-1]


def astream(agent, given, config=None):
    return asyncio.run(_astream(agent, given, config))


def astream_events(agent, given, config=None):
    return asyncio.run(_events(agent, given, config))


WAYS = (invoke, ainvoke, stream, astream, astream_events)  # every way to run an agent
SYNC = (invoke, stream)  # in which LangChain runs sync tools only
TOOLS_AND_WAYS = [
    (make, run) for make in (look_up, look_up_async) for run in WAYS if make is look_up or run not in SYNC
]
