"""Stops that a framework takes for its own: control-flow classes, and reasons that carry the trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from otel_toolguard.errors import CircuitOpen, SessionStopped

if TYPE_CHECKING:
    from otel_toolguard.core.decision import Trip


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
