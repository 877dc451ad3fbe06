"""What doctor says of the store and the trip log, without making or changing either."""

from __future__ import annotations

import sqlite3

import pytest

from otel_toolguard import Session, guard_tool
from otel_toolguard.stores.sqlite import SQLiteStore

from .doctored import SECRET, clean, page, report


@guard_tool
def look(n: int) -> int:
    return n


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "sessions.sqlite3"
    clean(monkeypatch, TOOLGUARD_STORE=f"sqlite://{path}?on_error=closed")
    return path


def test_memory_is_the_default(monkeypatch):
    """Without a store sessions are in memory; beside other workers that is a warning."""
    clean(monkeypatch)
    assert report()["store"]["store"]["kind"] == "memory"
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    told = report()["store"]["store"]
    assert (told["level"], told["advice"]) == ("warn", "TOOLGUARD_STORE=sqlite:")


def test_a_file_with_sessions(file):
    """The sessions of a file are counted, its outage policy is said, and looking leaves it as it was."""
    store = SQLiteStore(file)
    for name in ("a", "b"):
        with Session(name, store=store):
            look(1)
    store.close()
    before = file.read_bytes()
    told = report()["store"]["store"]
    assert (told["level"], told["sessions"], told["on_error"]) == ("ok", 2, "closed")
    assert file.read_bytes() == before


def test_a_file_that_is_not_there_is_not_made(file):
    """Looking does not make the file, and says that the first call does."""
    assert "not there yet" in report()["store"]["store"]["text"]
    assert not file.exists()


def test_a_file_that_cannot_be_opened(file):
    """A file that cannot be written fails, with what holds while it is so."""
    file.mkdir()
    told = report(code=1)["store"]["store"]
    assert told["level"] == "fail"
    assert "no guarded call runs (on_error closed)" in told["text"]


def test_a_folder_that_cannot_be(tmp_path, monkeypatch):
    """A path below something that is no folder fails before any agent tries."""
    (tmp_path / "plain").touch()
    clean(monkeypatch, TOOLGUARD_STORE=f"sqlite://{tmp_path}/plain/sessions.sqlite3")
    assert report(code=1)["store"]["store"]["level"] == "fail"


@pytest.mark.parametrize("content", [b"no database at all" * 100, None], ids=["garbage", "of another program"])
def test_a_file_that_is_no_store(content, file):
    """A corrupt file, and the database of another program, fail and stay as they are."""
    if content is None:
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        connection.close()
    else:
        file.write_bytes(content)
    before = file.read_bytes()
    assert report(code=1)["store"]["store"]["level"] == "fail"
    assert file.read_bytes() == before


def test_a_locked_file_is_not_waited_for(file):
    """A file that somebody has locked fails after a moment."""
    SQLiteStore(file).sessions()
    with sqlite3.connect(file) as holding:
        holding.execute("BEGIN EXCLUSIVE")
        assert "locked" in report(code=1)["store"]["store"]["text"]
    holding.close()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@host/0",
        f"sqlite://user:{SECRET}@host/x",
        "sqlite:///x?on_eror=open",
        "sqlite:///x?ttl=-1",
    ],
)
def test_addresses_that_cannot_be(url, monkeypatch):
    """An address that no store can honour fails with its reason, and without the password in it."""
    clean(monkeypatch, TOOLGUARD_STORE=url)
    shown = page(code=1)
    assert shown.count("TOOLGUARD_STORE:") == 1
    assert SECRET not in shown


def test_the_trip_log(tmp_path, monkeypatch):
    """A trip log that could be written is named and not made; one in a folder that is not there fails."""
    clean(monkeypatch, TOOLGUARD_TRIP_LOG=str(tmp_path / "trips.jsonl"))
    assert report()["store"]["trip log"]["path"] == str(tmp_path / "trips.jsonl")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(tmp_path / "none" / "trips.jsonl"))
    assert report(code=1)["store"]["trip log"]["level"] == "fail"
