"""Puts the guard on agents and hooks: the gate before each model call is ``on_llm_start``, the SDK's own channel."""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from agents import (
    Agent,
    AgentBase,
    AgentHooks,
    ItemHelpers,
    RunHooks,
    ToolApprovalItem,
    custom_span,
    get_current_trace,
)
from agents.exceptions import AgentsException

from otel_toolguard.adapter import FrameworkRuns, Recent, at_model, native, stop_of
from otel_toolguard_openai_agents._runs import GUARD, KEPT, place_of, run_of, turned
from otel_toolguard_openai_agents._tools import MARK, guarded, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard import Policy, Trip
    from otel_toolguard.adapter import Place
    from otel_toolguard.telemetry import Telemetry

A = TypeVar("A", bound=Agent[Any])


class OpenAIAgentsStopped(native(AgentsException, name="OpenAIAgentsStopped", module=__name__)):  # type: ignore[misc]
    """The run was ended before its next model call; ``partial`` is the SDK's ``run_data``, every call answered."""

    partial = property(lambda self: self.run_data, lambda self, data: setattr(self, "run_data", data))

    def to_input_list(self) -> list[Any]:
        """The history so far, as input of the next run."""
        data = self.run_data or SimpleNamespace(input=[], new_items=[])
        said = [
            each for each in data.new_items if not isinstance(each, ToolApprovalItem)
        ]  # somebody was asked, no model
        return [*ItemHelpers.input_to_new_input_list(data.input), *(each.to_input_item() for each in said)]


class Guard:
    """Judges the runs of agents; ``alone`` where agents that are tools are not guarded by themselves."""

    def __init__(self, runs: FrameworkRuns, *, alone: bool = True) -> None:
        self.runs = runs
        self._alone = alone
        self._agents: Recent[int, tuple[Any, Any]] = Recent(KEPT)

    def __deepcopy__(self, memo: Any) -> Guard:
        return self

    def __reduce__(self) -> Any:  # a run's usage may travel, its guard does not
        return type(None), ()

    def agent(self, agent: Any) -> Any:
        """A guarded copy of an agent, and of those that it may hand off to; the same for the same agent."""
        if hasattr(type(agent), MARK):
            return agent
        copied = self._agents.of(id(agent), lambda: (agent, copy.copy(agent)))[1]
        if not hasattr(type(copied), MARK):  # marked before its hand-offs are, for they may lead back here
            copied.__class__ = _kind(type(agent), self)
            for name in ("tools", "mcp_servers", "handoffs"):
                setattr(copied, name, [*getattr(agent, name)])
            self.put_on(copied)
        return copied

    def put_on(self, agent: Any) -> None:
        """Guards hooks, hand-offs and tools of a copy, those also that were put there since."""
        if not isinstance(agent.hooks, GuardedAgentHooks):
            agent.hooks = GuardedAgentHooks(self, agent.hooks)
        for name, put in (("handoffs", self._handoff), ("tools", lambda tool: guarded(tool, self.agent))):
            given = getattr(agent, name)
            made = [put(each) for each in given]
            if any(one is not was for one, was in zip(made, given, strict=True)):  # the list given is the user's
                setattr(agent, name, made)

    def inside(self, body: Any, agent: Any) -> Any:
        """The function of a tool, an agent behind it guarded."""
        return body if agent is None or not self._alone else running(body, self.agent(agent))

    def _handoff(self, given: Any) -> Any:
        if isinstance(given, AgentBase):
            return self.agent(given)
        if hasattr(given.on_invoke_handoff, MARK):
            return given
        copied, target = copy.copy(given), given._agent_ref and given._agent_ref()  # noqa: SLF001
        if target is not None:
            copied._agent_ref = weakref.ref(self.agent(target))  # noqa: SLF001  (by which stored runs find it again)

        @functools.wraps(given.on_invoke_handoff)
        async def invoke(*args: Any) -> Any:
            return self.agent(await given.on_invoke_handoff(*args))

        setattr(invoke, MARK, True)
        copied.on_invoke_handoff = invoke
        return copied

    def before(self, hook: str, said: dict[str, Any]) -> None:
        """Learns from a hook about the run, and is its gate."""
        context = said["context"]
        run = run_of(context)
        run.guard = self
        if hook == "on_llm_start":
            place = place_of(context)
            self._stop(at_model(place), place)
        elif hook == "on_llm_end":
            turned(run, said["response"])
        elif hook in ("on_end", "on_agent_end"):  # a tool's answer may be the last word, and be a refusal
            place = place_of(context)
            trip = stop_of(place)
            told = trip is not None and isinstance(said["output"], str) and said["output"] == trip.to_tool_message()
            self._stop(trip if told else None, place)
            self.runs.end(place)

    def _stop(self, trip: Trip | None, place: Place | None) -> None:
        if trip is not None:
            self.show(trip)
            self.runs.end(place)
            raise OpenAIAgentsStopped(trip)

    def show(self, trip: Trip) -> None:
        """Says in the SDK's own tracing why a circuit opened."""
        if get_current_trace() is not None:
            with custom_span("toolguard.trip", data=trip.to_dict()):
                pass


