"""Which store a session has if it is given none."""

from __future__ import annotations

import pytest

from otel_toolguard import Session, SettingsError


@pytest.mark.parametrize("named", ["", "memory", "memory://"])
def test_the_environment_may_name_the_memory_store(named, monkeypatch):
    """Memory may be named, and is what there is if nothing is named."""
    monkeypatch.setenv("TOOLGUARD_STORE", named)
    assert type(Session("s").guard.store).__name__ == "MemoryStore"


def test_a_store_that_is_not_known_is_an_error(monkeypatch):
    """A store that nobody provides is an error that says so, without the address, and never memory in silence."""
    monkeypatch.setenv("TOOLGUARD_STORE", "redis://user:secret@host/0")
    with pytest.raises(SettingsError, match="no store is known for 'redis'; valid is memory") as error:
        Session("s")
    assert "secret" not in str(error.value)
