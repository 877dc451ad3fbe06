"""The SQLite store under several processes: ceilings, stops, leases of those that were killed, forks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from otel_toolguard import CircuitOpen, Policy, Session, SessionStopped, guard_tool
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.max_in_flight import MaxInFlight
from otel_toolguard.stores import sqlite_file
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_leases import lives, owner
from otel_toolguard.testing import FakeClock
from otel_toolguard.testing.store_steps import A, admit, bump, calls, forked, in_threads, ok

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

TWO = Chain([CallCeiling(run=100), MaxInFlight(2)])


@guard_tool
def look(n: int) -> int:
    return n


def child(code, *given):
    """Another interpreter that runs the code, with pipes to it."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


# ------------------------------------------------------------------------------------------------ ceilings and stops


def test_no_call_more_than_the_ceiling_over_processes(tmp_path):
    """Four processes that ask and settle 500 times each get together exactly what the ceiling allows."""
    path = tmp_path / "a.sqlite3"
    chain = Chain([CallCeiling(run=1_200)])
    ends = [os.pipe() for _ in range(4)]

    def ask(end):
        store, permitted = SQLiteStore(path, timeout_s=60, on_error="closed"), 0
        for _ in range(500):
            admission = store.transact("s", lambda state: chain.admit(state, "r", A))
            if isinstance(admission, Permit):
                permitted += 1
                number = admission.number
                store.transact("s", lambda state, number=number: chain.settle(state, "r", number, A, ok()))
        os.write(end, f"{permitted}\n".encode())
        return True

    waits = [forked(lambda end=end: ask(end)) for _, end in ends]
    assert [wait() for wait in waits] == [True] * 4
    assert sum(int(os.read(end, 99)) for end, _ in ends) == 1_200
    state = SQLiteStore(path).transact("s", lambda state: (state.calls, state.in_flight, state.runs["r"].refusals))
    assert state == (1_200, 0, 800)


def test_many_threads_of_one_process(tmp_path):
    """Of 16 threads with 20 calls each exactly as many bodies run as the ceiling allows."""
    policy = Policy(plugins=[{"plugin": "call_ceiling", "run": 50}])
    session = Session("s", policy=policy, store=SQLiteStore(tmp_path / "a.sqlite3", timeout_s=60))
    ran = []

    def work():
        for n in range(20):
            try:
                ran.append(look(n))
            except CircuitOpen:
                pass

    with session:
        in_threads(16, session.bind(work))
        assert (len(ran), session.report()["calls"]) == (50, 50)


BEGIN = """
import sys
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.testing.store_steps import bump
print("ready", flush=True)
sys.stdin.readline()
store = SQLiteStore(sys.argv[1], timeout_s=60, on_error="closed")
bump(store)
print(store.key.hex())
"""


def test_processes_that_start_at_once_on_a_new_file(tmp_path):
    """They make one file with one key, and each one's first call is counted."""
    for n in range(3):
        path = tmp_path / f"{n}" / "a.sqlite3"
        children = [child(BEGIN, path) for _ in range(4)]
        for each in children:
            each.stdout.readline()
        for each in children:
            each.stdin.write("go\n")
            each.stdin.flush()
        keys = {each.communicate()[0].strip() for each in children}
        store = SQLiteStore(path)
        assert keys == {store.key.hex()}
        assert calls(store) == 4


STOP = """
import sys
from otel_toolguard import Session
from otel_toolguard.stores.sqlite import SQLiteStore
Session("s", store=SQLiteStore(sys.argv[1])).stop("enough")
"""


def test_a_stop_in_another_process_is_seen_before_the_next_body(tmp_path):
    """A session that another process stops runs no further body here, and its gate at the model is shut."""
    path, ran = tmp_path / "a.sqlite3", []

    @guard_tool
    def note(n: int) -> None:
        ran.append(n)

    with Session("s", store=SQLiteStore(path)) as session:
        note(1)
        session.raise_if_open()
        with child(STOP, path) as other:
            assert other.wait() == 0
        with pytest.raises(SessionStopped):
            session.raise_if_open()
        with pytest.raises(SessionStopped, match="An operator stopped the session: enough"):
            note(2)
        assert session.audit()[0]["reason"] == "enough"
    assert ran == [1]


