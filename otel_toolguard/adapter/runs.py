"""Where a framework's run belongs, and the gates of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter.recent import Recent
from otel_toolguard.errors import CircuitOpen
from otel_toolguard.guard import unfelt
from otel_toolguard.place import Place, here
from otel_toolguard.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.core.decision import Trip
    from otel_toolguard.settings import Policy
    from otel_toolguard.telemetry import Telemetry

KEPT = 256  # sessions and runs that an adapter remembers between calls; their state is in the store


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
        self._sessions: Recent[str, Session] = Recent(KEPT)
        self._runs: Recent[tuple[str, str], Session] = Recent(KEPT, lambda key, session: _ended(session, key[1]))

    def place(self, run_id: str, conversation_id: str | None) -> Place:
        """Where the calls of a run are made."""
        outer = here.get()
        session: Session | None = outer.session if outer is not None else None
        if session is None:
            session = self._sessions.of(conversation_id or run_id, lambda: self._own(run_id, conversation_id))
        found = self._runs.of((session.id, run_id), lambda: session)
        return found.place(run_id, outer=outer)

    def end(self, place: Place | None) -> None:
        """Notes that a framework's run is over, if it is guarded; where nobody says so it is, once long unheard of."""
        if place is not None and self._runs.pop((place.session.id, place.run_id)) is not None:
            _ended(place.session, place.run_id)

    def _own(self, run_id: str, conversation_id: str | None) -> Session:
        name = conversation_id or run_id
        session = Session(name, policy=self._policy, on_trip=self._on_trip, telemetry=self._telemetry)
        session.guard.conversation_id = conversation_id  # a run's own id is nobody's conversation
        return session


def _ended(session: Session, run_id: str) -> None:
    try:
        session.end_run(run_id)
    except Exception as fault:  # a store that is away
        unfelt("end a run", fault)


def at_model(place: Place | None) -> Trip | None:
    """The gate for an adapter's model boundary: ends the turn's batch; returns why the run may go no further.

    A store that is away stops nobody here; one that refuses, by a ``CircuitOpen``, does.
    """
    try:
        if place is not None and place.guard.judges:
            guard, run_id = place.guard, place.run_id
            settled = guard.transact(guard.chain.close_batch, run_id, guard.clock())
            if settled.trip is not None or settled.would_trip is not None:
                guard.tell(settled.trip or settled.would_trip, None, observed_only=settled.trip is None)
    except CircuitOpen:
        raise
    except Exception as fault:
        unfelt("end a turn", fault)
    return stop_of(place)


def stop_of(place: Place | None) -> Trip | None:
    """Why a run may go no further: its own stop, or that of a run in one of whose calls it was started."""
    at = place
    while at is not None:
        trip = _trip_of(at) if at.guard.judges else None
        if trip is not None:
            return trip
        at = at.outer
        while at is not None and at.inside is None:
            at = at.outer
    return None


def _trip_of(place: Place) -> Trip | None:
    try:
        found: Trip | None = place.session.trip_of(place.run_id)
    except CircuitOpen:
        raise
    except Exception as fault:
        unfelt("look for a stop", fault)
        return None
    return found


def counted(run_id: str, call_id: str | None) -> bool:
    """Whether the current code is inside this very call, counted by another guard of the same agent."""
    place = here.get()
    if place is None or place.inside is None or call_id is None:
        return False
    return (place.run_id, place.inside.call.call_id) == (run_id, call_id)
