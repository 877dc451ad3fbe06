"""A model that says what a script says, the ways to run an agent, and what a provider would say to its history."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

from agents import (
    Agent,
    FunctionTool,
    ItemHelpers,
    ModelResponse,
    RunConfig,
    Runner,
    RunState,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from otel_toolguard import Policy
from otel_toolguard.testing.scripts import DONE, always_new, for_ever, turn_of

__all__ = ["DONE", "Agent", "RunConfig", "Runner", "always_new", "for_ever"]

set_tracing_disabled(True)  # no exporter, no network; tests of tracing turn it on for themselves
MESSAGES = ("message", None)
GIVEN = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs")


class ScriptedModel(Model):
    """Asks for what a script's turn lists as (tool, arguments); says "Done." behind its end.

    Like a provider it rejects a history in which calls and answers do not pair up.
    """

    keeps_history = True  # is given all of it, and not only what is new

    def __init__(self, script, prefix="call"):
        self.script = script
        self.prefix = prefix
        self.histories = []
        self.shown = []

    @property
    def asked(self):
        """How often it was called."""
        return len(self.histories)

    def _answer(self, *given, **named):
        said = {**dict(zip(GIVEN, given, strict=False)), **named}
        items = ItemHelpers.input_to_new_input_list(said["input"])
        wrong = self.keeps_history and mispaired(items)
        if wrong:
            raise ValueError(f"400: {wrong}")
        self.histories.append(items)
        self.shown[:] = [*said["tools"], *said["handoffs"]]
        turn = len(self.histories)
        asks = turn_of(self.script, turn)
        if not asks or isinstance(asks, str):
            text = ResponseOutputText(text=asks or DONE, type="output_text", annotations=[])
            output = [ResponseOutputMessage(
                id=f"msg-{turn}", content=[text], role="assistant", status="completed", type="message",
            )]  # fmt: skip
        else:
            output = [
                one if not isinstance(one, tuple) else ResponseFunctionToolCall(
                    call_id=f"{self.prefix}-{turn}-{n}", type="function_call", name=one[0],
                    arguments=one[1] if isinstance(one[1], str) else json.dumps(one[1]),
                )
                for n, one in enumerate(asks)
            ]  # fmt: skip
        return output

    async def get_response(self, *given, **named):
        await asyncio.sleep(0)
        return ModelResponse(output=self._answer(*given, **named), usage=Usage(requests=1), response_id=None)

    async def stream_response(self, *given, **named):
        await asyncio.sleep(0)
        response = Response(
            id=f"resp-{self.asked}", created_at=0, model="scripted", object="response", tool_choice="auto", tools=[],
            parallel_tool_calls=True, output=self._answer(*given, **named),
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


class Memory:
    """A memory of a conversation, as the SDK asks for."""

    session_settings = None

    def __init__(self, session_id="memory"):
        self.session_id = session_id
        self.items = []

    async def get_items(self, limit=None, *rest, **more):
        return list(self.items)

    async def add_items(self, items, *rest, **more):
        self.items += items

    async def pop_item(self, *rest, **more):
        return self.items.pop() if self.items else None

    async def clear_session(self, *rest, **more):
        self.items.clear()


def look_up(name="search"):
    """A tool that finds nothing; ``.bodies`` of the namespace counts its executions."""
    seen = SimpleNamespace(bodies=0)
    lock = threading.Lock()

    @function_tool(name_override=name, strict_mode=False)
    def search(q: str = "word") -> str:
        """Looks something up."""
        with lock:
            seen.bodies += 1
        return f"nothing about {q}"

    seen.tool = search
    return seen


def agent(script, tools=(), *, name="agent", prefix="call", **more):
    """An agent with a scripted model."""
    return Agent(name=name, model=ScriptedModel(script, prefix), tools=list(tools), **more)


def repeat(limit):
    """A policy of one rule: the same call with the same result."""
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit}, {"plugin": "tool_stats"}])


def ceiling(run=None, **more):
    """A policy of one rule: a number of calls."""
    given = {"run": run} if run is not None else {}
    return Policy(plugins=[{"plugin": "call_ceiling", **given, **more}, {"plugin": "tool_stats"}])


def mispaired(items):
    """What a provider would complain about; empty for a good history."""
    waiting = {}
    answered = False
    for item in items:
        kind = item.get("type")
        if kind is not None and kind.endswith("_call"):
            if answered and waiting:
                return f"no answer to {sorted(waiting)}"
            if item["call_id"] in waiting:
                return f"one id for two calls: {item['call_id']}"
            waiting[item["call_id"]] = 1
            answered = False
        elif kind is not None and kind.endswith("_output"):
            if waiting.pop(item["call_id"], None) is None:
                return f"an answer to {item['call_id']}, which nobody waits for"
            answered = True
        elif kind in MESSAGES and waiting:
            return f"no answer to {sorted(waiting)}"
    return f"no answer to {sorted(waiting)}" if waiting else ""


def answers(items):
    """The output of each call by its id."""
    return {item["call_id"]: item["output"] for item in items if str(item.get("type")).endswith("_output")}


def run_sync(one, given, **more):
    loop = asyncio.new_event_loop()  # the SDK would leave one of its own open
    asyncio.set_event_loop(loop)
    try:
        return Runner.run_sync(one, given, **{"max_turns": 100, **more})
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def run(one, given, **more):
    return asyncio.run(Runner.run(one, given, **{"max_turns": 100, **more}))


async def _streamed(one, given, more):
    result = Runner.run_streamed(one, given, **more)
    async for _ in result.stream_events():
        pass
    return result


def run_streamed(one, given, **more):
    return asyncio.run(_streamed(one, given, {"max_turns": 100, **more}))


def approved(agent, run, *, through_json, between=lambda: None, **more):
    """A run of which each call that waits is approved, until its end or its stop."""
    result = run(agent, "Find the word.", **more)
    for _ in range(10):
        state = result.to_state()
        if not state.get_interruptions():
            return result
        if through_json:
            state = asyncio.run(RunState.from_json(agent, json.loads(json.dumps(state.to_json()))))
        between()
        for waiting in state.get_interruptions():
            state.approve(waiting)
        result = run(agent, state, **more)
    raise AssertionError("it waits for ever")


def bare(function, **more):
    """The tool of a function, with the arguments' defaults left to the function."""
    made = function_tool(function, strict_mode=False, **more)
    assert isinstance(made, FunctionTool)
    return made


WAYS = (run, run_sync, run_streamed)  # every way to run an agent
