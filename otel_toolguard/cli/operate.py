"""``otel-toolguard stop``, ``reset`` and ``sessions``: a store's sessions, from a shell beside the agents."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.cli.check import note, printable
from otel_toolguard.cli.hook_judge import KEY as HOOK
from otel_toolguard.controls import reason_of
from otel_toolguard.errors import SettingsError
from otel_toolguard.session import Session
from otel_toolguard.settings import PLUGINS
from otel_toolguard.stores import store_of
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_file import FileFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_toolguard.core.decision import Circuit
    from otel_toolguard.core.state import SessionState

ID_SHOWN = 120  # characters of an id in the table
UNREADABLE_SHOWN = 5


class Undone(Exception):
    """What was asked for was not done; its text says why."""


def stop(session_id: str, *, url: str | None, reason: str, create: bool, as_json: bool) -> int:
    """Stops every run of a session, in whatever process, until ``reset``; returns the exit code.

    Args:
        session_id: The session.
        url: The store's address; None for ``TOOLGUARD_STORE``.
        reason: Listed by ``audit``, and what the agent's model is told.
        create: Whether a session that the store does not have is stopped before it begins. Not unless it is asked for:
            of a mistyped id a kill switch must not say that it is stopped.
        as_json: True for one JSON object.
    """

    def work(why: str) -> None:
        store = _shared(url)
        before = _seen(store, session_id, create=create)
        trip = _opened(store, session_id).stop(why)
        after = _looked(store, session_id)
        if after is None or after.stop is None:
            raise Undone(_UNWRITTEN.format(store.path, "stopped"))
        already = before is not None and before.stop is not None
        if as_json:
            _print({"session": session_id, "stopped": True, "already": already, "in_flight": after.in_flight,
                    "trip": trip.to_dict()})  # fmt: skip
            return
        _say(
            f"{session_id} {'was stopped already' if already else 'is stopped'}: its agents end before their next tool "
            f"or model call. {_in_flight(after.in_flight)}"
        )

    return _coded(work, reason)


def reset(session_id: str, *, url: str | None, reason: str, ceilings: bool, as_json: bool) -> int:
    """Clears stop, rings, streaks and refusals of a session; returns the exit code.

    Args:
        session_id: The session.
        url: The store's address; None for ``TOOLGUARD_STORE``.
        reason: Listed by ``audit``.
        ceilings: Whether what counts towards ceilings is cleared, too.
        as_json: True for one JSON object.
    """

    def work(why: str) -> None:
        store = _shared(url)
        before = _seen(store, session_id)
        session = _opened(store, session_id)
        lacking = _lacking(session, before, ceilings=ceilings)
        if lacking:
            raise SettingsError(
                f"the policy here does not know what else counts towards a ceiling of {session_id} "
                f"({', '.join(lacking)}): set TOOLGUARD_CONFIG or TOOLGUARD_PROFILE as its agent has them"
            )
        session.reset(why, ceilings=ceilings)
        after = _looked(store, session_id)
        noted = [] if after is None else after.audit[len(before.audit) if before else 0 :]
        if not any((entry["action"], entry["reason"]) == ("reset", why) for entry in noted):
            raise Undone(_UNWRITTEN.format(store.path, "reset"))
        if as_json:
            _print({"session": session_id, "reset": True, "ceilings": ceilings})
            return
        _say(f"{session_id} is reset: it goes on with {'new ceilings' if ceilings else 'what its ceilings have left'}.")

    return _coded(work, reason)


def sessions(*, url: str | None, limit: int, as_json: bool) -> int:
    """Prints the sessions of a store, the newest first; returns the exit code.

    Args:
        url: The store's address; None for ``TOOLGUARD_STORE``.
        limit: How many are shown.
        as_json: True for a JSON object a line.
    """

    def work(_: str) -> None:
        store = _shared(url)
        try:
            _check_there(store)
            known = store.sessions()
        except FileFault as fault:
            raise Undone(f"{store.path} cannot be read: {fault}") from fault
        unreadable: list[str] = []
        rows = _rows(store, known, limit, unreadable)
        if as_json:
            for row in rows:
                _print(row._asdict())
        else:
            _print_table(rows)
        if len(known) > limit:
            note(f"the newest {limit} of {len(known)} sessions; --limit shows more")
        if unreadable:
            raise Undone("cannot be read: " + "; ".join(unreadable[:UNREADABLE_SHOWN]))

    return _coded(work)


_UNWRITTEN = "{} could not be written, so the session is not {}; try again, or end the process"


def _coded(work: Callable[[str], None], reason: str | None = None) -> int:
    """Does the work, with the reason if one is needed; 1 if it could not be done, 2 if it cannot be meant."""
    try:
        why = "" if reason is None else reason_of(reason)
    except ValueError as error:
        note(f"--reason: {error}")
        return 2
    try:
        work(why)
    except Undone as error:
        note(str(error))
        return 1
    return 0


# ------------------------------------------------------------------------------------------------ the store


def _shared(url: str | None) -> SQLiteStore:
    """The store of that address, if other processes can see it."""
    named = os.environ.get("TOOLGUARD_STORE", "") if url is None else url
    if not named:
        raise SettingsError("which store? Give --store, or set TOOLGUARD_STORE as the agents have it")
    store = store_of(named)
    if not isinstance(store, SQLiteStore):
        raise SettingsError(
            "the memory store is seen by nobody but the process that has it: give the agents one that is shared, such "
            "as TOOLGUARD_STORE=sqlite:, and name it here"
        )
    return store


def _check_there(store: SQLiteStore) -> None:
    """Looking must not make the file that was looked for."""
    try:
        there = store.path.exists()
    except OSError as fault:
        raise Undone(f"{store.path} cannot be read: {fault.strerror}") from fault
    if not there:
        raise Undone(f"there is no store {store.path}; is its address the one that the agents have?")


def _seen(store: SQLiteStore, session_id: str, *, create: bool = False) -> SessionState | None:
    """The session as the store has it; None only if it may be created."""
    if not create:
        _check_there(store)
    found = _looked(store, session_id)
    if found is None and not create:
        raise Undone(
            f"{store.path} has no session {session_id}; otel-toolguard sessions lists those it has, and "
            "stop --create stops one before it begins"
        )
    return found


def _looked(store: SQLiteStore, session_id: str) -> SessionState | None:
    try:
        return store.peek(session_id)
    except FileFault as fault:
        raise Undone(f"{store.path} cannot be read: {fault}") from fault


class _AsSigned:
    """A store for one who makes no signatures: whatever key a session was signed under, here it is the right one.

    Without this, a shell in which TOOLGUARD_SIGNATURE_KEY is not set would have every counter start afresh.
    """

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self.key = store.key

    def transact(self, session_id: str, step: Callable[[SessionState], Any]) -> Any:
        """Runs a step on the session's state, atomically; returns its answer."""

        def signed(state: SessionState) -> Any:
            was = state.key_id, state.form
            state.key_id = ""
            try:
                return step(state)
            finally:
                state.key_id, state.form = was

        return self._store.transact(session_id, signed)

    async def transact_async(self, session_id: str, step: Callable[[SessionState], Any]) -> Any:
        """The same."""
        return self.transact(session_id, step)


