"""Whole sessions through ``otel-toolguard hook``, one process for each event as an agent starts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_toolguard import MemoryStore, Policy, Session, guard_tool
from otel_toolguard.cli.hook_judge import KEY
from otel_toolguard.stores.sqlite import SQLiteStore

HERE = Path(__file__).parent
MAIN = "import sys; sys.argv[0] = 'otel-toolguard'; from otel_toolguard.cli import main; main()"
CEILING = 'tool_plugins = [{ plugin = "call_ceiling", run = 12 }]\n'


@pytest.fixture
def folder(tmp_path):
    """Where the sessions are, and the environment that says so."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLGUARD_", "OTEL_"))}
    return tmp_path, clean | {"XDG_STATE_HOME": str(tmp_path)}


def recording(name):
    """The events of a recorded session."""
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def start(env, event, *options):
    """Starts the process for an event and hands it over."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "hook", *options], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdin.write(json.dumps(event).encode())
    process.stdin.close()
    process.stdin = None
    return process


def answer(process):
    """What it answered; it has to have gone well."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    return json.loads(out) if out else {}


def state_of(folder, session_id):
    """The session's state."""
    store = SQLiteStore(folder / "otel-toolguard" / "sessions.sqlite3")
    return store.transact(session_id, lambda state: state)


def test_a_healthy_session_is_left_alone(folder):
    """Reads, parallel calls, a sub-agent, an edit, failures and two prompts pass without a word, each call counted."""
    path, env = folder
    events = recording("test_hook_healthy.jsonl")
    said = [answer(start(env, event)) for event in events]
    assert said == [{}] * len(events)
    state = state_of(path, events[0]["session_id"])
    assert state.calls == sum(event["hook_event_name"] == "PreToolUse" for event in events)
    assert state.in_flight == 0
    assert not state.rules[KEY]["calls"]
    first, nested, second = state.runs.values()
    assert (first.calls, nested.calls, second.calls) == (10, 2, 1)
    assert nested.above is first
    assert first.ended
    assert second.ended


def in_process(events):
    """How many results the same calls get to show in a session of one process, and the rule that then ends it."""
    results = [event for event in events if event["hook_event_name"] == "PostToolUse"]
    answers = iter([event["tool_response"] for event in results])

    @guard_tool(name="Bash")
    def bash(command):
        return next(answers)

    with Session(policy=Policy.profile("balanced"), store=MemoryStore(), telemetry=None) as session:
        for count, event in enumerate(results, 1):
            bash(event["tool_input"]["command"])
            if session.trip is not None:
                return count, session.trip.rule
    return None


def test_a_looping_session_is_stopped_and_the_next_prompt_starts_clean(folder):
    """A failing build is stopped at the result where one process stops it, what follows is denied, a prompt works."""
    path, env = folder
    events = recording("test_hook_looping.jsonl")
    said = [answer(start(env, event)) for event in events]
    laps, rule = in_process(events)
    last = 2 * laps  # one prompt, then two events a call
    end = next(index for index, event in enumerate(events) if event["hook_event_name"] == "Stop")
    assert [index for index, each in enumerate(said) if each] == list(range(last, end))
    for event, each in zip(events[last:end], said[last:end], strict=True):
        assert each["continue"] is False
        assert each["stopReason"]
        if event["hook_event_name"] == "PreToolUse":
            own = each["hookSpecificOutput"]
            assert own["permissionDecision"] == "deny"
            assert json.loads(own["permissionDecisionReason"])["rule"] == rule
    assert state_of(path, events[0]["session_id"]).calls == laps + 1


def test_twenty_events_at_once_lose_no_update(folder):
    """Of 20 calls asked for at once, in 20 processes, 12 start under a ceiling of 12, and all 12 are settled at once."""
    path, env = folder
    (path / "rules.toml").write_text(CEILING, encoding="utf-8")
    env["TOOLGUARD_CONFIG"] = str(path / "rules.toml")
    calls = [
        {"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Read", "tool_input": {"file_path": f"/{n}"},
         "tool_use_id": f"t{n}", "cwd": "/"}
        for n in range(20)
    ]  # fmt: skip
    said = [answer(each) for each in [start(env, call, "--on-error", "deny") for call in calls]]
    ran = [call for call, each in zip(calls, said, strict=True) if not each]
    assert len(ran) == 12
    assert state_of(path, "s").in_flight == 12
    results = [call | {"hook_event_name": "PostToolUse", "tool_response": call["tool_use_id"]} for call in ran]
    for process in [start(env, result) for result in results]:
        answer(process)
    state = state_of(path, "s")
    assert (state.calls, state.in_flight, len(state.runs)) == (12, 0, 1)
    assert not state.rules[KEY]["calls"]


def test_a_call_that_may_run_loads_no_heavy_library(folder):
    """Once the settings are in the cache, neither pydantic nor typer nor OpenTelemetry nor asyncio is imported."""
    _, env = folder
    first = recording("test_hook_looping.jsonl")[1]
    answer(start(env, first))
    second = first | {"tool_use_id": "another"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", MAIN, "hook"], env=env, input=json.dumps(second).encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    loaded = {line.rpartition(b"|")[2].strip().partition(b".")[0] for line in done.stderr.splitlines()}
    assert b"otel_toolguard" in loaded
    assert loaded.isdisjoint({b"pydantic", b"typer", b"rich", b"opentelemetry", b"asyncio", b"wrapt"})


def test_a_stop_from_another_shell_holds_at_the_next_event(folder):
    """After ``Session.stop`` on the same store the next call is denied and the next prompt is not begun."""
    path, env = folder
    event = recording("test_hook_looping.jsonl")[1]
    answer(start(env, event))
    store = SQLiteStore(path / "otel-toolguard" / "sessions.sqlite3")
    Session(event["session_id"], store=store).stop("enough")
    store.close()
    denied = answer(start(env, event | {"tool_use_id": "later"}))
    assert denied["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert "enough" in denied["stopReason"]
    prompt = answer(start(env, event | {"hook_event_name": "UserPromptSubmit"}))
    assert prompt["continue"] is False
