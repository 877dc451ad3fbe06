"""What the hooks make of calls: outcomes, names, arguments, the user's own hooks, and failures of the guard."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, PermissionResultAllow, PermissionResultDeny, SdkMcpTool
from claude_agent_sdk._internal._mcp_compat import build_tool_server
from mcp.types import CallToolResult, TextContent, Tool
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from otel_toolguard_claude_agent_sdk import _guard, guard_options

from otel_toolguard import CircuitOpen, Policy, Session, SettingsError, guard_tool
from otel_toolguard.telemetry import Telemetry
from otel_toolguard.testing.scripts import DONE, for_ever

from . import scripted as s

LOOK = Tool.model_validate({"name": "look", "inputSchema": s.SCHEMA})


async def read(_said):
    return "nothing"


async def fails(_said):
    raise ValueError("Exit code 2\nno such file")


def looping(tool="Read", **more):
    return s.ScriptedCLI(for_ever(tool), own={"Read": read, "Bash": read, "Edit": fails}, **more)


def test_failures_are_failures(traced):
    """What Claude Code reports as a failed call counts as failed, with its words."""
    cli = looping("Edit")
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        s.run(cli)
    assert session.report()["tools"]["Edit"]["failed"] == 3
    assert traced.outcomes() == ["failed"] * 3


@pytest.mark.parametrize("tool", ["Nothing", "Read"])
def test_calls_that_run_nothing_end_too(tool):
    """Calls of a tool that there is not, or that a permission rule denies, are answered failures, and end as a loop."""
    cli = looping(tool, denied={"Read"})
    with Session(policy=s.repeat(3)) as session, pytest.raises(CircuitOpen):
        s.run(cli)
    report = session.report()
    assert (cli.asked, cli.ran, report["failed"], report["in_flight"]) == (3, 0, 3, 0)


def test_denied_call_of_a_cli_without_batches_is_not_left_open():
    """Where nobody says what became of a call it is open no longer than its run."""
    cli = s.ScriptedCLI([[("Read", {})]], own={"Read": read}, denied={"Read"}, batches=False)
    with Session(policy=s.repeat(3)) as session:
        assert s.run(cli)[-1].result == DONE
    report = session.report()
    assert (report["calls"], report["failed"], report["in_flight"]) == (1, 0, 0)


def test_users_hooks_stay_and_may_deny():
    """The user's own hooks are asked beside the guard's, with their matchers, and their denial stands."""
    heard = []

    async def denies(given, call_id, _context):
        heard.append((given["tool_name"], call_id))
        said = {"permissionDecision": "deny", "permissionDecisionReason": "not now"}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **said}}

    cli = s.ScriptedCLI([[("Read", {}), ("Bash", {})]], own={"Read": read, "Bash": read})
    with Session(policy=s.repeat(3)) as session:
        s.run(cli, hooks={"PreToolUse": [HookMatcher(matcher="Read", hooks=[denies])]})
    assert heard == [("Read", "call-1-0")]
    assert [entry[2]["content"] for entry in s.answers(cli.history)] == ["not now", "nothing"]
    assert session.report()["tools"]["Read"]["failed"] == 1


class Broken(Telemetry):
    """Telemetry whose word on refusals, trips or settled calls is an exception."""

    def refused(self, *_args, **_kwargs):
        raise LookupError("a bug")

    opened = ended = refused


@pytest.mark.parametrize(
    ("policy", "asked"), [(s.ceiling(2), 3), (s.ceiling(tools={"Read": 2}), 6)], ids=["stop", "refusal"]
)
def test_what_breaks_after_a_refusal_leaves_it_a_denial(policy, asked):
    """A refusal or a stop is told as one, whatever fails in telemetry or in the application's callback after it."""
    cli = s.ScriptedCLI(lambda turn: [("Read", {"q": turn})] if turn < 6 else None, own={"Read": read})
    broken = Broken(tracer_provider=TracerProvider(), meter_provider=NoOpMeterProvider())
    told = Session(policy=policy, telemetry=broken, on_trip=lambda _: 1 / 0)
    with told, contextlib.suppress(CircuitOpen):
        s.run(cli)
    assert (cli.ran, cli.asked) == (2, asked)


