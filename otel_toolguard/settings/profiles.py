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
}
