"""Agents that start agents: one ceiling for the whole tree, a depth, and a stop that everybody sees."""

from __future__ import annotations

import asyncio
import threading

import pytest

from otel_toolguard import SessionStopped, guard_tool

CEILING = {"plugin": "call_ceiling"}
REPEAT = {"plugin": "repeat_guard"}


async def test_agents_without_end_share_one_ceiling(opened):
    """Each delegate starts five more, each in a run of its own: fifty bodies start in the whole tree, and all return."""
    started, left = [], []

    @guard_tool
    async def delegate(task, depth):
        started.append((task, depth))
        try:
            with opened(CEILING | {"run": 50}):
                return await asyncio.gather(
                    *(delegate(f"{task}.{n}", depth + 1) for n in range(5)), return_exceptions=True
                )
        finally:
            left.append(task)

    with opened(CEILING | {"run": 50}) as session:
        await delegate("root", 1)
        assert (len(started), len(left), len(set(started))) == (50, 50, 50)
        assert session.trip.observed == 50
        with pytest.raises(SessionStopped):
            await delegate("after", 1)


def test_agents_in_threads_share_one_ceiling(opened):
    """The same where each sub-agent gets a thread: the handle carries the run into it."""
    started = []

    @guard_tool
    def delegate(task, depth):
        started.append(task)
        with opened(CEILING | {"run": 50}) as inner:
            threads = [threading.Thread(target=inner.bind(quietly), args=(f"{task}.{n}", depth + 1)) for n in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def quietly(task, depth):
        try:
            delegate(task, depth)
        except SessionStopped as stop:
            stops.append(stop.trip.id)

    stops = []
    with opened(CEILING | {"run": 50}) as session:
        quietly("root", 1)
        assert (len(started), len(stops)) == (50, 50 * 5 + 1 - 50)
        assert set(stops) == {session.trip.id}


def test_agents_may_be_nested_three_deep_and_no_deeper(opened):
    """The call that the fourth run asks for is refused before its body, and the whole tree is stopped by it."""
    deepest = []

    @guard_tool
    def delegate(depth):
        deepest.append(depth)
        with opened({"plugin": "depth", "limit": 3}):
            delegate(depth + 1)

    with opened({"plugin": "depth", "limit": 3}) as session:
        with pytest.raises(SessionStopped) as caught:
            delegate(1)
        assert deepest == [1, 2, 3]
        assert (caught.value.trip.rule, caught.value.trip.observed, caught.value.trip.limit) == ("depth", 4, 3)
        assert session.trip == caught.value.trip


async def test_a_stop_in_one_branch_is_seen_by_all_others_before_their_next_call(opened):
    """Three branches run side by side; the loop of one stops the tree, and none of the others starts another body."""
    rules = (REPEAT | {"limit": 3},)
    after, looped = [], asyncio.Event()

    @guard_tool
    async def look(q):
        if looped.is_set():
            after.append(q)
        return "same"

    @guard_tool
    async def branch(n):
        with opened(*rules):
            try:
                for m in range(3 if n == 0 else 1):
                    await look("x" if n == 0 else f"{n}.{m}")
            finally:
                if n == 0:
                    looped.set()
            await looped.wait()
            return await look(f"{n} again") if n else "looped"

    with opened(*rules) as session:
        ended = await asyncio.gather(*(branch(n) for n in range(3)), return_exceptions=True)
        assert [type(each) for each in ended] == [str, SessionStopped, SessionStopped]
        assert {each.trip.id for each in ended[1:]} == {session.trip.id}
        assert after == []
