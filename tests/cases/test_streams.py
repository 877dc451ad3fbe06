"""Tools that answer bit by bit: used as they are, counted once, compared by all they said."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from otel_toolguard import SessionStopped, guard_tool

REPEAT = {"plugin": "repeat_guard"}
STATS = {"plugin": "tool_stats"}


def numbers(last, broken_at=None):
    """Counts, answers what it is sent, and may break."""
    for n in range(last):
        if n == broken_at:
            raise ValueError(f"broken at {n}")
        got = yield n
        if got is not None:
            yield f"got {got}"


async def numbers_later(last, broken_at=None):
    """The same, in a moment each."""
    for n in range(last):
        await asyncio.sleep(0)
        if n == broken_at:
            raise ValueError(f"broken at {n}")
        yield n


def counts(session):
    report = session.report()
    return report["calls"], report["failed"], report["in_flight"]


def test_a_streaming_tool_stays_a_generator_and_is_counted_once(opened):
    """Sent to, thrown at, closed early, broken at its third item: one call each, and only what broke has failed."""
    tool = guard_tool(numbers)
    with opened(STATS, {"plugin": "failure_streak", "limit": 3}) as session:
        assert inspect.isgeneratorfunction(tool)
        made = tool(3)
        assert inspect.isgenerator(made)
        assert counts(session) == (0, 0, 0)
        assert (next(made), made.send("a"), list(made)) == (0, "got a", [1, 2])
        for item in tool(9):
            if item == 1:
                break
        thrown = tool(9)
        next(thrown)
        with pytest.raises(KeyError):
            thrown.throw(KeyError("k"))
        left = tool(9)
        next(left)
        left.close()
        with pytest.raises(ValueError, match="broken at 2"):
            list(tool(9, broken_at=2))
        del item
        assert counts(session) == (5, 2, 0)
        assert session.trip is None


async def test_an_async_streaming_tool_is_counted_once(opened):
    """Exhausted, left early, broken: the same for an async generator."""
    tool = guard_tool(numbers_later)
    with opened(STATS) as session:
        assert inspect.isasyncgenfunction(tool)
        assert [n async for n in tool(3)] == [0, 1, 2]
        made = tool(9)
        assert inspect.isasyncgen(made)
        assert await anext(made) == 0
        await made.aclose()
        with pytest.raises(ValueError, match="broken at 2"):
            _ = [n async for n in tool(9, broken_at=2)]
        assert counts(session) == (3, 1, 0)


def test_streams_repeat_by_what_they_said(opened):
    """Equal streams are laps, a stream with another item is progress."""
    tails = iter("abcdef")

    @guard_tool
    def tail(file):
        yield "start"
        yield next(tails) if file == "growing" else "end"

    with opened(REPEAT | {"limit": 3}) as session:
        for _ in range(5):
            list(tail("growing"))
        assert session.trip is None
        for _ in range(3):
            list(tail("still"))
        assert session.trip.observed == 3
        with pytest.raises(SessionStopped):
            list(tail("still"))
