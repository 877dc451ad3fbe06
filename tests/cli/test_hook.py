"""The hook command, event by event: what it answers, in whose words, and what hostile input gets."""

import io
import json
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from otel_toolguard.cli import hook, hook_events, hook_judge, hook_rules
from otel_toolguard.cli.app import app
from otel_toolguard.stores.sqlite import SQLiteStore

LOOP = 'tool_plugins = [{ plugin = "repeat_guard", limit = 3 }, { plugin = "call_ceiling", run = 50 }]\n'
CALL = {"session_id": "s", "cwd": "/repo", "tool_name": "Read", "tool_input": {"file_path": "/a"}}


class Terminal(io.TextIOWrapper):
    """Standard input of somebody who types."""

    def isatty(self):
        return True


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Hands events, or raw bytes, to the hook; returns its answers."""
    for name in (*hook_rules.SOURCES, hook_rules.SECRET, "TOOLGUARD_STORE", "TOOLGUARD_TRIP_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def tell(event, on_error="allow"):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        assert hook.hook(on_error) == 0
        said = capsys.readouterr()
        tell.err = said.err
        assert "Traceback" not in said.err
        return json.loads(said.out) if said.out else {}

    return tell


@pytest.fixture
def limited(tmp_path, monkeypatch, told):
    """The same under rules that stop a third lap."""
    file = tmp_path / "rules.toml"
    file.write_text(LOOP, encoding="utf-8")
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    return told


def before(number, **more):
    """A call that is about to run."""
    return CALL | {"hook_event_name": "PreToolUse", "tool_use_id": f"t{number}"} | more


def after(number, **more):
    """Its result."""
    return CALL | {"hook_event_name": "PostToolUse", "tool_use_id": f"t{number}", "tool_response": "same"} | more


def state(tmp_path):
    """The state of the session."""
    return SQLiteStore(tmp_path / "otel-toolguard" / "sessions.sqlite3").transact("s", lambda found: found)


def looped(tell, **more):
    """Three laps of one call; returns the last answer."""
    for number in range(3):
        assert tell(before(number, **more)) == {}
        last = tell(after(number, **more))
    return last


HOSTILE = [
    (b"", "no JSON"),
    (b"\n", "no JSON"),
    (b'{"session_id": "s", "hook_event_na', "no JSON"),
    (b"\xff\xfe\x00{", "no JSON"),
    (b"[" * 1_000_000, "no JSON|too deep"),
    (b'{"a":' * 300_000, "no JSON|too deep"),
    (b"[1]", "no JSON object"),
    (b"null", "no JSON object"),
    (b'"text"', "no JSON object"),
    (b"1" * 10_000, "no JSON"),
    (b"{}", "no hook_event_name"),
    (b'{"hook_event_name": ["PreToolUse"]}', "no hook_event_name"),
    (b'{"hook_event_name": "PreToolUse"}', "no session_id"),
    (b'{"hook_event_name": "PreToolUse", "session_id": ""}', "no session_id"),
    (b'{"hook_event_name": "PreToolUse", "session_id": 7}', "no session_id"),
    (b'{"hook_event_name": "PreToolUse", "session_id": "s"}', "no tool_name"),
    (b'{"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": {}}', "no tool_name"),
    (b"x" * (hook.INPUT_LIMIT + 10), "more than 64 MiB"),
]


@pytest.mark.parametrize(("data", "why"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_event_goes_on_and_is_said(data, why, told):
    """Half, huge, nested or foreign input is answered with one message to the user and nothing else."""
    said = told(data)
    assert list(said) == ["systemMessage"]
    assert any(each in said["systemMessage"] for each in why.split("|"))
    assert said["systemMessage"] in told.err


@pytest.mark.parametrize(("data", "why"), HOSTILE[:12], ids=range(12))
def test_what_is_no_event_is_denied_where_that_is_wanted(data, why, told):
    """Under ``--on-error deny`` what might have been a call is denied."""
    said = told(data, "deny")
    assert said["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert "--on-error deny" in said["hookSpecificOutput"]["permissionDecisionReason"]


@pytest.mark.parametrize("name", ["Notification", "PreCompact", "SessionStart", "SomethingNew", "", "\ud800"])
@pytest.mark.parametrize("on_error", hook.ON_ERROR)
def test_an_unknown_event_passes(name, on_error, told, tmp_path):
    """An event that says nothing about calls gets no answer, and no session is opened for it."""
    assert told({"hook_event_name": name, "session_id": "s"}, on_error) == {}
    assert not list(tmp_path.iterdir())


ODD = [
    {"tool_input": "no object"}, {"tool_input": [1, 2]}, {"tool_input": None}, {"tool_input": 7},
    {"tool_input": {"\ud800": "\udfff"}}, {"tool_input": {"command": ["ls", 3]}}, {"tool_input": {"command": "\x00" * 99}},
    {"tool_name": "x" * 100_000}, {"tool_name": "\ud800\n"}, {"tool_use_id": 7}, {"tool_use_id": "y" * 100_000},
    {"agent_id": {"a": 1}}, {"agent_id": "a" * 5000}, {"cwd": 5}, {"parent_tool_use_id": "nobody"},
    {"tool_input": {"content": "z" * 3_000_000}}, {"tool_input": {"n": 1e308 * 10}},
    {"tool_response": None}, {"tool_response": {"is_error": True}}, {"tool_response": {"is_error": True, "content": [{}]}},
    {"tool_response": [[[[]]]]}, {"tool_response": "\ud800"},
]  # fmt: skip


@pytest.mark.parametrize("more", ODD, ids=range(len(ODD)))
def test_odd_fields_are_judged_like_any(more, told, tmp_path):
    """A call with odd names, arguments, ids or answers is counted and settled, without a word."""
    assert told(before(1, **more)) == {}
    assert told(after(1, **more)) == {}
    found = state(tmp_path)
    assert (found.calls, found.in_flight) == (1, 0)


@pytest.mark.parametrize("depth", [100, 400, 900])
def test_deep_arguments_and_results_are_judged(depth, told):
    """What JSON can still hold is no fault, however deep."""
    deep = "[" * depth + "]" * depth
    for name, field in (("PreToolUse", "tool_input"), ("PostToolUse", "tool_response")):
        event = json.dumps(before(1, hook_event_name=name) | {field: "DEEP"}).replace('"DEEP"', deep)
        assert told(event.encode()) == {}


@pytest.mark.parametrize(
    "said",
    [b"9" * 5_000, b"[" * 3_000 + b"]" * 3_000, b'{"b":' * 3_000 + b"1" + b"}" * 3_000, b'"\\u0000", "c": "\x01"'],
    ids=["digits", "lists", "objects", "a control character"],
)
def test_arguments_that_python_does_not_read_are_no_way_round(said, limited):
    """A call whose arguments Python's JSON reader refuses is judged like any other, and so is a result."""

    def raw(event, field):
        return json.dumps(event | {field: {"a": "HERE"}}).encode().replace(b'"HERE"', said)

    for number in range(3):
        assert limited(raw(before(number), "tool_input")) == {}
        answer = limited(raw(after(number, tool_input={}), "tool_response"))
    assert answer["continue"] is False
    other = limited(raw(before(9, tool_name="Other"), "tool_input"))
    assert other["hookSpecificOutput"]["permissionDecision"] == "deny"


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_failures_are_settled(end, told, tmp_path):
    """``PostToolUseFailure`` gives the place back, whether the call failed or was interrupted."""
    assert told(before(1)) == {}
    event = after(1, hook_event_name="PostToolUseFailure", error="boom", is_interrupt=end == "cancelled")
    assert told(event) == {}
    assert state(tmp_path).in_flight == 0


