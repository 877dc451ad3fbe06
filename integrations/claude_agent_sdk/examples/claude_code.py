#!/usr/bin/env python3
"""Plays Claude Code for the example: its model asks for the same search for ever, up to ``--max-turns``.

A session that is resumed is summed up instead, unless a call of its transcript has no answer.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path


def say(**message):
    print(json.dumps(message), flush=True)


def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return json.loads(line)


def keep(kind, call_id):
    with TRANSCRIPT.open("a") as file:
        print(kind, call_id, file=file)


def summary():
    """What the model of a resumed session says; like a provider's it takes no call without an answer."""
    kept = [line.split() for line in TRANSCRIPT.read_text().splitlines()]
    asked, answered = ([call_id for kind, call_id in kept if kind == each] for each in ("asked", "answered"))
    return f"{len(asked)} searches found nothing" if asked == answered else "400: a call has no answer"


def hook(event, callbacks, **given):
    """Asks the hooks of an event; whether they let the run go on, and a denial's reason."""
    goes_on, denied = True, None
    for callback in callbacks.get(event, []):
        given = {"hook_event_name": event, "session_id": "conversation-42", "cwd": "/", **given}
        request = {"subtype": "hook_callback", "callback_id": callback, "input": given}
        say(type="control_request", request_id=f"{event}-{callback}", request=request)
        answer = hear()["response"]["response"]
        goes_on = goes_on and answer.get("continue", True)
        denied = denied or answer.get("hookSpecificOutput", {}).get("permissionDecisionReason")
    return goes_on, denied


def turn(number, callbacks):
    """One turn: the model asks for a search, and gets an answer."""
    call = {"tool_name": "WebSearch", "tool_input": {"query": "the answer"}, "tool_use_id": f"call-{number}"}
    block = {"type": "tool_use", "id": call["tool_use_id"], "name": call["tool_name"], "input": call["tool_input"]}
    say(type="assistant", message={"role": "assistant", "model": "scripted", "content": [block]}, **SESSION)
    keep("asked", block["id"])
    goes_on, answer = hook("PreToolUse", callbacks, **call)
    if answer is None:
        answer = "nothing found"
        goes_on = hook("PostToolUse", callbacks, **call, tool_response=answer)[0] and goes_on
    result = {"type": "tool_result", "tool_use_id": call["tool_use_id"], "content": answer}
    say(type="user", message={"role": "user", "content": [result]}, **SESSION)
    keep("answered", block["id"])
    return hook("PostToolBatch", callbacks, tool_calls=[{**call, "tool_response": answer}])[0] and goes_on


TRANSCRIPT = Path("conversation-42.txt")
SESSION = {"session_id": "conversation-42", "parent_tool_use_id": None}


def main():
    if "-v" in sys.argv or "--version" in sys.argv:
        print("99.0.0 (Claude Code)")
        return
    most = int(sys.argv[sys.argv.index("--max-turns") + 1])
    asked = hear()
    given = asked["request"]["hooks"] or {}
    callbacks = {
        event: [one for each in matchers for one in each["hookCallbackIds"]] for event, matchers in given.items()
    }
    answer = {"subtype": "success", "request_id": asked["request_id"], "response": {}}
    say(type="control_response", response=answer)
    hear()  # the prompt
    resumed = any(argument.startswith("--resume") for argument in sys.argv)
    if not resumed:
        TRANSCRIPT.unlink(missing_ok=True)
    number = 1 if resumed else next(n for n in count(1) if not turn(n, callbacks) or n == most)
    figures = {"duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": number}
    say(
        type="result", subtype="success", session_id="conversation-42", result=summary() if resumed else None, **figures
    )
    hear()


if __name__ == "__main__":
    main()
