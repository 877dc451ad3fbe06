"""What the SQLite store does while its file cannot be used, and what of that it brings back afterwards."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

from otel_toolguard.core.decision import Circuit, Trip
from otel_toolguard.core.state import RunState, SessionState
from otel_toolguard.core.trips import operator_trip

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

logger = logging.getLogger("otel_toolguard")
RULE = "store"
SESSIONS_MOST = 1_000
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0
_HIGHEST = frozenset(("number", "most_in_flight", "max_in_flight", "began", "score"))  # two counts of one thing
_GROWING = frozenset(("audit", "raised", "would", "paused"))
_DOES = {
    "local": "each process counts for itself, and at most {calls} calls of a session run here meanwhile",
    "closed": "no guarded call runs meanwhile",
    "open": "each process counts for itself meanwhile, so that ceilings are not shared",
}


class Apart(SessionState):
    """A session of which only this process knows.

    The calls of its runs get numbers that nobody else gives: each is found again when it ends after the outage, and is
    never taken for a call of another process.
    """

    __slots__ = ()

    def run(self, run_id: str, above: str | None = None) -> RunState:
        """The run of that id, begun now if it is new."""
        new = run_id not in self.runs
        run = super().run(run_id, above)
        if new:
            run.number = _far()
        return run


class Outage:
    """The sessions of this process while the file is away.

    Args:
        where: The file, for the log.
        on_error: ``local``, ``closed`` or ``open``.
        local_calls: How many calls of a session ``local`` lets run in one outage.
    """

    def __init__(self, where: str, on_error: str, local_calls: int) -> None:
        self._where = where
        self._on_error = on_error
        self._allowed = {"local": local_calls, "closed": 0, "open": None}[on_error]
        self._local_calls = local_calls
        self._lock = threading.RLock()
        self._sessions: OrderedDict[str, tuple[Apart, dict[str, Any]]] = OrderedDict()
        self._until = 0.0
        self._retry = RETRY_FIRST_S
        self._why = ""

    def holds(self) -> bool:
        """Whether the file is not to be asked yet; where it is, whoever asks next is spared until that one knows."""
        if not self._why:
            return False
        now = time.monotonic()
        if now < self._until:
            return True
        self._until = now + self._retry
        return False

    def ask_again(self) -> None:
        """Has the next call ask for the file."""
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the file could not be used when it was asked last."""
        return bool(self._why)

    def begin(self, fault: Exception) -> None:
        """Notes that the file could not be used; the first time in a row it is said."""
        first = not self._why
        self._why = str(fault) or type(fault).__name__
        self._until = time.monotonic() + self._retry
        self._retry = min(2 * self._retry, RETRY_MOST_S)
        if first:
            does = _DOES[self._on_error].format(calls=self._local_calls)
            say(
                logging.WARNING,
                "the store %s cannot be used (%s): on_error=%s, so %s",
                self._where, self._why, self._on_error, does,
            )  # fmt: skip

    def end(self) -> list[str]:
        """Notes that the file can be used again; the sessions that were counted here meanwhile."""
        if not self._why:
            return []
        self._why, self._retry = "", RETRY_FIRST_S
        waiting = list(self._sessions)
        say(logging.WARNING, "the store %s can be used again; what was counted meanwhile is added to it", self._where)
        return waiting

    def serve(self, session_id: str, known: Callable[[], dict[str, Any]], step: Callable[[SessionState], T]) -> T:
        """Runs a step on what this process knows of a session.

        Args:
            session_id: The session.
            known: Asked for the session as it was last seen, if this is its first call in this outage.
            step: The step.
        """
        with self._lock:
            found = self._sessions.get(session_id)
            if found is None:
                while len(self._sessions) >= SESSIONS_MOST:
                    self._sessions.popitem(last=False)
                base = known()
                found = self._sessions[session_id] = (_apart(base), base)
            state, base = found
            self._close(state, base)
            noted = len(state.audit)
            try:
                return step(state)
            finally:
                for entry in state.audit[noted:]:
                    if entry.get("action") == "stop" and _is_ours(state.stop):
                        state.stop = Circuit(operator_trip(state, str(entry.get("reason"))))
                self._close(state, base)

    def _close(self, state: SessionState, base: dict[str, Any]) -> None:
        used = state.calls - base["calls"]
        if self._allowed is None or used < self._allowed or state.stop is not None:
            return
        setting = "on_error=open" if self._on_error == "closed" else f"local_calls={used + 1}"
        state.stop = Circuit(
            Trip(
                id=secrets.token_hex(8), rule=RULE, scope="session", session_id=state.id,
                limit=self._allowed, observed=used, loop_type="stopped_by_operator", at_call=state.calls,
                why=f"The store of this session cannot be used, and {self._allowed} calls may run meanwhile; "
                f"{setting} in its address would have allowed one more.",
            )
        )  # fmt: skip

    def sign(self, old: str, new: str) -> None:
        """Names another key for the sessions of one: totals do not depend on it, and old signatures match nothing."""
        with self._lock:
            for state, _ in self._sessions.values():
                if state.key_id == old:
                    state.key_id = new

    def pending(self, session_id: str) -> Apart | None:
        """What was counted here of a session and is not in the file yet."""
        found = self._sessions.get(session_id)
        return None if found is None else found[0]

    def merged(self, session_id: str, theirs: dict[str, Any]) -> dict[str, Any] | None:
        """The session of the file with what happened here since; None if there is nothing to add."""
        found = self._sessions.get(session_id)
        if found is None:
            return None
        state, base = found
        mine = json.loads(json.dumps(_without_ours(state).to_plain()))
        return merged_session(base, mine, theirs)

    def done(self, session_id: str, state: Apart) -> None:
        """Forgets a session that is in the file now."""
        with self._lock:
            found = self._sessions.get(session_id)
            if found is not None and found[0] is state:
                del self._sessions[session_id]

    def after_fork(self) -> None:
        """Another thread may have held the lock; what was counted before the fork is the parent's to tell."""
        self._lock = threading.RLock()
        known, self._sessions = self._sessions, OrderedDict()
        for session_id, (state, _) in known.items():
            try:
                self._sessions[session_id] = state, json.loads(json.dumps(_without_ours(state).to_plain()))
            except Exception:  # another thread was in the middle of a step on it
                pass