def test_failures_in_a_row_stop_the_turn(told, tmp_path, monkeypatch):
    """The failure that reaches the limit ends the turn, with the sentence that says why."""
    file = tmp_path / "rules.toml"
    file.write_text('tool_plugins = [{ plugin = "failure_streak", limit = 2 }]\n', encoding="utf-8")
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    for number in range(2):
        path = {"tool_input": {"file_path": f"/{number}"}}
        assert told(before(number, **path)) == {}
        last = told(after(number, hook_event_name="PostToolUseFailure", error=f"no {number}", **path))
    assert last["continue"] is False
    assert "failure_streak" in last["stopReason"]


def test_a_stop_is_said_at_the_result_and_at_every_call_after(limited):
    """The lap that reaches the limit ends the turn; a call after it is denied with the reason, and ends it again."""
    last = looped(limited)
    assert last["continue"] is False
    denied = limited(before(9, tool_input={"file_path": "/other"}))
    own = denied["hookSpecificOutput"]
    assert (own["hookEventName"], own["permissionDecision"]) == ("PreToolUse", "deny")
    body = json.loads(own["permissionDecisionReason"])
    assert (body["error"], body["executed"], body["why"]) == ("circuit_open", False, last["stopReason"])
    assert (denied["continue"], denied["stopReason"]) == (False, last["stopReason"])
    assert last["stopReason"] in json.dumps(denied)


