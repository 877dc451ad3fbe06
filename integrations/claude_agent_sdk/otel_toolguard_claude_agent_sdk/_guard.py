"""Claude Code's hooks in the guard's words: which run and call each speaks of, and what it is answered."""

from __future__ import annotations

import functools
import secrets
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, PermissionResultDeny

import otel_toolguard.adapter as kit
from otel_toolguard_claude_agent_sdk._servers import prepare, tool_of, waiting
from otel_toolguard_claude_agent_sdk._stream import current, runs, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard import Policy, Trip
    from otel_toolguard.telemetry import Telemetry


EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PostToolBatch")
DELEGATING = ("Agent", "Task")  # tools that hand work to a sub-agent


class Run:
    """One prompt's work: its place, those of its sub-agents, and its calls (None: ended)."""

    def __init__(self, place: kit.Place, end: Callable[[kit.Place], None]) -> None:
        self.place = place
        self._end = end
        self.over = False
        self.stopped: Trip | None = None  # as last seen
        self.agents: dict[str, kit.Place] = {}
        self.calls: dict[str, kit.Attempt | None] = {}

    def trip(self) -> Trip | None:
        """Why it was stopped; one whose sub-agents alone make calls is not known to be above them."""
        return next(filter(None, map(kit.stop_of, (self.place, *self.agents.values()))), None)

    def settle(self, call_id: str, result: Any, ended: kit.Ended | None = None) -> tuple[str, ...]:
        """Ends a call; nothing where that was done before. Returns what the model shall be told."""
        attempt, self.calls[call_id] = self.calls.get(call_id), None
        waiting.pop(call_id)
        if attempt is None:
            return ()
        attempt.returned(result, ended)
        return attempt.nudges

    def close(self) -> None:
        """Ends what nobody said the end of."""
        self.over = True
        for call_id in list(self.calls):
            self.settle(call_id, None, kit.Ended("cancelled"))
        self._end(self.place)

    def place_of(self, agent: str | None, kind: Any, call_id: str | None) -> kit.Place:
        """Where a sub-agent works: in the call that the messages tell, else the first that asked for such an agent."""
        if agent and agent not in self.agents:
            taken = [place.outer for place in self.agents.values()]
            free = [one for one in self.calls.values() if one and one.tool.name in DELEGATING and one not in taken]
            fits = [one for one in free if (one.call.arguments or {}).get("subagent_type") == kind]
            above = self.calls.get(call_id or "") or next(iter(fits or free), self.place)
            name, session = secrets.token_hex(8), self.place.session
            self.agents[agent] = kit.Place(session.guard, name, above=above.run_id, outer=above, session=session)
        return self.agents[agent] if agent else self.place


