"""The kit for integrations: where a framework's run belongs, native stops, exact patching, the instrumentor base."""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Self

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
    "Attempt", "CircuitOpen", "Ended", "FrameworkRuns", "GuardedTool", "GuardedTools", "Patches", "Place", "Reason",
    "SessionStopped", "ToolGuardInstrumentor", "at_model", "counted", "dealt_with", "failed_result", "native",
    "stop_in", "stop_of",
]  # fmt: skip

KEPT = 256  # sessions and runs that an adapter remembers between calls; their state is in the store
DECORATORS = 16  # looked through on one function; a proxy may claim to wrap itself


def native(base: type[Exception], *, name: str, module: str) -> type[SessionStopped]:
    """A class of stop that is also one of the framework's own control-flow exceptions.

    The caller catches plain ``CircuitOpen``; the framework lets it pass as one of its own.
    """

    def init(self: Any, trip: Trip, partial: Any = None) -> None:
        base.__init__(self, trip.why)
        SessionStopped.__init__(self, trip, partial)

    return type(name, (SessionStopped, base), {"__init__": init, "__module__": module, "__doc__": native.__doc__})


class Reason(str):
    """A trip's sentence that still carries the trip, for frameworks that take only a reason for a stop."""

    __slots__ = ("trip",)
    trip: Trip

    def __new__(cls, trip: Trip) -> Self:  # noqa: D102  (the class says it)
        reason = super().__new__(cls, trip.why)
        reason.trip = trip
        return reason


