"""Maps LangChain's tool calls to attempts, and decisions to what LangChain understands.

A refused call is answered with an error ``ToolMessage``, so that each call id of the history has its answer; the stop
is raised at the next ``before_model``, as a ``GraphBubbleUp``: LangGraph, retry and error middleware let those pass.
"""

from __future__ import annotations

import functools
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, get_args

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage
from langgraph.config import get_config
from langgraph.types import interrupt

from otel_toolguard.adapter import (
    FrameworkRuns,
    GuardedTools,
    Reason,
    at_model,
    counted,
    instrumented_by,
    made,
    made_async,
    traced_within,
)  # fmt: skip
from otel_toolguard_langchain._mapping import Answered, asking, guarded_tool, show, stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.runtime import Runtime

    from otel_toolguard import Policy, Trip
    from otel_toolguard.adapter import Attempt, Place
    from otel_toolguard.telemetry import Telemetry

StopBy = Literal["raise", "drain", "end", "interrupt"]
RUN = "toolguard_run"
OTHERS = {  # instrumentations that open a tool's span between this middleware and the tool's function
    "openinference.instrumentation.langchain": "LangChainInstrumentor",
    "opentelemetry.instrumentation.genai.langchain": "LangChainInstrumentor",
    "opentelemetry.instrumentation.langchain": "LangchainInstrumentor",
}


class GuardState(AgentState[Any]):
    """The run's id, kept in the agent's private state so that a resumed run is the same run."""

    toolguard_run: NotRequired[Annotated[str, PrivateStateAttr]]


def _twin(hook: Any) -> Any:
    """The async hook of a sync one that waits for nothing."""

    @functools.wraps(hook)
    async def twin(self: Any, state: Any, runtime: Any) -> Any:
        return hook(self, state, runtime)

    return twin


def _traced(request: ToolCallRequest, attempt: Attempt) -> ToolCallRequest:
    """The request, with a tool that opens the call's span itself where that has been left to it."""
    if attempt.traced:
        return request
    return replace(request, tool=traced_within(request.tool, attempt, Answered(request.tool_call)))


class ToolGuardMiddleware(AgentMiddleware[GuardState, Any]):
    """Guards every tool call of an agent.

    It belongs after all middleware around tool calls, so that it sees every execution, and before any that calls a
    model of its own ahead of each turn, such as a summary.

    Args:
        policy: The rules for sessions opened here: those of runs outside any open ``Session``, named by the thread id,
            else by the run. None takes environment, file and default profile.
        stop: How a stopped run ends, before the next model call: "raise" a ``CircuitOpen`` (its ``partial`` has the
            messages), "drain" by LangGraph's channel (before 1.2: raise), "end" with a last message, or "interrupt"
            until a person has decided; resumed without a reset it raises.
        on_trip: Called with the ``Trip`` of each circuit that opens in those sessions.
        telemetry: Where their spans go; None is the process's OpenTelemetry providers.

    Raises:
        ValueError: ``stop`` has no valid value.
    """

    toolguard_guards = True  # by which assert_guarded knows it
    state_schema = GuardState
    _stops = get_args(StopBy)

    def __init__(
        self, policy: Policy | None = None, *, stop: StopBy = "raise", on_trip: Callable[[Trip], Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if stop not in self._stops:
            raise ValueError(f"unknown stop {stop!r}; valid are {', '.join(self._stops)}")
        self._stop = stop
        self._runs = FrameworkRuns(policy, on_trip, telemetry)
        self._tools = GuardedTools(guarded_tool)

    def before_agent(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Names the run."""
        return {RUN: secrets.token_hex(8)}

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The gate: a stopped run makes no further model call."""
        config = get_config()
        trip = at_model(self._place(state, config))
        if trip is None:
            return None
        manager: Any = config.get("callbacks")
        show(trip, getattr(manager, "handlers", ()), getattr(manager, "parent_run_id", None))
        if self._stop == "end":
            last = AIMessage(content=f"Stopped: {trip.why}", response_metadata={"toolguard": trip.to_dict()})
            return {"jump_to": "end", "messages": [last]}
        if self._stop == "interrupt":
            interrupt(trip.to_dict())
        control = getattr(runtime, "control", None)
        if self._stop == "drain" and control is not None:
            control.request_drain(Reason(trip))
            return None
        self._runs.end(self._place(state, config))  # LangChain does not come to after_agent
        raise stopped(trip, state, config.get("configurable", {}))

    def after_agent(self, state: GuardState, runtime: Runtime[Any]) -> None:
        """Notes that the run is over; LangChain comes here only where it is not to be resumed."""
        self._runs.end(self._place(state, get_config()))

    abefore_agent, abefore_model, aafter_agent = map(_twin, (before_agent, before_model, after_agent))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Runs the call, or answers why it was not run."""
        attempt = self._attempt(request, asynchronous=False)
        if attempt is None:
            return handler(request)
        return made(attempt, Answered(request.tool_call), lambda: handler(_traced(request, attempt)))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Runs the call, or answers why it was not run."""
        attempt = self._attempt(request, asynchronous=True)
        if attempt is None:
            return await handler(request)
        return await made_async(attempt, Answered(request.tool_call), lambda: handler(_traced(request, attempt)))

    def _attempt(self, request: ToolCallRequest, *, asynchronous: bool) -> Attempt | None:
        call, config = request.tool_call, request.runtime.config
        place = self._place(request.state, config)
        if place is None or counted(place.run_id, call["id"]):
            return None
        asked = asking(request.state)
        return self._tools.of(call["name"], request.tool, asynchronous=asynchronous).attempt(
            place,
            call["args"] if isinstance(call["args"], dict) else str(call["args"]),
            call_id=call["id"], batch=asked.id, siblings=len(asked.tool_calls),
            agent=(config.get("metadata") or {}).get("lc_agent_name"),
            reached=request.tool is not None, traced=not instrumented_by(OTHERS),
        )  # fmt: skip

    def _place(self, state: Any, config: Mapping[str, Any]) -> Place | None:
        thread_id = config.get("configurable", {}).get("thread_id")
        run_id = state.get(RUN) or thread_id  # a run that began before the guard was there has no name
        return self._runs.place(str(run_id), thread_id and str(thread_id)) if run_id else None
