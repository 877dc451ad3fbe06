"""Sessions that began while the SQLite store's file could not be used: they go on in it, under its key, once it can."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.testing.store_steps import bump, calls

LOGGER = "otel_toolguard"
POLICY = Policy(plugins=[{"plugin": "call_ceiling", "session": 8}])


@guard_tool
def look(n: int) -> int:
    return n


def try_calls(number, start=0, step=1):
    """Makes calls in the current run; the rule that refused each, nothing where the body ran."""
    rules = []
    for n in range(number):
        try:
            look(start + n * step)
            rules.append("")
        except CircuitOpen as error:
            rules.append(error.trip.rule)
    return rules


def used_before(path, number=3, session="s"):
    """A file in which another process has made calls of the session."""
    store = SQLiteStore(path)
    with Session(session, policy=POLICY, store=store):
        assert try_calls(number) == [""] * number
    store.close()


def again(store):
    """Lets the store ask for its file at the next call."""
    store._outage.ask_again()


@pytest.fixture
def hidden(tmp_path):
    """A file that was used before and is out of reach; what brings it back."""
    path = tmp_path / "a.sqlite3"
    used_before(path)
    path.rename(tmp_path / "away")
    path.mkdir()

    def mend():
        path.rmdir()
        (tmp_path / "away").rename(path)

    return path, mend


# ------------------------------------------------------------------------------------------------ the key not known


def test_a_block_goes_on_in_the_file(hidden, caplog):
    """What it counted by itself is added, what the file has stays, and the ceiling of all holds to the call."""
    path, mend = hidden
    store = SQLiteStore(path, local_calls=2)
    with Session("s", policy=POLICY, store=store) as session:
        assert try_calls(4) == ["", "", "store", "store"]
        own = session.guard.signer.key_id
        mend()
        again(store)
        assert try_calls(5) == ["", "", "", "call_ceiling", "call_ceiling"]
        assert session.guard.signer.key_id != own
        assert session.report()["calls"] == 8
    assert calls(SQLiteStore(path)) == 8
    assert not [each for each in caplog.records if "start afresh" in each.getMessage()]


def test_it_goes_on_by_itself(hidden, monkeypatch):
    """Nobody has to begin anything anew: calls are refused until the file is asked next, and run from then on."""
    monkeypatch.setattr("otel_toolguard.stores.sqlite_outage.RETRY_FIRST_S", 0.02)
    monkeypatch.setattr("otel_toolguard.stores.sqlite_outage.RETRY_MOST_S", 0.05)
    path, mend = hidden
    with Session("s", policy=POLICY, store=SQLiteStore(path, on_error="closed")):
        assert try_calls(3) == ["store"] * 3
        mend()
        until = time.monotonic() + 60
        while try_calls(1) == ["store"] and time.monotonic() < until:
            time.sleep(0.005)
        assert try_calls(9) == [""] * 4 + ["call_ceiling"] * 5


def test_a_new_session_leaves_the_file_to_all(hidden):
    """One that the file does not have yet is written under the file's key, so that others go on with it."""
    path, mend = hidden
    store = SQLiteStore(path)
    with Session("new", policy=POLICY, store=store):
        assert try_calls(2) == ["", ""]
        mend()
        again(store)
        assert try_calls(2) == ["", ""]
    with Session("new", policy=POLICY, store=SQLiteStore(path)):
        assert try_calls(5) == [""] * 4 + ["call_ceiling"]


def test_loops_are_found_again(hidden):
    """After a few calls under the file's key a loop is one, and calls that were on their way end where they began."""
    path, mend = hidden
    policy = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}, {"plugin": "max_in_flight", "limit": 1}])
    store = SQLiteStore(path)

    @guard_tool
    def meanwhile() -> None:
        mend()
        again(store)

    with Session("s", policy=policy, store=store) as session:
        assert try_calls(2, step=0) == ["", ""]
        meanwhile()
        assert try_calls(5, step=0) == ["", "", "", "repeat_guard", "repeat_guard"]
        assert store.transact("s", lambda state: state.in_flight) == 0
        assert session.trip.observed == 3


