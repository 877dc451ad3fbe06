"""The file of the SQLite store: opened late, reopened after a fork, and never waited for longer than is said."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
import weakref
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from otel_toolguard.core.state import STATE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_toolguard.stores.sqlite_patience import Patience

T = TypeVar("T")

# A version of the library that keeps something else has tables of its own, beside those of others.
VERSION = f"2_{STATE_VERSION}"
META, SESSIONS, ENTRIES = "toolguard_meta", f"toolguard_sessions_{VERSION}", f"toolguard_entries_{VERSION}"
CHANGES = f"toolguard_changes_{VERSION}"
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {META} (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {SESSIONS} (
    n INTEGER PRIMARY KEY AUTOINCREMENT, namespace BLOB NOT NULL, id BLOB NOT NULL, version INTEGER NOT NULL,
    used REAL NOT NULL, needed INTEGER NOT NULL, held REAL NOT NULL, state TEXT NOT NULL, leases TEXT NOT NULL,
    UNIQUE (namespace, id));
CREATE TABLE IF NOT EXISTS {ENTRIES} (
    session INTEGER NOT NULL, place INTEGER NOT NULL, key BLOB NOT NULL, seq INTEGER NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (session, place, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {CHANGES} (
    session INTEGER NOT NULL, version INTEGER NOT NULL, keys TEXT, PRIMARY KEY (session, version)) WITHOUT ROWID;
"""
_KEY = f"SELECT value FROM {META} WHERE name = 'key'"  # noqa: S608  (a constant)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class FileFault(Exception):
    """The file cannot be used now."""


class RowFault(FileFault):
    """The rows of one session cannot be read; all else can."""