@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse", "PostToolBatch"])
@pytest.mark.parametrize("prompt_ids", [True, False])
def test_stop_holds_where_the_guard_fails(event, prompt_ids, monkeypatch):
    """Once a run was stopped a fault of the guard itself is no way out: what else is asked is denied, and stopped."""
    options = guard_options(policy=s.ceiling(1))
    hook = {name: matchers[0].hooks[0] for name, matchers in options.hooks.items()}
    more = {"session_id": f"s-{event}-{prompt_ids}", "tool_name": "Read", "tool_input": {}, "hook_event_name": event}
    more |= {"prompt_id": "p"} if prompt_ids else {}

    async def asks():
        answers = [await hook["PreToolUse"]({**more, "tool_use_id": str(n)}, str(n), {}) for n in range(2)]
        monkeypatch.setattr(_guard.Guard, "_place", lambda *_: 1 / 0)
        return [*answers, await hook[event]({**more, "tool_use_id": "3", "tool_response": "x"}, "3", {})]

    allowed, denied, late = asyncio.run(asks())
    assert allowed == {}
    assert denied["continue_"] is late["continue_"] is False
    said = late.get("hookSpecificOutput", {})
    assert said.get("permissionDecision") == ("deny" if event == "PreToolUse" else None)


@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse", "PostToolBatch"])
def test_failure_of_the_guard_is_no_decision(event, monkeypatch, caplog):
    """A fault of the guard itself lets the call run, and is said in the log."""

    def breaks(*_):
        raise LookupError(f"a bug in {event}")

    name = {"PreToolUse": "_before", "PostToolUse": "_after", "PostToolBatch": "_batch"}[event]
    monkeypatch.setattr(_guard.Guard, name, breaks)
    monkeypatch.setattr("otel_toolguard.guard._faults", set())
    cli = s.ScriptedCLI([[("Read", {})]], own={"Read": read})
    with Session(policy=s.repeat(3)), caplog.at_level(logging.ERROR):
        assert s.run(cli)[-1].result == DONE
    assert cli.ran == 1
    assert "failed to answer a hook" in caplog.text


def test_nudges_stand_beside_the_answer():
    """Warnings that the model shall read are context beside the call's own result."""
    cli = looping()
    policy = Policy(plugins=[{"plugin": "repeat_guard", "limit": 6}], on_warn="nudge")
    with Session(policy=policy), pytest.raises(CircuitOpen):
        s.run(cli)
    told = [entry[2]["content"] for entry in s.answers(cli.history)]
    assert sum("<system-reminder>" in text for text in told) == 2
    assert all(text.startswith("nothing") for text in told)


def test_same_command_in_another_directory_is_another_call():
    """A shell command is compared together with the directory that Claude Code is in."""
    cli = s.ScriptedCLI([[("Bash", {"command": "ls"})]] * 6, own={})

    async def moves(_said):
        cli.cwd += "/deeper"
        return "nothing"

    cli.own["Bash"] = moves
    with Session(policy=s.repeat(3)):
        assert s.run(cli)[-1].result == DONE


