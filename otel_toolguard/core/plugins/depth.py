"""``depth``: agents that start agents that start agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.state import RunState


class Depth:
    """Counts how deep a run is nested: 1 for a run of its own, 2 for one that started inside one of its calls.

    Args:
        limit: The deepest run that may call tools; the first call of a deeper one stops its whole tree.
        scope: "run": the tree is stopped; "session": each later run is too.
    """

    name = "depth"
    ceiling = True

    def __init__(self, limit: int, *, scope: Literal["run", "session"] = "run") -> None:
        self.limit = limit
        self.scope = scope
        self.lasting = scope == "session"

    def start(self) -> dict[str, int]:
        """The deepest run so far."""
        return {"deepest": 0}

    def admit(self, mine: dict[str, int], run: RunState, call: ToolCall) -> Finding | None:
        """A finding where the run is too deep; there is no warning before."""
        deepest = mine["deepest"] = max(mine["deepest"], sum(1 for _ in run.lineage()))
        if deepest <= self.limit:
            return None
        return Finding(
            self.name, deepest / self.limit, scope=self.scope, limit=self.limit, observed=deepest,
            why=f"Runs are nested {deepest} deep, each inside a call of the one above; "
            f"depth limit = {deepest} would have allowed it.",
        )  # fmt: skip
