"""The SQLite store: what every store must do, and what is its own."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from otel_toolguard import Policy, Session, SessionStopped, SettingsError, guard_tool
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_file import ENTRIES, SESSIONS
from otel_toolguard.stores.sqlite_url import usual_path
from otel_toolguard.testing import FakeClock, StoreContract
from otel_toolguard.testing.store_steps import HISTORY, NEEDED, admit, bump, calls, in_threads, plain


class TestSQLiteStore(StoreContract):
    """The contract, with a second view of each store as another process would open it."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.clock, self.paths = FakeClock(), (tmp_path / f"{n}.sqlite3" for n in range(999))

    def make_store(self, *, ttl_s=None, max_sessions=None):
        given = {"ttl_s": ttl_s, "max_sessions": max_sessions}
        given = {name: value for name, value in given.items() if value is not None}
        return SQLiteStore(next(self.paths), clock=self.clock, timeout_s=60, **given)

    def make_second_view(self, store):
        return SQLiteStore(store.path, clock=self.clock, timeout_s=60)

    def let_pass(self, seconds):
        self.clock.advance(seconds)

    def count(self, store):
        return len(store)


@guard_tool
def look(n: int) -> int:
    return n


def rows(path, text, *given):
    """What a plain connection finds in the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(text, given).fetchall()
    finally:
        connection.close()


# ------------------------------------------------------------------------------------------------ the file


def test_sessions_survive_a_restart(tmp_path):
    """A store that is opened again finds sessions, their stop and the key; opening alone writes nothing."""
    path = tmp_path / "a.sqlite3"
    store = SQLiteStore(path)
    for step in HISTORY:
        store.transact("s", step)
    key, left = store.key, store.transact("s", plain)
    store.close()
    before = path.read_bytes()
    again = SQLiteStore(path)
    assert (again.key, again.transact("s", plain)) == (key, left)
    again.close()
    assert path.read_bytes() == before


def test_ceilings_survive_a_restart(tmp_path):
    """A session of the same id under another store object goes on where the last one stopped."""
    policy = Policy(plugins=[{"plugin": "call_ceiling", "session": 3}])
    ran = 0
    for _ in range(3):
        with Session("s", policy=policy, store=SQLiteStore(tmp_path / "a.sqlite3")):
            for n in range(2):
                try:
                    ran += look(n) >= 0
                except SessionStopped:
                    pass
    assert ran == 3


@pytest.mark.skipif(os.name == "nt", reason="no such modes")
def test_only_the_owner_reads_it(tmp_path):
    """File and journals have mode 0600, folders that were made for them 0700, one that was there is as it was."""
    (tmp_path / "there").mkdir(mode=0o755)
    path = tmp_path / "there" / "new" / "newer" / "a.sqlite3"
    store = SQLiteStore(path)
    bump(store)
    files = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert files == {"a.sqlite3": 0o600, "a.sqlite3-wal": 0o600, "a.sqlite3-shm": 0o600}
    folders = [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path.parent.parent, tmp_path / "there")]
    assert folders == [0o700, 0o700, 0o755]


def test_nothing_is_made_before_it_is_needed(tmp_path):
    """A store that is only constructed leaves no file behind."""
    SQLiteStore(tmp_path / "sub" / "a.sqlite3")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="elsewhere")
@pytest.mark.parametrize(
    ("state_home", "expected"),
    [("/x/state", "/x/state"), ("", "{home}/.local/state"), ("relative", "{home}/.local/state")],
)
def test_the_usual_place_is_the_users(state_home, expected, monkeypatch, tmp_path):
    """Without a path the file is in the user's folder for state, never where the process happens to work."""
    monkeypatch.setenv("XDG_STATE_HOME", state_home)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = Path(expected.format(home=tmp_path)) / "otel-toolguard" / "sessions.sqlite3"
    assert usual_path() == SQLiteStore().path == SQLiteStore.from_url("sqlite:").path == found


def test_namespaces_are_apart(tmp_path):
    """Two applications with sessions of the same id in one file share nothing but the key."""
    one, other = (SQLiteStore(tmp_path / "a.sqlite3", namespace=name, max_sessions=5) for name in ("one", "other"))
    assert [bump(one), bump(one), bump(other)] == [1, 2, 1]
    for n in range(9):
        bump(other, f"s{n}")
    assert (calls(one), len(one), len(other), one.key == other.key) == (2, 1, 5, True)


