"""``distinct_ratio``: stops nothing. It warns while the last calls are nearly all the same.

After ``is_loop`` of the ops-engineering skill. Results are ignored, so that a healthy poll looks like a loop to it:
good for an alert, not for a stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState

ALERT = 0.5  # the least share that is a warning


class DistinctRatio:
    """Looks at the newest calls that ran, whatever came of them.

    Args:
        window: How many of them; fewer are no verdict.
        distinct: The most different signatures among them that are a warning.
    """

    name = "distinct_ratio"
    advice = "The last calls were nearly all the same: do something else, or report what is missing."

    def __init__(self, window: int = 5, *, distinct: int = 2) -> None:
        self.window = window
        self.distinct = distinct

    def start(self) -> dict[str, Any]:
        """The signatures of the newest calls, oldest first."""
        return {"last": []}

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """A warning while the window holds too few different calls."""
        last = mine["last"]
        last.append(call.signature if call.whole else None)
        if len(last) > self.window:
            del last[0]
        if len(last) < self.window:
            return None
        unsigned = last.count(None)  # equal to nothing, itself included
        different = len(set(last)) - (unsigned > 0) + unsigned
        return Finding(self.name, ALERT) if different <= self.distinct else None
