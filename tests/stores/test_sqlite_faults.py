"""The SQLite store when its file cannot be used: the named policy, said once, and never a fault of the tool."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading

import pytest

from otel_toolguard import CircuitOpen, Policy, Session, SessionStopped, guard_tool
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_file import META, SESSIONS
from otel_toolguard.testing.store_steps import A, admit, bump, calls, in_threads, ok, plain

POLICY = Policy(plugins=[{"plugin": "call_ceiling", "session": 8}])
LOGGER = "otel_toolguard"


@guard_tool
def look(n: int) -> int:
    return n


@pytest.fixture
def said(caplog):
    """What was said, by level."""
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [(each.levelname, each.getMessage()) for each in caplog.records if each.name == LOGGER]


def try_calls(session, number, ran=None):
    """Makes calls in one run; how many bodies ran."""
    ran = [] if ran is None else ran
    with session:
        for n in range(number):
            try:
                ran.append(look(n))
            except CircuitOpen:
                pass
    return len(ran)


def again(store):
    """Lets the store ask for its file at the next call."""
    store._outage.ask_again()


def unusable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "a.sqlite3"


def corrupt(tmp_path):
    (tmp_path / "a.sqlite3").write_bytes(b"no database at all " * 500)
    return tmp_path / "a.sqlite3"


def half_corrupt(tmp_path):
    path = tmp_path / "a.sqlite3"
    store = SQLiteStore(path)
    for n in range(50):
        bump(store, f"s{n}")
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    return path


def of_another_program(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.sqlite3")
    connection.execute("CREATE TABLE sessions (id)")
    connection.close()
    return tmp_path / "a.sqlite3"


def folder_in_its_place(tmp_path):
    (tmp_path / "a.sqlite3").mkdir()
    return tmp_path / "a.sqlite3"


UNUSABLE = [unusable_folder, corrupt, half_corrupt, of_another_program, folder_in_its_place]


# ------------------------------------------------------------------------------------------------ the policies


@pytest.mark.parametrize("make", UNUSABLE)
@pytest.mark.parametrize(("on_error", "ran"), [("closed", 0), ("local", 3), ("open", 8)])
def test_each_fault_has_the_named_policy(make, on_error, ran, tmp_path, said):
    """Closed runs nothing, local a few calls, open what the rules allow; one WARNING says so, the file stays as it is."""
    path = make(tmp_path)
    before = path.read_bytes() if path.is_file() else None
    store = SQLiteStore(path, on_error=on_error, local_calls=3)
    session = Session("s", policy=POLICY, store=store)
    assert try_calls(session, 12) == ran
    warned = [text for level, text in said() if "cannot be used" in text and level == "WARNING"]
    assert len(warned) == 1
    assert f"on_error={on_error}" in warned[0]
    assert str(path) in warned[0]
    assert not [text for level, text in said() if level == "ERROR"]
    assert (path.read_bytes() if path.is_file() else None) == before
    assert session.report()["calls"] == ran


@pytest.mark.parametrize(
    ("on_error", "allowed", "setting"), [("closed", 0, "on_error=open"), ("local", 2, "local_calls=3")]
)
def test_a_refusal_says_why_and_what_would_have_allowed_it(on_error, allowed, setting, tmp_path):
    """It is a stop by the rule ``store``, before the body, and the gate at the model shuts with it."""
    session = Session("s", policy=POLICY, store=SQLiteStore(corrupt(tmp_path), on_error=on_error, local_calls=2))
    with session:
        for n in range(allowed):
            look(n)
        with pytest.raises(SessionStopped) as stopped:
            look(99)
        with pytest.raises(SessionStopped):
            session.raise_if_open()
    trip = stopped.value.trip
    assert (trip.rule, trip.scope, trip.limit, trip.observed) == ("store", "session", allowed, allowed)
    assert f"{allowed} calls may run meanwhile; {setting} in its address would have allowed one more" in trip.why


def test_async_and_threads_have_it_too(tmp_path, said):
    """Whatever asks, the answer is the same, and it is said once."""
    store = SQLiteStore(corrupt(tmp_path), local_calls=10)
    assert asyncio.run(store.transact_async("s", lambda state: state.calls)) == 0
    assert sum(in_threads(8, lambda: try_calls(Session("s", policy=Policy(plugins=[]), store=store), 5))) == 10
    assert [level for level, text in said() if "cannot be used" in text] == ["WARNING"]


def test_a_session_goes_on_from_what_was_last_seen(tmp_path):
    """Ceilings used before the outage are used in it, and a stop that was seen holds."""
    store = SQLiteStore(tmp_path / "a.sqlite3", local_calls=50)
    session = Session("s", policy=POLICY, store=store)
    assert try_calls(session, 5) == 5
    stopped = Session("stopped", policy=POLICY, store=store)
    stopped.stop("enough")
    store.close()
    (tmp_path / "a.sqlite3").write_bytes(b"broken" * 999)
    assert try_calls(session, 5) == 3
    assert try_calls(stopped, 5) == 0
    assert stopped.trip.rule == "session.stop"


def test_an_operators_stop_holds_in_an_outage_and_after_it(tmp_path):
    """A stop is taken even where the outage itself lets nothing run, and is in the file afterwards."""
    path = unusable_folder(tmp_path)
    store = SQLiteStore(path, on_error="closed")
    session = Session("s", policy=Policy(plugins=[], signature_key=b"k" * 16), store=store)
    assert try_calls(session, 1) == 0
    session.stop("enough")
    assert session.trip.rule == "session.stop"
    (tmp_path / "file").unlink()
    again(store)
    assert session.trip.rule == "session.stop"
    assert SQLiteStore(path).sessions()[0][2]


# ------------------------------------------------------------------------------------------------ locked


def locked(path):
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    return holder


def test_a_lock_is_waited_for_as_long_as_is_said(tmp_path, said):
    """A file that another process keeps locked is given up after the timeout, and asked again only later."""
    store = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=0.05)
    bump(store)
    holder = locked(store.path)
    tried = []
    whole = store._file.write
    store._file.write = lambda *given: (tried.append(1), whole(*given))[1]
    assert [bump(store) for _ in range(20)] == list(range(2, 22))
    holder.close()
    assert len(tried) == 1
    assert "locked for 0.05 s" in said()[0][1]


def test_a_lock_that_is_given_back_in_time_is_not_felt(tmp_path, said):
    """A call that finds the file locked waits, and is counted in it."""
    store = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=60)
    bump(store)
    holder = locked(store.path)
    timer = threading.Timer(0.05, holder.close)
    timer.start()
    assert bump(store) == 2
    timer.join()
    assert calls(SQLiteStore(store.path)) == 2
    assert said() == []


# ------------------------------------------------------------------------------------------------ full, read-only


def test_a_full_file(tmp_path, said):
    """A file that may not grow any more has the policy; once there is room, all that was counted is in it."""
    store = SQLiteStore(tmp_path / "a.sqlite3", local_calls=1_000)
    bump(store)
    connection = store._file._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    names = [f"s{n}" for n in range(60)]
    for name in names:
        assert bump(store, name) == 1
    assert [level for level, text in said() if "full" in text] == ["WARNING"]
    assert len(SQLiteStore(store.path)) < 60
    again(store)
    assert bump(store) == 2
    assert [calls(SQLiteStore(store.path), name) for name in names] == [1] * 60


LIMITED = """
import resource, sys
from otel_toolguard import Policy, Session, guard_tool
from otel_toolguard.errors import CircuitOpen
from otel_toolguard.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1], on_error=sys.argv[2], local_calls=7)
ran = 0