def test_a_refusal_ends_nothing(told, tmp_path, monkeypatch):
    """Where only one tool is closed its call is denied, the turn goes on, and other tools run."""
    file = tmp_path / "rules.toml"
    file.write_text('tool_plugins = [{ plugin = "call_ceiling", tools = { Read = 1 } }]\n', encoding="utf-8")
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    assert told(before(1)) == {}
    denied = told(before(2))
    assert denied["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert "continue" not in denied
    assert told(before(3, tool_name="Grep")) == {}
    assert told(after(2)) == {}


def test_a_prompt_begins_a_run_and_gives_up_what_never_ended(limited, tmp_path):
    """After an interrupted turn the next prompt has rings of its own, and no call of the old one is in flight."""
    looped(limited)
    assert limited(before(8))["continue"] is False
    assert limited(CALL | {"hook_event_name": "UserPromptSubmit"}) == {}
    assert limited(before(9)) == {}
    assert state(tmp_path).in_flight == 1
    assert limited(CALL | {"hook_event_name": "UserPromptSubmit"}) == {}
    found = state(tmp_path)
    assert (found.in_flight, len(found.runs), found.rules[hook_judge.KEY]["calls"]) == (0, 2, {})
    assert limited(after(9)) == {}


def test_a_call_that_is_told_twice_counts_once(told, tmp_path):
    """A hook that is installed in two settings files admits and settles each call once."""
    assert [told(before(1)) for _ in range(2)] == [{}, {}]
    assert [told(after(1)) for _ in range(2)] == [{}, {}]
    found = state(tmp_path)
    assert (found.calls, found.in_flight) == (1, 0)


def test_a_sub_agent_has_a_run_inside_the_call_that_started_it(limited, tmp_path):
    """Its laps are its own, its calls count above, and its stop stops the run above too."""
    assert limited(before("agent", tool_name="Agent")) == {}
    assert looped(limited, agent_id="a1", agent_type="Explore")["continue"] is False
    outer, inner = state(tmp_path).runs.values()
    assert inner.above is outer
    assert (outer.calls, inner.calls) == (4, 3)
    assert limited(before("main"))["continue"] is False


def test_sub_agents_of_sub_agents_are_nested_in_them(told, tmp_path):
    """A second agent works in the run whose call has none yet, a named parent goes before, the end forgets an agent."""
    assert told(before("o", tool_name="Agent")) == {}
    assert told(before("m", tool_name="Task", agent_id="a1")) == {}
    assert told(before("i", agent_id="a2")) == {}
    assert told(before("n", agent_id="a3", parent_tool_use_id="o")) == {}
    outer, middle, inner, named = state(tmp_path).runs.values()
    assert (middle.above, inner.above, named.above) == (outer, middle, outer)
    assert told(CALL | {"hook_event_name": "SubagentStop", "agent_id": "a2"}) == {}
    assert told(CALL | {"hook_event_name": "SubagentStop", "agent_id": "never heard of"}) == {}
    found = state(tmp_path)
    assert list(found.rules[hook_judge.KEY]["agents"]) == ["a1", "a3"]
    assert found.in_flight == 3


def test_a_sub_agent_of_which_nobody_started_is_nested_all_the_same(told, tmp_path):
    """Without a call that could have started it its run is inside that of the prompt."""
    assert told(before(1, agent_id="a")) == {}
    outer, inner = state(tmp_path).runs.values()
    assert inner.above is outer


def test_what_is_remembered_is_bounded(told, tmp_path, monkeypatch):
    """Of calls and agents of which the end is never told only the newest are kept."""
    monkeypatch.setattr(hook_judge, "CALLS_KEPT", 3)
    monkeypatch.setattr(hook_judge, "AGENTS_KEPT", 2)
    for number in range(6):
        assert told(before(number, agent_id=f"a{number}")) == {}
    mine = state(tmp_path).rules[hook_judge.KEY]
    assert (list(mine["calls"]), list(mine["agents"])) == (["t3", "t4", "t5"], ["a4", "a5"])


def test_observing_only_says_so(limited, monkeypatch):
    """In observe mode a loop is told on standard error and nothing is stopped."""
    monkeypatch.setenv("TOOLGUARD_MODE", "observe")
    assert looped(limited) == {}
    assert "would have stopped" in limited.err
    assert limited(before(9)) == {}


def test_another_key_begins_afresh_and_says_so(limited, tmp_path, monkeypatch):
    """Signatures of another key mean nothing: the session's counters start anew, and the user is told."""
    looped(limited)
    monkeypatch.setenv(hook_rules.SECRET, "another")
    assert "start afresh" in limited(before(9))["systemMessage"]
    assert limited(after(9)) == {}
    assert state(tmp_path).calls == 1


def test_off_is_off(told, tmp_path, monkeypatch):
    """In mode off no session is kept."""
    monkeypatch.setenv("TOOLGUARD_MODE", "off")
    assert told(before(1)) == {}
    assert not list(tmp_path.rglob("*.sqlite3"))


def test_a_nudge_stands_beside_the_result(told, tmp_path, monkeypatch):
    """A rule that only tells the model something has it told as additional context."""
    file = tmp_path / "rules.toml"
    text = 'tool_plugins = [{ plugin = "repeat_guard", limit = 2, on_limit = "nudge" }]\n'
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    for number in range(2):
        assert told(before(number)) == {}
        last = told(after(number))
    assert list(last) == ["hookSpecificOutput"]
    assert last["hookSpecificOutput"]["hookEventName"] == "PostToolUse"
    assert last["hookSpecificOutput"]["additionalContext"]


def test_what_differs_in_words_and_times_alone_is_the_same_call(limited):
    """How a command is described, and how long it took, hide no loop."""
    for number in range(3):
        said = {"tool_name": "Bash", "tool_input": {"command": "make", "description": f"try no. {number}"}}
        assert limited(before(number, **said)) == {}
        last = limited(after(number, **said, tool_response={"stdout": "no", "durationMs": number * 7}))
    assert last["continue"] is False


def test_a_trip_is_in_the_trip_log(limited, tmp_path, monkeypatch):
    """``TOOLGUARD_TRIP_LOG`` has one line for the trip, with the call that tripped."""
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(tmp_path / "trips.jsonl"))
    looped(limited)
    limited(before(9))
    (row,) = [json.loads(line) for line in (tmp_path / "trips.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (row["trip"]["rule"], row["trip"]["session_id"], row["call"]["tool"]) == ("repeat_guard", "s", "Read")
    assert row["run"]["calls"] == 3


FIELDS = ("session_id", "tool_name", "tool_use_id", "tool_input", "tool_response", "agent_id", "agent_type", "cwd",
          "error", "is_interrupt", "parent_tool_use_id", "turn_id", "prompt")  # fmt: skip
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["s", "t1"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(hook_events._EVENTS)), st.dictionaries(st.sampled_from(FIELDS), ANYTHING),
    st.sampled_from([{}, {"session_id": "s", "tool_name": "Read"}]), st.sampled_from(hook.ON_ERROR),
)  # fmt: skip
def test_any_event_gets_an_answer_or_passes(told, name, more, needed, on_error):
    """Events with any fields of any kind end with 0, and with nothing or one JSON object of the known keys."""
    known = {"continue", "stopReason", "hookSpecificOutput", "systemMessage", "decision", "reason"}
    assert known.issuperset(told(more | needed | {"hook_event_name": name}, on_error))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.binary(max_size=4))
