"""The tables of the SQLite store: a row for each session, one for each entry of its long dictionaries.

And, while several processes write a session, one for each of its newest versions, with the keys of the entries that
this version has changed: whoever knows an older one reads these entries alone.
"""

# ruff: noqa: S608  (the names of tables are constants; every value is bound)

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from otel_toolguard.stores.sqlite_file import CHANGES, ENTRIES, SESSIONS, RowFault
from otel_toolguard.stores.sqlite_leases import give_back, lease
from otel_toolguard.stores.sqlite_rows import RUNS, SESSION, needed

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator

    from otel_toolguard.stores.sqlite_long import Long
    from otel_toolguard.stores.sqlite_rows import Kept, Row

VERSIONS_KEPT = 256  # whose changes are still told
CHANGES_MOST = 256  # keys that a version tells; of one that has changed more, all is read anew
_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


class Tables:
    """The sessions of one namespace.

    Args:
        namespace: Its name.
        lease_s: How long a lease lasts.
        ttl_s: How long a session lasts.
        most: How many sessions are kept.
    """

    def __init__(self, namespace: str, lease_s: float, ttl_s: float, most: int) -> None:
        self._namespace = _bytes(namespace)
        self._lease, self._ttl, self._most = lease_s, ttl_s, most

    def listed(self, connection: sqlite3.Connection) -> list[tuple[str, float, bool]]:
        """Id, time of the last call, and whether something is stopped or held, of each session; the newest first."""
        rows = connection.execute(
            f"SELECT id, used, needed FROM {SESSIONS} WHERE namespace = ? ORDER BY used DESC", (self._namespace,)
        ).fetchall()
        return [(name.decode("utf-8", "surrogatepass"), used, bool(held)) for name, used, held in rows]

    def read(self, connection: sqlite3.Connection, kept: Kept, now: float, *, follow: bool = True) -> bool:
        """Brings what is known of a session up to date; a session that has expired begins anew.

        Returns:
            Whether others have written since; then nothing is done unless ``follow`` is set.

        Raises:
            RowFault: Its rows are not what was written.
        """
        row = connection.execute(
            f"SELECT n, version FROM {SESSIONS} WHERE namespace = ? AND id = ?", (self._namespace, _bytes(kept.id))
        ).fetchone()
        moved = kept.state is not None and (kept.row, kept.version) != (row or (None, 0))
        if moved and not follow:
            return True
        if row is None:
            kept.begin(None, 0)
        elif moved or kept.state is None:
            with _snapshot(connection):
                _load(connection, kept, row[0])
        if kept.leases:
            give_back(kept, now, self._lease)
        if kept.row is not None and now - kept.used > self._ttl and not kept.leases:
            kept.begin(kept.row, kept.version, blank=True)
        return moved

    def save(self, connection: sqlite3.Connection, kept: Kept, now: float) -> bool:
        """Writes the session; False if it is no longer the one that was read."""
        state = kept.state
        assert state is not None  # noqa: S101  (a step was just run on it)
        held = lease(kept, now, self._lease)
        row = (kept.version + 1, now, needed(state), held, kept.pending[SESSION][0], kept.leases_text())
        if kept.row is None:
            found = connection.execute(
                f"INSERT INTO {SESSIONS} (namespace, id, version, used, needed, held, state, leases) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (self._namespace, _bytes(kept.id), *row),
            )
            n = found.lastrowid or 0
        else:
            n = kept.row
            found = connection.execute(
                f"UPDATE {SESSIONS} SET version = ?, used = ?, needed = ?, held = ?, state = ?, leases = ? "
                "WHERE n = ? AND version = ?",
                (*row, n, kept.version),
            )
        if found.rowcount != 1:
            return False
        if kept.blank:
            connection.execute(f"DELETE FROM {ENTRIES} WHERE session = ?", (n,))
        if kept.shared:
            _tell(connection, n, kept.version + 1, None if kept.blank else _changes(kept))
        _write_parts(connection, n, kept)
        if kept.row is None:
            self._forget(connection, n, now)
        kept.written = n, now
        return True

    def _forget(self, connection: sqlite3.Connection, newest: int, now: float) -> None:
        """Makes room for the session that was just begun: who has expired goes first, who is needed last."""

        def gone(which: str, *given: Any) -> int:
            found = connection.execute(
                f"SELECT n FROM {SESSIONS} WHERE namespace = ? AND n <> ? AND {which}",
                (self._namespace, newest, *given),
            ).fetchall()
            for table, name in ((SESSIONS, "n"), (ENTRIES, "session"), (CHANGES, "session")):
                connection.executemany(f"DELETE FROM {table} WHERE {name} = ?", found)
            return len(found)

        deleted = gone("used < ? AND held <= ?", now - self._ttl, now)
        many = f"SELECT count(*) FROM {SESSIONS} WHERE namespace = ?"
        over = connection.execute(many, (self._namespace,)).fetchone()[0] - self._most
        if over > 0:
            oldest = "(needed OR held > ?) = ? ORDER BY used LIMIT ?"
            idle = gone(oldest, now, 0, max(over, self._most // 10))
            deleted += idle + gone(oldest, now, 1, max(0, over - idle))
        if deleted:
            connection.execute("PRAGMA incremental_vacuum(256)").fetchall()


# ------------------------------------------------------------------------------------------------ reading


def _load(connection: sqlite3.Connection, kept: Kept, n: int) -> None:
    row = connection.execute(
        f"SELECT n, version, used, state, leases FROM {SESSIONS} WHERE n = ?", (n,)
    ).fetchone()  # fmt: skip
    try:
        changed = None if row is None else _changed_since(connection, kept, row)
        if changed is None:
            kept.begin(None, 0)
            changed = _runs(connection, n)
        if row is not None:
            kept.load(row, changed, lambda place: _entries(connection, n, place))
    except _UNREADABLE as fault:
        kept.begin(None, 0)
        raise RowFault(repr(fault)[:200]) from fault


def _changed_since(connection: sqlite3.Connection, kept: Kept, row: tuple[Any, ...]) -> list[Row] | None:
    """What others have written since what is known, in its order; None if only all of it tells."""
    n, version = row[:2]
    if kept.state is None or kept.row != n:
        return None
    told = connection.execute(
        f"SELECT keys FROM {CHANGES} WHERE session = ? AND version > ?", (n, kept.version)
    ).fetchall()
    if len(told) != version - kept.version or (None,) in told:
        return None
    names = {(place, key) for (keys,) in told for place, key in json.loads(keys)}
    entry = f"SELECT seq, value FROM {ENTRIES} WHERE session = ? AND place = ? AND key = ?"
    found = [
        (place, key, *(connection.execute(entry, (n, place, _bytes(key))).fetchone() or (0, None)))
        for place, key in names
    ]
    return sorted(found, key=lambda entry: (entry[0], entry[2]))


def _runs(connection: sqlite3.Connection, n: int) -> list[Row]:
    found = connection.execute(
        f"SELECT key, seq, value FROM {ENTRIES} WHERE session = ? AND place = ? ORDER BY seq", (n, RUNS)
    ).fetchall()
    return [(RUNS, _text(key), seq, value) for key, seq, value in found]


def _entries(connection: sqlite3.Connection, n: int, place: int) -> Iterable[tuple[str, Any]]:
    found = connection.execute(
        f"SELECT key, value FROM {ENTRIES} WHERE session = ? AND place = ? ORDER BY seq", (n, place)
    ).fetchall()
    values = json.loads(f"[{','.join(value for _, value in found)}]")
    return zip((_text(key) for key, _ in found), values, strict=True)


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """A block in which all that is read is of one moment."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


# ------------------------------------------------------------------------------------------------ writing


def _changes(kept: Kept) -> list[tuple[int, str]]:
    """Place and key of each entry that is about to be written or deleted; a new dictionary is seen by its mark."""
    runs = {*kept.gone, *(run_id for run_id in kept.pending if kept.is_new(run_id))}
    longs = [long for _, longs in kept.pending.values() for long in longs.values() if not long.fresh and long.changed]
    return [
        *((RUNS, run_id) for run_id in runs if run_id is not SESSION),
        *((long.place, key) for long in longs for key in {*long.set, *long.gone}),
    ]


def _tell(connection: sqlite3.Connection, n: int, version: int, changes: list[tuple[int, str]] | None) -> None:
    keys = None if changes is None or len(changes) > CHANGES_MOST else json.dumps(changes, separators=(",", ":"))
    connection.execute(f"INSERT OR REPLACE INTO {CHANGES} VALUES (?, ?, ?)", (n, version, keys))
    connection.execute(f"DELETE FROM {CHANGES} WHERE session = ? AND version <= ?", (n, version - VERSIONS_KEPT))


def _write_parts(connection: sqlite3.Connection, n: int, kept: Kept) -> None:
    connection.executemany(
        f"DELETE FROM {ENTRIES} WHERE session = ? AND place = ?", [(n, place) for place in kept.orphans()]
    )
    connection.executemany(
        f"DELETE FROM {ENTRIES} WHERE session = ? AND place = ? AND key = ?",
        [(n, RUNS, _bytes(run_id)) for run_id in kept.gone if run_id is not SESSION],
    )
    for run_id, (text, longs) in kept.pending.items():
        if run_id is not SESSION and kept.is_new(run_id):
            connection.execute(_PUT, (n, RUNS, _bytes(run_id), kept.order.get(run_id, 0), text))
        for each in longs.values():
            if each.changed:
                _write_long(connection, n, each)


_PUT = (
    f"INSERT INTO {ENTRIES} VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (session, place, key) DO UPDATE SET value = excluded.value"
)


def _write_long(connection: sqlite3.Connection, n: int, each: Long) -> None:
    if each.gone:
        connection.executemany(
            f"DELETE FROM {ENTRIES} WHERE session = ? AND place = ? AND key = ?",
            [(n, each.place, _bytes(key)) for key in each.gone],
        )
    connection.executemany(
        _PUT,
        [(n, each.place, _bytes(key), seq, value) for key, seq, value in each.rows()],
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
