"""Maps LangChain's tool calls to attempts, and decisions to what LangChain understands.

The run loop: ``before_agent`` → (``before_model`` → model → tools) … . A refused call is answered with an error
``ToolMessage``, so that each call id of the history has its answer; the stop is raised at the next ``before_model``,
before the model is paid again. It is a ``GraphBubbleUp`` too: LangGraph, retry and error middleware let those pass.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command, interrupt

from otel_toolguard.adapter import (
    Attempt,
    CircuitOpen,
    Ended,
    FrameworkRuns,
    GuardedTool,
    SessionStopped,
    failed_result,
    native,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.runtime import Runtime

    from otel_toolguard import Policy, Trip
    from otel_toolguard.attempt import Place
    from otel_toolguard.telemetry import Telemetry

StopBy = Literal["raise", "drain", "end", "interrupt"]
STOPS: tuple[StopBy, ...] = ("raise", "drain", "end", "interrupt")
RUN = "toolguard_run"

LangChainStopped = native(GraphBubbleUp, name="LangChainStopped", module=__name__)


class GuardState(AgentState[Any]):
    """The run's id, kept in the agent's private state so that a resumed run is the same run."""

    toolguard_run: NotRequired[Annotated[str, PrivateStateAttr]]


class ToolGuardMiddleware(AgentMiddleware[GuardState, Any]):
    """Guards every tool call of an agent. Put it last in the list: innermost, it sees every real execution.

    An open ``Session`` counts the calls; without one the thread id, else the run, names the session.

    Args:
        policy: The rules for sessions opened here; None takes environment, file and default profile.
        stop: How a stopped run ends, before the next model call: "raise" a ``CircuitOpen`` (with the kept messages
            in ``exc.partial``), "drain" by LangGraph's own channel, "end" with a last message, or "interrupt".
        on_trip: Called with the ``Trip`` of each circuit that opens.
        telemetry: Where spans go; None is the process's OpenTelemetry providers.

    Raises:
        ValueError: ``stop`` has no valid value.
    """

    state_schema = GuardState

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        stop: StopBy = "raise",
        on_trip: Callable[[Trip], Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        super().__init__()
        if stop not in STOPS:
            raise ValueError(f"unknown stop {stop!r}; valid are {', '.join(STOPS)}")
        self._stop = stop
        self._runs = FrameworkRuns(policy, on_trip, telemetry)
        self._tools: dict[int, tuple[Any, GuardedTool]] = {}

    def before_agent(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any]:  # noqa: ARG002
        """Names the run."""
        return {RUN: secrets.token_hex(8)}

    async def abefore_agent(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Names the run."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The gate: a stopped run makes no further model call."""
        place = self._place(state, runtime)
        trip = place.session.trip_of(place.run_id) if place is not None and place.guard.judges else None
        if trip is None:
            return None
        if self._stop == "end":
            return {"jump_to": "end", "messages": [AIMessage(content=f"Stopped: {trip.why}")]}
        if self._stop == "interrupt":
            interrupt(trip.to_dict())
        control = getattr(runtime, "control", None)
        if self._stop == "drain" and control is not None:
            control.request_drain(_Reason(trip))
            return {"jump_to": "end"}
        raise LangChainStopped(trip, _partial(state, runtime))

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The gate: a stopped run makes no further model call."""
        return self.before_model(state, runtime)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Runs the call, or answers why it was not run."""
        attempt = self._attempt(request)
        if attempt is None:
            return handler(request)
        if attempt.refused is not None:
            return _answer(request, attempt.error())
        attempt.enter()
        try:
            result = handler(request)
        except BaseException as error:
            attempt.leave()
            attempt.raised(error)
            if isinstance(error, CircuitOpen) and self._answers(attempt, error):
                return _answer(request, error)
            raise
        attempt.leave()
        attempt.returned(_said(result), _ended(result))
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Runs the call, or answers why it was not run."""
        attempt = self._attempt(request)
        if attempt is None:
            return await handler(request)
        if attempt.refused is not None:
            return _answer(request, attempt.error())
        attempt.enter()
        try:
            result = await handler(request)
        except BaseException as error:
            attempt.leave()
            attempt.raised(error)
            if isinstance(error, CircuitOpen) and self._answers(attempt, error):
                return _answer(request, error)
            raise
        attempt.leave()
        attempt.returned(_said(result), _ended(result))
        return result

    def _attempt(self, request: ToolCallRequest) -> Attempt | None:
        place = self._place(request.state, request.runtime)
        if place is None:
            return None
        call = request.tool_call
        arguments = call.get("args")
        return self._tool(call["name"], request.tool).attempt(
            place,
            arguments if isinstance(arguments, dict) else str(arguments),
            call_id=call.get("id"),
            batch=_batch(request.state),
            reached=request.tool is not None,
        )

    def _place(self, state: Any, runtime: Any) -> Place | None:
        run_id = state.get(RUN) if isinstance(state, dict) else getattr(state, RUN, None)
        info = getattr(runtime, "execution_info", None)
        thread_id = getattr(info, "thread_id", None)
        return self._runs.place(str(run_id), thread_id) if run_id else None

    def _tool(self, name: str, tool: Any) -> GuardedTool:
        found = self._tools.get(id(tool)) if tool is not None else None
        if found is None or found[0] is not tool or found[1].tool.name != name:
            found = (tool, GuardedTool(name, _body(tool)))
            if tool is not None:
                self._tools[id(tool)] = found
        return found[1]

    def _answers(self, attempt: Attempt, error: CircuitOpen) -> bool:
        """Whether the circuit that opened inside the tool is dealt with here: the run goes on, or is stopped too."""
        if not isinstance(error, SessionStopped):
            return True
        place = attempt.place
        return place is not None and place.session.trip_of(place.run_id) is not None


class _Reason(str):
    """A drain's reason that still carries the trip."""

    __slots__ = ("trip",)

    def __new__(cls, trip: Trip) -> _Reason:
        reason = super().__new__(cls, trip.why)
        reason.trip = trip
        return reason


