"""Sessions in this process's memory: bounded, safe to fork, independent of any event loop."""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from typing import TYPE_CHECKING, TypeVar

from otel_toolguard.core.state import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Entry:
    """A session's state, its lock, when it was asked for last, and whether it was forgotten since."""

    __slots__ = ("gone", "lock", "state", "used")

    def __init__(self, session_id: str, now: float) -> None:
        # Re-entrant: a signal handler that stops the session, or a guarded generator that the garbage collector closes,
        # may run in the middle of a step of the same thread.
        self.lock = threading.RLock()
        self.state = SessionState(session_id)
        self.used = now
        self.gone = False


class MemoryStore:
    """One lock per session, so that sessions never wait for each other.

    Args:
        ttl_s: Seconds without a call after which a session may be forgotten.
        max_sessions: Sessions kept. Where more are needed, those that have expired go first, then the ones used
            longest ago; active and tripped sessions only where nothing else is left to forget.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self, *, ttl_s: float = 86_400.0, max_sessions: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.key = secrets.token_bytes(16)
        self._ttl = ttl_s
        self._most = max_sessions
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._lock = threading.RLock()
        _stores.add(self)

    def transact(self, session_id: str, step: Callable[[SessionState], T]) -> T:
        """Runs a step on the session's state under its lock; returns the step's answer."""
        while True:
            entry = self.entry(session_id)
            with entry.lock:
                if not entry.gone:
                    return step(entry.state)

    @property
    def is_plain(self) -> bool:
        """Whether ``entry`` does for a step: not where a subclass has a ``transact`` of its own."""
        return type(self).transact is MemoryStore.transact

    def entry(self, session_id: str) -> Entry:
        """What is kept of a session, for a guard of this process: ``transact`` without a closure for each step.

        The caller takes its lock, asks again if it is gone by then, and else may work on its state.
        """
        entry = self._entries.get(session_id) or self._create(session_id)
        now = self._clock()
        if now - entry.used > self._ttl:
            self._renew(entry, now)
        entry.used = now
        return entry

    def _renew(self, entry: Entry, now: float) -> None:
        with entry.lock:
            if now - entry.used > self._ttl and not entry.state.in_flight:  # no other thread was first
                entry.state = SessionState(entry.state.id)
            entry.used = now

    async def transact_async(self, session_id: str, step: Callable[[SessionState], T]) -> T:
        """The same; a step is far too short to be worth leaving the event loop."""
        return self.transact(session_id, step)

    def __len__(self) -> int:
        return len(self._entries)

    def _create(self, session_id: str) -> Entry:
        with self._lock:
            entry = self._entries.get(session_id)
            if entry is None:
                now = self._clock()
                if len(self._entries) >= self._most:
                    self._forget(now)
                entry = self._entries[session_id] = Entry(session_id, now)
            return entry

    def _forget(self, now: float) -> None:
        """Makes room for a tenth more, so that the search is not repeated for every new session."""
        room = max(1, self._most // 10)
        ranked = sorted(
            (now - entry.used <= self._ttl, _needed(entry.state), entry.used, session_id)
            for session_id, entry in self._entries.items()
        )
        forgotten = 0
        for alive, needed, _, session_id in ranked:
            if alive and forgotten >= (1 if needed else room):
                break
            entry = self._entries[session_id]
            if not entry.lock.acquire(blocking=False):
                continue
            entry.gone = True
            del self._entries[session_id]
            entry.lock.release()
            forgotten += 1

    def _after_fork(self) -> None:
        """A lock that another thread held at the fork would stay locked in the child for ever."""
        self._lock = threading.RLock()
        for entry in list(self._entries.values()):
            entry.lock = threading.RLock()


def _needed(state: SessionState) -> bool:
    runs = list(state.runs.values())
    return (
        state.stop is not None
        or bool(state.held)
        or any(run.flight or run.circuits or run.stop is not None for run in runs)
    )


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._after_fork()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# Made on import, which happens once: two threads that first ask at the same moment must not get two.
_shared = MemoryStore()


def shared_memory_store() -> MemoryStore:
    """The store that sessions of this process use unless they name another."""
    return _shared
