"""Claude Code's hooks in the guard's words: which run and call each speaks of, and what it is answered."""

from __future__ import annotations

import functools
import secrets
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, PermissionResultDeny

import otel_toolguard.adapter as kit
from otel_toolguard.attempt import Attempt, Place, unfelt
from otel_toolguard_claude_agent_sdk._servers import prepare, tool_of, waiting
from otel_toolguard_claude_agent_sdk._stream import KEPT, current, runs, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard import Policy, Trip
    from otel_toolguard.telemetry import Telemetry

EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PostToolBatch")


class Run:
    """One prompt's work: its place, those of its sub-agents, its calls that are open (None: ended), and hand-overs."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.over = False  # its result was read
        self.agents: dict[str, Place] = {}
        self.calls: dict[str, Attempt | None] = {}
        self.delegates: dict[str, tuple[Attempt, Any]] = {}  # calls that no sub-agent is known to work in yet

    @property
    def trip(self) -> Trip | None:
        """Why it was stopped; one whose sub-agents alone make calls is not known to be above them."""
        found = map(kit.stop_of, (self.place, *self.agents.values()))
        return next((trip for trip in found if trip is not None), None)

    def settle(self, call_id: str, result: Any, ended: kit.Ended | None = None) -> Attempt | None:
        """Ends a call; nothing where that was done before."""
        attempt = self.calls.get(call_id)
        self.calls[call_id] = None
        waiting.pop(call_id, None)
        if attempt is not None:
            attempt.returned(result, ended)
        return attempt

    def close(self) -> None:
        """Ends what nobody said the end of."""
        for call_id in list(self.calls):
            self.settle(call_id, None, kit.Ended("cancelled"))

    def above(self, call_id: str | None, kind: Any) -> Place:
        """The call that a sub-agent works in: as the messages say, else the first that asked for such an agent."""
        fits = [known for known, (_, asked_for) in self.delegates.items() if asked_for == kind]
        found = call_id if call_id in self.delegates else next(iter(fits or self.delegates), "")
        return self.delegates.pop(found, (self.place, None))[0]


class Guard:
    """The hooks of one set of options."""

    def __init__(self, policy: Any, on_trip: Any, telemetry: Any, servers: dict[str, Any]) -> None:
        self._runs = kit.FrameworkRuns(policy, on_trip, telemetry)
        self._tools = kit.GuardedTools(lambda name, _: tool_of(name, servers))

    async def hook(self, event: str, given: Any, call_id: str | None, _context: Any) -> dict[str, Any]:
        """Answers a hook; a failure of our own is no decision."""
        try:
            given = {**given, "hook_event_name": event, "tool_use_id": given.get("tool_use_id") or call_id}
            stream = current.get()
            reader = stream or streams.get(given.get("session_id"))
            context = reader.context.copy() if reader is not None else copy_context()
            answer = {"PreToolUse": self._before, "PostToolBatch": self._batch}.get(event, self._after)
            return context.run(lambda: answer(self._run(given, stream), given, reader))
        except Exception as fault:
            unfelt("answer a hook", fault)
            return {}

    async def permission(self, asks: Any, name: str, said: dict[str, Any], context: Any) -> Any:
        """Around the user's ``can_use_tool``: a call that waits for a person is none, and is asked for again."""
        call_id = context.tool_use_id
        run = next((one for one in reversed(runs.values()) if one.calls.get(call_id)), None)
        paused = run.settle(call_id, None, kit.Ended("interrupted")) if run is not None else None
        answer = await asks(name, said, context)
        if run is None or paused is None or paused.place is None:
            return answer
        changed = getattr(answer, "updated_input", None)
        given = {"tool_name": name, "tool_input": said if changed is None else changed, "tool_use_id": call_id}
        refused = self._admit(run, paused.place, given, None, paused.call.agent)
        if refused is not None:
            text, stops = refused.to_tool_message(), isinstance(refused, kit.SessionStopped)
            return PermissionResultDeny(message=text, interrupt=stops)
        if answer.behavior == "deny":
            run.settle(call_id, answer.message, kit.failed_result(answer.message))
        return answer

    def _run(self, given: Any, stream: Any) -> Run:
        if stream is not None and stream.stopped_run is not None:
            return stream.stopped_run  # type: ignore[no-any-return]
        session_id = given.get("session_id") or None
        key = (stream or session_id, self, given.get("prompt_id"))
        if key not in runs:
            runs[key] = Run(self._runs.place(secrets.token_hex(8), session_id))
            if len(runs) > KEPT:
                runs.popitem(last=False)[1].close()
        return runs[key]

    def _place(self, run: Run, given: Any, reader: Any) -> Place:
        agent = given.get("agent_id")
        if agent and agent not in run.agents:
            asked = reader.asked.get(given["tool_use_id"]) if reader is not None else None
            above, session = run.above(asked and asked.inside, given.get("agent_type")), run.place.session
            name = secrets.token_hex(8)
            run.agents[agent] = Place(session.guard, name, above=above.run_id, outer=above, session=session)
        return run.agents[agent] if agent else run.place

    def _admit(self, run: Run, place: Place, given: Any, reader: Any, agent: Any) -> kit.CircuitOpen | None:
        """Admits a call, or says why it is refused."""
        name, said, call_id = given["tool_name"], given.get("tool_input") or {}, given["tool_use_id"]
        words = {"cwd": given["cwd"], **said} if "command" in said and given.get("cwd") else said
        asked = reader.asked.get(call_id) if reader is not None else None
        above = place.outer if isinstance(place.outer, Attempt) and place is not run.place else None
        if above is not None:
            above.enter()  # its span is the parent
        try:
            attempt = self._tools.of(name, None).attempt(
                place, words, call_id=call_id, agent=agent, batch=asked and asked.turn,
                siblings=len(asked.ids) if asked else 0, reached=given.get("reached", True),
            )  # fmt: skip
        except kit.CircuitOpen as error:  # a store that refuses
            return error
        finally:
            if above is not None:
                above.leave()
        run.calls[call_id] = attempt if attempt.refused is None else None
        if attempt.refused is not None:
            return attempt.error()
        waiting[call_id] = (name, said, attempt)
        if name in ("Agent", "Task"):
            run.delegates[call_id] = (attempt, said.get("subagent_type"))
        return None

    def _before(self, run: Run, given: Any, reader: Any) -> dict[str, Any]:
        refused = self._admit(run, self._place(run, given, reader), given, reader, given.get("agent_type"))
        if refused is None:
            return {}
        reason = {"permissionDecision": "deny", "permissionDecisionReason": refused.to_tool_message()}
        return _told(given, reason, refused.trip if isinstance(refused, kit.SessionStopped) else None)

    def _after(self, run: Run, given: Any, reader: Any) -> dict[str, Any]:
        if "error" in given:
            result: Any = str(given["error"])
            ended: kit.Ended | None = kit.Ended("cancelled") if given.get("is_interrupt") else kit.failed_result(result)
        else:
            result, ended = _result(given.get("tool_response"))
        attempt = run.settle(given["tool_use_id"], result, ended)
        nudges = "\n\n".join(attempt.nudges) if attempt is not None else ""
        trip = kit.stop_of(self._place(run, given, reader))
        return _told(given, {"additionalContext": nudges} if nudges else {}, trip)

    def _batch(self, run: Run, given: Any, reader: Any) -> dict[str, Any]:
        """The last moment before a model call: what is still open was denied, what is unknown never reached a tool."""
        place = self._place(run, given, reader)
        for call in given.get("tool_calls") or ():
            call_id, answer = call["tool_use_id"], str(call.get("tool_response") or "")
            if call_id not in run.calls:
                self._admit(run, place, {**call, "reached": False}, reader, given.get("agent_type"))
            run.settle(call_id, answer, kit.failed_result(answer))
            del run.calls[call_id]
        return _told(given, {}, kit.at_model(place))


