"""Which store a session has if it is given none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otel_toolguard import Session, SettingsError
from otel_toolguard.stores import resolve
from otel_toolguard.testing.store_steps import in_threads


@pytest.mark.parametrize("named", ["", "memory", "memory://"])
def test_the_environment_may_name_the_memory_store(named, monkeypatch):
    """Memory may be named, and is what there is if nothing is named."""
    monkeypatch.setenv("TOOLGUARD_STORE", named)
    assert type(Session("s").guard.store).__name__ == "MemoryStore"


def test_the_environment_may_name_a_file(monkeypatch, tmp_path):
    """All sessions of a process that name the same file have one store, from whatever thread."""
    path = tmp_path / "a.sqlite3"
    monkeypatch.setenv("TOOLGUARD_STORE", f"sqlite://{path.as_posix()}?timeout=0.5")
    stores = in_threads(8, lambda: Session("s").guard.store)
    assert len({id(store) for store in stores}) == 1
    assert stores[0].path == path
    monkeypatch.setenv("TOOLGUARD_STORE", f"sqlite://{path.as_posix()}")
    assert resolve(None) is not stores[0]


def test_a_store_that_is_not_known_is_an_error(monkeypatch):
    """A store that nobody provides is an error that says so, without the address, and never memory in silence."""
    monkeypatch.setenv("TOOLGUARD_STORE", "redis://user:secret@host/0")
    with pytest.raises(SettingsError, match="no store is known for 'redis'; valid are memory and sqlite") as error:
        Session("s")
    assert "secret" not in str(error.value)


def test_memory_needs_no_sqlite():
    """Whoever keeps sessions in memory does not pay for the database's import."""
    code = "import sys, otel_toolguard; otel_toolguard.Session('s'); print('sqlite3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
