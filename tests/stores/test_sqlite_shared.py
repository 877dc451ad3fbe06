"""A SQLite session that several processes write in turn: each is as it would be alone, and reads what was changed."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from otel_toolguard import MemoryStore
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Circuit, Permit
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.tool_stats import ToolStats
from otel_toolguard.core.trips import operator_trip
from otel_toolguard.stores import sqlite, sqlite_file, sqlite_patience, sqlite_rows, sqlite_tables
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_file import CHANGES, ENTRIES, FileFault
from otel_toolguard.testing.store_steps import bump, calls, forked, in_threads

CHAIN = Chain([RepeatGuard(4), CallCeiling(run=60), MaxRefusals(3), ToolStats()])


# ------------------------------------------------------------------------------------------------ as one alone


def admit(state, run_id, n, above=None):
    call = ToolCall(f"tool{n % 3}", f"tool{n % 3}:{n}")
    admission = CHAIN.admit(state, run_id, call, above=above)
    if isinstance(admission, Permit) and n % 4:
        CHAIN.settle(state, run_id, admission.number, call, Outcome("ok" if n % 5 else "failed", exact=str(n)))


def grow(state, run_id, start, number):
    own = state.run(run_id).rules.setdefault("own", {"seen": {}})["seen"]
    lasting = state.rules.setdefault("lasting", {})
    for n in range(start, start + number):
        own[f"k{n % 40}"] = lasting[f"\ud800{n % 40}"] = n
    own["list"] = [start]


def shrink(state, run_id, start, number):
    own = state.run(run_id).rules.get("own", {}).get("seen", {})
    for key in list(own)[start % 5 :][:number]:
        del own[key]
    state.rules.get("lasting", {}).pop(f"\ud800{start % 40}", None)


def inside(state, run_id, start, number):
    own = state.run(run_id).rules.get("own", {}).get("seen", {})
    if "list" in own:
        own["list"].append(number)


def again(state, run_id, start, number):
    own = state.run(run_id).rules.get("own", {}).get("seen", {})
    for key in list(own)[:number]:
        own[key] = own.pop(key)


def wipe(state, run_id, start, number):
    state.run(run_id).rules.get("own", {}).get("seen", {}).clear()
    state.run(run_id).signatures.clear()


def replace(state, run_id, start, number):
    state.run(run_id).rules["own"] = {"seen": {f"r{n}": n for n in range(number * 2)}}


def forget(state, run_id, start, number):
    if not any(run.above and run.above.id == run_id for run in state.runs.values()):
        state.runs.pop(run_id, None)


def nest(state, run_id, start, number):
    admit(state, f"{run_id}.in", start, above=run_id if run_id in state.runs else None)


STEPS = {
    lambda state, run_id, start, number: admit(state, run_id, start): 30,
    grow: 6, shrink: 4, inside: 3, again: 2, wipe: 1, replace: 1, forget: 1, nest: 6,
    lambda state, run_id, start, number: CHAIN.end_run(state, run_id): 1,
    lambda state, run_id, start, number: CHAIN.stop(state, "enough"): 1,
    lambda state, run_id, start, number: CHAIN.reset(state, ceilings=bool(start % 2)): 2,
    lambda state, run_id, start, number: state.begin_under(f"key{start % 2}", 1): 1,
}  # fmt: skip


def whole(state):
    """The state as text, the order of its entries included."""
    return json.dumps(state.to_plain())


def known_trips(text):
    """The text with the trips, whose ids are drawn, named in the order in which they come."""
    plain, names = json.loads(text), {}
    circuits = [plain["stop"], *(run["stop"] for _, run in plain["runs"])]
    circuits += [circuit for _, run in plain["runs"] for circuit in run["circuits"].values()]
    for circuit in circuits:
        if circuit:
            circuit[0]["id"] = names.setdefault(circuit[0]["id"], len(names))
    return json.dumps(plain)


@pytest.mark.parametrize("seed", range(12))
def test_several_processes_leave_what_one_would(seed, tmp_path, monkeypatch):
    """Whatever is done to a session through three stores in turn, each finds what one memory would have, in order."""
    monkeypatch.setattr(sqlite_rows, "LONG", 5)
    monkeypatch.setattr("otel_toolguard.core.state.SIGNATURES_KEPT", 12)
    monkeypatch.setattr("otel_toolguard.core.state.RUNS_KEPT", 4)
    monkeypatch.setattr(sqlite_tables, "VERSIONS_KEPT", 12)
    monkeypatch.setattr(sqlite_tables, "CHANGES_MOST", 8)
    monkeypatch.setattr(sqlite, "SHARED_STEPS", 12)
    draw = random.Random(seed)
    stores, memory = [SQLiteStore(tmp_path / "a.sqlite3", max_sessions=3) for _ in range(3)], MemoryStore()
    for turn in range(400):
        step = draw.choices(list(STEPS), list(STEPS.values()))[0]
        given = {"run_id": f"r{draw.randrange(4)}", "start": draw.randrange(60), "number": draw.randrange(1, 9)}
        store = draw.choices(stores, [6, 3, 1])[0]
        if draw.random() < 0.05:
            with pytest.raises(ZeroDivisionError):
                store.transact("s", lambda state, step=step, given=given: (step(state, **given), 1 / 0))
        store.transact("s", partial(step, **given))
        memory.transact("s", partial(step, **given))
        expected = known_trips(memory.transact("s", whole))
        for each in draw.sample(stores, 3 if turn % 40 == 0 else draw.randrange(2)):
            assert known_trips(each.transact("s", whole)) == expected, (turn, step, given)
    connection = sqlite3.connect(tmp_path / "a.sqlite3")
    told = connection.execute(f"SELECT count(*), sum(keys IS NULL) FROM {CHANGES}").fetchone()
    connection.close()
    assert told[0] <= 12


def test_a_session_that_was_forgotten_meanwhile(tmp_path):
    """Who knew a session that others have pushed out begins it anew, as they do, and nothing of it is left behind."""
    one, other = (SQLiteStore(tmp_path / "a.sqlite3", max_sessions=1) for _ in range(2))
    for store in (one, other) * 3:
        store.transact("s", lambda state: state.run("r").signatures.update((str(n), n) for n in range(100)))
    bump(other, "t")
    connection = sqlite3.connect(tmp_path / "a.sqlite3")
    assert [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in (ENTRIES, CHANGES)] == [
        (0,)
    ] * 2
    connection.close()
    assert (bump(one), bump(other)) == (1, 2)


def test_runs_of_one_tree_share_their_stop(tmp_path):
    """After another process has written one of them, too: what the stop refuses is counted once for all of them."""
    one, other = (SQLiteStore(tmp_path / "a.sqlite3") for _ in range(2))

    def begin(state):
        for n in range(4):
            admit(state, "outer" if n % 2 else "inner", 1, above="outer")
        state.runs["outer"].stop = state.runs["inner"].stop = Circuit(operator_trip(state, "enough"))

    bump(other)
    for step in (lambda state: state.run("outer"), lambda state: state.run("inner", "outer"), begin):
        one.transact("s", step)
        calls(other)
    other.transact("s", lambda state: state.run("outer").tools.update(a=1))
    shared = one.transact("s", lambda state: state.runs["outer"].stop is state.runs["inner"].stop)
    assert (shared, one.transact("s", lambda state: state.runs["inner"].above is state.runs["outer"])) == (True, True)


# ------------------------------------------------------------------------------------------------ what it costs


def work_of(store, step):
    """How many steps SQLite's machine takes for one of ours, and how many entries are taken over."""
    steps, taken = [], []
    follow = sqlite_rows.Long.follow
    store._file._connection.set_progress_handler(lambda: steps.append(1) and None, 1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite_rows.Long, "follow", lambda *given: (taken.append(1), follow(*given))[1])
            patch.setattr(sqlite_tables, "_entries", None)  # no dictionary is read as a whole
            store.transact("s", step)
    finally:
        store._file._connection.set_progress_handler(None, 0)
    return len(steps), len(taken)