def say(level: int, text: str, *given: Any) -> None:
    """Logs, and lets no handler of the application be felt."""
    try:
        logger.log(level, text, *given)
    except Exception:
        pass


def _far() -> int:
    return (1 + secrets.randbelow(1 << 30)) << 20


def _apart(base: dict[str, Any]) -> Apart:
    state = Apart.from_plain(json.loads(json.dumps(base)))
    for run in state.runs.values():
        run.number += _far()
    assert isinstance(state, Apart)  # noqa: S101  (from_plain makes what it is called on)
    return state


def _is_ours(circuit: Circuit | None) -> bool:
    return circuit is not None and circuit.trip.rule == RULE


def _without_ours(state: SessionState) -> SessionState:
    """The state without the stop that only the outage made, in whatever run it was handed on to."""
    if _is_ours(state.stop):
        state.stop = None
    for run in state.runs.values():
        if _is_ours(run.stop):
            run.stop = None
    return state


# ------------------------------------------------------------------------------------------------ merging


def merged_session(base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The session in the file, with what changed here between ``base`` and ``mine``.

    Counts add up; what only one side touched is as it left it; of a ring that both sides wrote the file's stays.
    """
    if mine["key_id"] and theirs["key_id"] and (mine["key_id"], mine["form"]) != (theirs["key_id"], theirs["form"]):
        return theirs
    named = mine if mine["key_id"] else theirs
    return {
        **_rekeyed(_merged(_keyed(base), _keyed(mine), _keyed(theirs))),
        "version": theirs["version"], "id": theirs["id"], "key_id": named["key_id"], "form": named["form"],
    }  # fmt: skip


def _keyed(plain: dict[str, Any]) -> dict[str, Any]:
    runs = {
        run_id: run | {"flight": {str(number): row for number, *row in run["flight"]}} for run_id, run in plain["runs"]
    }
    return plain | {"runs": runs}


def _rekeyed(plain: dict[str, Any]) -> dict[str, Any]:
    runs = [
        [run_id, run | {"flight": [[int(number), *row] for number, row in run["flight"].items()]}]
        for run_id, run in plain["runs"].items()
    ]
    return plain | {"runs": runs}


_NONE = object()


def _merged(base: Any, mine: Any, theirs: Any, name: str = "") -> Any:
    if theirs == base or theirs is _NONE:
        return mine
    if mine == base or mine is _NONE:
        return theirs
    whole: Any = mine if theirs is None else theirs
    if isinstance(mine, dict) and isinstance(theirs, dict):
        whole = _merged_dicts(base if isinstance(base, dict) else {}, mine, theirs)
    elif isinstance(mine, bool) or isinstance(theirs, bool):
        whole = bool(mine or theirs)
    elif isinstance(mine, (int, float)) and isinstance(theirs, (int, float)):
        added = mine - (base if isinstance(base, (int, float)) else 0)
        whole = max(mine, theirs) if name in _HIGHEST else theirs + added
    elif isinstance(mine, list) and isinstance(theirs, list) and name in _GROWING:
        known = base if isinstance(base, list) else []
        whole = theirs + [each for each in mine if each not in known and each not in theirs]
    return whole


def _merged_dicts(base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    merged = {}
    for key in (*theirs, *(each for each in mine if each not in theirs)):
        was, here, there = base.get(key, _NONE), mine.get(key, _NONE), theirs.get(key, _NONE)
        gone = (here is _NONE and was == there) or (there is _NONE and was == here)  # deleted by one, left by the other
        if not gone:
            merged[key] = _merged(was, here, there, key)
    return merged
