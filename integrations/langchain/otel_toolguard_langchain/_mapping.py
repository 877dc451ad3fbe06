"""LangChain's tools, results and messages in the guard's words, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from otel_toolguard.adapter import CircuitOpen, Ended, GuardedTool, failed_result

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest


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
    return GuardedTool(name, body, defaults={key: part["default"] for key, part in parts.items() if "default" in part})


def refusal(request: ToolCallRequest, error: CircuitOpen) -> ToolMessage:
    """The answer to a call that was not run."""
    call = request.tool_call
    return ToolMessage(content=error.to_tool_message(), tool_call_id=call["id"], name=call["name"], status="error")


def said(result: Any) -> Any:
    """What the tool said, without the ids that are new in each message."""
    contents = [message.content for message in _messages(result)]
    if isinstance(result, Command) and isinstance(result.update, dict):
        return [contents, {key: value for key, value in result.update.items() if key != "messages"}, result.goto]
    return contents[0] if len(contents) == 1 else contents or result


def ended(result: Any) -> Ended | None:
    """A failure, if a message says so; None leaves it to what the tool's function returned."""
    failed = [one for one in _messages(result) if isinstance(one, ToolMessage) and one.status == "error"]
    return failed_result(str(failed[0].content)) if failed else None


def advise(result: Any, nudges: tuple[str, ...]) -> None:
    """Adds sentences for the model to what the tool answered."""
    answers = [one for one in _messages(result) if isinstance(one, ToolMessage)] if nudges else []
    for answer in answers[-1:]:
        told = "\n\n".join(nudges)
        if isinstance(answer.content, str):
            answer.content = f"{answer.content}\n\n{told}"
        else:
            answer.content = [*answer.content, {"type": "text", "text": told}]


def _messages(result: Any) -> list[BaseMessage]:
    if isinstance(result, Command):
        result = result.update.get("messages") if isinstance(result.update, dict) else None
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in _messages(part)]
    return [result] if isinstance(result, BaseMessage) else []