def test_an_event_cut_off_anywhere_gets_an_answer_or_passes(told, length, more):
    """Half an event, with other bytes after it, ends with 0 and with nothing or one JSON object."""
    assert isinstance(told(json.dumps(before(1)).encode()[:length] + more), dict)


# ------------------------------------------------------------------------------------------------ our own failures


@pytest.mark.parametrize("on_error", hook.ON_ERROR)
def test_a_failure_of_ours_does_what_is_wanted(on_error, told, monkeypatch):
    """Settings that cannot be honoured allow or deny the call, and are said both to the user and on standard error."""
    monkeypatch.setenv("TOOLGUARD_PROFILE", "nobody")
    said = told(before(1), on_error)
    assert "unknown profile" in said["systemMessage"]
    assert "unknown profile" in told.err
    assert ("hookSpecificOutput" in said) is (on_error == "deny")
    assert list(told(after(1), on_error)) == ["systemMessage"]


def test_a_bug_of_ours_quotes_nothing(told, monkeypatch):
    """Of an exception that is none of ours only the class is said, for its words may quote what the tool was given."""

    def broken(*_):
        raise KeyError("secret")

    monkeypatch.setattr(hook_judge.Judge, "answer", broken)
    said = told(before(1))
    assert "(KeyError)" in said["systemMessage"]
    assert "secret" not in said["systemMessage"] + told.err


