"""A model that says what a script says, the ways to run an agent, and what a provider would say to its history."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from types import SimpleNamespace

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from otel_toolguard import Policy
from otel_toolguard.testing.scripts import DONE, turn_of

MOST = 300  # turns of a run that nothing stops


class ScriptedModel(FunctionModel):
    """Asks for what ``script`` lists as (tool, arguments), and says so in its end.

    Like a provider it rejects a history in which calls and answers do not pair up.
    """

    def __init__(self, script, prefix="call"):
        super().__init__(self._says, stream_function=self._streams)
        self.script, self.prefix = script, prefix
        self.histories, self.tools = [], []

    @property
    def asked(self):
        """How often it was called."""
        return len(self.histories)

    def _turn(self, messages, info):
        wrong = mispaired(messages)
        if wrong:
            raise ValueError(f"400: {wrong}")
        self.histories.append(list(messages))
        self.tools[:] = info.function_tools
        if self.asked > MOST:
            raise AssertionError("nothing stops the run")
        asks = turn_of(self.script, self.asked)
        if not asks or isinstance(asks, str):
            return asks or DONE
        return [(name, arguments, f"{self.prefix}-{self.asked}-{n}") for n, (name, arguments) in enumerate(asks)]

    def _says(self, messages, info):
        turn = self._turn(messages, info)
        if isinstance(turn, str):
            return ModelResponse([TextPart(turn)])
        return ModelResponse([ToolCallPart(name, arguments, call_id) for name, arguments, call_id in turn])

    async def _streams(self, messages, info):
        turn = self._turn(messages, info)
        if isinstance(turn, str):
            yield turn
            return
        for n, (name, arguments, call_id) in enumerate(turn):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield {n: DeltaToolCall(name=name, json_args=text, tool_call_id=call_id)}


def look_up(kind="sync"):
    """A tool that finds nothing; ``.bodies`` of the namespace counts its executions."""
    seen = SimpleNamespace(bodies=0)
    lock = threading.Lock()

    def search(q: str = "word") -> str:
        """Looks something up."""
        with lock:
            seen.bodies += 1
        return f"nothing about {q}"

    async def search_async(q: str = "word") -> str:
        """Looks something up."""
        await asyncio.sleep(0)
        return search(q)

    seen.tool = Tool(search_async if kind == "async" else search, name="search")
    return seen


def repeat(limit):
    """A policy of one rule: the same call with the same result."""
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit}, {"plugin": "tool_stats"}])


def ceiling(run=None, **more):
    """A policy of one rule: a number of calls."""
    given = {"run": run} if run is not None else {}
    return Policy(plugins=[{"plugin": "call_ceiling", **given, **more}, {"plugin": "tool_stats"}])


def answered(part):
    """The call id that a part of a request answers, None if it answers none."""
    if isinstance(part, ToolReturnPart):
        return part.tool_call_id
    return part.tool_call_id if part.part_kind == "retry-prompt" and part.tool_name else None


def mispaired(messages):
    """What a provider would complain about; empty for a good history."""
    waiting: dict[str, int] = {}
    for message in messages:
        if isinstance(message, ModelRequest):
            for part in message.parts:
                call_id = answered(part)
                if call_id is not None and waiting.pop(call_id, None) is None:
                    return f"an answer to {call_id}, which nobody waits for"
        else:
            if waiting:
                return f"no answer to {sorted(waiting)}"
            ids = [call.tool_call_id for call in message.tool_calls]
            if len(set(ids)) != len(ids):
                return f"one id for two calls: {ids}"
            waiting = dict.fromkeys(ids, 1)
    return f"no answer to {sorted(waiting)}" if waiting else ""


def answers(messages):
    """The part that answers each call, by call id."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return {answered(part): part for part in parts if answered(part) is not None}


def told(part):
    """What an answer says, as text."""
    content = part.content
    return content if isinstance(content, str) else json.dumps(content, default=str)


@contextlib.contextmanager
def _own_loop():
    """An event loop that is closed again: the sync ways leave open what they made."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        asyncio.set_event_loop(None)


def run_sync(agent, text=None, **more):
    with _own_loop():
        return agent.run_sync(text, **more)


def run_stream_sync(agent, text=None, **more):
    with _own_loop():
        made = agent.run_stream_sync(text, **more)
        made.get_output()
        return made


def run(agent, text=None, **more):
    return asyncio.run(agent.run(text, **more))


def run_with_events(agent, text=None, **more):
    async def listens(_ctx, events):
        async for _ in events:
            pass

    return asyncio.run(agent.run(text, event_stream_handler=listens, **more))


async def _run_stream(agent, text, more):
    async with agent.run_stream(text, **more) as made:
        await made.get_output()
        return made


def run_stream(agent, text=None, **more):
    return asyncio.run(_run_stream(agent, text, more))


async def _run_events(agent, text, more):
    events = agent.run_stream_events(text, **more)
    async with events if hasattr(events, "__aenter__") else contextlib.nullcontext(events) as listened:
        found = [one async for one in listened]
    return found[-1].result


def run_events(agent, text=None, **more):
    return asyncio.run(_run_events(agent, text, more))


async def _iterate(agent, text, more):
    async with agent.iter(text, **more) as made:
        async for _ in made:
            pass
        return made.result


def iterate(agent, text=None, **more):
    return asyncio.run(_iterate(agent, text, more))


async def _iterate_stream(agent, text, more):
    async with agent.iter(text, **more) as made:
        async for node in made:
            if Agent.is_model_request_node(node) or Agent.is_call_tools_node(node):
                async with node.stream(made.ctx) as stream:
                    async for _ in stream:
                        pass
        return made.result


def iterate_stream(agent, text=None, **more):
    return asyncio.run(_iterate_stream(agent, text, more))


SYNC = (run_sync, run_stream_sync)
ASYNC = (run, run_with_events, run_events, run_stream, iterate, iterate_stream)
WAYS = (*SYNC, *ASYNC)  # every way to run an agent
