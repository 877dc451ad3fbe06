"""Where in the tree of runs and calls the current code is."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_toolguard.attempt import Attempt
    from otel_toolguard.guard import Guard


class Place:
    """One place of that tree.

    Attributes:
        guard: Judges the calls made here.
        run_id: The run they belong to.
        above: The run inside one of whose calls this run started, None for a run of its own.
        inside: The guarded call whose body is running, None outside any: such a call is the place of its body.
        last: The run that was begun last from here: this one, or a framework's run inside this block.
        outer: The place to go back to.
        session: The session object that opened this place, None if an adapter did.
    """

    __slots__ = ("above", "guard", "last", "outer", "run_id", "session")
    inside: Attempt | None = None

    def __init__(
        self, guard: Guard, run_id: str, *, above: str | None = None, outer: Place | None = None, session: Any = None
    ) -> None:
        self.guard = guard
        self.run_id = run_id
        self.above = above
        self.last = run_id
        self.outer = outer
        self.session = session


here: ContextVar[Place | None] = ContextVar("otel_toolguard.here", default=None)