@pytest.mark.parametrize("url", ["sqlite:", "memory:", ""])
def test_the_usual_file_is_used_where_no_other_is_named(url, told, tmp_path, monkeypatch):
    """The memory of a process that is gone after one event is no store, so the usual file is."""
    monkeypatch.setenv("TOOLGUARD_STORE", url)
    assert told(before(1)) == {}
    assert state(tmp_path).calls == 1


def test_a_store_that_is_set_is_used(told, tmp_path, monkeypatch):
    """``TOOLGUARD_STORE`` names the file; one that is not known is a failure of settings."""
    monkeypatch.setenv("TOOLGUARD_STORE", f"sqlite://{tmp_path}/mine.sqlite3?namespace=n")
    assert told(before(1)) == {}
    assert (tmp_path / "mine.sqlite3").exists()
    monkeypatch.setenv("TOOLGUARD_STORE", "carrier-pigeon://x")
    assert "carrier-pigeon" in told(before(2))["systemMessage"]


@pytest.mark.parametrize("on_error", hook.ON_ERROR)
def test_a_store_that_cannot_be_used_does_what_is_wanted(on_error, told, tmp_path, monkeypatch):
    """A corrupt file lets calls run, or denies them, and the user is told either way."""
    file = tmp_path / "bad.sqlite3"
    file.write_bytes(b"this is no database" * 500)
    monkeypatch.setenv("TOOLGUARD_STORE", f"sqlite://{file}")
    said = told(before(1), on_error)
    assert "bad.sqlite3" in said["systemMessage"]
    assert ("hookSpecificOutput" in said) is (on_error == "deny")


def test_a_locked_store_is_waited_for_no_longer_than_said(told, tmp_path, monkeypatch):
    """Where somebody holds the file, the call goes on with a message after the time that the address names."""
    file = tmp_path / "held.sqlite3"
    monkeypatch.setenv("TOOLGUARD_STORE", f"sqlite://{file}?timeout=0.05")
    assert told(before(1)) == {}
    holder = sqlite3.connect(file)
    holder.execute("BEGIN IMMEDIATE")
    try:
        assert list(told(before(2))) == ["systemMessage"]
    finally:
        holder.close()


# ------------------------------------------------------------------------------------------------ other agents


def test_codex_is_told_of_a_stop_at_the_call_by_a_denial_alone(limited):
    """Codex takes ``continue`` at PreToolUse for a broken hook and runs the call, so there it gets none."""
    assert looped(limited, turn_id="u")["continue"] is False
    denied = limited(before(9, turn_id="u"))
    assert list(denied) == ["hookSpecificOutput"]
    assert denied["hookSpecificOutput"]["permissionDecision"] == "deny"


