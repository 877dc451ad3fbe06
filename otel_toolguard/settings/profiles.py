"""The ready-made chains; their limits were measured on recorded sessions."""

from __future__ import annotations

from typing import Any


def _profile(
    repeat: int, stagnation: int, same_answer: int, failures: int, *, signature: int | None, refusals: int
) -> list[dict[str, Any]]:
    return [
        {"plugin": "classify"},
        {"plugin": "repeat_guard", "limit": repeat},
        {"plugin": "stagnation", "limit": float(stagnation)},
        {"plugin": "same_answer", "limit": same_answer},
        {"plugin": "failure_streak", "limit": failures},
        *([{"plugin": "signature_failures", "limit": signature}] if signature is not None else []),
        {"plugin": "call_ceiling", "run": 500},
        {"plugin": "max_refusals", "limit": refusals, "total": 25},
        {"plugin": "tool_stats"},
    ]


DEFAULT_PROFILE = "balanced"
PROFILES: dict[str, list[dict[str, Any]]] = {
    "conservative": _profile(12, 20, 30, 25, signature=None, refusals=5),
    "balanced": _profile(8, 12, 25, 20, signature=6, refusals=2),
    "strict": _profile(7, 10, 20, 16, signature=5, refusals=2),
    # Crucible's chain to the letter: exact results, 25 laps.
    "crucible": [
        {"plugin": "classify"},
        {"plugin": "repeat_guard", "limit": 25, "compare": "exact"},
        {"plugin": "tool_stats"},
    ],
    # OpenHands' stuck detector: the same call with the same answer 4 times; failing, whatever the error says, the model
    # is told at 3 and the run ends at 4; two calls in turn, 6 in all. What it says of messages is none of ours.
    "openhands": [
        {"plugin": "classify"},
        {"plugin": "repeat_guard", "limit": 4, "limits": {2: 3}, "max_period": 2, "compare": "exact"}
        | {"failed_nudge": 3, "same_error": False},
        {"plugin": "tool_stats"},
    ],
    # The circuit breaker of the ops-engineering skill; its is_loop is the warning.
    "skill": [
        {"plugin": "classify"},
        {"plugin": "signature_failures", "limit": 3, "count": "cumulative"}
        | {"same_error": False, "clear_on_write": False},
        {"plugin": "call_ceiling", "session": 25},
        {"plugin": "distinct_ratio"},
        {"plugin": "tool_stats"},
    ],
    # CMDC's checks of collected results: the model is told; only a file that overruns a second time stops.
    "cmdc": [
        {"plugin": "classify"},
        {"plugin": "file_edits", "limit": 20, "on_limit": "nudge"},
        {"plugin": "repeat_guard", "limit": 3, "max_period": 1, "compare": "call", "on_limit": "nudge"},
        {"plugin": "failure_streak", "limit": 4, "across_tools": True, "on_limit": "nudge"},
        {"plugin": "tool_stats"},
    ],
}
