"""State that callers share: worker processes, event loops, threads, stores, and a half-open circuit's one probe."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped, guard_tool
from otel_toolguard.stores import workers
from otel_toolguard.testing import FakeClock
from otel_toolguard.testing.store_steps import forked

CEILING = {"plugin": "call_ceiling"}
FAILURES = {"plugin": "signature_failures"}
REPEAT = {"plugin": "repeat_guard"}
STATS = {"plugin": "tool_stats"}


@guard_tool
def look(q):
    return f"seen {q}"


@guard_tool
async def look_later(q):
    await asyncio.sleep(0)
    return f"seen {q}"


# ------------------------------------------------------------------------------------------------ processes


def test_several_workers_are_said_once_and_clearly(opened, monkeypatch, caplog):
    """One of four workers warns once for all its sessions, with what gave it away and what would help."""
    monkeypatch.setattr(workers, "_told", False)
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    for n in range(5):
        with opened(CEILING | {"run": 3}, name=f"job {n}"):
            look(n)
    (said,) = [record for record in caplog.records if record.name == "otel_toolguard"]
    assert said.levelname == "WARNING"
    for words in ("WEB_CONCURRENCY is 4", "each has ceilings of its own", "a store that they share"):
        assert words in said.getMessage()


def spend(session, number):
    """How many of so many calls ran."""
    ran = 0
    for n in range(number):
        try:
            look(n)
            ran += 1
        except SessionStopped:
            pass
    return ran


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_goes_on_with_a_copy_and_no_lock_of_its_parent(opened, monkeypatch):
    """Forked while threads call, the child spends what was left, opens sessions, and runs a loop; the parent's stay."""
    monkeypatch.setattr(workers, "_told", True)
    busy = threading.Event()

    def child():
        left = spend(session, 20)
        with opened(CEILING | {"run": 3}, name="the child's own") as own:
            return (left, spend(own, 5)) == (7, 3) and asyncio.run(in_loop()) == "seen x"

    async def in_loop():
        async with opened(CEILING | {"run": 3}, name="a loop in the child"):
            return await look_later("x")

    def keep_busy():
        with opened(CEILING | {"session": 10**9}, name="busy"):
            n = 0
            while not busy.is_set():
                look(n := n + 1)

    threads = [threading.Thread(target=keep_busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with opened(CEILING | {"run": 10}, STATS) as session:
            spend(session, 3)
            ended = [forked(child)() for _ in range(5)]
            assert ended == [True] * 5
            assert session.report()["calls"] == 3
            assert spend(session, 20) == 7
    finally:
        busy.set()
        for thread in threads:
            thread.join()


# ------------------------------------------------------------------------------------------------ loops and threads


def test_one_tool_of_a_module_serves_all_loops_threads_and_plain_code(opened):
    """Two runs of asyncio one after the other, two threads with loops and sync code at once: no error, exact counts."""
    rules = [CEILING | {"session": 10**6}, STATS]
    faults, gate = [], threading.Barrier(3)

    async def many():
        async with opened(*rules):
            return await asyncio.gather(*(look_later(n) for n in range(40)))

    def in_thread(work):
        gate.wait()
        try:
            work()
        except BaseException as fault:
            faults.append(fault)

    def plainly():
        with opened(*rules):
            for n in range(40):
                look(n)

    for _ in range(2):
        assert len(asyncio.run(many())) == 40
    works = [lambda: asyncio.run(many()), lambda: asyncio.run(many()), plainly]
    threads = [threading.Thread(target=in_thread, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = opened(*rules).report()
    assert faults == []
    assert (report["calls"], report["in_flight"], report["failed"]) == (200, 0, 0)
    assert report["tools"]["look_later"]["calls"] == 160


def test_a_ceiling_is_shared_by_loops_and_threads(opened):
    """Four threads with loops of their own ask for eighty at a ceiling of forty of the session: forty run."""
    ran, gate = [], threading.Barrier(4)

    async def many():
        async with opened(CEILING | {"session": 40}):
            said = await asyncio.gather(*(look_later(n) for n in range(20)), return_exceptions=True)
            ran.extend(each for each in said if isinstance(each, str))
            assert all(isinstance(each, str | SessionStopped) for each in said)

    def in_thread():
        gate.wait()
        asyncio.run(many())

    threads = [threading.Thread(target=in_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 40


# ------------------------------------------------------------------------------------------------ stores


class Broken(MemoryStore):
    """Cannot be reached from some step on."""

    down = False

    def transact(self, session_id, step):
        if self.down:
            raise ConnectionError("no store")
        return super().transact(session_id, step)


def test_a_store_that_goes_down_and_comes_back_is_not_felt(opened):
    """Calls run on with their own results and exceptions while it is away; after it the counts from before hold."""
    store = Broken()

    @guard_tool
    def fail():
        raise KeyError("mine")

    with opened(CEILING | {"run": 5}, STATS, store=store) as session:
        assert spend(session, 3) == 3
        store.down = True
        assert spend(session, 20) == 20
        with pytest.raises(KeyError, match="mine"):
            fail()
        assert asyncio.run(look_later("x")) == "seen x"
        store.down = False
        assert spend(session, 20) == 2
        assert (session.report()["calls"], session.report()["in_flight"]) == (5, 0)


def test_a_session_whose_store_hangs_holds_up_no_other(opened):
    """A step that does not end keeps the calls of its own session waiting, not those of another; then they go on."""
    store, inside, leave, answers = MemoryStore(), threading.Event(), threading.Event(), []

    def hang(_state):
        inside.set()
        leave.wait()

    stuck = opened(CEILING | {"run": 5}, STATS, name="stuck", store=store)
    bound = stuck.bind(lambda: answers.append(look("x")))
    threads = [threading.Thread(target=store.transact, args=("stuck", hang)), threading.Thread(target=bound)]
    threads[0].start()
    inside.wait()
    threads[1].start()
    with opened(CEILING | {"run": 5}, name="other", store=store) as other:
        assert spend(other, 9) == 5
    assert answers == []
    leave.set()
    for thread in threads:
        thread.join()
    assert (answers, stuck.report()["calls"]) == (["seen x"], 1)


def test_sessions_of_one_name_in_two_stores_do_not_mix(opened):
    """Stopped and full in one store, the conversation of the same name has all its calls in the other."""
    first, second = MemoryStore(), MemoryStore()
    with opened(CEILING | {"session": 3}, store=first) as session:
        assert spend(session, 9) == 3
        session.stop("by hand")
    with opened(CEILING | {"session": 3}, STATS, store=second) as session:
        assert (session.trip, session.audit(), session.report()["trips"]) == (None, [], [])
        assert spend(session, 2) == 2
        assert session.trip is None


@pytest.mark.parametrize("how", ["stopped by hand", "ceiling of the session", "loop"])
def test_building_a_session_anew_leaves_its_trip_as_it_was(how, opened):
    """Another object of the same name, with limits of its own, finds the stop and every field of its trip unchanged."""
    store, clock = MemoryStore(), FakeClock()
    rules = [REPEAT | {"limit": 3}, CEILING | {"session": 12}]
    with opened(*rules, store=store, clock=clock, latch="session") as first:
        if how == "stopped by hand":
            first.stop("enough")
        for n in range(15):
            try:
                look("x" if how == "loop" else "abcdefghijklmnopq"[n])
            except SessionStopped:
                pass
        trip = first.trip
    assert trip is not None
    for _ in range(3):
        clock.advance(1000)
        again = Session("s", policy=Policy(plugins=[REPEAT | {"limit": 99}, STATS], latch="session"), store=store)
        assert again.trip == first.trip == trip
        with again, pytest.raises(SessionStopped) as caught:
            look("new")
        assert caught.value.trip == trip


# ------------------------------------------------------------------------------------------------ half-open circuits

CALLERS = 50
PAUSE = type("GraphBubbleUp", (Exception,), {"__module__": "langgraph.errors"})
ENDS = {  # how the probe ends: what becomes of the circuit
    "returns": "closed",
    "raises": "open",
    "is cancelled inside": "open",
    "pauses": "free",
    "is cancelled": "free",
    "never returns": "held",
}


class Probed:
    """A tool that fails once, and then ends as it is told to; what its callers got is counted."""

    def __init__(self):
        self.tool = guard_tool(name="fetch")(self.body)

    async def body(self):
        self.running.append(asyncio.current_task())
        await self.leave.wait()
        if self.end == "raises":
            raise ValueError("no")
        if self.end == "is cancelled inside":
            raise asyncio.CancelledError
        if self.end == "pauses":
            raise PAUSE("sure?")
        if self.end in ("is cancelled", "never returns"):
            await asyncio.Event().wait()
        return "page"

    async def callers(self, end, number=CALLERS):
        """So many callers at once; how many bodies ran."""
        self.end, self.running, self.leave = end, [], asyncio.Event()
        tasks = [asyncio.create_task(self.tool()) for _ in range(number)]
        for _ in range(5):  # turns of the loop in which each caller gets as far as it can
            await asyncio.sleep(0)
        self.leave.set()
        await asyncio.sleep(0)
        for task in self.running if end == "is cancelled" else ():
            task.cancel()
        ended = [task for task in tasks if not (end == "never returns" and task in self.running)]
        said = await asyncio.gather(*ended, return_exceptions=True)
        refused = sum(type(each) is CircuitOpen for each in said)
        assert refused + len(self.running) == number
        return len(self.running)


@pytest.mark.parametrize("end", ENDS)
async def test_a_half_open_circuit_lets_one_probe_through_however_it_ends(end, opened):
    """Of fifty callers one runs; then all, none or again one may, and a probe that is lost holds its lease only."""
    clock = FakeClock()
    with opened(FAILURES | {"limit": 1, "cooldown": 30.0}, STATS, clock=clock) as session:
        probed = Probed()
        assert await probed.callers("raises", 1) == 1
        assert await probed.callers("returns") == 0
        clock.advance(29.9)
        assert await probed.callers("returns") == 0
        clock.advance(0.1)
        assert await probed.callers(end) == 1
        lost = probed.running
        after = ENDS[end]
        if after == "closed":
            assert await probed.callers("returns") == CALLERS
        elif after == "free":
            assert await probed.callers("returns") == 1
            assert await probed.callers("returns") == CALLERS
        else:
            clock.advance(29.9)
            assert await probed.callers("returns") == 0
            clock.advance(0.1 if after == "held" else 30.1)
            assert await probed.callers("raises") == 1
            assert await probed.callers("returns") == 0
            if after == "held":
                lost[0].cancel()
                await asyncio.gather(*lost, return_exceptions=True)
                assert await probed.callers("returns") == 0
        assert session.report()["in_flight"] == 0


def test_fifty_threads_get_one_probe(opened):
    """Fifty threads meet a half-open circuit at one moment: one body, forty-nine refusals with the time that is left."""
    clock, bodies, refused = FakeClock(), [], []
    gate, leave = threading.Barrier(CALLERS), threading.Event()

    @guard_tool
    def fetch():
        bodies.append(1)
        if len(bodies) == 1:
            raise ValueError("no")
        seen()
        leave.wait()
        return "page"

    def seen():
        if len(bodies) - 1 + len(refused) >= CALLERS:
            leave.set()

    def one():
        gate.wait()
        try:
            bound()
        except CircuitOpen as error:
            refused.append(error.trip.retry_after_s)
            seen()

    with opened(FAILURES | {"limit": 1, "cooldown": 30.0}, clock=clock) as session:
        with pytest.raises(ValueError, match="no"):
            fetch()
        clock.advance(40)
        bound = session.bind(fetch)
        threads = [threading.Thread(target=one) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(bodies), refused) == (2, [30.0] * (CALLERS - 1))
        assert fetch() == "page"