@guard_tool
def look(n: int) -> int:
    global ran
    ran += 1
    return n

policy = Policy(plugins=[{"plugin": "call_ceiling", "session": 1000}, {"plugin": "tool_stats"}])
with Session("s", policy=policy, store=store) as session:
    look(0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    for n in range(1, 300):
        try:
            look(n)
        except CircuitOpen as error:
            assert error.trip.rule == "store", error
            break
    print(ran, session.report()["calls"])
"""


@pytest.mark.skipif(os.name == "nt", reason="no such limit")
@pytest.mark.parametrize("on_error", ["closed", "local", "open"])
def test_a_full_disk(on_error, tmp_path):
    """When the system lets no file grow the tool goes on, or is refused, as the policy says, and nothing crashes."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "a.sqlite3"), on_error],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran, counted = map(int, done.stdout.split())
    assert ran == counted
    assert (ran == 300) is (on_error == "open")
    assert done.stderr.count("cannot be used") == 1
    assert "Traceback" not in done.stderr


READ_ONLY = """
import os, sys
from otel_toolguard import Session, Policy, guard_tool
from otel_toolguard.stores.sqlite import SQLiteStore
if os.geteuid() == 0:
    os.seteuid(65534)
body = guard_tool(lambda n: n, name="look")
with Session("s", policy=Policy(plugins=[]), store=SQLiteStore(sys.argv[1], local_calls=9)):
    print([body(n) for n in range(5)])
"""


@pytest.mark.skipif(os.name == "nt", reason="no such modes")
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_and_a_file_that_may_not_be_written(there, tmp_path):
    """Whether the file is missing or there: the policy, and one line that says why."""
    folder = tmp_path / "closed"
    folder.mkdir()
    if there:
        store = SQLiteStore(folder / "a.sqlite3")
        bump(store)
        store.close()
        (folder / "a.sqlite3").chmod(0o444)
    folder.chmod(0o555)
    for above in (tmp_path, *tmp_path.parents):  # another user must come as far as that
        if above.stat().st_uid == os.getuid() and above != above.parent and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(folder / "a.sqlite3")], capture_output=True, text=True, check=False
    )
    folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 1, 2, 3, 4]"
    assert done.stderr.count("cannot be used") == 1
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------ afterwards