@pytest.mark.parametrize("tells_ids", [True, False])
@pytest.mark.parametrize("layer", ["function", "handler"])
def test_decorated_in_process_tool_counts_once(traced, tells_ids, layer):
    """A decorator on an in-process tool, or inside its handler, adds nothing; what it says of the tool holds."""

    @guard_tool(tool_class="write")
    async def look(args):
        return {"content": [{"type": "text", "text": "nothing"}]}

    @guard_tool(name="look", tool_class="write")
    def inside(q="word"):
        return "nothing"

    tool = SdkMcpTool("look", "Looks.", s.SCHEMA, look) if layer == "handler" else s.tool_of(inside, "look")
    name = "mcp__my_tools__look"
    cli = s.ScriptedCLI(lambda _turn: [(name, {"q": "a"}), (name, {"q": "b"})], prefixed=True, tells_ids=tells_ids)
    with Session(policy=s.ceiling(4), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        s.run(cli, **s.serve(cli, [tool], "my_tools"))
    report = session.report()
    assert (report["calls"], list(report["tools"]), list(report["classes"])) == (4, [name], ["write"])
    assert traced.outcomes() == ["ok"] * 4 + ["refused"] * 2


def test_another_guarded_function_inside_counts():
    """A guarded function of another name that a handler calls is a call of its own, below the tool's."""

    @guard_tool
    def fetch(q):
        return "nothing"

    def look(q="word"):
        return fetch(q)

    cli = s.ScriptedCLI([[("look", {})]])
    with Session(policy=s.ceiling(90)) as session:
        s.run(cli, **s.serve(cli, [s.tool_of(look)]))
    assert {name: one["calls"] for name, one in session.report()["tools"].items()} == {"look": 1, "fetch": 1}


def test_server_of_ones_own():
    """A server whose tools are no tool objects of the SDK is served the same, on both major versions of mcp."""

    @guard_tool
    def look():
        return "nothing"

    async def calls(*_):
        return CallToolResult(content=[TextContent(type="text", text=look())])

    server = build_tool_server("mine", "1", [LOOK], calls)
    cli = s.ScriptedCLI(for_ever("look"))
    cli.servers = ("mine",)
    with Session(policy=s.repeat(3)) as session, pytest.raises(CircuitOpen):
        s.run(cli, mcp_servers={"mine": {"type": "sdk", "name": "mine", "instance": server}})
    assert (cli.asked, session.report()["calls"]) == (3, 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tool_response": "text"}, ("text", None)),
        ({"tool_response": {"stdout": "a", "stderr": ""}}, ({"stdout": "a", "stderr": ""}, None)),
        ({"tool_response": [{"type": "text", "text": "a"}]}, ([{"type": "text", "text": "a"}], None)),
        ({"tool_response": {"content": [], "isError": True}}, ({"content": [], "isError": True}, "failed")),
        ({"tool_response": {"content": "a", "is_error": True}}, ({"content": "a", "is_error": True}, "failed")),
        ({"tool_response": None}, (None, None)),
        ({}, (None, None)),
        ({"error": "no such file"}, ("no such file", "failed")),
        ({"error": "stopped", "is_interrupt": True}, ("stopped", "cancelled")),
    ],
)
def test_results_as_the_rules_see_them(given, expected):
    """A result is compared as it is, and what is told or marked as an error has failed."""
    shown, ended = _guard._result(given)
    assert (shown, ended and ended.kind) == expected


def test_interrupted_call_is_cancelled(traced):
    """A call that a person interrupts is neither a success nor a failure."""
    cli = s.ScriptedCLI([[("Edit", {})]], own={"Edit": fails})

    original = cli._hook

    async def interrupted(event, **given):
        return await original(event, **given, **({"is_interrupt": True} if event == "PostToolUseFailure" else {}))

    cli._hook = interrupted
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session:
        s.run(cli)
    assert (traced.outcomes(), session.report()["failed"]) == (["cancelled"], 0)


def test_person_that_says_no_is_answered():
    """A call that a person denies is an answered failure; a model that asks on and on is stopped."""
    cli = looping(asked={"Read"})

    async def says_no(_name, _said, _context):
        return PermissionResultDeny(message="no")

    with Session(policy=s.repeat(3)) as session, pytest.raises(CircuitOpen):
        s.run(cli, can_use_tool=says_no)
    assert (cli.ran, cli.asked, session.report()["failed"]) == (0, 3, 3)


def test_approval_beyond_a_limit_is_refused():
    """A call that was approved after the run had ended is denied all the same, and stops Claude Code."""
    cli = s.ScriptedCLI([[("Read", {})]], own={"Read": read}, asked={"Read"}, batches=False)
    with Session(policy=s.repeat(3)) as session:

        async def says_yes(_name, _said, _context):
            session.stop("enough")
            return PermissionResultAllow()

        with pytest.raises(CircuitOpen):
            s.run(cli, can_use_tool=says_yes)
    assert (cli.ran, cli.asked) == (0, 1)


def test_changed_arguments_are_what_counts():
    """What a person changes in a call is what is compared."""
    cli = s.ScriptedCLI([[("Read", {"q": "same"})]] * 5, own={"Read": read}, asked={"Read"})

    async def changes(_name, _said, context):
        return PermissionResultAllow(updated_input={"q": context.tool_use_id})

    with Session(policy=s.repeat(3)):
        assert s.run(cli, can_use_tool=changes)[-1].result == DONE


@pytest.mark.parametrize(("name", "value"), [
    ("TOOLGUARD_MODE", "nonsense"),
    ("TOOLGUARD_CONFIG", "/nowhere/toolguard.toml"),
    ("TOOLGUARD_STORE", "nothing:"),
])  # fmt: skip
def test_wrong_settings_are_said_before_anything_runs(monkeypatch, name, value):
    """A setting that cannot be read is an error where the guard is put on, not a hook that lets every call run."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError):
        guard_options(ClaudeAgentOptions())
