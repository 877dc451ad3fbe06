"""``otel-toolguard export-case``: a trapped case as a test that needs nothing but this library and pytest."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.check import chosen_policy, note, printable
from otel_toolguard.cli.explain import BadInput, _found, _read, _trip
from otel_toolguard.cli.export_made_up import Case, made_up
from otel_toolguard.cli.export_recorded import calls_of, recorded
from otel_toolguard.cli.export_text import python_of
from otel_toolguard.cli.export_try import rules_of
from otel_toolguard.cli.recordings import BadLine, parsed, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_toolguard.cli.export_text import Row

_CALL_KEYS = (("session", "i", "tool"), ("s", "i", "t"))
_NAMED_MOST = 5
_BEGINNING = 16  # lines in which a recording's first call must come


class Usage(Exception):
    """What was asked for cannot be meant; its text says why."""


def export_case(
    target: str, *, log: str | None, session: str | None, output: str | None, profile: str | None, policy: str | None,
    force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Writes the test; returns the exit code.

    Args:
        target: A file with a trip, a recording (``FILE#SESSION`` for one session of it), or with ``log`` an id.
        log: A trip log, from which the trip or session of that id is taken.
        session: The session of a recording.
        output: The file to write; None for standard output.
        profile: The rules are those of this profile.
        policy: The rules are those of this TOML file.
        force: True to overwrite a file.
        as_json: True for one JSON object about what was done.
    """
    bad = 0

    def name_bad(path: str, number: int, reason: str) -> None:
        nonlocal bad
        bad += 1
        sys.stderr.write(f"{printable(path)}:{number}: {printable(reason)}\n")

    try:
        _check_free(output, force=force)
        case = _case(target, log, session, (profile, policy), name_bad)
        text = python_of(
            case.rows, case.rules.plugins, case.rules.tools, case.trip, head=case.head, how=case.how,
            doubtful=case.rules.doubtful,
        )  # fmt: skip
        if output is not None:
            _write(output, text, force=force)
    except BadInput as error:
        note(str(error))
        return 1
    except Usage as error:
        note(str(error))
        return 2
    _say(case, text, output, as_json=as_json)
    return 1 if bad else 0


def _case(target: str, log: str | None, session: str | None, named: tuple[str | None, str | None], bad: Any) -> Case:
    """The case that is meant: of a trip log, of a recording, of a trip.

    The one place where another source would come in: whatever has a trip goes to ``made_up``, whatever has calls to
    ``recorded``.
    """
    if log is not None:
        if session is not None:
            raise Usage("--session names a session of a recording; with --log give its id alone")
        row = _logged(log, target, bad)
        return made_up(_trip(log, row["trip"]), row, _chosen(named))
    path, session = _split(target, session)
    if session is None and not _is_recording(path):
        found = list(_found(path, _read(path)))
        if len(found) != 1:
            many = f"{len(found)} trips; choose one with --log {path} and its id" if found else "no trip"
            raise BadInput(f"{path}: holds {many}")
        where, plain = found[0]
        return made_up(_trip(where, plain), _line_of(path, plain), _chosen(named))
    calls = calls_of(path, session, lambda number, reason: bad(path, number, reason))
    plain_policy = chosen_policy(*named).to_dict()
    rules = rules_of(plain_policy["tool_plugins"], plain_policy["tools"])
    return recorded(calls, rules, lambda number, reason: bad(path, number, reason))


def _chosen(named: tuple[str | None, str | None]) -> tuple[Any, Any] | None:
    """Chain and settings of tools that the command line names; the environment says nothing about a trip."""
    if named == (None, None):
        return None
    plain = chosen_policy(*named).to_dict()
    return plain["tool_plugins"], plain["tools"]


