"""Refusals and stops: what Claude Code is told, what the caller gets, and how it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    ResultMessage,
    query,
)
from otel_toolguard_claude_agent_sdk import ClaudeAgentStopped, _servers, _stream, guard_options, guarded_stream

from otel_toolguard import CircuitOpen, Policy, Session, SessionStopped
from otel_toolguard.testing.scripts import DONE, always_new, for_ever

from . import scripted as s

EXAMPLE = Path(__file__).parents[1] / "examples" / "agent.py"


async def read(_said):
    return "nothing"


def looping(script=None, **more):
    return s.ScriptedCLI(script or for_ever("Read"), own={"Read": read}, **more)


def told(cli, event):
    """What our hook answered, of those answers that say something."""
    return [answer for of, answer in cli.hook_answers if of == event and answer]


@pytest.mark.parametrize("way", s.WAYS)
@pytest.mark.parametrize("batches", [True, False])
def test_stop_after_a_result(way, batches):
    """The hook after the call that trips, or at its batch's end, stops Claude Code, and the reader gets the trip."""
    cli = looping(batches=batches)
    with Session(policy=s.repeat(3)), pytest.raises(ClaudeAgentStopped) as stopped:
        s.run(cli, way)
    assert isinstance(stopped.value, SessionStopped)
    assert isinstance(stopped.value, ClaudeSDKError)
    assert stopped.value.partial["result"].terminal_reason == "hook_stopped"
    assert (cli.asked, cli.ran) == (3, 3)
    answers = told(cli, "PostToolUse")
    assert answers == [{"continue": False, "stopReason": stopped.value.trip.why}]


@pytest.mark.parametrize("way", s.WAYS)
def test_stop_before_a_call(way):
    """A call beyond the run's ceiling is denied with the reason, and Claude Code is stopped."""
    cli = looping(always_new("Read"))
    with Session(policy=s.ceiling(3)), pytest.raises(CircuitOpen):
        s.run(cli, way)
    (answer,) = told(cli, "PreToolUse")
    said = answer["hookSpecificOutput"]
    assert (said["hookEventName"], said["permissionDecision"]) == ("PreToolUse", "deny")
    assert json.loads(said["permissionDecisionReason"])["executed"] is False
    assert answer["continue"] is False
    assert (cli.asked, cli.ran) == (4, 3)


def test_refusal_of_one_tool_goes_on():
    """A refusal of one tool denies that call only, and stops nothing."""
    cli = looping([[("Read", {"file": "a"})], [("Read", {"file": "b"})]])
    with Session(policy=s.ceiling(tools={"Read": 1})):
        messages = s.run(cli)
    (answer,) = told(cli, "PreToolUse")
    assert "continue" not in answer
    assert (messages[-1].result, cli.ran) == (DONE, 1)


@pytest.mark.parametrize("way", s.WAYS)
def test_all_messages_come_before_the_stop(way):
    """The reader has had the result, and all before it, when the stop is raised."""
    cli, seen = looping(), []

    async def reads():
        async def keeps(messages):
            async for one in guarded_stream(messages):
                seen.append(one)
                yield one

        await s.WAYS[way](cli, guard_options(), "Find it.", keeps)

    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        asyncio.run(reads())
    assert isinstance(seen[-1], ResultMessage)
    assert sum(isinstance(one, AssistantMessage) for one in seen) == 3


def test_error_of_a_stopped_cli_is_the_stop():
    """Where Claude Code ends with an error because it was stopped, the reader gets the stop, caused by that error."""
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) as stopped:
        s.run(looping(dies=True))
    assert "exit code 1" in str(stopped.value.__cause__)


def test_cli_that_goes_on_after_a_stop():
    """Where Claude Code wakes up again after the stop, nothing of that is handed on, and it is put an end to."""
    cli, seen = looping(wakes=9), []

    async def keeps(messages):
        async for one in messages:
            seen.append(one)
            yield one

    async def reads():
        try:
            async for _ in keeps(guarded_stream(query(prompt="", options=guard_options(), transport=cli))):
                pass
        finally:
            for _ in range(50):  # the SDK closes what is left of a query in the background
                await asyncio.sleep(0)

    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        asyncio.run(reads())
    assert isinstance(seen[-1], ResultMessage)
    assert cli.ran == 3
    assert cli.work.cancelled()


def test_other_errors_pass():
    """An error of an unstopped run is handed on as it is."""
    cli = looping(lambda _turn: 1 / 0)
    with Session(policy=s.repeat(3)), pytest.raises(ZeroDivisionError):
        s.run(cli)


def test_session_is_named_by_claude_code():
    """Outside any block the hook input's session id names the session, and two prompts of it share its ceiling."""
    trips = []
    for limit_left in (2, 0):
        cli = looping(always_new("Read"), session_id="session-of-the-cli")
        policy = s.ceiling(session=2)
        with pytest.raises(CircuitOpen):
            s.run(cli, guard=lambda options, policy=policy: guard_options(options, policy, on_trip=trips.append))
        assert cli.ran == limit_left
    assert {trip.session_id for trip in trips} == {"session-of-the-cli"}


