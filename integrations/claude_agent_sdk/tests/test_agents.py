"""Sub-agents are nested runs: rings of their own, ceilings of all, one stop for the tree."""

from __future__ import annotations

import asyncio

import pytest
from claude_agent_sdk import ClaudeSDKClient, ResultMessage
from otel_toolguard_claude_agent_sdk import guard_options, guarded_stream

from otel_toolguard import CircuitOpen, Policy, Session
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing.scripts import DONE, always_new, for_ever

from . import scripted as s


async def read(said):
    await asyncio.sleep(0)
    return f"nothing in {said}"


def delegate(*kinds):
    late = len(kinds)  # the last begins first
    return [("Agent", {"subagent_type": kind, "late": 9 * (late - n)}) for n, kind in enumerate(kinds)]


def cli_of(script, **agents):
    return s.ScriptedCLI(script, own={"Read": read}, agents=agents)


@pytest.mark.parametrize("way", s.WAYS)
def test_loop_of_a_sub_agent_ends_the_run(way):
    """A sub-agent that loops is stopped, and so is the agent that waits for it."""
    cli = cli_of(lambda _turn: delegate("scout"), scout=for_ever("Read"))
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) as stopped:
        s.run(cli, way)
    assert stopped.value.trip.tool == "Read"
    assert stopped.value.trip.agent == "scout"
    assert cli.asked == 1 + 3  # turns of the main agent, of the sub-agent


def test_sub_agents_draw_from_one_ceiling():
    """Calls of a sub-agent are drawn from the ceiling of the run that it works for."""
    cli = cli_of([delegate("scout")], scout=always_new("Read"))
    with Session(policy=s.ceiling(4)) as session, pytest.raises(CircuitOpen):
        s.run(cli)
    assert session.report()["tools"]["Read"]["calls"] == 3  # and the call that it works in


def test_sub_agents_have_rings_of_their_own():
    """Two sub-agents that do the same are no loop."""
    twice = [[("Read", {})]] * 2
    cli = cli_of([delegate("scout", "judge"), delegate("scout")], scout=twice, judge=twice)
    with Session(policy=s.repeat(3)) as session:
        assert s.run(cli)[-1].result == DONE
    assert session.report()["tools"]["Read"]["calls"] == 6


@pytest.mark.parametrize("kinds", [("scout", "judge"), ("scout", "scout")])
def test_spans_of_sub_agents_stand_in_their_call(traced, kinds):
    """Each sub-agent's calls stand below the call that it works in, also where several work at once."""
    agents = {kind: [[("Read", {"by": kind})]] for kind in kinds}
    cli = cli_of([delegate(*kinds)], **agents)
    with Session(policy=s.ceiling(90), telemetry=traced.telemetry):
        s.run(cli)
    above = {span.context.span_id: span for span in traced.spans() if span.name.endswith("Agent")}
    below = [span for span in traced.spans() if span.name.endswith("Read")]
    assert {above[span.parent.span_id].attributes[names.CALL_ID] for span in below} == set(cli.worked.values())
    for span in below:
        agent = span.attributes[names.CALL_ID].split("-")[1]
        assert above[span.parent.span_id].attributes[names.CALL_ID] == cli.worked[agent]
    assert len({span.attributes[names.RUN_ID] for span in traced.spans()}) == 3
    assert {span.attributes[names.OUTCOME] for span in traced.spans()} == {"ok"}


@pytest.mark.parametrize("client", [True, False])
def test_agent_in_a_tool(client):
    """An agent run inside an in-process tool is nested in the run of that tool's call; its loop ends both."""
    inner = s.ScriptedCLI(for_ever("Read"), own={"Read": read}, prefix="inner")

    async def ask_another():
        if not client:
            return (await s.by_query(inner, guard_options()))[-1].result
        async with ClaudeSDKClient(guard_options(), transport=inner) as another:
            await another.query("Find it.")
            return [one async for one in guarded_stream(another.receive_response())][-1].result

    outer = s.ScriptedCLI(for_ever("mcp__tools__ask_another"), prefixed=True)
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen) as stopped:
        s.run(outer, **s.serve(outer, [s.tool_of(ask_another)]))
    assert (stopped.value.trip.tool, inner.asked, outer.asked) == ("Read", 3, 1)