def _split(target: str, session: str | None) -> tuple[str, str | None]:
    """``FILE#SESSION`` taken apart, unless a file has that very name."""
    path, mark, named = target.partition("#")
    while mark and not os.path.exists(target) and not os.path.exists(path) and "#" in named:  # noqa: PTH110
        more, _, named = named.partition("#")
        path = f"{path}#{more}"
    if not mark or os.path.exists(target):  # noqa: PTH110
        path, named = target, ""
    if named and session is not None and named != session:
        raise Usage(f"two sessions are named, {named} and {session}")
    if path != "-" and (os.path.isdir(path) or not os.access(path, os.R_OK)):  # noqa: PTH112
        raise Usage(f"cannot read {path}; an id stands for a trip or session only together with --log")
    return path, session if session is not None else named or None


def _rows(path: str) -> Iterator[Row]:
    """The objects on the lines of a file, what else there is left out."""
    for _, line in read(path, lambda *_: None):
        try:
            row = parsed(line)
        except BadLine:
            row = None
        if row is not None:
            yield row


def _is_recording(path: str) -> bool:
    """Whether a file holds calls; what can be read only once, as standard input, is taken for a trip."""
    if not os.path.isfile(path):  # noqa: PTH113
        return False
    first = (row for row, _ in zip(_rows(path), range(_BEGINNING), strict=False))
    return any(all(key in row for key in keys) for row in first for keys in _CALL_KEYS)


def _line_of(path: str, plain: Row) -> Row | None:
    """The line of a trip log that a trip stands on, if the file is one."""
    if not os.path.isfile(path):  # noqa: PTH113
        return None
    return next((row for row in _rows(path) if row.get("trip") == plain), None)


def _logged(log: str, wanted: str, bad: Any) -> Row:
    """The line of a trip, or of the trip that stopped a session: the newest, one that was enforced before others."""
    if os.path.isdir(log) or not os.access(log, os.R_OK):  # noqa: PTH112
        raise Usage(f"cannot read {log}")
    found: list[Row] = []
    for number, line in read(log, lambda number, reason: bad(log, number, reason)):
        try:
            row = parsed(line)
        except BadLine as error:
            bad(log, number, str(error))
            continue
        trip = row.get("trip") if row is not None else None
        if row is not None and isinstance(trip, dict) and wanted in (trip.get("id"), trip.get("session_id")):
            found.append(row)
    if not found:
        raise BadInput(f"{log}: holds no trip or session of the id {wanted}")

    def weight(row: Row) -> tuple[bool, bool, bool]:
        trip = row["trip"]
        return trip.get("id") == wanted, row.get("enforced") is True, trip.get("scope") in ("run", "session")

    best = max(map(weight, found))
    *others, chosen = [row for row in found if weight(row) == best]
    if others and chosen["trip"].get("id") != wanted:
        ids = ", ".join(str(row["trip"].get("id")) for row in reversed(others[-_NAMED_MOST:]))
        note(f"{log}: the newest of {len(others) + 1} trips of {wanted} is taken; name another by its id: {ids}")
    return chosen


def _check_free(path: str | None, *, force: bool) -> None:
    if path is not None and os.path.exists(path) and not force:  # noqa: PTH110
        raise Usage(f"{path} exists; --force overwrites it")


def _write(path: str, text: str, *, force: bool) -> None:
    try:
        with open(path, "w" if force else "x", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
    except FileExistsError:
        raise Usage(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise Usage(f"{path}: cannot be written: {error.strerror or error}") from None


def _say(case: Case, text: str, output: str | None, *, as_json: bool) -> None:
    if as_json:
        said = {"file": output, "trip": case.trip, "calls": len(case.rows), "left_out": case.left_out,
                "head": case.head, "how": case.how, "text": text if output is None else None}  # fmt: skip
        sys.stdout.write(json.dumps(said) + "\n")
    elif output is None:
        sys.stdout.write(text)
    else:
        trip = case.trip
        sys.stdout.write(f"{printable(output)}: {trip['rule']} trips at call {trip['index'] + 1} of {len(case.rows)}. "
                         f"{case.head}\n")  # fmt: skip