class _Chained:
    """Hooks that tell the guard first, and then the user's own."""

    def __init__(self, guard: Guard, users: Any, told: Any = None) -> None:
        self._guard, self._users, self._told = guard, users, told

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._users, name)


class GuardedAgentHooks(_Chained, AgentHooks[Any]):
    """The guard, chained to an agent's own hooks."""


class GuardedRunHooks(_Chained, RunHooks[Any]):
    """The guard, chained to a run's hooks; agents that have it themselves are left to that."""


def _calling(hook: str, original: Any) -> Any:
    names = [*inspect.signature(original).parameters][1:]

    @functools.wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> None:
        said = {**dict(zip(names, args, strict=False)), **kwargs}
        run = run_of(said["context"], starts=hook in ("on_start", "on_agent_start"))
        run.told = self._told or run.told
        own = isinstance(getattr(said.get("agent", said.get("from_agent")), "hooks", None), GuardedAgentHooks)
        if isinstance(self, GuardedRunHooks):
            guard_all_tools()
        if not own or isinstance(self, GuardedAgentHooks):
            self._guard.before(hook, said)
        if self._users is not None:
            await getattr(self._users, hook)(*args, **kwargs)

    return call


for _hooks in (GuardedAgentHooks, GuardedRunHooks):
    for _name in [name for name in dir(_hooks) if name.startswith("on_")]:
        setattr(_hooks, _name, _calling(_name, getattr(_hooks, _name)))


def with_guarded_tools(original: Any, guard: Guard | None = None) -> Any:
    """``get_all_tools`` of a class of agents, giving guarded copies."""

    @functools.wraps(original)
    async def get_all_tools(self: Any, run_context: Any) -> list[Any]:
        if guard is not None and vars(run_context.usage).get(GUARD) is None:
            vars(run_context.usage)[GUARD] = guard
        return [guarded(tool) for tool in await original(self, run_context)]

    setattr(get_all_tools, MARK, True)
    return get_all_tools


def guard_all_tools() -> None:
    """Has every agent give guarded copies of its tools, which do what the tools do where the run is not guarded."""
    if not hasattr(AgentBase.get_all_tools, MARK):
        AgentBase.get_all_tools = with_guarded_tools(AgentBase.get_all_tools)  # type: ignore[method-assign]


def _kind(base: Any, guard: Guard) -> Any:
    """The class of guarded agents: what is theirs is looked at when they are asked for all their tools, once a turn."""

    async def tools(self: Any, run_context: Any) -> Any:
        guard.put_on(self)
        return await base.get_all_tools(self, run_context)

    shown = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(base.__name__, (base,), {**shown, MARK: True, "get_all_tools": with_guarded_tools(tools, guard)})


def guard_agent(
    agent: A, *, policy: Policy | None = None, on_trip: Callable[[Trip], Any] | None = None,
    telemetry: Telemetry | None = None,
) -> A:  # fmt: skip
    """A guarded copy of an agent: its tools, those of MCP servers, agents that are tools, and hand-offs.

    Args:
        agent: Left as it is. What is changed on it later, its copy does not know.
        policy: The rules for runs outside any open ``Session``; None takes environment, file and default profile.
        on_trip: Called with the ``Trip`` of each circuit that opens in those runs.
        telemetry: Where their spans go; None is the process's OpenTelemetry providers.

    Returns:
        The copy. An agent that is guarded already is returned as it is.
    """
    made: A = Guard(FrameworkRuns(policy, on_trip, telemetry)).agent(agent)
    return made


def guarded_hooks(
    hooks: RunHooks[Any] | None = None, *, policy: Policy | None = None, on_trip: Callable[[Trip], Any] | None = None,
    telemetry: Telemetry | None = None,
) -> RunHooks[Any]:  # fmt: skip
    """Run hooks that guard every agent of a run, for where no more than these can be set; arguments as above.

    From the first call on every agent gets guarded copies of its tools; in other runs these do what the tools do.
    """
    guard_all_tools()
    runs = FrameworkRuns(policy, on_trip, telemetry)
    return hooks if isinstance(hooks, GuardedRunHooks) else GuardedRunHooks(Guard(runs), hooks)