class Stepped:
    """A step with the error it raised last, which is told from a fault of the file by being that very object."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


class SQLiteFile:
    """One connection of this process to the file, used by one thread at a time.

    Args:
        path: The file; made if it is missing, readable for its owner alone, with the folders above it.
        timeout_s: How long a lock is waited for.

    Attributes:
        key: Under which signatures are made, None as long as nobody could read it.
        offer: The key for a file that has none yet.
        opened: How often the file was opened: what was remembered of an earlier opening may be of another file.
        others: Whether there were sessions of another version of the library alone, until this opened the file.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.key: bytes | None = None
        self.offer = secrets.token_bytes(16)
        self.opened = 0
        self.others = False
        self._lock = threading.RLock()
        self._depth = 0
        self._commits = 0
        self._seen = 0
        self._is: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        _files.add(self)

    def read(self, work: Callable[[sqlite3.Connection], T], patience: Patience) -> T:
        """What ``work`` finds in the file.

        Raises:
            FileFault: The file cannot be used, or is locked and the patience at its end.
        """
        return self._patiently(work, Stepped(), patience)

    def write(self, work: Callable[[sqlite3.Connection], T], stepped: Stepped, patience: Patience) -> T:
        """Runs ``work`` as one transaction, which writes alone; again, from its beginning, if it could not commit.

        Raises:
            FileFault: The file cannot be used, or is locked and the patience at its end.
        """

        def whole(connection: sqlite3.Connection) -> T:
            if connection.in_transaction:  # a signal handler inside a step inside this: one transaction for both
                return work(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                answer = work(connection)
                connection.execute("COMMIT")
                self._commits += 1
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return answer

        return self._patiently(whole, stepped, patience)

    def _patiently(self, work: Callable[[sqlite3.Connection], T], stepped: Stepped, patience: Patience) -> T:
        while True:  # a turn for each time that it was locked
            while not self._lock.acquire(timeout=patience.left):
                if not patience.goes_on((self._commits, self._seen)):
                    raise FileFault(f"another thread used it for {self.timeout_s:g} s")
            try:
                self._depth += 1
                return work(self._ready())
            except (sqlite3.Error, OSError) as fault:
                if fault is stepped.error:
                    raise
                code = getattr(fault, "sqlite_errorcode", 0) & 0xFF
                if code not in _BUSY or not patience.goes_on(self._progress()):
                    if self._depth == 1 and code not in _BUSY:
                        self.close()
                    said = f"locked for {self.timeout_s:g} s" if code in _BUSY else str(fault)
                    raise FileFault(said) from fault
            finally:
                self._depth -= 1
                self._lock.release()
            # SQLite's own waiting grows to a tenth of a second a time: whoever comes fresh would always be first.
            time.sleep(0.0003 + secrets.randbelow(1000) * 1e-6)

    def _progress(self) -> tuple[int, int]:
        """Something else whenever this process or another has committed since the last look."""
        try:
            if self._connection is not None:
                self._seen = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            pass
        return self._commits, self._seen

    def _ready(self) -> sqlite3.Connection:
        connection = self._connection
        if self._depth == 1:
            try:
                found = os.stat(self.path)  # noqa: PTH116  (a third of the time)
                now = (found.st_dev, found.st_ino)
            except FileNotFoundError:
                now = None
            if connection is not None and now != self._is:  # deleted or replaced: others use what is there now
                self.close()
                connection = None
        if connection is None:
            try:
                connection = self._open()
            except (sqlite3.Error, OSError):
                self.key = self.key or _key_in(self.path)
                raise
        return connection

    def _open(self) -> sqlite3.Connection:
        _make(self.path)
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables and META not in tables:
                raise FileFault("it is the database of another program")  # noqa: TRY301  (it is to be closed, too)
            if not tables:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA journal_size_limit = 4194304")
            if not {META, SESSIONS, ENTRIES, CHANGES} <= tables:
                connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
            found = connection.execute(_KEY).fetchone()
            if found is None:  # the first of several processes wins
                mine = self.key or self.offer
                connection.execute("INSERT OR IGNORE INTO toolguard_meta VALUES ('key', ?)", (mine,))
                found = connection.execute(_KEY).fetchone()
            status = os.stat(self.path)  # noqa: PTH116
        except BaseException:
            connection.close()
            raise
        self.key = bytes(found[0])
        self.others = SESSIONS not in tables and any(name.startswith("toolguard_sessions_") for name in tables)
        self._is = (status.st_dev, status.st_ino)
        self.opened += 1
        self._connection = connection
        return connection

    def close(self) -> None:
        """Closes the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()

    # SQLite keeps its locks per process, in memory that a child would inherit and believe in: no connection may be open
    # at a fork. The lock that is waited for here is held for moments: a step inside it is as short as any.

    def before_fork(self) -> bool:
        """Closes the connection, if it is not in use by the very code that forks."""
        if not self._lock.acquire(timeout=max(1.0, self.timeout_s)):
            return False
        if self._depth == 0:
            self.close()
        return True

    def after_fork(self, *, locked: bool, child: bool) -> None:
        """Lets the parent go on; a child begins with a lock of its own and no connection."""
        if child:
            if self._connection is not None:
                _never_closed.append(self._connection)  # it is the parent's
            self._lock, self._depth, self._connection, self.opened = threading.RLock(), 0, None, self.opened + 1
        elif locked:
            self._lock.release()


def _make(path: Path) -> None:
    """The empty file and the folders above it, where they are missing.

    A file that is there is never opened here: closing it would give up the locks that SQLite has on it.
    """
    if path.exists():
        return
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:  # another process was first
        pass


def _key_in(path: Path) -> bytes | None:
    """The key in a file that can be read, though nothing can be written there; None if nobody can tell.

    A key is written once and stays, so that it does not matter what others write meanwhile.
    """
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            found = connection.execute(_KEY).fetchone()
    except (sqlite3.Error, OSError):
        return None
    return None if found is None else bytes(found[0])


_files: weakref.WeakSet[SQLiteFile] = weakref.WeakSet()
_never_closed: list[sqlite3.Connection] = []
_forking: dict[int, list[tuple[SQLiteFile, bool]]] = {}  # by thread: several may fork at once


def _before() -> None:
    _forking[threading.get_ident()] = [(file, file.before_fork()) for file in sorted(_files, key=id)]


def _after(*, child: bool) -> None:
    for file, locked in _forking.pop(threading.get_ident(), ()):
        file.after_fork(locked=locked, child=child)
    if child:
        _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=partial(_after, child=False), after_in_child=partial(_after, child=True)
    )
