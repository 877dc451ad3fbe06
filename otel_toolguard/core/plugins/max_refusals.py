"""``max_refusals``: the model was told why, and asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.state import RunState


class MaxRefusals:
    """Turns refusals of single calls into a stop of the run.

    Args:
        limit: Refusals in a row, with no admitted call between; those of one batch count once.
        total: Refusals in the run; None for no such limit.
    """

    name = "max_refusals"

    def __init__(self, limit: int, *, total: int | None = None) -> None:
        self.limit = limit
        self.total = total

    def start(self) -> dict[str, int]:
        """Counted refusals of the run."""
        return {"total": 0}

    def refused(self, mine: dict[str, int], run: RunState, call: ToolCall, counted: bool) -> Finding | None:
        """A finding when this refusal was one too many."""
        if counted:
            mine["total"] += 1
        if run.refused_in_row >= self.limit:
            return self._finding(run.refused_in_row, self.limit, "in a row", "limit")
        if self.total is not None and mine["total"] >= self.total:
            return self._finding(mine["total"], self.total, "in this run", "total")
        return None

    def _finding(self, observed: int, limit: int, how: str, setting: str) -> Finding:
        return Finding(
            self.name, observed / limit, limit=limit, observed=observed, loop_type="refused_too_often",
            why=f"Calls were refused {observed} times {how}, and the agent asked again; "
            f"max_refusals {setting} = {observed + 1} would have allowed it.",
        )  # fmt: skip