def test_a_step_reads_what_others_have_changed(tmp_path):
    """After another process has written, a step costs the same with 200 entries as with 4,096, evictions included."""
    one, other = (SQLiteStore(tmp_path / "a.sqlite3") for _ in range(2))

    def call(state, n):
        state.run("r").count(ToolCall("a", f"a:{n}"))

    def cost(n):
        whole_of(one)
        for each in range(10):
            other.transact("s", partial(call, n=n + each))
        return work_of(one, partial(call, n=n + 10))

    for n in range(200):
        (one, other)[n % 2].transact("s", partial(call, n=n))
    early = cost(1_000)
    for n in range(2_000, 6_200):
        (one, other)[n % 2].transact("s", partial(call, n=n))
    late = cost(10_000)
    assert (early[1], late[1]) == (10, 20)  # ten new ones, later ten deleted ones, too
    assert late[0] <= 2 * early[0] < 4_000
    assert whole_of(one) == whole_of(other) == whole_of(SQLiteStore(tmp_path / "a.sqlite3"))


def whole_of(store):
    return store.transact("s", whole)


def test_who_writes_alone_tells_no_changes(tmp_path):
    """What changed is noted where others write, too, and for so many versions; nobody else's session pays for it."""
    one, other = (SQLiteStore(tmp_path / "a.sqlite3") for _ in range(2))
    connection = sqlite3.connect(tmp_path / "a.sqlite3")
    told = lambda: connection.execute(f"SELECT count(*) FROM {CHANGES}").fetchone()[0]  # noqa: E731
    for _ in range(50):
        bump(one)
    alone = told()
    for _ in range(300):
        bump(one)
        bump(other)
    shared = told()
    connection.close()
    assert (alone, shared) == (0, sqlite_tables.VERSIONS_KEPT)