def test_another_session_begins_before_the_file_is_written(hidden):
    """Where the key is known and the file still away, old and new blocks count in one place, and neither wipes it."""
    path, mend = hidden
    store = SQLiteStore(path, local_calls=3)
    early = Session("s", policy=POLICY, store=store)
    with early:
        assert try_calls(1) == [""]
    mend()
    store._outage._until = 0
    assert store.key == SQLiteStore(path).key
    store._outage._until = time.monotonic() + 1_000
    late = Session("s", policy=POLICY, store=store)
    assert late.guard.signer.key_id != early.guard.signer.key_id
    for session, ran in ((late, [""]), (early, [""]), (late, ["store"])):
        with session:
            assert try_calls(1) == ran
    again(store)
    with early:
        assert try_calls(3) == ["", "", "call_ceiling"]


def test_a_key_made_in_an_outage_is_kept_if_the_file_is_new(tmp_path):
    """Where nobody had a key yet, the sessions that began in the outage are in the file afterwards."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "a.sqlite3"
    store = SQLiteStore(path)
    with Session("s", policy=POLICY, store=store) as session:
        assert try_calls(3) == [""] * 3
        (tmp_path / "file").unlink()
        again(store)
        assert try_calls(6) == [""] * 5 + ["call_ceiling"]
        assert session.report()["calls"] == 8
    view = SQLiteStore(path)
    assert (view.key, calls(view)) == (store.key, 8)


def test_a_key_of_ones_own_is_kept(hidden):
    """A session that signs under a key from its settings does so before, in and after an outage."""
    path, mend = hidden
    policy = Policy(plugins=[{"plugin": "call_ceiling", "session": 4}], signature_key=b"k" * 16)
    store = SQLiteStore(path)
    with Session("own", policy=policy, store=store) as session:
        assert try_calls(2) == ["", ""]
        own = session.guard.signer.key_id
        mend()
        again(store)
        assert try_calls(3) == ["", "", "call_ceiling"]
        assert session.guard.signer.key_id == own


# ------------------------------------------------------------------------------------------------ the key can be read


CHILD = """
import logging, os, resource, sys
logging.basicConfig(level="WARNING")
from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_leases import owner

owner()  # loads what another user may not be allowed to load
fault, path, key = sys.argv[1:]
if fault == "full":
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
elif os.geteuid() == 0:
    os.seteuid(65534)

@guard_tool
def look(n: int) -> int:
    return n

def try_calls(number):
    for n in range(number):
        try:
            look(n)
            yield "ran"
        except CircuitOpen as error:
            yield error.trip.rule

store = SQLiteStore(path, local_calls=2)
with Session("s", policy=Policy(plugins=[{"plugin": "call_ceiling", "session": 8}]), store=store):
    print(store.key.hex() == key, *try_calls(3), flush=True)
    sys.stdin.readline()
    if fault == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store._outage.ask_again()
    print(*try_calls(5), flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="no such modes and limits")
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_file_that_can_only_be_read_tells_its_key(fault, tmp_path):
    """On a full disk or without the right to write a block signs as all others do, and goes on when that is mended."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "a.sqlite3"
    used_before(path)
    key = SQLiteStore(path).key.hex()
    for each in folder.iterdir():
        each.chmod(0o644)
    if fault == "read-only":
        path.chmod(0o444)
        folder.chmod(0o555)
    for above in (tmp_path, *tmp_path.parents):  # another user must come as far as that
        if above.stat().st_uid == os.getuid() and above != above.parent and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, fault, path, key],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline().split() == ["True", "ran", "ran", "store"]
    folder.chmod(0o777)
    path.chmod(0o666)
    out, err = child.communicate("go\n")
    assert (child.returncode, out.split()) == (0, ["ran"] * 3 + ["call_ceiling"] * 2), err
    assert err.count("cannot be used") == err.count("can be used again") == 1
    assert "start afresh" not in err
    assert calls(SQLiteStore(path)) == 8


def test_a_file_without_a_key_has_none_to_tell(tmp_path):
    """A database that is empty, of another program or no database at all gives no key away, and is not written."""
    path = tmp_path / "a.sqlite3"
    path.write_bytes(b"no database at all " * 500)
    store = SQLiteStore(path)
    assert store.key == store._file.offer
    assert bump(store) == 1
    assert path.read_bytes() == b"no database at all " * 500
