"""The kit for integrations: where a framework's run belongs, native stops, exact patching, the instrumentor base."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_toolguard.arguments import Binder
from otel_toolguard.attempt import Attempt, Place, here
from otel_toolguard.decorator import GuardedFunction
from otel_toolguard.errors import CircuitOpen, SessionStopped
from otel_toolguard.outcomes import Ended, failed_result
from otel_toolguard.session import Session, default_telemetry
from otel_toolguard.telemetry import Telemetry
from otel_toolguard.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from otel_toolguard.core.decision import Trip
    from otel_toolguard.settings import Policy

__all__ = [
    "Attempt", "CircuitOpen", "Ended", "FrameworkRuns", "GuardedTool", "Patches", "SessionStopped",
    "ToolGuardInstrumentor", "failed_result", "native",
]  # fmt: skip

KEPT = 256  # sessions and tools that an adapter remembers between calls; their state is in the store


def native(base: type[Exception], *, name: str, module: str) -> type[SessionStopped]:
    """A class of stop that is also one of the framework's own control-flow exceptions.

    The caller catches plain ``CircuitOpen``; the framework lets it pass as one of its own.
    """

    def init(self: Any, trip: Trip, partial: Any = None) -> None:
        base.__init__(self, trip.why)
        SessionStopped.__init__(self, trip, partial)

    return type(name, (SessionStopped, base), {"__init__": init, "__module__": module, "__doc__": native.__doc__})


class FrameworkRuns:
    """Finds the place of a framework's run.

    An open session decides; without one the framework's own conversation or run id names the session. A run inside a
    guarded call is nested in the run of that call.

    Args:
        policy: The rules for sessions that this adapter opens itself; None takes environment, file and profile.
        on_trip: Told of each trip in those sessions.
        telemetry: For those sessions; None is the process's OpenTelemetry providers.
    """

    def __init__(
        self, policy: Policy | None = None, on_trip: Callable[[Trip], Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._on_trip = on_trip
        self._telemetry = telemetry
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def place(self, run_id: str, conversation_id: str | None) -> Place:
        """Where the calls of a run are made."""
        outer = here.get()
        session = outer.session if outer is not None else None
        if session is None:
            session = self._own(conversation_id or run_id)
        place: Place = session.place(run_id, outer=outer)
        return place

    def _own(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            session = Session(
                session_id, policy=self._policy, on_trip=self._on_trip, telemetry=self._telemetry
            )
            self._sessions[session_id] = session
            while len(self._sessions) > KEPT:
                self._sessions.popitem(last=False)
        return session


class GuardedTool:
    """A framework's tool: its name, the function behind it, and what a decorator on that function says.

    Args:
        name: As the model knows it.
        body: The function that the framework will call, None if it cannot be known.
        hints: What the tool's protocol says about it.
    """

    def __init__(self, name: str, body: Any = None, hints: Mapping[str, Any] | None = None) -> None:
        self.body = body
        guarded = body if isinstance(body, GuardedFunction) else getattr(body, "__func__", None)
        told: Tool | None = guarded._self_tool if isinstance(guarded, GuardedFunction) else None
        self.tool = told.named(name) if told is not None else Tool(name, hints=hints)
        self._binder = Binder(body) if body is not None else None

    def attempt(
        self, place: Place, arguments: Mapping[str, Any] | str, *, call_id: str | None, batch: str | None = None,
        agent: str | None = None, reached: bool = True,
    ) -> Attempt:  # fmt: skip
        """Admits or refuses one call; ``arguments`` are what the model said, the raw text if it could not be parsed."""
        said: Mapping[str, Any] | str = arguments
        if self._binder is not None and not isinstance(arguments, str):
            bound = self._binder.bind(None, (), arguments)
            said = bound if "*" not in bound else arguments
        return Attempt(
            place.guard, place, self.tool, said,
            call_id=call_id, batch=batch, agent=agent, reached=reached, body=self.body,
        )  # fmt: skip


class Patches:
    """Replaces functions wherever they are bound, and puts back exactly what was there."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def replace(self, original: Any, replacement: Any) -> int:
        """Replaces each module attribute that is ``original``; call sites import functions by name."""
        for module in list(sys.modules.values()):
            names = [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is original]
            for name in names:
                setattr(module, name, replacement)
                self._undo.append((module, name, original))
        return len(self._undo)

    def restore(self) -> None:
        """Restores each binding that still is ours."""
        while self._undo:
            module, name, original = self._undo.pop()
            setattr(module, name, original)


class ToolGuardInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Base of the zero-code instrumentors; never instantiated itself, for the kit keeps one instance per class."""

    def __init__(self) -> None:
        if not hasattr(self, "_patches"):
            self._patches = Patches()

    @abstractmethod
    def instrumentation_dependencies(self) -> Collection[str]:
        """The framework's supported versions, as in a requirements file."""

    @abstractmethod
    def patch(self, patches: Patches, telemetry: Telemetry | None) -> None:
        """Replaces what has to be replaced; ``telemetry`` is for the sessions that the adapter opens itself."""

    def _instrument(self, **kwargs: Any) -> None:
        providers = {name: kwargs.get(name) for name in ("tracer_provider", "meter_provider", "logger_provider")}
        given = any(provider is not None for provider in providers.values())
        self.patch(self._patches, Telemetry(**providers) if given and default_telemetry("enforce") else None)

    def _uninstrument(self, **_kwargs: Any) -> None:
        self._patches.restore()
