"""What the hooks of coding agents say, and how each wants to be answered."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

PROMPT, BEFORE, AFTER, END = "prompt", "before", "after", "end"
_EVENTS = {
    "UserPromptSubmit": PROMPT, "PreToolUse": BEFORE, "PostToolUse": AFTER, "PostToolUseFailure": AFTER, "Stop": END,
    "SubagentStop": END,
    "BeforeAgent": PROMPT, "BeforeTool": BEFORE, "AfterTool": AFTER, "AfterAgent": END,
}  # fmt: skip
_GEMINI = ("BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent")
LONGEST = 512  # characters of a name or an id that are kept as they are
# Shells have the model say in words what a command is for; that is put differently each time and changes nothing.
_WORDS = "description"
# How long a call took and what it cost differs each time, too.
_PASSING = frozenset({
    "durationMs", "duration_ms", "durationSeconds", "durationMilliseconds", "totalDurationMs", "totalTokens", "usage",
})  # fmt: skip
COMMANDS = {
    "claude": ("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop", "SubagentStop"),
    "codex": ("UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"),
    "gemini": _GEMINI,
}
_TIMEOUT_S = 30


class Event(NamedTuple):
    """One event, whosever words it was told in.

    Attributes:
        name: As the agent calls it.
        kind: What it is to us: prompt, before, after or end.
        session: The session's id.
        tool, arguments, call_id: The call; the id is None where the agent tells none.
        agent, agent_kind, parent: The sub-agent that this is about, None for the main agent; its sort; the call in
            which it works, None if unknown.
        where: The working directory.
        result, error, cancelled: What the call answered; what it said if it failed; whether somebody ended it.
        dialect: claude, codex or gemini.
    """

    name: str
    kind: str
    session: str
    tool: str
    arguments: dict[str, Any] | str
    call_id: str | None
    agent: str | None
    agent_kind: str | None
    parent: str | None
    where: str | None
    result: Any
    error: str | None
    cancelled: bool
    dialect: str


class Answer(NamedTuple):
    """What is answered: ``deny`` says why a call is not run, ``stop`` why nothing more is; then what to tell whom."""

    deny: str | None = None
    stop: str | None = None
    context: tuple[str, ...] = ()
    message: str | None = None


class Unreadable(Exception):
    """The input is no event of which anything could be said."""


def read(given: Any) -> Event | None:
    """The event; None if it is none that matters here.

    Raises:
        Unreadable: What it must say is missing.
    """
    if not isinstance(given, dict):
        raise Unreadable("the input is no JSON object")
    name = given.get("hook_event_name")
    if not isinstance(name, str):
        raise Unreadable("the input has no hook_event_name")
    kind = _EVENTS.get(name)
    if kind is None:
        return None
    session, tool = _text(given, "session_id"), _text(given, "tool_name")
    if session is None:
        raise Unreadable(f"{name} has no session_id")
    if tool is None and kind in (BEFORE, AFTER):
        raise Unreadable(f"{name} has no tool_name")
    result, error, cancelled = _ended(given) if kind == AFTER else (None, None, False)
    where = given.get("cwd")
    return Event(
        name, kind, session, tool or "", _arguments(given.get("tool_input")), _text(given, "tool_use_id"),
        _text(given, "agent_id"), _text(given, "agent_type"), _text(given, "parent_tool_use_id"),
        where if isinstance(where, str) else None, result, error, cancelled,
        "gemini" if name in _GEMINI else "codex" if "turn_id" in given else "claude",
    )  # fmt: skip


def told(event: Event | None, answer: Answer) -> dict[str, Any]:
    """The answer in the agent's own words; nothing where there is nothing to say.

    A call that may run is never allowed in so many words: that would spare it the agent's own permissions.
    """
    name = event.name if event is not None else "PreToolUse"
    dialect = event.dialect if event is not None else "claude"
    said: dict[str, Any] = {}
    own: dict[str, Any] = {}
    if answer.deny is not None and dialect == "gemini":
        said |= {"decision": "deny", "reason": answer.deny}
    elif answer.deny is not None:
        own |= {"permissionDecision": "deny", "permissionDecisionReason": answer.deny}
    # Codex takes a refusal that would also end the turn for a broken hook, and runs the call.
    if answer.stop is not None and not (dialect == "codex" and name == "PreToolUse"):
        said |= {"continue": False, "stopReason": answer.stop}
    if answer.context:
        own["additionalContext"] = "\n\n".join(answer.context)
    if own:
        said["hookSpecificOutput"] = {"hookEventName": name, **own}
    if answer.message:
        said["systemMessage"] = answer.message
    return said


def config(agent: str, command: str) -> dict[str, Any]:
    """The settings that have an agent run the command at its hooks."""
    seconds = _TIMEOUT_S * 1000 if agent == "gemini" else _TIMEOUT_S
    entry = {"type": "command", "command": command, "timeout": seconds}
    tools = "*" if agent != "codex" else ".*"
    return {
        "hooks": {
            event: [{"matcher": tools, "hooks": [entry]} if "Tool" in event else {"hooks": [entry]}]
            for event in COMMANDS[agent]
        }
    }


def _text(given: dict[str, Any], name: str) -> str | None:
    """A name or an id, of bounded length; None if there is none."""
    said = given.get(name)
    if not isinstance(said, str) or not said:
        return None
    if len(said) <= LONGEST:
        return said
    return said[:64] + "~" + hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _arguments(said: Any) -> dict[str, Any] | str:
    if isinstance(said, dict):
        return {key: value for key, value in said.items() if key != _WORDS} if "command" in said else said
    if said is None:
        return {}
    return said if isinstance(said, str) else {"*": said}


def _ended(given: dict[str, Any]) -> tuple[Any, str | None, bool]:
    """What a call answered, what it said if it failed, and whether somebody ended it."""
    if given["hook_event_name"] == "PostToolUseFailure":
        said = given.get("error")
        return None, said if isinstance(said, str) else repr(said), given.get("is_interrupt") is True
    answer = given.get("tool_response")
    if not isinstance(answer, dict):
        return answer, None, False
    if given["hook_event_name"] == "AfterTool":
        fault = answer.get("error")
        return answer.get("llmContent", answer), None if not fault else _error(fault), False
    if answer.get("is_error") is True or answer.get("isError") is True:
        return None, _error(answer.get("content", answer)), False
    return {key: value for key, value in answer.items() if key not in _PASSING}, None, answer.get("interrupted") is True


def _error(said: Any) -> str:
    if isinstance(said, dict) and isinstance(said.get("message"), str):
        return str(said["message"])
    try:
        return said if isinstance(said, str) else repr(said)
    except RecursionError:
        return "(too deeply nested to be read)"