# ------------------------------------------------------------------------------------------------ killed


HOLD = """
import sys, time
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.max_in_flight import MaxInFlight
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.testing import FakeClock
from otel_toolguard.testing.store_steps import A
chain = Chain([CallCeiling(run=100), MaxInFlight(2)])
store = SQLiteStore(sys.argv[1], lease_s=60, clock=FakeClock())
for _ in range(2):
    store.transact("s", lambda state: chain.admit(state, "r", A))
print("held", flush=True)
sys.stdin.readline()
"""


def ask(store):
    return isinstance(store.transact("s", lambda state: TWO.admit(state, "r", A)), Permit)


def test_places_of_a_killed_process_come_back(tmp_path):
    """After SIGKILL its places are taken until the lease is over, then free, and what it counted stays counted."""
    path, clock = tmp_path / "a.sqlite3", FakeClock()
    with child(HOLD, path) as holder:
        holder.stdout.readline()
        store = SQLiteStore(path, lease_s=60, clock=clock)
        assert not ask(store)
        holder.send_signal(signal.SIGKILL)
    clock.advance(59)
    assert not ask(store)
    clock.advance(2)
    found = store.transact("s", lambda state: (state.calls, state.in_flight, state.runs["r"].calls))
    assert found == (2, 0, 2)
    assert [ask(store) for _ in range(3)] == [True, True, False]
    assert calls(SQLiteStore(path, clock=clock)) == 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere only the lease tells")
def test_places_of_a_process_that_lives_stay_taken(tmp_path):
    """However long a body runs, its place is its own while its process is there, in this one and as others see it."""
    path, clock = tmp_path / "a.sqlite3", FakeClock()
    holder = child(HOLD, path)
    holder.stdout.readline()
    store = SQLiteStore(path, lease_s=60, clock=clock)
    clock.advance(1_000)
    assert not ask(store)
    holder.communicate("done\n")
    clock.advance(61)
    assert [ask(store) for _ in range(3)] == [True, True, False]
    clock.advance(1_000)
    assert store.transact("s", lambda state: state.in_flight) == 2


def test_a_killed_sibling_is_not_waited_for(tmp_path):
    """Results that waited for a call of a process that was killed are judged before the next call."""
    clock = FakeClock()
    store = SQLiteStore(tmp_path / "a.sqlite3", lease_s=60, clock=clock)
    mine = store.transact("s", lambda state: TWO.admit(state, "r", A))
    other = forked(lambda: ask(SQLiteStore(store.path, lease_s=60, clock=clock)))
    assert other()
    store.transact("s", lambda state: TWO.settle(state, "r", mine.number, A, ok()))
    assert store.transact("s", lambda state: len(state.runs["r"].batch.waiting)) == 1
    clock.advance(61)
    batch = store.transact("s", lambda state: state.runs["r"].batch.to_plain())
    assert (batch[0], len(batch[1])) == ([], 1)
    assert ask(store)
    assert store.transact("s", lambda state: len(state.runs["r"].batch.waiting)) == 0


def test_a_late_result_of_a_given_back_place_is_taken_quietly(tmp_path):
    """A call that was given up and ends after all opens and closes nothing."""
    clock = FakeClock()
    store = SQLiteStore(tmp_path / "a.sqlite3", lease_s=60, clock=clock)
    number = store.transact("s", lambda state: TWO.admit(state, "r", A)).number
    store._remembered("s").leases["r", number][1] = "elsewhere|1|1"
    clock.advance(61)
    assert store.transact("s", lambda state: state.in_flight) == 0
    settled = store.transact("s", lambda state: TWO.settle(state, "r", number, A, ok()))
    assert (settled.trip, calls(store)) == (None, 1)