def stop_in(error: BaseException) -> CircuitOpen | None:
    """The circuit that opened inside a call, also where a framework ended a nested run with a ``Reason``."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, Reason):
        return SessionStopped(reason.trip)
    return error if isinstance(error, CircuitOpen) else None


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
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._runs: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def place(self, run_id: str, conversation_id: str | None) -> Place:
        """Where the calls of a run are made."""
        outer = here.get()
        session: Session | None = outer.session if outer is not None else None
        if session is None:
            session = self._own(run_id, conversation_id)
        self._keep(session, run_id)
        return session.place(run_id, outer=outer)

    def _own(self, run_id: str, conversation_id: str | None) -> Session:
        name = conversation_id or run_id
        with self._lock:
            session = self._sessions.get(name)
            if session is None:
                session = Session(name, policy=self._policy, on_trip=self._on_trip, telemetry=self._telemetry)
                session.guard.conversation_id = conversation_id  # a run's own id is nobody's conversation
                self._sessions[name] = session
                while len(self._sessions) > KEPT:
                    self._sessions.popitem(last=False)
        return session

    def _keep(self, session: Session, run_id: str) -> None:
        """Frameworks do not always say that a run is over: runs not heard of for long may be forgotten."""
        with self._lock:
            self._runs[session.id, run_id] = session
            self._runs.move_to_end((session.id, run_id))
            over = self._runs.popitem(last=False) if len(self._runs) > KEPT else None
        if over is not None:
            over[1].end_run(over[0][1])


def at_model(place: Place | None) -> Trip | None:
    """The gate for an adapter's model boundary: ends the turn's batch; returns why the run may go no further."""
    if place is not None and place.guard.judges:
        guard, run_id = place.guard, place.run_id
        settled = guard.transact(lambda state: guard.policy.chain.close_batch(state, run_id, guard.clock()))
        if settled.trip is not None or settled.would_trip is not None:
            guard.tell(settled.trip or settled.would_trip, None, observed_only=settled.trip is None)
    return stop_of(place)


def stop_of(place: Place | None) -> Trip | None:
    """Why a run may go no further: its own stop, or that of a run in one of whose calls it was started."""
    at = place
    while at is not None:
        trip: Trip | None = at.session.trip_of(at.run_id) if at.guard.judges else None
        if trip is not None:
            return trip
        at = at.outer
        while at is not None and at.inside is None:
            at = at.outer
    return None


def counted(run_id: str, call_id: str | None) -> bool:
    """Whether the current code is inside this very call, counted by another guard of the same agent."""
    place = here.get()
    if place is None or place.inside is None or call_id is None:
        return False
    return (place.run_id, place.inside.call.call_id) == (run_id, call_id)


def dealt_with(attempt: Attempt, error: CircuitOpen) -> bool:
    """Whether a circuit that opened inside a call, now settled, needs no more than an answer to that call.

    A refusal leaves the run going on; a stop inside has stopped this run too, whose own gate ends it.
    """
    return not isinstance(error, SessionStopped) or stop_of(attempt.place) is not None


class GuardedTool:
    """A framework's tool: its name, the function behind it, and what a decorator on that function says.

    Args:
        name: As the model knows it.
        body: The function that the framework will call, None if it cannot be known.
        hints: What the tool's protocol says about it.
        defaults: What its schema fills in where the model left something out.
    """

    def __init__(
        self, name: str, body: Any = None, hints: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        told: Tool | None = None
        self.body = body  # the innermost function: other decorators may stand between the framework and ours
        for _ in range(DECORATORS):
            for guarded in (self.body, getattr(self.body, "_self_parent", None)):  # a method is bound from its guard
                told = guarded.guarded_tool if told is None and isinstance(guarded, GuardedFunction) else told
            self.body = getattr(self.body, "__wrapped__", self.body)
        self.tool = told.named(name) if told is not None else Tool(name, hints=hints)
        self._binder = Binder(body) if body is not None else None
        self._defaults = dict(defaults or {})

    def attempt(
        self, place: Place, arguments: Mapping[str, Any] | str, *, call_id: str | None, batch: str | None = None,
        siblings: int = 0, agent: str | None = None, reached: bool = True,
    ) -> Attempt:  # fmt: skip
        """Admits or refuses one call; ``arguments`` are what the model said, the raw text if it could not be parsed."""
        said = arguments if isinstance(arguments, str) else {**self._defaults, **arguments}
        if self._binder is not None and not isinstance(said, str):
            bound = self._binder.bind(None, (), said)
            said = bound if "*" not in bound else said
        return Attempt(
            place.guard, place, self.tool, said,
            call_id=call_id, batch=batch, siblings=siblings, agent=agent, reached=reached, body=self.body,
        )  # fmt: skip


class GuardedTools:
    """What is known of a framework's tool objects; bounded, for an agent may be given new ones in each run.

    Args:
        make: Makes what is not known yet, from the name, the tool object and what else was asked with.
    """

    def __init__(self, make: Callable[..., GuardedTool]) -> None:
        self._make = make
        self._known: dict[Any, tuple[Any, GuardedTool]] = {}

    def of(self, name: str, tool: Any, **more: Any) -> GuardedTool:
        """The tool of that name; the same for the same object."""
        key = (name, id(tool), *more.values())
        known = self._known.get(key)
        if known is None or known[0] is not tool:
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[key] = (tool, self._make(name, tool, **more))
        return known[1]


class Patches:
    """Replaces functions wherever they are bound, and puts back exactly what was there."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any, Any]] = []

    def replace(self, original: Any, replacement: Any) -> int:
        """Replaces each module attribute that is ``original``; call sites import functions by name."""
        self._replaced.append((original, replacement))
        return _rebind(original, replacement)

    def replace_attribute(self, owner: type, name: str, replacement: Any) -> None:
        """Replaces what a class itself has under a name: a method is looked up there, wherever it is called from."""
        self._attributes.append((owner, name, vars(owner)[name], replacement))
        setattr(owner, name, replacement)

    def restore(self) -> None:
        """Restores each binding that is ours, also those made by imports since; leaves what others put there."""
        while self._replaced:
            original, replacement = self._replaced.pop()
            _rebind(replacement, original)
        while self._attributes:
            owner, name, original, replacement = self._attributes.pop()
            if vars(owner).get(name) is replacement:  # what others put over it since stays, and calls ours
                setattr(owner, name, original)


def _rebind(old: Any, new: Any) -> int:
    count = 0
    for module in list(sys.modules.values()):
        names = [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is old]
        for name in names:
            setattr(module, name, new)
        count += len(names)
    return count


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
        providers = [kwargs.get(name) for name in ("tracer_provider", "meter_provider", "logger_provider")]
        own = None
        if any(provider is not None for provider in providers) and default_telemetry("enforce") is not None:
            own = Telemetry(tracer_provider=providers[0], meter_provider=providers[1], logger_provider=providers[2])
        self.patch(self._patches, own)

    def _uninstrument(self, **_kwargs: Any) -> None:
        self._patches.restore()