@pytest.mark.parametrize("prompt_ids", [True, False])
def test_next_prompt_of_a_client_starts_clean(prompt_ids):
    """After a stop the same connected client takes the next prompt, whose run has clean rules."""
    cli = looping([[("Read", {})]] * 5, prompt_ids=prompt_ids)

    async def two_prompts():
        async with ClaudeSDKClient(guard_options(), transport=cli) as client:
            await client.query("Find it.")
            with pytest.raises(CircuitOpen):
                async for _ in guarded_stream(client.receive_response()):
                    pass
            await client.query("Go on.")
            return [one async for one in guarded_stream(client.receive_response())]

    with Session(policy=s.repeat(3)):
        messages = asyncio.run(two_prompts())
    assert (messages[-1].result, cli.ran) == (DONE, 5)


@pytest.mark.parametrize("way", s.WAYS)
@pytest.mark.parametrize("prompt_ids", [True, False])
@pytest.mark.parametrize("turns", [1, 5])
def test_nothing_is_kept_of_a_run_that_is_over(way, prompt_ids, turns):
    """A run that ended, or whose stop was raised, is forgotten, and no call waits for its body."""
    cli = looping([[("Read", {})]] * turns, prompt_ids=prompt_ids)
    before, waited = set(_stream.runs), set(_servers.waiting)
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) if turns > 1 else contextlib.nullcontext():
        s.run(cli, way)
    assert (set(_stream.runs) - before, set(_servers.waiting) - waited) == (set(), set())


def test_reader_that_leaves_at_the_result():
    """A reader that breaks off at the result is told by the session, and the next prompt starts clean all the same."""
    cli = looping([[("Read", {})]] * 5)

    async def two_prompts(session):
        async with ClaudeSDKClient(guard_options(), transport=cli) as client:
            for text in ("Find it.", "Go on."):
                await client.query(text)
                stream = guarded_stream(client.receive_messages())
                async for one in stream:
                    if isinstance(one, ResultMessage):
                        break
                await stream.aclose()
        return session.report()

    with Session(policy=s.repeat(3)) as session:
        report = asyncio.run(two_prompts(session))
    assert (cli.ran, len(report["trips"]), report["in_flight"]) == (5, 1, 0)


def test_block_around_the_reader_decides():
    """A client connected before the block belongs to the block in which its messages are read."""
    cli = looping()

    async def reads():
        async with ClaudeSDKClient(guard_options(), transport=cli) as client:
            with Session("conversation", policy=s.repeat(3)) as session:
                await client.query("Find it.")
                with pytest.raises(CircuitOpen):
                    async for _ in guarded_stream(client.receive_response()):
                        pass
                return session.report()["calls"]

    assert asyncio.run(reads()) == 3


def test_operator_stops_a_run():
    """A stop from outside is told at the next hook, and raised in the end."""
    with Session(policy=s.ceiling(90)) as session:

        async def stops(_said):
            session.stop("enough")
            return "nothing"

        cli = s.ScriptedCLI(for_ever("Read"), own={"Read": stops})
        with pytest.raises(CircuitOpen) as stopped:
            s.run(cli)
    assert (stopped.value.trip.loop_type, cli.asked) == ("stopped_by_operator", 1)


def test_two_queries_at_once():
    """Runs of one session side by side have rings of their own, and only that which loops is stopped."""
    loops, works = looping(prefix="a"), looping([[("Read", {"file": n})] for n in range(8)], prefix="b")

    async def both():
        async def reads(cli):
            return [one async for one in guarded_stream(query(prompt="", options=guard_options(), transport=cli))]

        return await asyncio.gather(reads(loops), reads(works), return_exceptions=True)

    with Session(policy=s.repeat(3)):
        stopped, messages = asyncio.run(both())
    assert isinstance(stopped, CircuitOpen)
    assert (messages[-1].result, loops.ran, works.ran) == (DONE, 3, 8)


@pytest.mark.parametrize("way", s.WAYS)
@pytest.mark.parametrize("turns", [1, 5])
def test_end_of_a_run_is_measured(way, turns, measured):
    """A run whose result was read is measured once, whether it was stopped or not."""
    cli = looping([[("Read", {})]] * turns)
    with pytest.raises(CircuitOpen) if turns > 3 else contextlib.nullcontext():
        s.run(cli, way, guard=lambda options: guard_options(options, s.repeat(3), telemetry=measured))
    assert measured.runs == [min(turns, 3)]


def test_options_stay_as_they_are():
    """Guarding copies the options, keeps what else is in them, and twice is once."""
    options = ClaudeAgentOptions(model="some-model", hooks={"Stop": []})
    guarded = guard_options(options)
    assert guard_options(guarded) is guarded
    assert (options.hooks, guarded.model) == ({"Stop": []}, "some-model")
    assert set(guarded.hooks) == {"Stop", "PreToolUse", "PostToolUse", "PostToolUseFailure", "PostToolBatch"}


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_modes_stop_nothing(mode):
    """Observing, or switched off, nothing is refused or stopped."""
    cli = looping([[("Read", {})]] * 5)
    policy = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}], mode=mode)
    with Session(policy=policy):
        assert s.run(cli)[-1].result == DONE
    assert told(cli, "PostToolUse") == []


def test_example_runs():
    """The example, whose scripted Claude Code is a process of its own, ends with the guard and goes on without."""
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    assert "without the guard: 50 model requests" in done.stdout
    assert "with the guard: 6 model requests" in done.stdout
    assert "kept: session conversation-42" in done.stdout
    assert "next run: 6 searches found nothing" in done.stdout
