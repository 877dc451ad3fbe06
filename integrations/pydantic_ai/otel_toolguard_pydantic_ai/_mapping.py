"""Pydantic AI's tools, results and exceptions in the guard's words, and the other way round."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any

from pydantic_ai import ToolReturn
from pydantic_ai.capabilities import AbstractCapability, Instrumentation
from pydantic_ai.exceptions import ModelRetry, ToolFailed

from otel_toolguard.adapter import (
    Answers,
    CircuitOpen,
    Ended,
    GuardedTool,
    Place,
    advised,
    defaults_in,
    failed_result,
)


def source_of(tool: Any) -> Any:
    """What stays the same from step to step: the schema of a tool's function, else what the model is shown of it."""
    while hasattr(tool, "source_tool"):
        tool = tool.source_tool
    schema = getattr(getattr(tool, "call_func", None), "__self__", None)
    return schema if hasattr(schema, "function") else getattr(tool, "tool_def", None)


def guarded_tool(name: str, source: Any) -> GuardedTool:
    """A tool, the function that Pydantic AI will call for it, and what its schema fills in."""
    body = getattr(source, "function", None)
    schema = getattr(source, "json_schema" if body else "parameters_json_schema", {}) if source else {}
    filled = {} if getattr(source, "single_arg_name", None) else defaults_in(schema.get("properties"))
    named = inspect.signature(body).parameters if body else ()  # their defaults are values, not what JSON makes of them
    defaults = {key: value for key, value in filled.items() if key not in named}
    hints = (getattr(source, "metadata", None) or {}).get("annotations")  # of an MCP server's tools
    return GuardedTool(name, body, hints, defaults)


def invalid(error: Any) -> Ended:
    """Arguments that no tool was called with; their values stay untold."""
    if isinstance(error, ModelRetry):
        return failed_result(error.message)
    return failed_result("; ".join(f"{part['loc']}: {part['msg']}" for part in error.errors(include_input=False)))


def place_of_invalid(place: Place, root: Any) -> Place:
    """Where such a call is made: Pydantic AI's own span of it, if any, is over before a capability could add to it."""
    parts: list[Any] = []
    root.apply(parts.append)
    tells = Instrumentation.on_tool_validate_error is not AbstractCapability.on_tool_validate_error
    if tells and any(isinstance(one, Instrumentation) for one in parts) and place.guard.telemetry is not None:
        place, place.guard = copy.copy(place), copy.copy(place.guard)
        place.guard.telemetry = telemetry = copy.copy(place.guard.telemetry)
        vars(telemetry)["start"] = lambda *_, **__: None  # so ours would be a second one
    return place


class ToolAnswers(Answers):
    """What the model is answered."""

    def refusal(self, error: CircuitOpen) -> Any:
        """A failed tool result, which Pydantic AI makes of this exception."""
        raise ToolFailed(error.to_tool_message()) from error

    def said(self, answer: Any) -> Any:
        """What the tool said to the model; data for the application alone is left out."""
        if isinstance(answer, ToolReturn):
            return [answer.return_value, answer.content] if answer.content else answer.return_value
        return answer

    def advised(self, answer: Any, nudges: tuple[str, ...]) -> Any:
        """Adds to a text, also that of an exception which becomes an answer; what is no text has content beside it."""
        if not nudges or isinstance(answer, str):
            return super().advised(answer, nudges)
        if isinstance(answer, (ModelRetry, ToolFailed)):
            kind = ModelRetry if isinstance(answer, ModelRetry) else ToolFailed
            return kind(advised(answer.message, nudges))
        if isinstance(answer, BaseException):
            return answer
        result = answer if isinstance(answer, ToolReturn) else ToolReturn(answer)
        content = [result.content] if isinstance(result.content, str) else result.content or []
        return replace(result, content=[*content, *nudges])