def test_what_was_counted_meanwhile_is_added(tmp_path, said):
    """Calls that two processes made in an outage, each for itself, all count in the file afterwards."""
    path = tmp_path / "a.sqlite3"
    stores = [SQLiteStore(path, timeout_s=0.02, local_calls=50) for _ in range(2)]
    chain = Chain([CallCeiling(run=30)])

    def ask(store):
        return store.transact("s", lambda state: chain.admit(state, "r", A))

    assert isinstance(ask(stores[0]), Permit)
    calls(stores[1])
    holder = locked(path)
    apart = [ask(store) for store in stores for _ in range(5)]
    assert all(isinstance(each, Permit) for each in apart)
    holder.close()
    for store in stores:
        again(store)
        calls(store, "other")
    left = SQLiteStore(path).transact("s", lambda state: (state.calls, state.runs["r"].calls, state.in_flight))
    assert left == (11, 11, 11)
    for n, each in enumerate(apart):  # calls that ended after the outage find their places
        stores[n // 5].transact("s", lambda state, each=each: chain.settle(state, "r", each.number, A, ok()))
    assert SQLiteStore(path).transact("s", lambda state: state.in_flight) == 1
    assert sum(isinstance(ask(store), Permit) for store in stores for _ in range(30)) == 19
    assert [level for level, text in said() if "can be used again" in text] == ["WARNING", "WARNING"]


def test_a_stop_in_an_outage_is_for_all_afterwards(tmp_path):
    """A run that its own process stopped meanwhile is stopped for the others, and what they did stays."""
    path = tmp_path / "a.sqlite3"
    one, other = (SQLiteStore(path, timeout_s=0.02) for _ in range(2))
    admit(one)
    holder = locked(path)
    assert admit(one, times=30) == 24
    holder.close()
    bump(other, "s")
    again(one)
    bump(one, "unlike")
    found = SQLiteStore(path).transact("s", plain)
    assert found["calls"] == 26
    assert found["runs"][0][1]["stop"][0]["rule"] == "call_ceiling"


def test_the_stop_of_an_outage_ends_with_it(tmp_path):
    """What only the outage refused runs again when the file can be used."""
    path = tmp_path / "a.sqlite3"
    store = SQLiteStore(path, timeout_s=0.02, on_error="closed")
    session = Session("s", policy=POLICY, store=store)
    assert try_calls(session, 2) == 2
    holder = locked(path)
    assert try_calls(session, 2) == 0
    holder.close()
    again(store)
    assert (session.trip, try_calls(session, 9)) == (None, 6)


def test_another_outage_while_the_first_is_brought_back(tmp_path):
    """Nothing is added twice, and nothing is lost, however often the file goes and comes."""
    path = tmp_path / "a.sqlite3"
    store = SQLiteStore(path, timeout_s=0.02, local_calls=1_000)
    bump(store)
    for _ in range(5):
        holder = locked(path)
        for _ in range(3):
            again(store)
            bump(store)
        holder.close()
        again(store)
        bump(store)
    assert calls(SQLiteStore(path)) == calls(store) == 21


def test_many_sessions_of_one_outage_are_bounded(tmp_path, monkeypatch):
    """An outage remembers so many sessions and no more."""
    monkeypatch.setattr("otel_toolguard.stores.sqlite_outage.SESSIONS_MOST", 10)
    store = SQLiteStore(corrupt(tmp_path))
    for n in range(50):
        bump(store, f"s{n}")
    assert len(store._outage._sessions) == 10


# ------------------------------------------------------------------------------------------------ rows and keys


def test_one_session_that_cannot_be_read(tmp_path, said):
    """Its calls have the policy, those of the others go on in the file, and it is said once."""
    store = SQLiteStore(tmp_path / "a.sqlite3", local_calls=5)
    bump(store, "good")
    bump(store, "bad")
    connection = sqlite3.connect(store.path)
    connection.execute(f"UPDATE {SESSIONS} SET state = '[1', version = 9 WHERE id = ?", (b"bad",))
    connection.commit()
    connection.close()
    for n in range(1, 4):
        assert (bump(store, "bad"), bump(store, "good")) == (n, n + 1)
    assert calls(SQLiteStore(store.path), "good") == 4
    assert [text for level, text in said() if level == "WARNING" and "'bad' cannot be read" in text] == [said()[0][1]]
    assert len(said()) == 1


def test_sessions_of_another_version_stay_as_they_are(tmp_path, said):
    """What an older or newer library keeps in the file is neither read nor touched, and the key is the same."""
    path = tmp_path / "a.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {META} (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
    connection.execute(f"INSERT INTO {META} VALUES ('key', ?)", (b"k" * 16,))
    connection.execute("CREATE TABLE toolguard_sessions_0_0 (id, what)")
    connection.execute("INSERT INTO toolguard_sessions_0_0 VALUES ('s', 'kept')")
    connection.commit()
    store = SQLiteStore(path)
    assert (bump(store), store.key) == (1, b"k" * 16)
    assert connection.execute("SELECT * FROM toolguard_sessions_0_0").fetchall() == [("s", "kept")]
    connection.close()
    assert [level for level, text in said() if "another version" in text] == ["WARNING"]


def test_a_handler_that_raises_is_not_felt(tmp_path):
    """An application whose log fails has its calls all the same."""

    class Failing(logging.Handler):
        def emit(self, record):
            raise RuntimeError

    handler = Failing()
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        assert bump(SQLiteStore(corrupt(tmp_path))) == 1
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)
