"""What grows with the number of calls, and what a long text costs."""

from __future__ import annotations

import tracemalloc
from time import perf_counter_ns
from typing import TYPE_CHECKING

from guarded import balanced, opener
from measure import least_of, lookup

from otel_toolguard import guard_tool
from otel_toolguard.core.masks import volatile

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 100_000
WINDOW = 990  # calls 10 to 1,000 against the last 990
CHUNK = 110
SESSIONS = 3


def growth() -> dict[str, float]:
    """Microseconds of an early and of a late call of one session with the default chain."""
    guarded, open_session = guard_tool(lookup), opener(balanced())
    early = late = float("inf")
    for _ in range(SESSIONS):
        with open_session():
            _calls(guarded, 0, 10)
            early = min(early, _least_chunk(guarded, 10))
            _calls(guarded, 10 + WINDOW, CALLS - WINDOW)
            late = min(late, _least_chunk(guarded, CALLS - WINDOW))
    return {"early": early, "late": late}


def memory() -> dict[str, float]:
    """Bytes a session holds for each distinct signature: over 100,000 of them, and over the first 4,000."""
    return {"memory": _held(CALLS), "memory_first": _held(4_000)}


def masking() -> dict[str, float]:
    """Microseconds for each kB of log text."""
    found = {}
    for name, size in (("mask_1", 1024), ("mask_16", 16 * 1024)):
        text = log_text(size)
        found[name] = least_of(lambda text=text: volatile(text)) / (size / 1024)
    return found


def log_text(size: int) -> str:
    """A service's log: a time, a level and a request id in each line, as long as asked for."""
    lines = (
        f"2026-03-{n % 28 + 1:02} 10:{n % 60:02}:{n * 7 % 60:02}.{n % 1000:03} INFO worker-{n % 8} request "
        f"{n * 2654435761 % 2**32:08x} GET /orders/{n} 200 in {n % 900 + 3} ms, {n % 40} rows"
        for n in range(size // 60 + 1)
    )
    return "\n".join(lines)[:size]


def _calls(guarded: Callable[..., str], first: int, end: int) -> None:
    for n in range(first, end):
        guarded(query=f"orders {n:06x} of the customers in the north-western region")


def _least_chunk(guarded: Callable[..., str], first: int) -> float:
    best = float("inf")
    for begin in range(first, first + WINDOW, CHUNK):
        start = perf_counter_ns()
        _calls(guarded, begin, begin + CHUNK)
        best = min(best, (perf_counter_ns() - start) / 1000 / CHUNK)
    return best


def _held(calls: int) -> float:
    guarded = guard_tool(lookup)
    with opener(balanced())():
        _calls(guarded, 0, 3)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        _calls(guarded, 3, calls + 3)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return (after - before) / calls
