"""Tools called outside agents, guarded by LangChain's callbacks."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolCall

from otel_toolguard.adapter import AnyOf, FrameworkRuns, GuardedTool, SessionStopped, at_model, here, stop_in
from otel_toolguard_langchain._mapping import Answered, LangChainStopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from otel_toolguard import Policy, Trip
    from otel_toolguard.adapter import Attempt, Place
    from otel_toolguard.telemetry import Telemetry

_running: dict[UUID, Attempt] = {}  # of all handlers: two on one call count it once
_OUTPUT = Answered(ToolCall(name="", args={}, id=None))


class ToolGuardCallbackHandler(BaseCallbackHandler):
    """Guards tools that are called with it: ``tool.invoke(arguments, {"callbacks": [handler]})``.

    A refused call raises ``CircuitOpen``; so does, given to a model too, the next call of that in a stopped run. What
    middleware, wrappers or a decorator further out count is left to them. Without an open ``Session`` the handler
    itself is the run, and the thread id, if any, names its session.

    Args:
        policy: The rules for sessions opened here; None takes environment, file and default profile.
        on_trip: Called with the ``Trip`` of each circuit that opens in those sessions.
        telemetry: Where their spans go; None is the process's OpenTelemetry providers.
    """

    raise_error = run_inline = True

    def __init__(
        self, policy: Policy | None = None, *, on_trip: Callable[[Trip], Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        self._runs = FrameworkRuns(policy, on_trip, telemetry)
        self._id = secrets.token_hex(8)

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, metadata: Any = None, inputs: Any = None,
        tool_call_id: str | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """Admits the call, or raises why it is not run."""
        name = serialized["name"]
        if run_id in _running or _is_counted(name, tool_call_id):
            return
        known = GuardedTool(name)
        known.body = AnyOf(name)  # LangChain does not say which tool object it is
        said = input_str if inputs is None else inputs
        attempt = known.attempt(self._place(metadata), said, call_id=tool_call_id)
        if attempt.refused is not None:
            error = attempt.error()
            raise LangChainStopped(error.trip) if isinstance(error, SessionStopped) else error
        _running[run_id] = attempt
        attempt.enter()

    def on_tool_end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        """Settles a call that returned."""
        attempt = _running.pop(run_id, None)
        if attempt is not None:
            attempt.leave()
            attempt.returned(_OUTPUT.said(output), _OUTPUT.ended(output))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Settles a call that raised."""
        attempt = _running.pop(run_id, None)
        if attempt is not None:
            attempt.leave()
            attempt.raised(stop_in(error) or error)

    def on_chat_model_start(self, serialized: Any, messages: Any, *, metadata: Any = None, **more: Any) -> None:
        """The gate: a stopped run makes no further model call; a tool's own model is its affair."""
        place = self._place(metadata)
        trip = at_model(place) if place.inside is None else None
        if trip is not None:
            raise LangChainStopped(trip, {"messages": list(messages[0])})

    on_llm_start = on_chat_model_start  # type: ignore[assignment]

    def _place(self, metadata: Any) -> Place:
        thread_id = (metadata or {}).get("thread_id")
        return here.get() or self._runs.place(self._id, thread_id and str(thread_id))


def _is_counted(name: str, call_id: str | None) -> bool:
    """Whether a middleware or wrapper counts this very call."""
    inside = getattr(here.get(), "inside", None)
    return call_id is not None and inside is not None and (inside.call.tool, inside.call.call_id) == (name, call_id)
