"""``deadline``: wall time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState


class Deadline:
    """Measures from the first guarded call; looked at when a call is asked for and when one has ended.

    A call that runs is never cut short: the first one that ends, or is asked for, after the time is over tells.

    Args:
        seconds: On the session's clock.
        scope: "run": each run has so much time, with the runs nested in it; "session": all runs together have.
    """

    name = "deadline"
    ceiling = True
    timed = True
    advice = "Most of the time allowed for this work is over: finish what matters, and report what is left."

    def __init__(self, seconds: float, *, scope: Literal["run", "session"] = "run") -> None:
        self.seconds = seconds
        self.scope = scope
        self.lasting = scope == "session"

    def start(self) -> dict[str, Any]:
        """When the first call was asked for, None before."""
        return {"began": None}

    def admit(self, mine: dict[str, Any], run: RunState, call: ToolCall) -> Finding | None:
        """A finding once half the time is over."""
        if mine["began"] is None:
            mine["began"] = run.session.now
        return self._finding(mine, run)

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """The same, so that no model call follows a result that came too late."""
        return self._finding(mine, run) if mine["began"] is not None else None

    def _finding(self, mine: dict[str, Any], run: RunState) -> Finding | None:
        began = mine["began"]
        above = None if self.lasting else run.above
        while above is not None:
            known = (above.rules.get(self.name) or {}).get("began")
            began = began if known is None else min(began, known)
            above = above.above
        passed = run.session.now - began
        if 2 * passed < self.seconds:
            return None
        return Finding(
            self.name, passed / self.seconds, scope=self.scope, limit=self.seconds, observed=round(passed, 3),
            why=f"The {self.scope} has gone on for {passed:.4g} seconds; "
            f"deadline seconds = {int(passed) + 1} would have allowed it.",
        )  # fmt: skip
