"""``max_in_flight``: how many calls may run at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.state import RunState


class MaxInFlight:
    """Refuses the one call that is over, and remembers nothing: once another call has ended it may be asked for again.

    Nothing is tripped, so that nothing is logged and ``on_trip`` is not called; the refusal counts for ``max_refusals``
    as any other does (those of one batch once).

    Args:
        limit: Calls that may run at the same time.
        scope: "run": those of one run; "session": those of all its runs. A call in which a nested run has started is
            not counted against that run, or a sub-agent could never call anything.
    """

    name = "max_in_flight"

    def __init__(self, limit: int, *, scope: Literal["run", "session"] = "run") -> None:
        self.limit = limit
        self.scope = scope

    def admit(self, mine: Any, run: RunState, call: ToolCall) -> Finding | None:
        """A finding where as many calls are running as may; there is no warning before."""
        running = len(run.flight)
        if self.scope == "session":
            running = run.session.in_flight - sum(1 for _ in run.lineage()) + 1
        if running < self.limit:
            return None
        return Finding(
            self.name, scope="signature", limit=self.limit, observed=running, retryable=True, passing=True,
            why=f"{running} calls of this {self.scope} are running; "
            f"max_in_flight limit = {running + 1} would have allowed one more.",
        )  # fmt: skip
