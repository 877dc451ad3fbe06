"""``tool_stats``: what the session did, in numbers. Its first keys are Crucible's, name for name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState

TOOLS_KEPT = 256
SIGNATURES_KEPT = 4096


class ToolStats:
    """Counts; stops nothing."""

    name = "tool_stats"
    lasting = True
    observes = True
    needs = ("class",)

    def start(self) -> dict[str, Any]:
        """All counters at zero."""
        return {
            "calls": 0, "failed": 0, "cancelled": 0, "retries": 0, "fail_streak": 0, "longest_fail_streak": 0,
            "max_in_flight": 0, "tools": {}, "classes": {}, "signatures": {}, "approximate": False,
        }  # fmt: skip

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> None:
        """Counts one ended call. A fail streak is in commit order and leaves neutral calls out."""
        mine["calls"] += 1
        tool = mine["tools"].get(call.tool) or self._tool(mine, call.tool)
        tool["calls"] += 1
        classes = mine["classes"]
        classes[call.tool_class] = classes.get(call.tool_class, 0) + 1
        ms = outcome.ms
        if ms is not None:
            tool["ms"] += ms
            tool["max_ms"] = max(tool["max_ms"], ms)
        self._signature(mine, call.signature)
        mine["max_in_flight"] = max(mine["max_in_flight"], run.most_in_flight)
        if outcome.kind == "failed":
            mine["failed"] += 1
            tool["failed"] += 1
            if not call.neutral and not outcome.echo:
                mine["fail_streak"] += 1
                mine["longest_fail_streak"] = max(mine["longest_fail_streak"], mine["fail_streak"])
        elif outcome.kind == "cancelled":
            mine["cancelled"] += 1
        elif not call.neutral:
            mine["fail_streak"] = 0

    def _tool(self, mine: dict[str, Any], name: str) -> dict[str, Any]:
        tools = mine["tools"]
        if name not in tools and len(tools) >= TOOLS_KEPT:
            name = "(other)"
            mine["approximate"] = True
        found: dict[str, Any] = tools.setdefault(name, {"calls": 0, "failed": 0, "ms": 0.0, "max_ms": 0.0})
        return found

    def _signature(self, mine: dict[str, Any], signature: str) -> None:
        signatures = mine["signatures"]
        if signature in signatures or len(signatures) < SIGNATURES_KEPT:
            signatures[signature] = signatures.get(signature, 0) + 1
        else:
            mine["approximate"] = True

    def on_retry(self, mine: dict[str, Any], kind: str, attempt: int) -> None:
        """Counts a retry that the host reports."""
        mine["retries"] += 1

    def report(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The report; ``ms`` is the sum of each call's own duration, so calls that overlap count twice."""
        mine = states[0] if states else self.start()
        ended, distinct = mine["calls"], len(mine["signatures"])
        return {
            "calls": ended,
            "retries": mine["retries"],
            "longest_fail_streak": mine["longest_fail_streak"],
            "tools": {name: _rounded(tool) for name, tool in mine["tools"].items()},
            "classes": dict(mine["classes"]),
            "failed": mine["failed"],
            "cancelled": mine["cancelled"],
            "distinct_signatures": distinct,
            "distinct_ratio": round(distinct / ended, 4) if ended else 1.0,
            "max_signature_calls": max(mine["signatures"].values(), default=0),
            "max_in_flight": mine["max_in_flight"],
            "approximate": mine["approximate"],
        }


def _rounded(tool: dict[str, Any]) -> dict[str, Any]:
    return tool | {"ms": round(tool["ms"], 3), "max_ms": round(tool["max_ms"], 3)}