def _body(tool: Any) -> Any:
    """The function that LangChain will call: of a ``StructuredTool`` its func or coroutine, else its ``_run``."""
    return getattr(tool, "func", None) or getattr(tool, "coroutine", None) or getattr(tool, "_run", None)


def _batch(state: Any) -> str | None:
    """The message that asked for the call; calls of one message are one batch."""
    messages = state.get("messages") if isinstance(state, dict) else getattr(state, "messages", None)
    for index in range(len(messages or ()) - 1, -1, -1):
        if isinstance(messages[index], AIMessage):
            return f"{index}:{messages[index].id}"
    return None


def _answer(request: ToolCallRequest, error: CircuitOpen) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(
        content=error.to_tool_message(), tool_call_id=call["id"], name=call["name"], status="error"
    )


def _messages(result: Any) -> list[ToolMessage]:
    if isinstance(result, ToolMessage):
        return [result]
    if isinstance(result, Command):
        update = result.update
        found = update.get("messages", ()) if isinstance(update, dict) else ()
        return [message for message in found if isinstance(message, ToolMessage)]
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in _messages(part)]
    return []


def _said(result: Any) -> Any:
    """What the tool said, without ids that are new in each message."""
    contents = [message.content for message in _messages(result)]
    if isinstance(result, Command) and isinstance(result.update, dict):
        others = {key: value for key, value in result.update.items() if key != "messages"}
        return [contents, others, str(result.goto)]
    return contents[0] if len(contents) == 1 else contents or result


def _ended(result: Any) -> Ended:
    failed = next((message for message in _messages(result) if message.status == "error"), None)
    return failed_result(str(failed.content)) if failed is not None else Ended("ok")


def _partial(state: Any, runtime: Any) -> dict[str, Any]:
    info = getattr(runtime, "execution_info", None)
    return {
        "messages": list(state.get("messages", ())),
        "thread_id": getattr(info, "thread_id", None),
        "checkpoint_id": getattr(info, "checkpoint_id", None),
    }
