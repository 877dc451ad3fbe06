"""Where the state of sessions is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
    """The given store; None is the process-wide memory store."""
    from otel_toolguard.stores.memory import shared_memory_store  # noqa: PLC0415  (siblings of one package)

    return shared_memory_store() if store is None else store
