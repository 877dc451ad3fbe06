"""What the library raises and warns with.

ToolGuardError (RuntimeError)
 ├─ CircuitOpen            a guarded call was not run; siblings may be
 │   └─ SessionStopped     nothing more of this run (or session) may be
 ├─ SettingsError          a setting that cannot be honoured
 └─ SessionMissing         a guarded call outside any session, in strict mode
SettingsWarning (UserWarning)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.decision import Trip

if TYPE_CHECKING:
    from otel_toolguard.records import TripModel

FACE = "otel_toolguard"  # the module that users import from: every host writes the same error.type


class ToolGuardError(RuntimeError):
    """Base of all errors of this library.

    A RuntimeError, because the retry policies of agent frameworks leave those alone by default.
    """


class CircuitOpen(ToolGuardError):
    """A call was refused before its body.

    Attributes:
        trip: Why, in full.
        partial: What the framework could save of the run (run data, kept messages, a checkpoint id); None with the
            bare decorator.
    """

    def __init__(self, trip: Trip, partial: Any = None) -> None:
        super().__init__(trip.why)
        self.trip = trip
        self.partial = partial

    def to_dict(self) -> dict[str, Any]:
        """The trip as JSON values."""
        return self.trip.to_dict()

    def model(self) -> TripModel:
        """The trip as a pydantic model."""
        from otel_toolguard.records import TripModel  # noqa: PLC0415  (pydantic costs start-up time; few need it)

        # A lone surrogate in a name would make the model impossible to write as JSON.
        clean = json.dumps(self.to_dict(), ensure_ascii=False).encode("utf-8", "replace")
        return TripModel.model_validate_json(clean)

    def to_tool_message(self) -> str:
        """What to tell the model instead of a result: JSON of at most 600 characters, no argument values."""
        return self.trip.to_tool_message()

    def __reduce__(self) -> tuple[Any, ...]:
        # A framework's own subclass is local to one process; what travels is what every process knows.
        known = next(base for base in type(self).__mro__ if base.__module__ == FACE)
        return known, (self.trip, _portable(self.partial))


class SessionStopped(CircuitOpen):
    """The run, or the whole session, has ended: every later guarded call of its tree is refused too."""


class SettingsError(ToolGuardError, ValueError):
    """A setting that cannot be honoured; the text names the place and the valid choices."""


class SessionMissing(ToolGuardError):
    """A guarded call was made outside any session, and ``strict`` forbids that."""


class SettingsWarning(UserWarning):
    """A setting that can be honoured but will hardly do what was meant."""


def find_trip(error: BaseException | None) -> Trip | None:
    """The trip behind an exception, even where a framework wrapped it or put it into a group; None if there is none."""
    queue, seen = [error], set[int]()
    while queue:
        here = queue.pop(0)
        if here is None or id(here) in seen:
            continue
        seen.add(id(here))
        for holder in (here, _attribute(here, "reason")):  # a framework may take only a reason for its own stop
            trip = _attribute(holder, "trip")
            if isinstance(trip, Trip):
                return trip
        grouped = here.exceptions if isinstance(here, BaseExceptionGroup) else ()
        queue += [here.__cause__, here.__context__, *grouped]
    return None


def _attribute(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:  # a stranger's property may raise anything
        return None


def _portable(partial: Any) -> Any:
    import pickle  # noqa: PLC0415

    try:
        pickle.dumps(partial)
    except Exception:
        return None
    return partial


for _error in (ToolGuardError, CircuitOpen, SessionStopped, SettingsError, SessionMissing, SettingsWarning):
    _error.__module__ = FACE
