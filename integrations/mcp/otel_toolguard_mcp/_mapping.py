"""MCP's tools and results in the guard's words, and the other way round, by the field names of both major versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp import types

import otel_toolguard.adapter as kit
from otel_toolguard.telemetry.attributes import CALL_ID

CALL = "otel-toolguard/call"  # in ``_meta``: "{run}.{call}", which say nothing but which run and call they are
HELD = "_toolguard"
KEPT = 1024  # tools of one peer that are remembered
QUOTED = 8  # blocks of an error that are looked at


class Tools:
    """What is known of a peer's tools."""

    def __init__(self) -> None:
        self._listed: kit.Recent[str, list[Any]] = kit.Recent(KEPT)
        self._filled: kit.Recent[str, dict[str, Any]] = kit.Recent(KEPT)
        self._tools = kit.GuardedTools(self._make)

    def note(self, listing: Any) -> None:
        """Remembers the tools of a listing."""
        try:
            tools = _field(listing, "tools") or listing
            for tool in tools if isinstance(tools, list) else ():
                self._listed.of(str(_field(tool, "name")), lambda: [None])[0] = tool
        except Exception as fault:
            kit.unfelt("read a listing", fault)

    def of(self, name: str, found: Any = None) -> kit.GuardedTool:
        """The tool of a name; a server knows its own object of it."""
        return self._tools.of(name, found or (self._listed.get(name) or [None])[0])

    def _make(self, name: str, found: Any) -> kit.GuardedTool:
        hints, defaults, body = None, {}, None
        try:
            said, schema = _field(found, "annotations"), _field(found, "parameters", "input_schema", "inputSchema")
            hints = said.model_dump(by_alias=True, exclude_none=True) if hasattr(said, "model_dump") else said
            defaults, body = kit.defaults_in(_field(schema, "properties")), _field(found, "fn")
        except Exception as fault:
            kit.unfelt("read what a tool is like", fault)
        defaults = self._filled.of(name, lambda: defaults)  # as for its first call, with which others are compared
        tool = kit.GuardedTool(name, body, None, defaults)
        tool.tool.hints = tool.tool.hints or (hints if isinstance(hints, dict) else None)
        tool.body = tool.body or kit.AnyOf(name)
        return tool


class ServerAnswers(kit.Answers):
    """How a call ended, by its result; refusals are results, too."""

    def __init__(self, attempt: kit.Attempt) -> None:
        self._attempt = attempt

    def refusal(self, error: kit.CircuitOpen) -> Any:
        """An error result that says why."""
        return refusal(error)

    def said(self, answer: Any) -> Any:
        """The contents of a result, with the structured one where that says more."""
        try:
            contents, structured = _contents(answer), _field(answer, "structured_content", "structuredContent")
            if contents is None:
                return answer
            shown = contents[0] if len(contents) == 1 else contents
            if structured is None or structured == {"result": shown}:
                return shown
            self._attempt.seen = self._attempt.seen or (structured,)
        except Exception as fault:
            kit.unfelt("read a result", fault)
            return answer
        return [contents, structured]

    def ended(self, answer: Any) -> kit.Ended | BaseException | None:
        """A failure, where the result is marked as one; the exception itself, where the answer hides that."""
        try:
            if _field(answer, "result_type", "resultType") == "input_required":
                return kit.Ended("interrupted")
            if _field(answer, "is_error", "isError") is not True:
                return None
            if self._attempt.fault is not None:
                return self._attempt.fault.__cause__ or self._attempt.fault
            texts = [text for text in (_contents(answer) or ())[:QUOTED] if isinstance(text, str)]
        except Exception as fault:
            kit.unfelt("read a result", fault)
            return None
        return kit.failed_result("\n".join(texts))

    def advised(self, answer: Any, nudges: tuple[str, ...]) -> Any:
        """The answer with sentences for the model; another object, for a server may send one again and again."""
        content = _field(answer, "content") if nudges else None
        if not isinstance(content, list):
            return answer
        more = types.TextContent(type="text", text="\n\n".join(nudges))
        if isinstance(answer, Mapping):
            return {**answer, "content": [*content, more.model_dump(mode="json", by_alias=True, exclude_none=True)]}
        copied = _inner(answer).model_copy(update={"content": [*content, more]})
        return copied if _inner(answer) is answer else type(answer)(copied)


class ClientAnswers(ServerAnswers):
    """The same for a client, where a stop is raised: MCP has no model boundary to wait for."""

    def refusal(self, error: kit.CircuitOpen) -> Any:
        """An error result, unless the run is over."""
        if isinstance(error, kit.SessionStopped):
            raise error
        return super().refusal(error)


def refusal(error: kit.CircuitOpen) -> types.CallToolResult:
    """The answer to a call that was not run, with the body as text and as structured content."""
    text = error.to_tool_message()
    body = {"content": [{"type": "text", "text": text}], "structuredContent": json.loads(text), "isError": True}
    return types.CallToolResult.model_validate(body)


def said(arguments: Any) -> Mapping[str, Any]:
    """The arguments of a call, by name, whatever a peer or a program takes for such."""
    return arguments if isinstance(arguments, Mapping) else {} if arguments is None else {"*": arguments}


def call_id(meta: Any) -> str | None:
    """The model's own id of a call, if whoever makes it tells that."""
    found = meta.get(CALL_ID) if isinstance(meta, Mapping) else None
    return found if isinstance(found, str) else None


def _contents(answer: Any) -> list[Any] | None:
    blocks = _field(answer, "content")
    texts = [(block, _field(block, "text")) for block in blocks] if isinstance(blocks, list) else None
    return None if texts is None else [block if text is None else text for block, text in texts]


def _inner(answer: Any) -> Any:
    return getattr(answer, "root", answer)


def _field(thing: Any, *names: str) -> Any:
    """The value of the first of these names that there is."""
    thing = _inner(thing)
    if isinstance(thing, Mapping):
        return next((thing[name] for name in names if name in thing), None)
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)