def hooks_of(options):
    """What Claude Code would call before a call and after it."""
    (before,), (after,) = options.hooks["PreToolUse"][0].hooks, options.hooks["PostToolUse"][0].hooks

    async def call(call_id, **given):
        given = {"session_id": "s", "tool_name": "Read", "tool_input": {}, "tool_use_id": call_id, **given}
        answer = await before(given, call_id, {"signal": None})
        await after({**given, "tool_response": "x"}, call_id, {"signal": None})
        return answer

    return call


def test_sub_agent_by_its_kind(traced):
    """Where no message tells which call a sub-agent works in, it is one that asked for such an agent."""
    options = guard_options()
    (before,), (after,) = options.hooks["PreToolUse"][0].hooks, options.hooks["PostToolUse"][0].hooks
    call = hooks_of(options)
    given = {"session_id": "s", "tool_name": "Agent", "tool_response": "done"}

    async def calls():
        for kind in ("scout", "judge"):
            await before({**given, "tool_input": {"subagent_type": kind}}, kind, {"signal": None})
        for kind in ("judge", "scout"):
            await call(f"of {kind}", agent_id=kind, agent_type=kind)
            await after(given, kind, {"signal": None})

    with Session(policy=s.ceiling(9), telemetry=traced.telemetry):
        asyncio.run(calls())
    spans = {span.attributes[names.CALL_ID]: span for span in traced.spans() if span.attributes}
    for kind in ("scout", "judge"):
        above = [span for span in traced.spans() if span.context.span_id == spans[f"of {kind}"].parent.span_id]
        assert [span.attributes[names.CALL_ID] for span in above] == [kind]


def test_unknown_sub_agent_counts_all_the_same():
    """A sub-agent of which nothing else is known, for it was handed its work before, is nested in the run."""
    call = hooks_of(guard_options())

    async def calls():
        return [await call(call_id, agent_id="a1", agent_type="scout") for call_id in "1234"]

    with Session(policy=s.ceiling(3)) as session:
        assert asyncio.run(calls())[-1]["continue_"] is False
    assert session.report()["calls"] == 3


@pytest.mark.parametrize("limit", [2, 9])
def test_sub_agent_in_the_background_stays_in_its_run(limit):
    """One that works on after the result belongs to its prompt still, stop and all; the next prompt starts clean."""
    call = hooks_of(guard_options())

    async def result():
        yield ResultMessage("success", 1, 1, is_error=False, num_turns=1, session_id="s")

    async def reads():
        try:
            async for _ in guarded_stream(result()):
                pass
        except CircuitOpen:
            return True
        return False

    async def calls():
        agent = {"agent_id": "a1", "agent_type": "scout"}
        answers = [await call(str(n), prompt_id="first", **agent) for n in range(3)]
        raised = [await reads()]
        answers.append(await call("4", prompt_id="first", **agent))
        answers.append(await call("5", prompt_id="second"))
        return answers, [*raised, await reads()]

    with Session(policy=s.ceiling(limit)) as session:
        answers, raised = asyncio.run(calls())
    stops = ["continue_" in answer for answer in answers]
    assert raised == [limit == 2, False]
    assert stops == ([False, False, True, True, False] if limit == 2 else [False] * 5)
    assert session.report()["calls"] == (3 if limit == 2 else 5)


@pytest.mark.parametrize("batches", [True, False])
def test_sub_agents_of_sub_agents_draw_from_one_ceiling(batches, traced):
    """Where sub-agents hand on their work to others without end, the ceiling holds for the whole tree."""
    cli = s.ScriptedCLI(
        lambda _turn: delegate("scout"), agents={"scout": lambda _turn: delegate("scout", "scout")}, batches=batches
    )
    with Session(policy=s.ceiling(20), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        s.run(cli)
    report = session.report()
    assert (cli.ran, report["calls"], report["in_flight"]) == (20, 20, 0)
    spans = {span.context.span_id for span in traced.spans()}
    assert sum(span.parent is None or span.parent.span_id not in spans for span in traced.spans()) == 1


def test_depth_of_sub_agents():
    """How deep sub-agents are nested is counted, and limited by a rule."""
    cli = s.ScriptedCLI(lambda _turn: delegate("scout"), agents={"scout": lambda _turn: delegate("scout", "scout")})
    policy = Policy(plugins=[{"plugin": "depth", "limit": 3}, {"plugin": "call_ceiling", "run": 90}])
    with Session(policy=policy), pytest.raises(CircuitOpen) as stopped:
        s.run(cli)
    assert (stopped.value.trip.rule, stopped.value.trip.observed) == ("depth", 4)
    assert cli.ran == 1 + 2 + 4