def test_who_lives():
    """This process does; one of another machine, one that is gone and one that has its number since do not for sure."""
    machine, pid, began = owner().split("|")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    others = [f"other|{pid}|{began}", f"{machine}|{gone.pid}|{began}", f"{machine}|{pid}|0", "", "nonsense"]
    assert (lives(owner()), [lives(each) for each in others]) == (True, [False] * 5)


# ------------------------------------------------------------------------------------------------ forks


def test_a_store_made_before_the_fork(tmp_path):
    """Parent and children go on with the store object that they share, and no update is lost."""
    store = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=60)
    bump(store)
    waits = [forked(lambda: [bump(store) for _ in range(50)] != []) for _ in range(3)]
    for _ in range(50):
        bump(store)
    assert [wait() for wait in waits] == [True] * 3
    assert calls(store) == 201


def test_a_fork_beside_busy_threads(tmp_path):
    """Threads that write all the time hold up no fork and are not disturbed by one, nor is the child."""
    store, done = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=60), threading.Event()
    counted = []

    def work(name):
        while not done.is_set():
            counted.append(bump(store, name))

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    waits = [forked(lambda: [bump(store, "forked") for _ in range(10)] != []) for _ in range(8)]
    answers = [wait() for wait in waits]
    done.set()
    for thread in threads:
        thread.join()
    assert answers == [True] * 8
    assert calls(store, "forked") == 80
    assert sum(calls(store, f"t{n}") for n in range(3)) == len(counted)
    connection = sqlite3.connect(store.path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_fork_inside_a_step(tmp_path):
    """A step that forks is finished in the parent, and the child may use the store, too."""
    store, waits = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=60), []

    def step(state):
        if not waits:
            waits.append(forked(lambda: bump(store, "child") == 1))
            assert waits[0]()
        state.calls += 1

    store.transact("s", step)
    assert (calls(store), calls(store, "child")) == (1, 1)


@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_fork_while_the_file_is_away(first, tmp_path, monkeypatch):
    """What was counted before the fork comes to the file once, by the parent; each adds what it counts itself."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    bump(store)

    def away():
        raise OSError("away")

    def mended(times, *, wait=lambda: True):
        wait()
        monkeypatch.undo()
        store._outage.ask_again()
        return [bump(store) for _ in range(times)] != []

    monkeypatch.setattr(store._file, "_ready", away)
    for _ in range(3):
        bump(store)
    flag = tmp_path / "parent-was-first"

    def parent_is_done():
        while first == "parent" and not flag.exists():
            time.sleep(0.01)

    child = forked(lambda: mended(2, wait=parent_is_done))
    mended(4, wait=child if first == "child" else lambda: True)
    flag.touch()
    assert first == "child" or child()
    assert calls(store) == 1 + 3 + 2 + 4


def test_no_connection_is_open_at_a_fork(tmp_path):
    """SQLite's locks are no child's to inherit: the parent closes its connection first and opens another after."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    bump(store)
    assert store._file._connection is not None
    assert forked(lambda: store._file._connection is None and not sqlite_file._never_closed)()
    assert bump(store) == 2


def test_threads_that_fork_at_once(tmp_path):
    """Several threads may fork side by side; the store is usable in each child and afterwards here."""
    stores = [SQLiteStore(tmp_path / f"{n}.sqlite3", timeout_s=60) for n in range(3)]
    for store in stores:
        bump(store)
    fork = lambda: [forked(lambda: all(bump(store) > 1 for store in stores))() for _ in range(5)]  # noqa: E731
    assert in_threads(4, fork) == [[True] * 5] * 4
    assert [bump(store) for store in stores] == [22] * 3


def test_admissions_in_a_child_of_a_thread_pool(tmp_path):
    """A forked worker has the ceiling of all: what the parent used is not there again."""
    store = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=60)
    assert admit(store, times=20) == 20
    assert forked(lambda: admit(store, times=20) == 5)()
    assert admit(store, times=3) == 0
