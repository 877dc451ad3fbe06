"""``same_answer``: different calls of one tool, not writes, that all get one and the same answer in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.core.decision import Finding
from otel_toolguard.core.overrides import limit_of, setting_of

if TYPE_CHECKING:
    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState


class SameAnswer:
    """Counts the distinct calls that got the newest answer; a write or another answer starts afresh."""

    name = "same_answer"
    advice = "Different calls of one tool all get the same answer: look somewhere else, or report what is missing."
    needs = ("volatile", "class")

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def start(self) -> dict[str, Any]:
        """The newest answer and the signatures that got it."""
        return {"answer": None, "calls": {}}

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """A finding once half the limit is used."""
        if call.neutral or call.poll or outcome.kind in ("cancelled", "closed"):
            return None
        answer = None if call.tool_class == "write" or outcome.volatile is None else (
            f"{call.tool}|{outcome.volatile}|{outcome.kind}")  # fmt: skip
        if answer is None or answer != mine["answer"]:
            mine["answer"], mine["calls"] = answer, {}
        if answer is None:
            return None
        calls, limit = mine["calls"], self.limit
        if call.overrides is not None:
            limit = limit_of(call.overrides, self.name, limit)
        if len(calls) < limit:  # while only observing, the row may go on for ever
            calls[call.signature] = 1
        if 2 * len(calls) < limit:
            return None
        return Finding(
            self.name, len(calls) / limit, limit=limit, observed=len(calls), loop_type="same_answer",
            why=f"{len(calls)} different calls of {call.tool} in a row got one and the same answer; "
            f"{setting_of(call.overrides, self.name, len(calls) + 1)} would have allowed it.",
        )  # fmt: skip