def _told(given: Any, more: dict[str, Any], trip: Any) -> dict[str, Any]:
    said = {"hookSpecificOutput": {"hookEventName": given["hook_event_name"], **more}} if more else {}
    return said if trip is None else {**said, "continue_": False, "stopReason": trip.why}


def _result(answer: Any) -> tuple[Any, kit.Ended | None]:
    """What a tool said to the model, and how it ended where its answer is marked as an error."""
    marked = isinstance(answer, dict) and bool(answer.get("is_error") or answer.get("isError"))
    blocks = answer.get("content", answer) if isinstance(answer, dict) else answer
    texts = [one.get("text", one) if isinstance(one, dict) else one for one in blocks] if type(blocks) is list else []
    shown = texts[0] if len(texts) == 1 else texts or answer
    return shown, kit.failed_result(str(shown)) if marked else None


def guard_options(
    options: ClaudeAgentOptions | None = None, policy: Policy | None = None, *,
    on_trip: Callable[[Trip], Any] | None = None, telemetry: Telemetry | None = None,
) -> ClaudeAgentOptions:  # fmt: skip
    """Options under which every tool call is guarded; for ``query`` and for ``ClaudeSDKClient``.

    Args:
        options: The options; they stay as they are. Its in-process servers are changed and stay the same objects.
        policy: The rules for sessions opened here: those of runs outside any open ``Session``, named by Claude Code's
            session id. None takes environment, file and default profile.
        on_trip: Called with the ``Trip`` of each circuit that opens in those sessions.
        telemetry: Where their spans go; None is the process's OpenTelemetry providers.

    Returns:
        The guarded options; the same if they are guarded already.
    """
    options = options or ClaudeAgentOptions()
    hooks: dict[Any, list[HookMatcher]] = {event: list(theirs) for event, theirs in (options.hooks or {}).items()}
    known = [hook for matchers in hooks.values() for one in matchers for hook in one.hooks]
    if any(isinstance(getattr(getattr(hook, "func", None), "__self__", None), Guard) for hook in known):
        return options
    given: Any = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}
    servers: dict[str, Any] = {name: one["instance"] for name, one in given.items() if one.get("type") == "sdk"}
    for server in servers.values():
        prepare(server)
    guard, asks = Guard(policy, on_trip, telemetry, servers), options.can_use_tool
    for event in EVENTS:
        ours: Any = functools.partial(guard.hook, event)
        hooks[event] = [HookMatcher(hooks=[ours]), *hooks.get(event, ())]
    return replace(options, hooks=hooks, can_use_tool=asks and functools.partial(guard.permission, asks))