def test_a_step_on_a_shared_session_runs_once(tmp_path):
    """Where others were just seen to write, a step runs inside the transaction at once and cannot be overtaken."""
    one, other = (SQLiteStore(tmp_path / "a.sqlite3", timeout_s=0.01, local_calls=1) for _ in range(2))
    for _ in range(2):
        bump(one)
        bump(other)
    seen = []

    def step(state):
        seen.append(state.calls)
        bump(other)  # finds the file locked, and counts for itself
        state.calls += 10

    one.transact("s", step)
    assert (seen, calls(one)) == ([4], 14)


def test_a_signal_handler_in_a_shared_session(tmp_path):
    """One that changes the session itself, between reading and writing it, costs a second try and no call."""
    one, other = (SQLiteStore(tmp_path / "a.sqlite3") for _ in range(2))
    for _ in range(2):
        bump(one)
        bump(other)
    run, came = one._run, []

    def interrupted(*given):
        if not came:
            came.append(1)
            bump(one)
        return run(*given)

    one._run = interrupted
    assert (bump(one), bump(other), one._outage.is_on) == (6, 7, False)


# ------------------------------------------------------------------------------------------------ waiting


def test_others_who_get_on_are_no_outage(tmp_path):
    """A lock that is given back and taken again is waited for beyond the timeout, and the call is counted in the file."""
    store, done = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=0.5), threading.Event()
    bump(store)

    def others():
        connection = sqlite3.connect(store.path, isolation_level=None, timeout=30)
        while not done.is_set():
            for _ in range(8):  # longer than the timeout without a gap
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT OR REPLACE INTO toolguard_meta VALUES ('turn', randomblob(9))")
                time.sleep(0.1)
                connection.execute("COMMIT")
            time.sleep(0.1)
        connection.close()

    thread = threading.Thread(target=others)
    thread.start()
    found, waited = [], []
    for _ in range(3):
        began = time.monotonic()
        found.append(bump(store))
        waited.append(time.monotonic() - began)
        time.sleep(0.15)
    done.set()
    thread.join()
    assert (found, calls(SQLiteStore(store.path))) == ([2, 3, 4], 4)
    assert max(waited) > 0.5


@pytest.mark.parametrize("moving", [False, True])
def test_patience_has_an_end(moving, monkeypatch, tmp_path):
    """It ends with the timeout where nobody gets on, and ten times as late where others do but we never."""
    now = [100.0]
    monkeypatch.setattr(sqlite_patience, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sqlite_file, "time", SimpleNamespace(sleep=lambda _: now.__setitem__(0, now[0] + 0.1)))
    store = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=1)
    bump(store)
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    if moving:
        store._file._progress = lambda: (0, now[0])
    with pytest.raises(FileFault, match="locked for 1 s"):
        store._file.write(lambda _: None, sqlite.Stepped(), store._patience())
    holder.close()
    assert now[0] == pytest.approx(110 if moving else 101, abs=0.15)


def test_threads_wait_for_each_other_beyond_the_timeout(tmp_path):
    """Many threads whose turns take longer than the timeout all together have no outage."""
    store = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=0.4, on_error="closed")
    bump(store)

    def slow(_connection):
        time.sleep(0.05)

    in_threads(16, lambda: store._file.write(slow, sqlite.Stepped(), store._patience()))
    assert bump(store) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_no_call_more_and_none_less_with_distinct_calls(tmp_path):
    """Six processes whose calls are all different get together exactly what the ceiling allows, as all is set by default."""
    chain = Chain([CallCeiling(session=1_000), ToolStats()])
    ends = os.pipe()

    def ask(process):
        store, permitted = SQLiteStore(tmp_path / "a.sqlite3"), 0
        for n in range(250):
            call = ToolCall("a", f"a:{process}-{n}")
            admission = store.transact("s", lambda state, call=call: chain.admit(state, "r", call))
            if isinstance(admission, Permit):
                permitted += 1
                step = partial(chain.settle, run_id="r", number=admission.number, call=call)
                store.transact("s", lambda state, step=step: step(state, outcome=Outcome("ok", exact="x")))
        os.write(ends[1], f"{permitted:4d}".encode())
        return not store._outage.is_on

    waits = [forked(partial(ask, process)) for process in range(6)]
    assert [wait() for wait in waits] == [True] * 6
    assert sum(int(os.read(ends[0], 4)) for _ in waits) == 1_000
    left = SQLiteStore(tmp_path / "a.sqlite3").transact("s", lambda state: (state.calls, state.in_flight))
    assert left == (1_000, 0)
