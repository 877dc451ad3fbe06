"""Where sessions are kept, where trips are written, and under which key calls are signed."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_toolguard import trip_log
from otel_toolguard.cli.doctor_finding import Finding, one_line
from otel_toolguard.errors import SettingsError
from otel_toolguard.stores import store_of
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_file import FileFault
from otel_toolguard.stores.sqlite_url import options_of
from otel_toolguard.stores.workers import several

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_toolguard.settings import Policy

_OUTAGES = {
    "local": "each process goes on alone for some calls",
    "closed": "no guarded call runs",
    "open": "calls run, and only the rules refuse",
}
_PATH = 4096  # characters of a path, for machines
_WAIT = 1.0  # seconds for a lock


def store_findings(environment: Mapping[str, str], policy: Policy | None) -> list[Finding]:
    """Store, trip log and key."""
    return [_store(environment.get("TOOLGUARD_STORE", "")), _trip_log(environment), _key(policy)]


def _store(url: str) -> Finding:
    try:
        store = store_of(url)
    except (SettingsError, ValueError, OSError, RuntimeError) as error:
        said = one_line(str(error).removeprefix("TOOLGUARD_STORE: "))
        return Finding("fail", "store", f"TOOLGUARD_STORE: {said}", "see docs/stores.md for the addresses")
    if not isinstance(store, SQLiteStore):
        text = "memory: sessions end with their process"
        workers = several()
        if workers:
            return Finding(
                "warn", "store", f"{text}, and {workers}: each has ceilings of its own", "TOOLGUARD_STORE=sqlite:"
            )
        return Finding("ok", "store", text, "", {"kind": "memory"})
    return _file(store, options_of(url).get("on_error", "local"))


def _file(store: SQLiteStore, outage: str) -> Finding:
    shown = one_line(store.path)
    data: dict[str, Any] = {"kind": "sqlite", "path": one_line(store.path, _PATH), "on_error": outage, "sessions": None}
    away = f"while it cannot be used, {_OUTAGES[outage]} (on_error {outage})"
    fault = _unwritable(store.path)
    if fault:
        return Finding("fail", "store", f"{shown}: {fault}; {away}", "make it writable for the agents' user", data)
    if not store.path.exists():
        text = f"{shown}: not there yet, the first call makes it; {away}"
        return Finding("note", "store", text, "if agents have run already, their TOOLGUARD_STORE is another", data)
    try:
        data["sessions"] = len(store.sessions())
    except FileFault as error:
        return Finding(
            "fail", "store", f"{shown}: {one_line(error)}; {away}", "move the file away, or name another", data
        )
    finally:
        store.close()
    return Finding("ok", "store", f"{shown}: readable and writable, {data['sessions']} sessions; {away}", "", data)


def _unwritable(path: Path) -> str | None:
    """Why nobody could write there; a file that is there is locked for a moment, one that is not there is not made."""
    try:
        if not path.exists():
            above = next(folder for folder in path.parents if folder.exists())
            fit = above.is_dir() and os.access(above, os.W_OK | os.X_OK)
            return None if fit else f"{one_line(above)} is not writable"
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_WAIT)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except (sqlite3.Error, OSError) as fault:
        return one_line(getattr(fault, "strerror", None) or fault)
    return None


def _trip_log(environment: Mapping[str, str]) -> Finding:
    named = environment.get(trip_log.VARIABLE)
    if not named:
        return Finding("ok", "trip log", "none (TOOLGUARD_TRIP_LOG names a file)", "", {"path": None})
    path = Path(trip_log.place_of(named))
    fault = _unlogged(path)
    if fault:
        text = f"{one_line(path)} cannot be written ({fault})"
        return Finding("fail", "trip log", text, "correct TOOLGUARD_TRIP_LOG")
    return Finding("ok", "trip log", one_line(path), "", {"path": one_line(path, _PATH)})


def _unlogged(path: Path) -> str | None:
    """Why no trip could be appended; a file that is there is opened as the log opens it, none is made."""
    try:
        os.close(os.open(path, trip_log.FLAGS & ~os.O_CREAT))
    except FileNotFoundError:
        return None if os.access(path.parent, os.W_OK | os.X_OK) else f"{one_line(path.parent)} is not writable"
    except (OSError, ValueError) as fault:
        return one_line(getattr(fault, "strerror", None) or fault)
    return None


def _key(policy: Policy | None) -> Finding:
    if policy is not None and policy.signature_key:
        return Finding(
            "ok", "key", "set (TOOLGUARD_SIGNATURE_KEY): signatures agree across processes", "", {"set": True}
        )
    text = "not set: signatures agree only among those that share a store"
    return Finding("ok", "key", text, "", {"set": False})
