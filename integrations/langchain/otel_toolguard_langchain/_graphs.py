"""Tools in graphs of one's own: a ``ToolNode`` guarded by its wrappers, and a gate before each step of the graph.

Such a graph has no hook before the model. LangChain tells its callbacks of each node that is about to start, whatever
the node does, and of each model that is about to be called: one handler for the process ends stopped runs there.
"""

from __future__ import annotations

import functools
import secrets
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphInterrupt
from langgraph.runtime import get_runtime
from langgraph.types import Command, Interrupt

from otel_toolguard.adapter import Place, Reason, Recent, at_model, here, stop_of
from otel_toolguard_langchain._mapping import show, stopped
from otel_toolguard_langchain._middleware import ToolGuardMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from langgraph.prebuilt.tool_node import ToolCallRequest

    from otel_toolguard import Policy, Trip
    from otel_toolguard.adapter import FrameworkRuns
    from otel_toolguard.telemetry import Telemetry

KEPT = 4096  # nodes and runs that are remembered
NODE = "langgraph_checkpoint_ns"  # of the metadata of all that happens in one execution of a node


def tool_node_wrappers(
    policy: Policy | None = None, *, stop: str = "raise", on_trip: Callable[[Trip], Any] | None = None,
    telemetry: Telemetry | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Guards a ``ToolNode`` of a graph: ``ToolNode(tools, **tool_node_wrappers())``, made before the graph is run.

    Args:
        policy: As for ``ToolGuardMiddleware``, like the others.
        stop: How a stopped run ends, before its next step: "raise", "drain" or "interrupt".
        on_trip: Called with the ``Trip`` of each circuit that opens in sessions opened here.
        telemetry: Where their spans go.

    Raises:
        ValueError: ``stop`` has no valid value; a graph of one's own has no normal end to jump to.
    """
    guard = _NodeGuard(policy, stop=stop, on_trip=on_trip, telemetry=telemetry)  # type: ignore[arg-type]
    _watch()
    return {"wrap_tool_call": guard.wrap_tool_call, "awrap_tool_call": guard.awrap_tool_call}


def guarding(original: Any, telemetry: Telemetry | None, by_middleware: ContextVar[bool]) -> Any:
    """``ToolNode.__init__`` that puts the wrappers on, within any that the user gave; the node of an agent has ours."""
    wrappers = tool_node_wrappers(telemetry=telemetry)

    @functools.wraps(original)
    def init(node: Any, *args: Any, **kwargs: Any) -> None:
        users = {name: kwargs.get(name) for name in wrappers}
        guarded = any(isinstance(getattr(one, "__self__", None), _NodeGuard) for one in users.values())
        if not guarded and not by_middleware.get():
            kwargs |= {name: _within(users[name], ours) for name, ours in wrappers.items()}
            if users["wrap_tool_call"] is not None and users["awrap_tool_call"] is None:
                kwargs["awrap_tool_call"] = None  # a sync wrapper alone is used for both
        original(node, *args, **kwargs)

    return init


def _within(users: Any, ours: Any) -> Any:
    """Our wrapper around the call, the user's around ours."""
    if users is None:
        return ours
    return functools.wraps(users)(lambda request, handler: users(request, functools.partial(_inner, ours, handler)))


def _inner(ours: Any, handler: Any, request: ToolCallRequest) -> Any:
    return ours(request, handler)


class _NodeGuard(ToolGuardMiddleware):
    """The middleware's way with a call, in a run that the gate knows."""

    _stops = ("raise", "drain", "interrupt")

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        answer = super().wrap_tool_call(request, handler)
        self._drain(request)
        return answer

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        answer = await super().awrap_tool_call(request, handler)
        self._drain(request)
        return answer

    def _drain(self, request: ToolCallRequest) -> None:
        control: Any = getattr(get_runtime(), "control", None) if self._stop == "drain" else None
        trip = stop_of(self._place(request.state, request.runtime.config)) if control is not None else None
        if trip is not None:
            control.request_drain(Reason(trip))

    def _place(self, state: Any, config: Mapping[str, Any]) -> Place | None:
        told = config.get("metadata") or {}
        run = GATE.nodes.get(told.get(NODE))
        if run is None:  # no node of a graph that was started since
            return here.get()
        thread_id = config.get("configurable", {}).get("thread_id")
        run.place = self._runs.place(run.id, thread_id and str(thread_id))
        run.stop, run.node, run.runs = self._stop, told[NODE], self._runs
        run.paused = None
        run.handlers = getattr(config.get("callbacks"), "handlers", ())
        return run.place


class _Run:
    """One run of a graph, by LangChain's id of that; and by whom, where and when a tool was called in it last."""

    place: Place | None = None
    runs: FrameworkRuns | None = None
    stop = node = ""
    paused: UUID | None = None
    handlers: Any = ()

    def __init__(self, graph: UUID) -> None:
        self.id = secrets.token_hex(8)
        self.graph = graph


class ToolGuardGate(BaseCallbackHandler):
    """Lets a stopped run take no further step, and call no further model; what runs beside a tool goes on."""

    raise_error = run_inline = True

    def __init__(self) -> None:
        self.nodes: Recent[Any, _Run] = Recent(KEPT)
        self._steps: Recent[str, int] = Recent(KEPT)  # of nodes
        self._chains: Recent[UUID, _Run] = Recent(KEPT)  # what runs in a graph, graphs in its nodes included
        self._threads: Recent[Any, _Run] = Recent(KEPT)
        self._continued: Recent[UUID, bool] = Recent(KEPT)

    def __deepcopy__(self, memo: Any) -> ToolGuardGate:
        return self  # a copied configuration is that of the same process

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, metadata: Any = None,
        **more: Any,
    ) -> None:  # fmt: skip
        """The gate before a node of a later step."""
        told = metadata or {}
        if inputs is None or isinstance(inputs, Command):
            self._continued.of(run_id, lambda: True)
        if parent_run_id is None:
            return
        run = self._chains.get(parent_run_id)
        if NODE in told and more.get("name") == told.get("langgraph_node"):
            run = run or self._chains.of(parent_run_id, lambda: self._run(parent_run_id, told))
            self.nodes.of(told[NODE], lambda: run)
            self._steps.of(told[NODE], lambda: told.get("langgraph_step", 0))
            if self._is_later(told[NODE], run.node):
                self._pass(run, inputs, told)
        if run is not None:
            self._chains.of(run_id, lambda: run)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **more: Any) -> None:
        """Lets go of what belongs to a run's caller."""
        self._continued.pop(run_id)
        run = self._chains.pop(run_id)
        if run is not None and run.graph == run_id:
            run.handlers = ()

    on_chain_error = on_chain_end  # type: ignore[assignment]

    def on_chat_model_start(self, serialized: Any, messages: Any, *, metadata: Any = None, **more: Any) -> None:
        """The gate before a model that is called by the same node or function as the tools, and by no tool."""
        told = metadata or {}
        run = self.nodes.get(told.get(NODE))
        if run is None or run.place is None:
            return
        is_task = told.get("langgraph_path", ())[-1:] == (True,)  # of the functional API, which has but one step
        inside = getattr(here.get(), "inside", None)
        if (is_task or told[NODE] == run.node) and (inside is None or inside.run_id != run.place.run_id):
            self._pass(run, messages[0], told)

    on_llm_start = on_chat_model_start  # type: ignore[assignment]

    def _is_later(self, node: str, tools: str) -> bool:
        """Whether a node is of a later step than the last tools, or lies in one that is; nodes beside them are not."""
        for one, other in zip(_path(node), _path(tools), strict=False):
            if one != other:
                return (self._steps.get(one) or 0) > (self._steps.get(other) or 0)
        return False

    def _run(self, graph: UUID, told: Mapping[str, Any]) -> _Run:
        """A new run; where a thread goes on from where it was left, the one of then."""
        thread = (told.get("thread_id"), told[NODE].rpartition("|")[0])
        if graph not in self._continued:
            self._threads.pop(thread)
        run = self._threads.of(thread, lambda: _Run(graph)) if thread[0] is not None else _Run(graph)
        run.graph = graph
        return run

    def _pass(self, run: _Run, state: Any, told: Mapping[str, Any]) -> None:
        trip = at_model(run.place)
        if trip is None:
            return
        show(trip, run.handlers, run.graph)
        if run.stop == "interrupt" and run.paused in (None, run.graph):  # not yet resumed, without a reset
            run.paused = run.graph
            raise GraphInterrupt((Interrupt.from_ns(trip.to_dict(), told[NODE]),))
        if run.runs is not None:
            run.runs.end(run.place)
        raise stopped(trip, state, told)


def _path(node: str) -> list[str]:
    """A node, after those that its graph is in."""
    parts = node.split("|")
    return ["|".join(parts[: end + 1]) for end in range(len(parts))]


GATE = ToolGuardGate()


@functools.cache
def _watch() -> None:
    register_configure_hook(ContextVar("otel_toolguard_langchain", default=GATE), inheritable=True)
