"""The trip log: one JSON line in a file for each circuit that opened, or observing would have.

Named by ``TOOLGUARD_TRIP_LOG`` and by nothing else. It stands apart from telemetry, because it is there for those who
have no back end, and goes on where telemetry is off.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_toolguard._version import __version__

if TYPE_CHECKING:
    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.core.state import SessionState

VARIABLE = "TOOLGUARD_TRIP_LOG"
VERSION = 1
SIGNATURES_SHOWN = 32  # of the run, the newest
_KEPT = 64  # complaints that are remembered
# A pipe that nobody reads must not hold the tool up, hence O_NONBLOCK; Windows has neither.
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_logger = logging.getLogger("otel_toolguard")
_places: dict[str, str] = {}
_complained: set[str] = set()

Guard = Any  # otel_toolguard.guard.Guard, which knows of this
By = tuple["ToolCall", "Outcome | None"]


def log_trip(guard: Guard, trip: Trip, *, observed: bool, by: By | None) -> None:
    """Appends the trip to the log, if one is named; whatever goes wrong is one WARNING and never felt.

    Args:
        guard: The guard of the session.
        trip: The trip.
        observed: True for what would only have tripped.
        by: The call that tripped, and how it came out, None if it was refused; None if no call tripped.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        _append(place_of(path), _line(guard, trip, observed=observed, by=by))
    except Exception as fault:
        _complain(path, fault)


def place_of(path: str) -> str:
    """The absolute path; one that is relative is so to where the process was at the first trip."""
    place = _places.get(path)
    if place is None:
        place = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  (pathlib costs start-up time)
        if len(_places) < _KEPT:
            _places[path] = place
    return place


def _line(guard: Guard, trip: Trip, *, observed: bool, by: By | None) -> bytes:
    call, outcome = by or (None, None)
    policy = guard.policy.to_dict()
    judging = {key: policy[key] for key in ("profile", "latch", "on_warn", "tool_plugins", "tools")}
    row = {
        "version": VERSION,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "library": __version__,
        "mode": policy["mode"],
        "enforced": not observed,
        "trip": trip.to_dict(),
        "call": None if call is None else _call(call),
        "outcome": None if outcome is None else _outcome(outcome),
        "run": _run(guard, trip),
        "settings": next((table for table in judging["tool_plugins"] if table["plugin"] == trip.rule), None),
        "policy": {"fingerprint": _fingerprint(judging), **judging},
    }
    return json.dumps(row, default=str, separators=(",", ":")).encode() + b"\n"


def _call(call: ToolCall) -> dict[str, Any]:
    return {"tool": call.tool, "signature": call.signature, "class": call.tool_class, "risk": call.risk,
            "arguments": call.shapes()}  # fmt: skip


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {"kind": outcome.kind, "failure": outcome.failure, "error_type": outcome.error_type}


def _run(guard: Guard, trip: Trip) -> dict[str, Any] | None:
    """What the state knows of the calls of the run: how many, of which tools, and the signatures that came up last."""

    def step(state: SessionState) -> dict[str, Any] | None:
        run = state.runs.get(trip.run_id or state.last_run or "")
        if run is None:
            return None
        newest = dict(islice(reversed(run.signatures.items()), SIGNATURES_SHOWN))
        return {"calls": run.calls, "refused": run.refusals, "distinct": run.distinct, "tools": dict(run.tools),
                "classes": dict(run.classes), "signatures": newest}  # fmt: skip

    try:
        found: dict[str, Any] | None = guard.transact(step)
    except Exception:  # a store that is away: the trip is worth a line all the same
        return None
    return found


def _fingerprint(judging: dict[str, Any]) -> str:
    """Tells policies apart: 16 hex digits of all that decides about trips."""
    text = json.dumps(judging, default=str, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _append(path: str, line: bytes) -> None:
    """One write to a file opened for appending: lines of several processes never mix, and rotation is free to come."""
    handle = os.open(path, FLAGS, 0o600)
    try:
        if os.write(handle, line) < len(line):
            os.write(handle, b"\n")  # a full disk took half of it: what comes next shall stand on its own line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def _complain(path: str, fault: Exception) -> None:
    if path in _complained or len(_complained) >= _KEPT:
        return
    _complained.add(path)
    said = fault.strerror if isinstance(fault, OSError) and fault.strerror else type(fault).__name__
    try:
        _logger.warning("the trip log %s cannot be written (%s); tools are not affected, and this is said once",
                        path, said)  # fmt: skip
    except Exception:  # a filter or handler of the application that raises must not be felt either
        pass
