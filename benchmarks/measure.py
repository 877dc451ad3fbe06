"""How a figure is taken: the least of many short repetitions, on one core, garbage collection off inside."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import nullcontext
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

CALLS = 1000  # of one repetition
WARM = 50  # of them not timed
REPETITIONS = 15


def pin() -> str:
    """Keeps this process and its children on one core, where the system can; returns which."""
    try:
        core = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
    except (AttributeError, OSError):
        return "not pinned"
    return f"core {core}"


def queries(repetition: int) -> list[str]:
    """Arguments of one repetition, no two alike, so that no rule has anything to say."""
    return [f"orders {repetition:x}-{n:x} of the customers in the north-western region" for n in range(CALLS)]


def lookup(query: str, limit: int = 10) -> str:  # noqa: ARG001
    """The tool of every case: it costs nothing itself, and its results differ as its arguments do."""
    return query


async def alookup(query: str, limit: int = 10) -> str:  # noqa: ARG001
    """The same as a coroutine function."""
    return query


def least(call: Callable[..., Any], session: Callable[[], Any] = nullcontext) -> float:
    """Microseconds of one call; each repetition has arguments and a session of its own."""
    best = float("inf")
    for repetition in range(REPETITIONS):
        given = queries(repetition)
        with session():
            _loop(call, given[:WARM])
            best = min(best, _quiet(lambda given=given: _loop(call, given[WARM:])))
    return best / (CALLS - WARM)


def least_async(call: Callable[..., Awaitable[Any]], session: Callable[[], Any] = nullcontext) -> float:
    """The same for a coroutine function, within one event loop."""

    async def all_repetitions() -> float:
        best = float("inf")
        for repetition in range(REPETITIONS):
            given = queries(repetition)
            with session():
                await _aloop(call, given[:WARM])
                gc.disable()
                start = perf_counter_ns()
                await _aloop(call, given[WARM:])
                best = min(best, (perf_counter_ns() - start) / 1000)
                gc.enable()
        return best / (CALLS - WARM)

    return asyncio.run(all_repetitions())


def least_of(step: Callable[[], Any], repetitions: int = 200) -> float:
    """Microseconds of one step that is long enough to be timed by itself."""
    return min(_quiet(step) for _ in range(repetitions))


def _loop(call: Callable[..., Any], given: Sequence[str]) -> None:
    for query in given:
        call(query=query)


async def _aloop(call: Callable[..., Awaitable[Any]], given: Sequence[str]) -> None:
    for query in given:
        await call(query=query)


def _quiet(step: Callable[[], Any]) -> float:
    gc.collect(0)
    gc.disable()
    try:
        start = perf_counter_ns()
        step()
        return (perf_counter_ns() - start) / 1000
    finally:
        gc.enable()
