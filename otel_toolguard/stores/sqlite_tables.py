"""The tables of the SQLite store: a row for each session, and one for each entry of its long dictionaries."""

# ruff: noqa: S608  (the names of tables are constants; every value is bound)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.stores.sqlite_file import ENTRIES, SESSIONS, RowFault
from otel_toolguard.stores.sqlite_leases import give_back, lease
from otel_toolguard.stores.sqlite_rows import RUNS, SESSION, needed

if TYPE_CHECKING:
    import sqlite3

    from otel_toolguard.stores.sqlite_long import Long
    from otel_toolguard.stores.sqlite_rows import Kept

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

    def read(self, connection: sqlite3.Connection, kept: Kept, now: float) -> None:
        """Brings what is known of a session up to date; a session that has expired begins anew.

        Raises:
            RowFault: Its rows are not what was written.
        """
        row = connection.execute(
            f"SELECT n, version FROM {SESSIONS} WHERE namespace = ? AND id = ?", (self._namespace, _bytes(kept.id))
        ).fetchone()
        if row is None:
            kept.begin(None, 0)
        elif kept.state is None or (kept.row, kept.version) != row:
            self._load(connection, kept, row[0])
        if kept.leases:
            give_back(kept, now, self._lease)
        if kept.row is not None and now - kept.used > self._ttl and not kept.leases:
            kept.begin(kept.row, kept.version, blank=True)

    def _load(self, connection: sqlite3.Connection, kept: Kept, n: int) -> None:
        whole = f"SELECT n, version, used, state, leases FROM {SESSIONS} WHERE n = ?"
        inside = f"SELECT place, key, seq, value FROM {ENTRIES} WHERE session = ? ORDER BY place, seq"
        row = connection.execute(whole, (n,)).fetchone()
        while row is not None:
            entries = connection.execute(inside, (n,)).fetchall()
            again = connection.execute(whole, (n,)).fetchone()
            if again != row:  # written by another process in between
                row = again
                continue
            try:
                kept.load(row, entries)
            except _UNREADABLE as fault:
                kept.begin(None, 0)
                raise RowFault(repr(fault)[:200]) from fault
            return
        kept.begin(None, 0)

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
            for table, name in ((SESSIONS, "n"), (ENTRIES, "session")):
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
    if each.wiped:
        connection.execute(f"DELETE FROM {ENTRIES} WHERE session = ? AND place = ?", (n, each.place))
    elif each.gone:
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