def test_gemini_is_answered_in_its_own_words(limited, tmp_path):
    """Its calls have no ids: each result is that of the oldest equal call; a refusal is a decision at the top."""
    call = CALL | {"tool_name": "read_file"}
    assert limited(call | {"hook_event_name": "BeforeAgent", "prompt": "go"}) == {}
    for _ in range(3):
        assert limited(call | {"hook_event_name": "BeforeTool"}) == {}
        answer = {"llmContent": "same", "returnDisplay": "took 3 s"}
        last = limited(call | {"hook_event_name": "AfterTool", "tool_response": answer})
    assert last["continue"] is False
    denied = limited(call | {"hook_event_name": "BeforeTool"})
    assert (denied["decision"], denied["continue"]) == ("deny", False)
    assert json.loads(denied["reason"])["error"] == "circuit_open"
    assert limited(call | {"hook_event_name": "AfterAgent"}) == {}
    assert limited(call | {"hook_event_name": "BeforeAgent"}) == {}
    assert limited(call | {"hook_event_name": "BeforeTool"}) == {}
    fault = {"error": {"message": "no such file", "type": "x"}}
    assert limited(call | {"hook_event_name": "AfterTool", "tool_response": fault}) == {}
    assert state(tmp_path).in_flight == 0


# ------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("agent", "events"),
    [("claude", "UserPromptSubmit PreToolUse PostToolUse PostToolUseFailure Stop SubagentStop"),
     ("codex", "UserPromptSubmit PreToolUse PostToolUse Stop"),
     ("gemini", "BeforeAgent BeforeTool AfterTool AfterAgent")],
)  # fmt: skip
def test_the_settings_to_install_are_printed(agent, events):
    """They are JSON with one command for each event, with a matcher for all tools where the event is of a tool."""
    done = CliRunner().invoke(app, ["hook", "--print-config", "--for", agent, "--on-error", "deny"])
    assert done.exit_code == 0
    printed = json.loads(done.stdout)["hooks"]
    assert list(printed) == events.split()
    for event, (entry,) in printed.items():
        assert ("matcher" in entry) is ("Tool" in event)
        (command,) = entry["hooks"]
        assert command["type"] == "command"
        assert command["command"].endswith("otel-toolguard hook --on-error deny")


@pytest.mark.parametrize("words", [["--on-error", "maybe"], ["--for", "somebody"], ["--what"]])
def test_a_wrong_option_is_a_usage_error(words):
    """It exits with 2, so that nobody takes a misspelled guard for a guard."""
    assert CliRunner().invoke(app, ["hook", *words]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "found"),
    [([], "allow"), (["--on-error", "deny"], "deny"), (["--on-error=allow"], "allow"), (["--on-error"], None),
     (["--on-error", "maybe"], None), (["--print-config"], None), (["--help"], None), (["--on-error=deny", "x"], None)],
)  # fmt: skip
def test_what_an_agent_says_needs_no_parser(words, found):
    """The options of an installed hook are read without typer, everything else is left to it."""
    assert hook.plain_options(words) == found


def test_the_command_answers_through_typer_too(told, monkeypatch):
    """The command of the list of commands does the same as the fast way in."""
    done = CliRunner().invoke(app, ["hook", "--on-error", "deny"], input="half")
    assert done.exit_code == 0
    assert "deny" in done.stdout


@pytest.mark.parametrize("there", [True, False])
def test_who_types_is_told_what_it_is_for(there, monkeypatch, capsys):
    """On a terminal, or with no input at all, it says how it is installed and does not wait."""
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO()) if there else None)
    assert hook.hook() == 0
    assert "--print-config" in capsys.readouterr().err


def test_an_agent_that_reads_nothing_is_no_failure(tmp_path):
    """Where the reading end is closed before the answer the process still ends with 0 and without a traceback."""
    code = "import sys; from otel_toolguard.cli.hook import hook; sys.stdin.readline(); sys.exit(hook())"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    process.stdin.write(b"go\nhalf")
    process.stdin.close()
    err = process.stderr.read()
    assert process.wait() == 0
    assert b"Traceback" not in err
    process.stderr.close()


def test_settings_of_single_tools_count(told, tmp_path, monkeypatch):
    """A tool that is not judged loops on, one with a limit of its own is stopped by that."""
    file = tmp_path / "rules.toml"
    text = LOOP + '[tools."Read"]\nenabled = false\n[tools."Grep"]\nlimits = { repeat_guard = 2 }\n'
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    for number in range(5):
        assert told(before(number)) == {}
        assert told(after(number)) == {}
    assert state(tmp_path).calls == 0
    answers = []
    for number in range(10, 12):
        assert told(before(number, tool_name="Grep")) == {}
        answers.append(told(after(number, tool_name="Grep")))
    assert answers[0] == {}
    assert answers[1]["continue"] is False