class Guard:
    """The hooks of one set of options."""

    def __init__(self, policy: Any, on_trip: Any, telemetry: Any, servers: list[Any]) -> None:
        self._runs = kit.FrameworkRuns(policy, on_trip, telemetry)
        self._tools = kit.GuardedTools(lambda name, _: tool_of(name, servers))

    async def hook(self, event: str, given: Any, call_id: str | None, _context: Any) -> dict[str, Any]:
        """Answers a hook; a failure of our own is no decision, but no way out of a stop either."""
        stream, session_id, run = current.get(), given.get("session_id") or None, None
        reader = stream or streams.get(session_id or "")
        context = reader.context.copy() if reader is not None else copy_context()
        trip = stream.trip if stream is not None else None  # after its result Claude Code may take a moment to end
        try:
            if trip is None:
                key = (stream or session_id, self, given.get("prompt_id"))
                run = runs.of(key, lambda: context.run(self._begin, session_id))
                given = {**given, "hook_event_name": event, "tool_use_id": given.get("tool_use_id") or call_id}
                answer = {"PreToolUse": self._before, "PostToolBatch": self._batch}.get(event, self._after)
                return context.run(answer, run, given, reader)
        except Exception as fault:
            kit.unfelt("answer a hook", fault)
            trip = run.stopped if run is not None else None
        return _told(event, _stop(trip))

    async def permission(self, asks: Any, name: str, said: dict[str, Any], context: Any) -> Any:
        """Around the user's ``can_use_tool``: a call that waits for a person is none, and is asked for again."""
        call_id = context.tool_use_id
        run = next((one for one in reversed(runs.values()) if one.calls.get(call_id)), None)
        paused = run.calls[call_id] if run is not None else None
        if run is None or paused is None:
            return await asks(name, said, context)
        run.settle(call_id, None, kit.Ended("interrupted"))
        answer = await asks(name, said, context)
        given = {"tool_name": name, "tool_input": getattr(answer, "updated_input", None) or said}
        refused = self._admit(run, paused.outer, {**given, "tool_use_id": call_id, "agent_type": paused.call.agent})
        if refused is None:
            return answer
        stops = isinstance(refused, kit.SessionStopped)
        return PermissionResultDeny(message=refused.to_tool_message(), interrupt=stops)

    def _begin(self, session_id: str | None) -> Run:
        return Run(self._runs.place(secrets.token_hex(8), session_id), self._runs.end)

    def _before(self, run: Run, given: Any, reader: Any) -> dict[str, Any]:
        return _told("PreToolUse", self._admit(run, self._place(run, given, reader), given, reader))

    def _after(self, run: Run, given: Any, reader: Any) -> dict[str, Any]:
        result, ended = _result(given)
        nudges = "\n\n".join(run.settle(given["tool_use_id"], result, ended))
        run.stopped = kit.stop_of(self._place(run, given, reader))
        return _told(given["hook_event_name"], _stop(run.stopped), {"additionalContext": nudges} if nudges else {})

    def _batch(self, run: Run, given: Any, reader: Any) -> dict[str, Any]:
        """The last moment before a model call: what is still open was denied, what is unknown never reached a tool."""
        place = self._place(run, given, reader)
        for call in given.get("tool_calls") or ():
            call_id, answer = call["tool_use_id"], str(call.get("tool_response") or "")
            if call_id not in run.calls:
                self._admit(run, place, {**given, **call}, reader, reached=False)
            run.settle(call_id, answer, kit.failed_result(answer))
            del run.calls[call_id]
        run.stopped = kit.at_model(place)
        return _told("PostToolBatch", _stop(run.stopped))

    def _place(self, run: Run, given: Any, reader: Any) -> kit.Place:
        asked = reader.asked.get(given.get("tool_use_id")) if reader is not None else None
        return run.place_of(given.get("agent_id"), given.get("agent_type"), asked and asked.inside)

    def _admit(
        self, run: Run, place: Any, given: Any, reader: Any = None, *, reached: bool = True
    ) -> kit.CircuitOpen | None:
        """Admits a call, or says why it is refused."""
        name, said, call_id = given["tool_name"], given.get("tool_input") or {}, given["tool_use_id"]
        words = {"cwd": given["cwd"], **said} if "command" in said and given.get("cwd") else said
        asked = reader.asked.get(call_id) if reader is not None else None
        if place is not run.place and isinstance(place.outer, kit.Attempt):
            place.outer.enter()  # its span is the parent; this context is the hook's own
        try:
            attempt = self._tools.of(name, None).attempt(
                place, words, call_id=call_id, agent=given.get("agent_type"), batch=asked and asked.turn,
                siblings=len(asked.ids) if asked else 0, reached=reached,
            )  # fmt: skip
        except kit.CircuitOpen as error:  # a store that refuses
            return error
        run.calls[call_id] = attempt if attempt.refused is None else None
        if attempt.refused is not None:
            run.stopped = attempt.refused.trip if attempt.refused.trip.stops else None
            return attempt.error()
        waiting.of(call_id, lambda: (name, said, attempt))
        return None


def _stop(trip: Trip | None) -> kit.SessionStopped | None:
    return kit.SessionStopped(trip) if trip is not None else None


def _told(event: str, refused: kit.CircuitOpen | None, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """What Claude Code is told: a refused call is denied, a stop ends its turn."""
    if refused is not None and event == "PreToolUse":
        more = {"permissionDecision": "deny", "permissionDecisionReason": refused.to_tool_message()}
    said = {"hookSpecificOutput": {"hookEventName": event, **more}} if more else {}
    stops = isinstance(refused, kit.SessionStopped)
    return {**said, "continue_": False, "stopReason": refused.trip.why} if refused and stops else said


def _result(given: Any) -> tuple[Any, kit.Ended | None]:
    """What a tool said to the model, and how it ended where that is marked as an error."""
    if "error" in given:
        text = str(given["error"])
        return text, kit.Ended("cancelled") if given.get("is_interrupt") else kit.failed_result(text)
    answer = given.get("tool_response")
    failed = isinstance(answer, dict) and (answer.get("is_error") or answer.get("isError"))
    return answer, kit.failed_result(str(answer)) if failed else None


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

    Raises:
        SettingsError: Environment or file have a wrong setting; a hook that fails later would let its call run.
    """
    kit.Session(policy=policy, telemetry=telemetry)
    options = options or ClaudeAgentOptions()
    hooks: dict[Any, list[HookMatcher]] = {event: list(theirs) for event, theirs in (options.hooks or {}).items()}
    known = [hook for matchers in hooks.values() for one in matchers for hook in one.hooks]
    if any(isinstance(getattr(getattr(hook, "func", None), "__self__", None), Guard) for hook in known):
        return options
    given: Any = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}
    servers = [one["instance"] for one in given.values() if one.get("type") == "sdk"]
    for server in servers:
        prepare(server)
    guard, asks = Guard(policy, on_trip, telemetry, servers), options.can_use_tool
    for event in EVENTS:
        ours: Any = functools.partial(guard.hook, event)  # its matcher blocks nothing by itself: a Claude Code that
        # does not confirm on_failure="block" could not be connected to, and what was refused stays so without it
        hooks[event] = [HookMatcher(hooks=[ours]), *hooks.get(event, ())]
    return replace(options, hooks=hooks, can_use_tool=asks and functools.partial(guard.permission, asks))
