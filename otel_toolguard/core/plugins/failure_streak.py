"""``failure_streak``: failures of one tool in a row, whatever the arguments; only a success of that tool clears it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from otel_toolguard.core.decision import Finding, next_whole, share_of
from otel_toolguard.core.overrides import limit_of, setting_of

if TYPE_CHECKING:
    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState

TOOLS_KEPT = 256


class FailureStreak:
    """Counts failures per tool; calls that never reached a tool are left out, for their "tool" can never succeed.

    Args:
        limit: Failures in a row.
        across_tools: True to count all tools together, so that a success of any tool clears the streak.
        on_limit: "stop" ends the run; "nudge" has the model told, and the streak starts again.
    """

    name = "failure_streak"
    advice = "Calls keep failing in a row: read the errors and change the approach, or report what is in the way."

    def __init__(self, limit: int, *, across_tools: bool = False, on_limit: Literal["stop", "nudge"] = "stop") -> None:
        self.limit = limit
        self.across_tools = across_tools
        self.on_limit = on_limit

    def start(self) -> dict[str, float]:
        """Streaks by tool."""
        return {}

    def settle(self, mine: dict[str, float], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """A finding once half the limit is used."""
        if call.neutral or not call.reached:
            return None
        tool = "*" if self.across_tools else call.tool
        if outcome.kind == "ok":
            mine.pop(tool, None)
        if outcome.kind != "failed" or outcome.echo:
            return None
        if tool not in mine and len(mine) >= TOOLS_KEPT:
            del mine[next(iter(mine))]
        streak = mine[tool] = mine.get(tool, 0) + outcome.weight
        limit = limit_of(call.overrides, self.name, self.limit)
        share = share_of(limit, streak)
        if share < 0.5:
            return None
        if share >= 1 and self.on_limit == "nudge":
            del mine[tool]
            what = "Calls" if self.across_tools else call.tool[:80]
            return Finding(
                self.name, limit=limit, observed=round(streak, 2),
                nudge=f"{what} failed {streak:.4g} times in a row: read the errors and change the approach, or report "
                f"what is in the way.",
            )  # fmt: skip
        return Finding(
            self.name, share, limit=limit, observed=round(streak, 2), loop_type="error_storm",
            why=f"{call.tool if not self.across_tools else 'Tools'} failed {streak:.4g} times in a row, with whatever "
            f"arguments{' (transient failures count a third)' if outcome.failure == 'transient' else ''}; "
            f"{setting_of(call.overrides, self.name, next_whole(streak))} would have allowed it.",
        )  # fmt: skip
