"""LangChain's tools, results and messages in the guard's words, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from otel_toolguard.adapter import Answers, CircuitOpen, Ended, GuardedTool, defaults_in, failed_result, native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langchain_core.messages import ToolCall

    from otel_toolguard import Trip

LangChainStopped = native(GraphBubbleUp, name="LangChainStopped", module=__name__)


def stopped(trip: Trip, state: Any, config: Mapping[str, Any]) -> Exception:
    """The stop of a run, with what is kept of it."""
    kept = {name: config.get(name) for name in ("thread_id", "checkpoint_id")}
    return LangChainStopped(trip, {"messages": list(history(state)), **kept})


def guarded_tool(name: str, tool: BaseTool | None, *, asynchronous: bool) -> GuardedTool:
    """A tool, the function that LangChain will call for it, and what its schema fills in."""
    if tool is None:
        return GuardedTool(name)
    body: Any = getattr(tool, "func", None) or tool._run  # noqa: SLF001  (the hook that subclasses implement)
    if asynchronous:
        own = type(tool)._arun is not BaseTool._arun and not hasattr(tool, "func")  # noqa: SLF001
        body = getattr(tool, "coroutine", None) or (tool._arun if own else body)  # noqa: SLF001
    try:
        parts = tool.args
    except Exception:  # no schema to show to a model, yet it may run
        parts = {}
    return GuardedTool(name, body, defaults=defaults_in(parts))


class Answered(Answers):
    """What becomes of one call, as messages."""

    def __init__(self, call: ToolCall) -> None:
        self._call = call

    def refusal(self, error: CircuitOpen) -> ToolMessage:
        """The answer to a call that was not run, with the record of why beside it."""
        return ToolMessage(
            error.to_tool_message(), tool_call_id=self._call["id"], name=self._call["name"], status="error",
            response_metadata={"toolguard": error.trip.to_dict()},
        )  # fmt: skip

    def said(self, answer: Any) -> Any:
        """What the tool said, without the ids that are new in each message."""
        contents = [message.content for message in _messages(answer)]
        if isinstance(answer, Command) and isinstance(answer.update, dict):
            return [contents, {key: value for key, value in answer.update.items() if key != "messages"}, answer.goto]
        return contents[0] if len(contents) == 1 else contents or answer

    def ended(self, answer: Any) -> Ended | None:
        """A failure, if a message says so; None leaves it to what the tool's function returned."""
        failed = [one for one in _messages(answer) if isinstance(one, ToolMessage) and one.status == "error"]
        return failed_result(str(failed[0].content)) if failed else None

    def advised(self, answer: Any, nudges: tuple[str, ...]) -> Any:
        """The answer, with sentences for the model in its last message."""
        for message in [one for one in _messages(answer) if isinstance(one, ToolMessage)][-1:] if nudges else ():
            if isinstance(message.content, str):
                message.content = super().advised(message.content, nudges)
            else:
                message.content = [*message.content, {"type": "text", "text": "\n\n".join(nudges)}]
        return answer


def history(state: Any) -> list[BaseMessage]:
    """The messages of a state: a list of them, or what has one, as a rule under the name ``messages``."""
    if isinstance(state, list):
        return [one for one in state if isinstance(one, BaseMessage)]
    parts = state if isinstance(state, dict) else getattr(state, "__dict__", {})
    found = [parts.get("messages"), *parts.values()]
    return next(filter(None, (history(each) for each in found if isinstance(each, list))), [])


def asking(state: Any) -> AIMessage:
    """The model's last message, which asks for the calls of this turn."""
    return next((one for one in reversed(history(state)) if isinstance(one, AIMessage)), AIMessage(""))


def show(trip: Trip, handlers: Any, run_id: Any) -> None:
    """Notes a trip as metadata of the runs, from one outwards, that a tracer such as LangSmith's still has open."""
    for tracer in handlers:
        known = getattr(tracer, "run_map", {})
        run = known.get(str(run_id))
        while run is not None:
            run.extra.setdefault("metadata", {})["toolguard"] = trip.to_dict()
            run = known.get(str(run.parent_run_id))


def _messages(result: Any) -> list[BaseMessage]:
    if isinstance(result, Command):
        result = result.update.get("messages") if isinstance(result.update, dict) else None
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in _messages(part)]
    return [result] if isinstance(result, BaseMessage) else []
