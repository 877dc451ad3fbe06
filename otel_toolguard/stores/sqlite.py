"""Sessions in a SQLite file: shared by the processes of one machine, and there again after a restart."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from otel_toolguard.stores.sqlite_file import FileFault, RowFault, SQLiteFile, Stepped
from otel_toolguard.stores.sqlite_outage import Outage, say
from otel_toolguard.stores.sqlite_patience import Patience
from otel_toolguard.stores.sqlite_rows import Kept
from otel_toolguard.stores.sqlite_tables import VERSIONS_KEPT, Tables
from otel_toolguard.stores.sqlite_url import checked, options_of, usual_path

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from otel_toolguard.core.state import SessionState

T = TypeVar("T")

SHARED_STEPS = VERSIONS_KEPT  # after others were seen to write: who comes back within them finds what was changed
KEPT_MOST = 256  # sessions that a process remembers between two steps; the file has them all


class SQLiteStore:
    """Sessions of one application in a file; each step is one transaction.

    A step runs outside the transaction, on the state as it was read. If another process has written the session since,
    it runs again, inside: then nobody else can. Where others were just seen to write, too, it runs inside at once.

    Args:
        path: The file; None for the usual place in the user's folder for state. It and missing folders above it are
            made when they are first needed, for their owner alone. Never let the guarded agent write there.
        namespace: Sessions of one id under two of these are two sessions.
        on_error: What holds while the file cannot be used. ``local``: each process goes on from what it last saw, and
            lets ``local_calls`` more calls of each session run. ``closed``: none. ``open``: as many as the rules allow.
        timeout_s: How long one step waits for a lock that nobody gives back; ten times as long while others get on.
        lease_s: Seconds after which the place of a call is free again if its process is no longer there.
        ttl_s: Seconds without a call after which a session may be forgotten.
        max_sessions: Sessions kept in a namespace; who goes first is as in ``MemoryStore``.
        local_calls: See ``on_error``.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        namespace: str = "",
        on_error: str = "local",
        timeout_s: float = 1.0,
        lease_s: float = 3_600.0,
        ttl_s: float = 86_400.0,
        max_sessions: int = 10_000,
        local_calls: int = 100,
        clock: Callable[[], float] = time.time,
    ) -> None:
        checked(
            on_error=on_error,
            seconds={"timeout": timeout_s, "lease": lease_s, "ttl": ttl_s},
            counts={"max_sessions": (max_sessions, 1), "local_calls": (local_calls, 0)},
        )
        usual = usual_path()
        self.path = usual if path is None else type(usual)(path).absolute()
        self._ttl, self._clock = ttl_s, clock
        self._tables = Tables(namespace, lease_s, ttl_s, max_sessions)
        self._file = SQLiteFile(self.path, timeout_s)
        self._outage = Outage(str(self.path), on_error, local_calls)
        self._stranger: str | None = None  # key id of signatures made before the file's key was known
        self._unreadable: set[str] = set()
        self._lock = threading.RLock()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._told = False
        _stores.add(self)

    @classmethod
    def from_url(cls, url: str) -> SQLiteStore:
        """The store of an address such as ``sqlite:///var/lib/app/sessions.sqlite3?on_error=closed``.

        Raises:
            SettingsError: It cannot be honoured.
        """
        return cls(**options_of(url))

    @property
    def key(self) -> bytes:
        """Under which signatures are made: that of the file, else one that only this process has until it is known."""
        if self._file.key is None and not self._outage.holds():
            try:
                self._file.read(lambda _: None, self._patience())
                self._outage.ask_again()  # nobody knows yet whether it can be written
            except FileFault as fault:
                self._outage.begin(fault)
        if self._file.key is None:
            self._stranger = _key_id(self._file.offer)
        return self._file.key or self._file.offer

    def transact(self, session_id: str, step: Callable[[SessionState], T]) -> T:
        """Runs a step on the session's state, atomically over all processes; returns the step's answer.

        It is called again, on another state, if the session was changed by somebody else meanwhile.
        """
        kept = self._remembered(session_id)
        with kept.lock:
            if kept.depth and kept.state is not None:  # in the middle of a step of this very thread
                return step(kept.state)
            if self._outage.holds():
                return self._alone(kept, step)
            if kept.busy:  # in the middle of reading or writing by this very thread
                kept = Kept(session_id)
            kept.busy = True
            try:
                answer = self._shared(kept, step)
            except RowFault as fault:
                self._tell_unreadable(session_id, fault)
                return self._alone(kept, step)
            except FileFault as fault:
                self._outage.begin(fault)
                return self._alone(kept, step)
            finally:
                kept.busy = False
        if self._outage.is_on:
            self._recover()
        return answer

    async def transact_async(self, session_id: str, step: Callable[[SessionState], T]) -> T:
        """The same: a step takes less than a switch of threads, and waits for a lock as ``timeout_s`` says."""
        return self.transact(session_id, step)

    def sessions(self) -> list[tuple[str, float, bool]]:
        """Id, time of the last call, and whether something is stopped or held, of each session; the newest first.

        Raises:
            FileFault: The file cannot be used.
        """
        return self._file.read(self._tables.listed, self._patience())

    def peek(self, session_id: str) -> SessionState | None:
        """A session as it is in the file, to be looked at: unlike a step this is no sign of life, and writes nothing.

        None if the file has none of that id, or it has expired.

        Raises:
            FileFault: The file, or this session in it, cannot be read.
        """
        kept = Kept(session_id)
        self._file.read(lambda connection: self._tables.read(connection, kept, self._clock()), self._patience())
        return kept.state if kept.parts else None

    def __len__(self) -> int:
        return len(self.sessions())

    def close(self) -> None:
        """Closes the file; the next call opens it again."""
        self._file.close()

    def __repr__(self) -> str:
        return f"<SQLiteStore {self.path}>"

    def _patience(self) -> Patience:
        return Patience(self._file.timeout_s)

    def _remembered(self, session_id: str) -> Kept:
        with self._lock:
            kept = self._kept.get(session_id)
            if kept is None:
                # One that another thread still works on may be dropped: the version of the row tells the two apart.
                while len(self._kept) >= KEPT_MOST:
                    self._kept.popitem(last=False)
                kept = self._kept[session_id] = Kept(session_id)
            else:
                self._kept.move_to_end(session_id)
            return kept

    # -------------------------------------------------------------------------------------------- one step

    def _shared(self, kept: Kept, step: Callable[[SessionState], T]) -> T:
        patience, stepped, now = self._patience(), Stepped(), self._clock()
        ran: list[tuple[T, bool]] = []  # the newest answer, and whether there is something to write
        if not self._others_write(kept, patience, now):
            ran = [self._run(kept, step, stepped, now)]
            if not ran[0][1]:
                return ran[0][0]

        def write(connection: sqlite3.Connection) -> None:
            for _ in range(4):  # a handler of a signal may come in the middle, and change it, too
                if ran:
                    if kept.state is not None and kept.opened == self._file.opened:
                        if not ran[0][1] or self._tables.save(connection, kept, now):
                            return
                        kept.shared = SHARED_STEPS
                    kept.forget()
                moved = self._read(connection, kept, now)
                kept.shared = SHARED_STEPS if moved else max(0, kept.shared - 1)
                ran[:] = [self._run(kept, step, stepped, now)]
            raise FileFault("a session was changed inside a transaction")

        try:
            self._file.write(write, stepped, patience)
        except BaseException:
            kept.forget()
            raise
        answer, changed = ran[0]
        if changed:
            self._saved(kept)
        return answer

    def _others_write(self, kept: Kept, patience: Patience, now: float) -> bool:
        """Whether the step is to run inside the transaction; if not, what is known is up to date."""
        if kept.shared == 0 and self._file.read(partial(self._read, kept=kept, now=now, follow=False), patience):
            kept.shared = SHARED_STEPS
        return kept.shared > 0

    def _alone(self, kept: Kept, step: Callable[[SessionState], T]) -> T:
        self._acquaint()
        return self._outage.serve(kept.id, kept.last_known, step)

    def _run(self, kept: Kept, step: Callable[[SessionState], T], stepped: Stepped, now: float) -> tuple[T, bool]:
        """The answer of the step, and whether there is something to write."""
        state = kept.state
        assert state is not None  # noqa: S101  (it was just read)
        kept.depth += 1
        try:
            answer = step(state)
        except BaseException as error:
            stepped.error = error
            kept.forget()
            raise
        finally:
            kept.depth -= 1
        stale = bool(kept.parts) and not 0 <= now - kept.used < self._ttl / 100
        asks = self._outage.is_on  # only what is written shows that the file can be used again
        return answer, kept.pack() or stale or asks

    def _read(self, connection: sqlite3.Connection, kept: Kept, now: float, *, follow: bool = True) -> bool:
        """Brings what is known of a session up to date, as ``Tables.read``; whether others have written since."""
        if kept.opened != self._file.opened:
            kept.opened = self._file.opened
            kept.forget()
            if self._file.others and not self._told:
                self._told = True
                say(
                    logging.WARNING,
                    "%s has sessions of another version of the library: counters start afresh",
                    self.path,
                )
        moved = self._tables.read(connection, kept, now, follow=follow)
        if follow or not moved:
            self._add_local(kept)
        return moved

    def _saved(self, kept: Kept) -> None:
        """Notes that the transaction was committed."""
        kept.saved()
        if kept.added is not None:
            self._outage.done(kept.id, kept.added)
            kept.added = None

    def _add_local(self, kept: Kept) -> None:
        """Adds what was counted here while the file was away."""
        kept.added = None
        waiting = self._outage.pending(kept.id)
        if waiting is None:
            return
        self._acquaint()
        whole = self._outage.merged(kept.id, kept.plain())
        if whole is not None:
            kept.take(whole)
            kept.added = waiting

    def _acquaint(self) -> None:
        """Has what was signed while nobody could read the file's key go on under that key, once it is known."""
        if self._stranger is not None and self._file.key is not None:
            self._outage.sign(self._stranger, _key_id(self._file.key))
            self._stranger = None

    def _after_fork(self) -> None:
        """Another thread may have held any lock; what is remembered is read again."""
        self._lock = threading.RLock()
        self._kept.clear()
        self._outage.after_fork()

    def _tell_unreadable(self, session_id: str, fault: Exception) -> None:
        if session_id not in self._unreadable:
            if len(self._unreadable) >= KEPT_MOST:
                self._unreadable.clear()
            self._unreadable.add(session_id)
            say(logging.WARNING, "%s: session %r cannot be read (%s), so this process counts it for itself",
                self.path, session_id, fault)  # fmt: skip

    def _recover(self) -> None:
        for session_id in self._outage.end():
            self.transact(session_id, lambda _state: None)


def _key_id(key: bytes) -> str:
    from otel_toolguard.core.canonical import signer  # noqa: PLC0415  (costs start-up time, and few need it)

    return signer(key).key_id


_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._after_fork()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
