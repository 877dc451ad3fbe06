"""``cost``: what the caller says that the work has cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.state import RunState

_EXACT = 1 - 1e-9  # ten times 0.1 is a little less than 1 in binary


class Cost:
    """Adds up ``session.report_cost(amount)``; reaching the limit stops at once, before the next model call.

    Args:
        limit: In the unit of the amounts: dollars, tokens.
        scope: "run": each run may spend so much, with the runs nested in it; "session": all runs together may.
    """

    name = "cost"
    ceiling = True
    advice = "Most of the budget for this work is spent: finish what matters, and report what is left."

    def __init__(self, limit: float, *, scope: Literal["run", "session"] = "run") -> None:
        self.limit = limit
        self.scope = scope
        self.lasting = scope == "session"

    def start(self) -> dict[str, float]:
        """Spent in the run itself, and with the runs nested in it."""
        return {"own": 0.0, "spent": 0.0}

    def on_cost(self, mine: dict[str, float], run: RunState, amount: float) -> Finding | None:
        """Adds the amount to the run and those above it; a finding once half of any limit is used."""
        mine["own"] += amount
        for spending in self._purses(mine, run):
            spending["spent"] += amount
        return self.admit(mine, run, None)

    def admit(self, mine: dict[str, float], run: RunState, call: ToolCall | None) -> Finding | None:
        """The same for a call: a reset that keeps ceilings, or a new run, gives no new money."""
        spent = max(spending["spent"] for spending in self._purses(mine, run))
        if 2 * spent < self.limit * _EXACT:
            return None
        share = spent / self.limit
        return Finding(
            self.name, 1.0 if _EXACT <= share < 1 else share, scope=self.scope, limit=self.limit, observed=spent,
            why=f"The {self.scope} has cost {spent:.6g} of {self.limit:g} allowed; "
            f"a cost limit above {spent:.6g} would have allowed it.",
        )  # fmt: skip

    def _purses(self, mine: dict[str, float], run: RunState) -> list[dict[str, float]]:
        if self.lasting or run.above is None:
            return [mine]
        return [above.rules.setdefault(self.name, self.start()) for above in run.lineage()]

    def report(self, states: Sequence[dict[str, float]]) -> dict[str, Any]:
        """What was reported in all."""
        return {"cost": sum(mine["own"] for mine in states)}
