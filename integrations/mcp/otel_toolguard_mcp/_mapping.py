"""MCP's tools and results in the guard's words, and the other way round, by the field names of both major versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcp import types

from otel_toolguard.adapter import Ended, GuardedTool, failed_result
from otel_toolguard.attempt import unfelt
from otel_toolguard.telemetry.attributes import CALL_ID

if TYPE_CHECKING:
    from otel_toolguard.adapter import Attempt, CircuitOpen

KEPT = 1024  # tools of one peer that are remembered
QUOTED = 8  # blocks of an error that are looked at


class Catalogue:
    """What is known of a peer's tools; the same tool keeps the defaults that its first call was compared with."""

    def __init__(self) -> None:
        self._listed: dict[str, Any] = {}
        self._known: dict[str, tuple[Any, Any, dict[str, Any], GuardedTool]] = {}

    def note(self, listing: Any) -> None:
        """Remembers the tools of a listing."""
        try:
            tools = _field(listing, "tools") or listing
            for tool in tools if isinstance(tools, list) else ():
                if len(self._listed) >= KEPT:
                    self._listed.clear()
                self._listed[str(_field(tool, "name"))] = tool
        except Exception as fault:
            unfelt("read a listing", fault)

    def tool(self, name: str, found: Any = None, body: Any = None) -> GuardedTool:
        """The tool of a name; a server knows its own object of it, and its function."""
        found = self._listed.get(name) if found is None else found
        known = self._known.get(name)
        if known is None or known[0] is not found or known[1] is not body:
            hints, defaults = _described(found)
            defaults = defaults if known is None else known[2]
            guarded = GuardedTool(name, body, hints, defaults)
            guarded.tool.hints = guarded.tool.hints or hints
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[name] = (found, body, defaults, guarded)
        return known[3]


def said(arguments: Any) -> Mapping[str, Any]:
    """The arguments of a call, by name, whatever a peer or a program takes for such."""
    return arguments if isinstance(arguments, Mapping) else {} if arguments is None else {"*": arguments}


def call_id(meta: Any) -> str | None:
    """The model's own id of a call, if whoever makes it tells that."""
    found = meta.get(CALL_ID) if isinstance(meta, Mapping) else None
    return found if isinstance(found, str) else None


def settle(attempt: Attempt, answer: Any) -> None:
    """Settles a call by its result."""
    shown, ended = answer, None
    try:
        if _field(answer, "result_type", "resultType") == "input_required":
            ended = Ended("interrupted")
        blocks, structured = _field(answer, "content"), _field(answer, "structured_content", "structuredContent")
        if isinstance(blocks, list):
            contents = [block if (text := _field(block, "text")) is None else text for block in blocks]
            shown = contents[0] if len(contents) == 1 else contents
            if structured is not None and structured != {"result": shown}:
                attempt.seen = attempt.seen or (structured,)
                shown = [contents, structured]
            if is_failed(answer):
                ended = failed_result("\n".join(text for text in contents[:QUOTED] if isinstance(text, str)))
    except Exception as fault:
        unfelt("read a result", fault)
    attempt.returned(shown, ended)


def is_failed(answer: Any) -> bool:
    """Whether a result is marked as an error."""
    return _field(answer, "is_error", "isError") is True


def refusal(error: CircuitOpen) -> types.CallToolResult:
    """The answer to a call that was not run."""
    text = error.to_tool_message()
    body = {"content": [{"type": "text", "text": text}], "structuredContent": json.loads(text), "isError": True}
    return types.CallToolResult.model_validate(body)


def advised(answer: Any, nudges: tuple[str, ...]) -> Any:
    """The answer with sentences for the model; another object, for a server may send one again and again."""
    content = _field(answer, "content") if nudges else None
    if not isinstance(content, list):
        return answer
    more = types.TextContent(type="text", text="\n\n".join(nudges))
    if isinstance(answer, Mapping):
        return {**answer, "content": [*content, more.model_dump(mode="json", by_alias=True, exclude_none=True)]}
    copied = _inner(answer).model_copy(update={"content": [*content, more]})
    return copied if _inner(answer) is answer else type(answer)(copied)


def _inner(answer: Any) -> Any:
    return getattr(answer, "root", answer)


def _field(thing: Any, *names: str) -> Any:
    """The value of the first of these names that there is."""
    thing = _inner(thing)
    if isinstance(thing, Mapping):
        return next((thing[name] for name in names if name in thing), None)
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)


def _described(tool: Any) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """A tool's annotations, None if there are none, and the defaults in its schema."""
    try:
        hints, schema = _field(tool, "annotations"), _field(tool, "parameters", "input_schema", "inputSchema")
        hints = hints.model_dump(by_alias=True, exclude_none=True) if hasattr(hints, "model_dump") else hints
        parts = schema.get("properties") if isinstance(schema, Mapping) else None
        found = parts.items() if isinstance(parts, Mapping) else ()
        defaults = {name: part["default"] for name, part in found if isinstance(part, Mapping) and "default" in part}
        return (hints if isinstance(hints, dict) and hints else None), defaults
    except Exception as fault:
        unfelt("read what a tool is like", fault)
        return None, {}
