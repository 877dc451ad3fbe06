"""Maps tool calls to attempts; a refusal is a failed tool result, a stop is raised before the next model request."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic_ai import DeferredToolRequests
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, Instrumentation
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.toolsets import WrapperToolset

import otel_toolguard.adapter as kit
import otel_toolguard_pydantic_ai._mapping as mapping

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_ai import RunContext

    from otel_toolguard import Policy, Trip
    from otel_toolguard.telemetry import Telemetry

ANSWERS = mapping.ToolAnswers()
PydanticAIStopped = kit.native(AgentRunError, name="PydanticAIStopped", module=__name__)


class ToolGuard(AbstractCapability[Any]):
    """Guards every tool call of an agent.

    Its place among the capabilities is of no matter: it sees executions below, and model requests before, all others.
    Of several guards in one run the first is the only one.

    Args:
        policy: The rules for sessions opened here: those of runs outside any open ``Session``, named by the
            conversation id. None takes environment, file and default profile.
        on_trip: Called with the ``Trip`` of each circuit that opens in those sessions.
        telemetry: Where their spans go; None is the process's OpenTelemetry providers.
    """

    toolguard_guards = True  # by which assert_guarded knows it

    def __init__(
        self, policy: Policy | None = None, *, on_trip: Callable[[Trip], Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        self._runs = kit.FrameworkRuns(policy, on_trip, telemetry)
        self._tools = kit.GuardedTools(mapping.guarded_tool)
        self._continued: kit.Recent[str, str] = kit.Recent(256)  # of runs that a pause divided, by the later, the first
        self._first, self._siblings = "", 0  # of such runs; calls of a run's current turn
        self.offered: dict[str, Any] | None = None  # the tools of a run's current step

    def get_ordering(self) -> CapabilityOrdering:
        """Before all others: a request that is not made has no span, and no other capability pays for it."""
        return CapabilityOrdering(position="outermost", wraps=[Instrumentation])

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """The guard of one run; nothing where the run has one."""
        if id(ctx.messages) in _guarding:
            return AbstractCapability()
        mine = _guarding[id(ctx.messages)] = copy.copy(self)
        vars(mine)["messages"] = ctx.messages  # held, so that no other run's list gets that id
        return mine

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> Any:
        """Notes the end of a run; one that waits for somebody is none."""
        waits = False
        try:
            result = await handler()
            waits = isinstance(result.output, DeferredToolRequests)
        finally:
            if not waits:
                self._runs.end(self._place(ctx))
        return result

    def get_wrapper_toolset(self, toolset: Any) -> GuardedToolset:
        """Around the tools themselves, below whatever the user put around their execution."""
        return GuardedToolset(toolset, self)

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """The gate: a stopped run makes no further model call."""
        trip = kit.at_model(self._place(ctx))
        if trip is not None:
            kept = {name: getattr(ctx, name) for name in ("messages", "run_id", "conversation_id", "usage")}
            raise PydanticAIStopped(trip, kept | {"messages": list(ctx.messages)})
        return request_context

    async def wrap_model_request(self, ctx: RunContext[Any], *, request_context: Any, handler: Any) -> Any:
        """The gate, before others around the request begin; then counts calls of tools that there are not."""
        await self.before_model_request(ctx, request_context)
        self._siblings = 0
        response: ModelResponse = await handler(request_context)
        offered, shown = self.offered or {}, request_context.model_request_parameters.tool_defs
        unknown = [call for call in response.tool_calls if call.tool_name not in {**offered, **shown}]
        kinds = [offered[call.tool_name].tool_def.kind for call in response.tool_calls if call.tool_name in offered]
        self._siblings = len(unknown) + kinds.count("function")  # others wait for a person, or end the run
        for call in unknown if self.offered is not None else ():
            attempt = self.attempt(ctx, call.tool_name, None, call.args, call.tool_call_id, reached=False)
            if attempt.refused is None:
                attempt.returned(None, kit.failed_result(f"there is no tool {call.tool_name!r}"))
        return response

    async def on_tool_validate_error(self, ctx: RunContext[Any], *, error: Any, call: Any, args: Any, **_: Any) -> Any:
        """Counts a call whose arguments were not valid."""
        tool = (self.offered or {}).get(call.tool_name)
        attempt = self.attempt(ctx, call.tool_name, tool, args, call.tool_call_id, reached=False)
        if attempt.refused is not None:
            ANSWERS.refusal(attempt.error())
        attempt.returned(None, mapping.invalid(error))
        raise error

    def attempt(
        self, ctx: RunContext[Any], name: str, tool: Any, arguments: Any, call_id: str | None, *, reached: bool = True
    ) -> kit.Attempt:
        """Admits or refuses one call."""
        asked = next((one.run_id for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None)
        if ctx.run_step == 0 and asked is not None and not self._first:  # it waited for a person, and its run goes on
            self._first = self._continued.get(asked) or asked
            self._continued.of(str(ctx.run_id), lambda: self._first)
        place = self._place(ctx)
        if tool is not None and not reached:
            place = mapping.place_of_invalid(place, ctx.root_capability)
        return self._tools.of(name, mapping.source_of(tool)).attempt(
            place, kit.asked(arguments), call_id=call_id, batch=f"{ctx.run_id}:{ctx.run_step}",
            siblings=self._siblings, agent=getattr(ctx.agent, "name", None), reached=reached,
        )  # fmt: skip

    def _place(self, ctx: RunContext[Any]) -> kit.Place:
        return self._runs.place(self._first or str(ctx.run_id), ctx.conversation_id)


_guarding: WeakValueDictionary[int, ToolGuard] = WeakValueDictionary()  # by the list that a run keeps its messages in


@dataclass
class GuardedToolset(WrapperToolset[Any]):
    """Runs each call of a run's tools, or answers why it was not run."""

    guard: ToolGuard

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, Any]:
        """The tools of a step."""
        self.guard.offered = await self.wrapped.get_tools(ctx)
        return self.guard.offered

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        """Runs the call, or answers why it was not run."""
        attempt = self.guard.attempt(ctx, name, tool, tool_args, ctx.tool_call_id)
        return await kit.made_async(attempt, ANSWERS, lambda: self.wrapped.call_tool(name, tool_args, ctx, tool))
