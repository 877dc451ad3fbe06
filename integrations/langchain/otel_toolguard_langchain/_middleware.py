"""Maps LangChain's tool calls to attempts, and decisions to what LangChain understands.

A refused call is answered with an error ``ToolMessage``, so that each call id of the history has its answer; the stop
is raised at the next ``before_model``, as a ``GraphBubbleUp``: LangGraph, retry and error middleware let those pass.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, get_args

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

from otel_toolguard.adapter import (
    Attempt,
    FrameworkRuns,
    GuardedTools,
    Place,
    Reason,
    at_model,
    counted,
    dealt_with,
    native,
    stop_in,
)  # fmt: skip
from otel_toolguard_langchain._mapping import advise, ended, guarded_tool, refusal, said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.runtime import Runtime

    from otel_toolguard import Policy, Trip
    from otel_toolguard.telemetry import Telemetry

StopBy = Literal["raise", "drain", "end", "interrupt"]
RUN = "toolguard_run"

LangChainStopped = native(GraphBubbleUp, name="LangChainStopped", module=__name__)


class GuardState(AgentState[Any]):
    """The run's id, kept in the agent's private state so that a resumed run is the same run."""

    toolguard_run: NotRequired[Annotated[str, PrivateStateAttr]]


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

    state_schema = GuardState

    def __init__(
        self, policy: Policy | None = None, *, stop: StopBy = "raise", on_trip: Callable[[Trip], Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if stop not in get_args(StopBy):
            raise ValueError(f"unknown stop {stop!r}; valid are {', '.join(get_args(StopBy))}")
        self._stop = stop
        self._runs = FrameworkRuns(policy, on_trip, telemetry)
        self._tools = GuardedTools(guarded_tool)

    def before_agent(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Names the run."""
        return {RUN: secrets.token_hex(8)}

    async def abefore_agent(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Names the run."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The gate: a stopped run makes no further model call."""
        config = get_config()
        trip = at_model(self._place(state, config))
        if trip is None:
            return None
        if self._stop == "end":
            last = AIMessage(content=f"Stopped: {trip.why}", response_metadata={"toolguard": trip.to_dict()})
            return {"jump_to": "end", "messages": [last]}
        if self._stop == "interrupt":
            interrupt(trip.to_dict())
        control = getattr(runtime, "control", None)
        if self._stop == "drain" and control is not None:
            control.request_drain(Reason(trip))
            return None
        kept = {name: config.get("configurable", {}).get(name) for name in ("thread_id", "checkpoint_id")}
        raise LangChainStopped(trip, {"messages": list(state["messages"]), **kept})

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: GuardState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The gate: a stopped run makes no further model call."""
        return self.before_model(state, runtime)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Runs the call, or answers why it was not run."""
        with self._call(request, asynchronous=False) as call:
            if call.answer is None:
                call.answer = handler(request)
        return call.answer

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Runs the call, or answers why it was not run."""
        with self._call(request, asynchronous=True) as call:
            if call.answer is None:
                call.answer = await handler(request)
        return call.answer

    @contextmanager
    def _call(self, request: ToolCallRequest, *, asynchronous: bool) -> Iterator[SimpleNamespace]:
        call, attempt = SimpleNamespace(answer=None), self._attempt(request, asynchronous=asynchronous)
        if attempt is None or attempt.refused is not None:
            call.answer = refusal(request, attempt.error()) if attempt is not None else None
            yield call
            return
        attempt.enter()
        try:
            yield call
        except BaseException as error:
            attempt.leave()
            opened = stop_in(error)
            attempt.raised(opened or error)
            if opened is None or not dealt_with(attempt, opened):
                raise
            call.answer = refusal(request, opened)
        else:
            attempt.leave()
            attempt.returned(said(call.answer), ended(call.answer))
            advise(call.answer, attempt.nudges)

    def _attempt(self, request: ToolCallRequest, *, asynchronous: bool) -> Attempt | None:
        call, config = request.tool_call, request.runtime.config
        place = self._place(request.state, config)
        if place is None or counted(place.run_id, call["id"]):
            return None
        asking = next((one for one in reversed(request.state["messages"]) if isinstance(one, AIMessage)), AIMessage(""))
        return self._tools.of(call["name"], request.tool, asynchronous=asynchronous).attempt(
            place,
            call["args"] if isinstance(call["args"], dict) else str(call["args"]),
            call_id=call["id"], batch=asking.id, siblings=len(asking.tool_calls),
            agent=(config.get("metadata") or {}).get("lc_agent_name"),
            reached=request.tool is not None,
        )  # fmt: skip

    def _place(self, state: Any, config: Mapping[str, Any]) -> Place | None:
        thread_id = config.get("configurable", {}).get("thread_id")
        run_id = state.get(RUN) or thread_id  # a run that began before the guard was there has no name
        return self._runs.place(str(run_id), thread_id and str(thread_id)) if run_id else None