def _opened(store: SQLiteStore, session_id: str) -> Session:
    return Session(session_id, store=_AsSigned(store))


def _lacking(session: Session, state: SessionState | None, *, ceilings: bool) -> list[str]:
    """Rules with counters that a reset would clear, or leave, against its word, for this policy has not those rules."""
    if state is None:
        return []
    counting = [state.rules] if ceilings else [run.rules for run in state.runs.values()]
    known = {plugin.name for plugin in session.policy.chain.plugins}
    lacking = {name for rules in counting for name in rules}.difference(known, {HOOK})
    return sorted(name for name in lacking if name not in PLUGINS or getattr(PLUGINS[name].rule, "ceiling", False))


# ------------------------------------------------------------------------------------------------ the list


class Row(NamedTuple):
    """A session in the list.

    Attributes:
        session: Its id.
        calls: Admitted, since it began or its ceilings were reset.
        refused: In the runs that are remembered.
        runs: That are remembered: up to 32, more only while they are open.
        rule: What stopped the session, else its newest stopped run, else what a tool or a call is refused for; None if
            nothing is open.
        scope: Of that stop.
        last_seen: When it was last written, UTC.
    """

    session: str
    calls: int
    refused: int
    runs: int
    rule: str | None
    scope: str | None
    last_seen: str


def _rows(store: SQLiteStore, known: list[tuple[str, float, bool]], limit: int, unreadable: list[str]) -> Iterator[Row]:
    """A row for each session but those that have expired; one that cannot be read is named in the list."""
    shown = 0
    for session_id, used, _ in known:
        if shown >= limit:
            return
        try:
            state = store.peek(session_id)
        except FileFault as fault:
            unreadable.append(f"session {session_id[:ID_SHOWN]}, {fault}")
            continue
        if state is not None:
            shown += 1
            yield _row(session_id, used, state)


def _row(session_id: str, used: float, state: SessionState) -> Row:
    runs = list(state.runs.values())
    trip = next((circuit.trip for circuit in _open(state)), None)
    return Row(
        session=session_id,
        calls=state.calls,
        refused=sum(run.refusals for run in runs),
        runs=len(runs),
        rule=trip.rule if trip else None,
        scope=trip.scope if trip else None,
        last_seen=datetime.fromtimestamp(used, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _open(state: SessionState) -> Iterator[Circuit]:
    """The open circuits of a session, what weighs most first."""
    if state.stop is not None:
        yield state.stop
    newest = list(reversed(state.runs.values()))
    yield from (run.stop for run in newest if run.stop is not None)
    yield from (circuit for run in newest for circuit in run.circuits.values())


def _print_table(rows: Iterator[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("session", overflow="fold")
    for name in ("calls", "refused", "runs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tripped", overflow="fold")
    table.add_column("last seen", no_wrap=True)
    for row in rows:
        shown = row.session if len(row.session) <= ID_SHOWN else row.session[: ID_SHOWN - 1] + "…"
        cells = (shown, str(row.calls), str(row.refused), str(row.runs), row.rule or "-", row.last_seen)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    # In a pipe there is no width to keep to, and a row is a line.
    console = Console(width=None if sys.stdout.isatty() else 240, highlight=False)
    console.print(table)


def _in_flight(number: int) -> str:
    return f"Calls in flight, which go on to their end: {number}." if number else "No call is in flight."


def _print(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")
