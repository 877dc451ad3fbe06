"""What an agent waits for at each event: one process of ``otel-toolguard hook``, against a Python that does nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import Any

REPETITIONS = 12
PASS = [sys.executable, "-c", "pass"]
# Not the installed script, so that the command comes from the same place as the library.
HOOK = [sys.executable, "-c", "from otel_toolguard.cli import main; main()", "hook"]


def hook() -> dict[str, float]:
    """Milliseconds of a whole process: of a bare Python, and of the hook for each kind of event; the least of them."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder}
        _seconds(HOOK, _event("UserPromptSubmit", 0), environment)  # makes the file and what is kept beside it
        rounds = [
            [_seconds(PASS, {}, environment), *(_seconds(HOOK, _event(name, n), environment) for name in EVENTS)]
            for n in range(1, REPETITIONS + 1)
        ]
    least = [min(column) * 1e3 for column in zip(*rounds, strict=True)]
    return dict(zip(("start_pass", "start_prompt", "start_pre", "start_post"), least, strict=True))


EVENTS = ("UserPromptSubmit", "PreToolUse", "PostToolUse")


def _event(name: str, number: int) -> dict[str, Any]:
    command = {"command": f"make check-{number}"}
    event: dict[str, Any] = {"session_id": "bench", "hook_event_name": name, "cwd": "/", "prompt": "Mend it."}
    if name != "UserPromptSubmit":
        event |= {"tool_name": "Bash", "tool_input": command, "tool_use_id": f"toolu_{number}"}
    if name == "PostToolUse":
        event["tool_response"] = {"stdout": f"check {number} is fine", "stderr": "", "interrupted": False}
    return event


def _seconds(command: list[str], event: dict[str, Any], environment: dict[str, str]) -> float:
    """Seconds of one process; an error if it refused or said anything, for that is another path."""
    said = json.dumps(event)
    start = perf_counter()
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False, env=environment)
    seconds = perf_counter() - start
    if done.returncode or done.stdout.strip() not in {"", "{}"}:
        raise RuntimeError((done.stdout + done.stderr).strip() or f"exit code {done.returncode}")
    return seconds
