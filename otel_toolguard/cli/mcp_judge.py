"""Judges the tool calls of one MCP connection: what they are to the rules, and what their answers mean."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import get_current_span

from otel_toolguard.attempt import Attempt
from otel_toolguard.guard import unfelt
from otel_toolguard.outcomes import Ended, failed_result
from otel_toolguard.telemetry.attributes import CALL_ID
from otel_toolguard.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_toolguard.errors import CircuitOpen
    from otel_toolguard.session import Session

KEPT = 1024  # tools of one server that are remembered
QUOTED = 8  # blocks of an error that are looked at
VERSION = "io.modelcontextprotocol/protocolVersion"  # in ``_meta``: a request of the protocol without a handshake
CLIENT = "io.modelcontextprotocol/clientInfo"  # there, too: what else a client says in its handshake
PYTHON = {"mcp", "fastmcp"}  # what clients of Python's libraries call themselves unless they are told otherwise


class _Told(NamedTuple):
    """What a listing said of a tool: its annotations, the defaults in its schema, and if its results have a schema."""

    hints: dict[str, Any] | None
    defaults: dict[str, Any]
    shaped: bool


_UNTOLD = _Told(None, {}, shaped=False)


class Judge:
    """The runs of one connection in a session, and what its server said about its tools.

    Args:
        session: The session.
        pause: Seconds without a call after which the next one begins a new run; None for one run.
        structured: Whether a refusal has its body also as structured content.
    """

    def __init__(self, session: Session, *, pause: float | None = None, structured: bool = True) -> None:
        self.session = session
        self.structured = structured
        self._pause = pause
        self._lock = threading.Lock()
        self._place = session.place()
        self._running = 0
        self._rested_at = time.monotonic()
        self._listed: dict[str, _Told] = {}
        self._lenient = False  # whether the client takes the content of errors as it is
        self._tools: dict[str, tuple[Any, dict[str, Any], Tool]] = {}

    def admit(self, name: str, params: Mapping[str, Any], carrier: Mapping[str, str]) -> Attempt:
        """Admits or refuses a call; the caller's trace is continued.

        Raises:
            CircuitOpen: The store refuses because it cannot be reached.
        """
        given, meta = params.get("arguments"), params.get("_meta")
        tool, defaults = self._tool(name)
        if isinstance(given, Mapping):
            arguments: Mapping[str, Any] = {**defaults, **given}
        else:  # what is no object stays one value: two such calls are the same call if that is
            arguments = dict(defaults) if given is None else {"*": given}
        said = meta.get(CALL_ID) if isinstance(meta, Mapping) else None
        place = self._start()
        try:
            with _within(carrier):
                attempt = Attempt(place.guard, place, tool, arguments, call_id=said if isinstance(said, str) else None)
        except BaseException:
            self._stopped()
            raise
        if attempt.refused is not None:
            self._stopped()
        return attempt

    def settle(self, attempt: Attempt, answer: Any, ended: Ended | None = None) -> tuple[str, ...]:
        """Settles an admitted call by its result, or by how it ended; returns what to tell the model beside it."""
        try:
            shown = answer
            if ended is None:
                shown, ended = _read(attempt, answer)
            attempt.returned(shown, ended)
        finally:
            self._stopped()
        return attempt.nudges

    def introduced(self, client: Any) -> None:
        """Notes who the client says it is."""
        self._lenient = _is_lenient(client)

    def refusal(self, error: CircuitOpen, name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The result that a refused call of a tool has."""
        text = error.to_tool_message()
        body: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
        # Where results have a schema, some clients hold those of errors against it too, and would raise instead.
        lenient = self._lenient or _is_lenient(meta.get(CLIENT))
        if self.structured and (lenient or not self._listed.get(name, _UNTOLD).shaped):
            body["structuredContent"] = json.loads(text)
        return {"resultType": "complete", **body} if VERSION in meta else body

    def listed(self, result: Any) -> None:
        """Remembers what a listing says of the tools."""
        tools = result.get("tools") if isinstance(result, Mapping) else None
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, Mapping) and isinstance(tool.get("name"), str):
                if len(self._listed) >= KEPT:
                    self._listed.clear()
                self._listed[tool["name"]] = _described(tool)

    def close(self) -> None:
        """Notes that the connection makes no more calls."""
        try:
            self.session.end_run(self._place.run_id)
        except Exception as fault:
            unfelt("end a run", fault)

    def _start(self) -> Any:
        with self._lock:
            rested = time.monotonic() - self._rested_at
            if self._pause is not None and not self._running and rested >= self._pause:
                self.close()
                self._place = self.session.place()
            self._running += 1
            return self._place

    def _stopped(self) -> None:
        with self._lock:
            self._running -= 1
            self._rested_at = time.monotonic()

    def _tool(self, name: str) -> tuple[Tool, dict[str, Any]]:
        told = self._listed.get(name, _UNTOLD)
        hints, defaults = told.hints, told.defaults
        known = self._tools.get(name)
        if known is None or known[0] != hints:
            if known is not None:  # what its first call was compared with, so that later ones can be the same
                defaults = known[1]
            if len(self._tools) >= KEPT:
                self._tools.clear()
            known = self._tools[name] = (hints, defaults, Tool(name, hints=hints))
        return known[2], known[1]


def carried(attempt: Attempt) -> dict[str, str]:
    """The trace context that a server continues: that of the call's own span; empty if there is none."""
    entries: dict[str, str] = {}
    attempt.enter()
    try:
        if get_current_span().get_span_context().is_valid:
            inject(entries)
    finally:
        attempt.leave()
    return entries


@contextmanager
def _within(carrier: Mapping[str, str]) -> Iterator[None]:
    """Inside the caller's trace, if it told one."""
    remote = extract(carrier) if carrier else None
    if remote is None or not get_current_span(remote).get_span_context().is_valid:
        yield
        return
    token = attach(remote)
    try:
        yield
    finally:
        detach(token)


def _read(attempt: Attempt, answer: Any) -> tuple[Any, Ended | None]:
    """What a result showed, for comparing, and how the call ended if the result says so."""
    if not isinstance(answer, Mapping):
        return answer, None
    ended = Ended("interrupted") if answer.get("resultType") == "input_required" else None
    blocks, structured = answer.get("content"), answer.get("structuredContent")
    if not isinstance(blocks, list):
        return answer, ended
    contents = [
        block["text"] if isinstance(block, Mapping) and isinstance(block.get("text"), str) else block
        for block in blocks
    ]
    shown: Any = contents[0] if len(contents) == 1 else contents
    if structured is not None and structured != {"result": shown}:
        attempt.seen = (structured,)
        shown = [contents, structured]
    if answer.get("isError") is True:
        ended = failed_result("\n".join(text for text in contents[:QUOTED] if isinstance(text, str)))
    return shown, ended


def _is_lenient(client: Any) -> bool:
    return isinstance(client, Mapping) and str(client.get("name")) in PYTHON


def _described(tool: Mapping[str, Any]) -> _Told:
    hints, schema = tool.get("annotations"), tool.get("inputSchema")
    parts = schema.get("properties") if isinstance(schema, Mapping) else None
    found = parts.items() if isinstance(parts, Mapping) else ()
    defaults = {name: part["default"] for name, part in found if isinstance(part, Mapping) and "default" in part}
    kept = dict(hints) if isinstance(hints, Mapping) and hints else None
    return _Told(kept, defaults, shaped=tool.get("outputSchema") is not None)