# ------------------------------------------------------------------------------------------------ forgetting


def test_the_file_does_not_grow_for_ever(tmp_path):
    """Expired sessions and all their entries are deleted when others begin, and their pages are used or given back."""
    clock = FakeClock()
    store = SQLiteStore(tmp_path / "a.sqlite3", ttl_s=10, clock=clock)

    def much(state):
        state.run("r").signatures.update((f"a:{n:016x}", 1) for n in range(2_000))

    sizes = []
    for n in range(6):
        store.transact(f"s{n}", much)
        sizes.append(rows(store.path, "PRAGMA page_count")[0][0])
        clock.advance(11)
    assert (len(store), rows(store.path, f"SELECT count(*) FROM {ENTRIES} WHERE place")) == (1, [(2_000,)])
    assert sizes[5] <= 2 * sizes[0] + 50


def test_a_call_in_flight_outlives_the_ttl(tmp_path):
    """A body that runs longer than the time to live finds its session when it ends, others forgotten meanwhile."""
    clock = FakeClock()
    store = SQLiteStore(tmp_path / "a.sqlite3", ttl_s=10, clock=clock)
    admit(store)
    bump(store, "idle")
    clock.advance(100)
    bump(store, "new")
    assert sorted(name for name, _, _ in store.sessions()) == ["new", "s"]
    assert store.transact("s", lambda state: state.in_flight) == 1


def test_a_lease_that_was_prolonged_keeps_the_session(tmp_path):
    """A session with a call that outlived its lease and its time to live is there when the call ends."""
    clock = FakeClock()
    store = SQLiteStore(tmp_path / "a.sqlite3", ttl_s=10, lease_s=60, clock=clock)
    admit(store)
    clock.advance(61)
    bump(store)
    clock.advance(30)
    bump(store, "new")
    assert store.transact("s", lambda state: (state.in_flight, state.calls)) == (1, 2)


def test_an_expired_session_leaves_no_entries(tmp_path):
    """A session that begins anew in its old row has lost its long dictionaries, in the file too."""
    clock = FakeClock()
    store = SQLiteStore(tmp_path / "a.sqlite3", ttl_s=10, clock=clock)
    store.transact("s", lambda state: state.run("r").signatures.update((str(n), n) for n in range(100)))
    assert rows(store.path, f"SELECT count(*) FROM {ENTRIES}") == [(101,)]  # the run itself is one
    clock.advance(11)
    assert bump(store) == 1
    assert rows(store.path, f"SELECT count(*) FROM {ENTRIES}") == [(0,)]
    assert SQLiteStore(store.path, clock=clock).transact("s", lambda state: list(state.runs)) == []


