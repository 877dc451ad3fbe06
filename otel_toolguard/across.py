"""Runs inside a call of another session: they draw on its ceilings, and a stop anywhere stops the whole tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.core.nesting import draw, give_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.core.state import SessionState

Place = Any  # otel_toolguard.place.Place, which knows of attempts, which know of this


def calls_around(place: Place) -> Iterator[Place]:
    """The calls of other sessions in whose bodies a place is, the nearest first, one of each session."""
    seen = {place.guard.session_id}
    around = place.outer
    while around is not None:
        guard = around.guard
        if around.inside is not None and guard.session_id not in seen and guard.judges:
            seen.add(guard.session_id)
            yield around
        around = around.outer


def drawn(place: Place, call: ToolCall) -> bool:
    """Counts a call in every session around it; False where one allows no more, which stops the run of the place."""
    counted: list[Place] = []
    for around in calls_around(place):
        trip, fresh = _draw(around, call)
        if trip is not None:
            returned(counted, call)
            if fresh:
                around.guard.tell(trip, None)
            _stop(place, trip)
            return False
        counted.append(around)
    return True


def returned(counted: list[Place], call: ToolCall) -> None:
    """Takes back what was counted for a call that does not run after all."""
    for around in counted:
        around.guard.transact(give_back, around.run_id, call)


def hand_up(place: Place, trip: Trip) -> None:
    """Stops the runs of other sessions in one of whose calls a run was stopped."""
    for around in calls_around(place):
        around.guard.transact(around.guard.chain.adopt, around.run_id, trip)


def _draw(around: Place, call: ToolCall) -> tuple[Trip | None, bool]:
    guard = around.guard

    def step(state: SessionState) -> tuple[Trip | None, bool]:
        return draw(guard.chain, state, around.run_id, call, guard.clock())

    found: tuple[Trip | None, bool] = guard.transact(step)
    return found


def _stop(place: Place, trip: Trip) -> None:
    guard = place.guard

    def step(state: SessionState) -> None:
        state.run(place.run_id, place.above)
        guard.chain.adopt(state, place.run_id, trip)

    guard.transact(step)
