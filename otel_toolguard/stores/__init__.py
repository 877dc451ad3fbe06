"""Where the state of sessions is kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from otel_toolguard.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.core.state import SessionState

T = TypeVar("T")


class SessionStore(Protocol):
    """Keeps sessions, and lets one step at a time change one of them."""

    key: bytes
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
        SettingsError: The environment names a store that is not known.
    """
    from otel_toolguard.stores.memory import shared_memory_store  # noqa: PLC0415  (siblings of one package)

    if store is not None:
        kept: SessionStore = store
        return kept
    named = os.environ.get("TOOLGUARD_STORE", "")
    if named and named.partition(":")[0] != "memory":
        raise SettingsError(f"TOOLGUARD_STORE: no store is known for {named.partition(':')[0]!r:.60}; valid is memory")
    return shared_memory_store()
