"""Agents without a framework: a loop of model and tools as one would write it by hand, with a model that is scripted.

They do what an adapter does: a refused call is answered like any failed one, so that each call id has its answer, and
the run is ended before the next model call.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from otel_toolguard import CircuitOpen, current_session
from otel_toolguard.testing.scripts import DONE, Script, turn_of

Message = dict[str, Any]  # role and content; calls in tool_calls, their answers by tool_call_id
Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
MAX_TURNS = 1000


class ScriptedModel:
    """A model that says what a script says, and counts how often it is asked.

    Like a provider it rejects a history in which a call has no answer.

    Args:
        script: A list of turns, or a function from the turn's number, 1 at first, to the turn. A turn is a list of
            (tool, arguments); a text, or None, ends the run.
        prefix: What the ids of its calls begin with.
        max_turns: Turns after which a run counts as one that nothing stops.

    Attributes:
        asked: Model calls so far.
    """

    def __init__(self, script: Script, *, prefix: str = "call", max_turns: int = MAX_TURNS) -> None:
        self.asked = 0
        self._script = script
        self._prefix = prefix
        self._most = max_turns

    def __call__(self, history: Sequence[Message]) -> Message:
        """The next message.

        Raises:
            ValueError: The history has calls without an answer.
            AssertionError: The script goes on for more than ``max_turns`` turns.
        """
        waiting = unanswered(history)
        if waiting:
            raise ValueError(f"a provider would reject this history: no answer to {', '.join(waiting)}")
        if self.asked >= self._most:
            raise AssertionError(f"the model was asked {self.asked} times and nothing stopped the run")
        self.asked += 1
        turn = turn_of(self._script, self.asked)
        if not turn or isinstance(turn, str):
            return {"role": "assistant", "content": turn or DONE}
        calls = [
            {"id": f"{self._prefix}-{self.asked}-{n}", "name": name, "arguments": dict(arguments)}
            for n, (name, arguments) in enumerate(turn)
        ]
        return {"role": "assistant", "content": "", "tool_calls": calls}


def unanswered(history: Iterable[Message]) -> list[str]:
    """Ids of calls in a history of a scripted agent that have no answer; empty for a good one."""
    waiting: dict[str, None] = {}
    for message in history:
        if message["role"] == "tool":
            waiting.pop(message["tool_call_id"], None)
        waiting.update(dict.fromkeys(call["id"] for call in message.get("tool_calls", ())))
    return list(waiting)


class _Agent:
    def __init__(
        self, tools: Tools, script: Script | ScriptedModel, *, parallel: bool = True, prefix: str = "call"
    ) -> None:
        given = tools.items() if isinstance(tools, Mapping) else ((_name(tool), tool) for tool in tools)
        self.tools: dict[str, Callable[..., Any]] = dict(given)
        self.model = script if isinstance(script, ScriptedModel) else ScriptedModel(script, prefix=prefix)
        self.history: list[Message] = []
        self.parallel = parallel

    @property
    def asked(self) -> int:
        """Model calls so far."""
        return self.model.asked

    @property
    def answers(self) -> list[Message]:
        """The answers to tool calls in the history; ``failed`` and ``refused`` say what became of each."""
        return [message for message in self.history if message["role"] == "tool"]

    def _say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def _turn(self) -> list[dict[str, Any]]:
        """The model boundary: asks what to do next, unless the run was stopped."""
        self._gate()
        self.history.append(self.model(self.history))
        calls: list[dict[str, Any]] = self.history[-1].get("tool_calls", [])
        return calls

    def _gate(self) -> None:
        session = current_session()
        try:
            if session is not None:
                session.raise_if_open()
        except CircuitOpen as stopped:
            stopped.partial = {"messages": list(self.history)}
            raise

    def _tool(self, call: Mapping[str, Any]) -> Callable[..., Any]:
        tool = self.tools.get(call["name"])
        if tool is None:
            raise LookupError(f"there is no tool {call['name']!r}")
        return tool

    @property
    def _text(self) -> str:
        return str(self.history[-1]["content"])


class ScriptedAgent(_Agent):
    """An agent of sync tools; the calls of one turn run in threads, side by side.

    Args:
        tools: Functions, guarded or not, by the names that the model uses; a list takes their own names.
        script: What its model says (see ``ScriptedModel``), or the model itself.
        parallel: False runs the calls of a turn one after the other.
        prefix: What call ids begin with; two agents that share a history need two.

    Attributes:
        history: User, assistant and tool messages of all runs; assign a kept history to go on with it.
        model: The model.

    Raises:
        TypeError: A tool is async.
    """

    def __init__(
        self, tools: Tools, script: Script | ScriptedModel, *, parallel: bool = True, prefix: str = "call"
    ) -> None:
        super().__init__(tools, script, parallel=parallel, prefix=prefix)
        for name, tool in self.tools.items():
            if inspect.iscoroutinefunction(tool) or inspect.isasyncgenfunction(tool):
                raise TypeError(f"the tool {name!r} is async: give it to an AsyncScriptedAgent")

    def run(self, text: str = "Go.") -> str:
        """Runs until the model has nothing more to ask; returns its last text.

        What a tool raises is answered to the model, as most frameworks do.

        Raises:
            CircuitOpen: The run was stopped; ``partial["messages"]`` is the history.
            AssertionError: Nothing stopped the run.
        """
        self._say(text)
        while calls := self._turn():
            self.history += self._together(calls) if self.parallel and len(calls) > 1 else map(self._call, calls)
        return self._text

    def _together(self, calls: Sequence[Mapping[str, Any]]) -> list[Message]:
        with ThreadPoolExecutor(len(calls)) as pool:
            # A thread starts without context variables: the session and the current span must be carried over.
            futures = [pool.submit(copy_context().run, self._call, call) for call in calls]
            return [future.result() for future in futures]

    def _call(self, call: Mapping[str, Any]) -> Message:
        try:
            result = self._tool(call)(**call["arguments"])
            return _answer(call, list(result) if inspect.isgenerator(result) else result)
        except Exception as error:
            return _failure(call, error)


class AsyncScriptedAgent(_Agent):
    """The same for async tools, and sync ones between them; the calls of one turn are tasks, side by side.

    Takes what ``ScriptedAgent`` takes. A sync tool holds the event loop up while it runs.
    """

    async def run(self, text: str = "Go.") -> str:
        """Runs until the model has nothing more to ask; returns its last text.

        What a tool raises is answered to the model, as most frameworks do.

        Raises:
            CircuitOpen: The run was stopped; ``partial["messages"]`` is the history.
            AssertionError: Nothing stopped the run.
        """
        self._say(text)
        while calls := self._turn():
            if self.parallel:
                self.history += await asyncio.gather(*map(self._call, calls))
            else:
                self.history += [await self._call(call) for call in calls]
        return self._text

    async def _call(self, call: Mapping[str, Any]) -> Message:
        try:
            result = self._tool(call)(**call["arguments"])
            if inspect.isasyncgen(result):
                return _answer(call, [item async for item in result])
            if inspect.isawaitable(result):
                result = await result
            return _answer(call, list(result) if inspect.isgenerator(result) else result)
        except Exception as error:
            return _failure(call, error)


def _name(tool: Any) -> str:
    guarded = getattr(tool, "guarded_tool", None)
    return str(guarded.name if guarded is not None else tool.__name__)


def _answer(call: Mapping[str, Any], result: Any) -> Message:
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    return _message(call, text)


def _failure(call: Mapping[str, Any], error: Exception) -> Message:
    if isinstance(error, CircuitOpen):
        return _message(call, error.to_tool_message(), failed=True, refused=True)
    return _message(call, f"{type(error).__name__}: {error}", failed=True)


def _message(call: Mapping[str, Any], content: str, *, failed: bool = False, refused: bool = False) -> Message:
    return {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["name"],
        "content": content,
        "failed": failed,
        "refused": refused,
    }
