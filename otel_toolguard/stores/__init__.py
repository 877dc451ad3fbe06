"""Where the state of sessions is kept."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from otel_toolguard.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.core.state import SessionState

T = TypeVar("T")


class SessionStore(Protocol):
    """Keeps sessions, and lets one step at a time change one of them."""

    @property
    def key(self) -> bytes:
        """Under which signatures are made if the settings name no other."""

    def transact(self, session_id: str, step: Callable[[SessionState], T]) -> T:
        """Runs a pure step on the session's state, atomically; returns its answer.

        The step changes the state it is given and nothing else, so that a store may run it again on a fresh copy.
        """

    async def transact_async(self, session_id: str, step: Callable[[SessionState], T]) -> T:
        """The same for code on an event loop."""


def resolve(store: Any) -> SessionStore:
    """The given store; None is the one that ``TOOLGUARD_STORE`` names, else the process-wide memory store.

    Raises:
        SettingsError: The environment names a store that is not known, or an option that it does not have.
    """
    if store is not None:
        kept: SessionStore = store
        return kept
    return store_of(os.environ.get("TOOLGUARD_STORE", ""))


def store_of(url: str) -> SessionStore:
    """The store of an address, one for each address in a process; that of the memory if it is empty.

    Raises:
        SettingsError: No such store is known, or it has no such option.
    """
    from otel_toolguard.stores.memory import shared_memory_store  # noqa: PLC0415  (siblings of one package)

    kind = url.partition(":")[0]
    if kind in ("", "memory"):
        return shared_memory_store()
    if kind != "sqlite":
        raise SettingsError(f"TOOLGUARD_STORE: no store is known for {kind!r:.60}; valid are memory and sqlite")
    with _lock:
        found = _made.get(url)
        if found is None:
            from otel_toolguard.stores.sqlite import SQLiteStore  # noqa: PLC0415  (few need sqlite3)

            found = _made[url] = SQLiteStore.from_url(url)
        return found


_lock = threading.RLock()
_made: dict[str, SessionStore] = {}