def test_what_is_only_read_is_not_written(tmp_path):
    """A look at a session takes no lock and leaves no new version behind; one of nobody leaves no row."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    bump(store)
    version = f"SELECT version FROM {SESSIONS}"
    before = rows(store.path, version)
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert (calls(store), calls(store, "nobody")) == (1, 0)
    holder.close()
    assert rows(store.path, version) == before == [(1,)]


def test_sessions_are_listed(tmp_path):
    """Whoever shares the file sees which sessions there are, the newest first, and which are stopped or held."""
    clock = FakeClock()
    store = SQLiteStore(tmp_path / "a.sqlite3", clock=clock)
    bump(store, "a\ud800")
    clock.advance(1)
    store.transact("b", NEEDED["a stop from outside"])
    assert SQLiteStore(store.path).sessions() == [("b", clock(), True), ("a\ud800", clock() - 1, False)]


# ------------------------------------------------------------------------------------------------ one process


def test_more_sessions_than_are_remembered(tmp_path, monkeypatch):
    """A process remembers some sessions between steps; of the others it reads what is in the file."""
    monkeypatch.setattr("otel_toolguard.stores.sqlite.KEPT_MOST", 3)
    store = SQLiteStore(tmp_path / "a.sqlite3")
    for turn in range(1, 4):
        assert [bump(store, f"s{n}") for n in range(7)] == [turn] * 7
    assert len(store._kept) == 3


def test_a_session_dropped_while_it_is_worked_on(tmp_path, monkeypatch):
    """Two threads that happen to hold two memories of one session lose no update."""
    monkeypatch.setattr("otel_toolguard.stores.sqlite.KEPT_MOST", 1)
    store = SQLiteStore(tmp_path / "a.sqlite3", timeout_s=60)
    in_threads(6, lambda: [bump(store, f"s{n % 2}") for n in range(50)])
    assert [calls(store, f"s{n}") for n in range(2)] == [150, 150]


def test_a_changed_session_has_the_step_run_again(tmp_path):
    """A step that was overtaken by another process runs again on what that left, and only this counts."""
    store, other = (SQLiteStore(tmp_path / "a.sqlite3") for _ in range(2))
    seen = []

    def step(state):
        seen.append(state.calls)
        if len(seen) == 1:
            bump(other)
        state.calls += 10
        return state.calls

    bump(store)
    assert (store.transact("s", step), seen, calls(other)) == (12, [1, 2], 12)


def test_a_step_inside_a_second_try(tmp_path):
    """A signal handler in a step that already runs for the second time changes this and other sessions, too."""
    store, other = (SQLiteStore(tmp_path / "a.sqlite3") for _ in range(2))
    seen = []

    def step(state):
        seen.append(state.calls)
        bump(other) if len(seen) == 1 else (bump(store), bump(store, "more"))
        state.calls += 10

    store.transact("s", step)
    assert (seen, calls(other), calls(other, "more")) == ([0, 1], 12, 1)


def test_another_file_in_the_place_of_the_first(tmp_path):
    """A file that was deleted is made again, with the same key, and shared with whoever opens it then."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    bump(store)
    key = store.key
    for each in tmp_path.iterdir():
        each.unlink()
    assert bump(store) == 1
    view = SQLiteStore(store.path)
    assert (bump(view), bump(store), view.key) == (2, 3, key)


# ------------------------------------------------------------------------------------------------ addresses


@pytest.mark.skipif(os.name == "nt", reason="other paths")
@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/x.db", "/var/x.db"),
        ("sqlite:////var/x.db", "/var/x.db"),
        ("sqlite:/var/x.db", "/var/x.db"),
        ("sqlite:///var/a%20b%3F.db", "/var/a b?.db"),
        ("sqlite:///~/x.db", "{home}/x.db"),
        ("sqlite:///x.db", "/x.db"),
    ],
)
def test_a_path_is_absolute(url, path, monkeypatch):
    """However many slashes there are, no path depends on the working directory."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(SQLiteStore.from_url(url).path) == path.format(home="/home/somebody")


def test_an_address_sets_what_the_constructor_does(tmp_path):
    """Each option of an address reaches the store."""
    store = SQLiteStore.from_url(
        f"sqlite://{tmp_path.as_posix()}/a.db?on_error=closed&timeout=0.25&lease=60&ttl=10&max_sessions=2"
        "&local_calls=7&namespace=app"
    )
    tables = store._tables
    found = (store._outage._on_error, store._outage._local_calls, store._file.timeout_s, store._ttl)
    assert found == ("closed", 7, 0.25, 10)
    assert (tables._lease, tables._ttl, tables._most, tables._namespace) == (60, 10, 2, b"app")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://host/x", "write sqlite:///absolute/path"),
        ("sqlite:///x?wait=3", "unknown option 'wait'; valid are on_error, timeout, lease"),
        ("sqlite:///x?on_error=ignore", "on_error is 'ignore'; valid are local, closed, open"),
        ("sqlite:///x?timeout=soon", "timeout takes seconds above 0, not 'soon'"),
        ("sqlite:///x?timeout=0", "timeout takes seconds above 0, not 0.0"),
        ("sqlite:///x?lease=inf", "lease takes seconds above 0, not inf"),
        ("sqlite:///x?ttl=-1", "ttl takes seconds above 0, not -1.0"),
        ("sqlite:///x?max_sessions=0", "max_sessions takes a whole number from 1, not 0"),
        ("sqlite:///x?local_calls=1.5", "local_calls takes a whole number from 0, not '1.5'"),
    ],
)
def test_a_wrong_address_is_an_error(url, said):
    """What cannot be honoured is named, with what is valid."""
    with pytest.raises(SettingsError) as error:
        SQLiteStore.from_url(url)
    assert said in str(error.value)
