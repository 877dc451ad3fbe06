"""The case of a recorded session: its calls up to the trip, without those before that make no difference."""

from __future__ import annotations

import json
from contextlib import suppress
from math import floor, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.explain import BadInput
from otel_toolguard.cli.export_made_up import Case, letters
from otel_toolguard.cli.export_try import SAME, same, tried
from otel_toolguard.cli.recordings import BadLine, Hashes, Texts, parsed, read
from otel_toolguard.core.canonical import Signer
from otel_toolguard.core.failures import is_transient
from otel_toolguard.core.masks import numbers, volatile
from otel_toolguard.core.shapes import SECRET_NAME, SECRET_VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_toolguard.cli.export_text import Row
    from otel_toolguard.cli.export_try import Rules
    from otel_toolguard.settings import Policy

_OF_TEXTS = ("tool", "arguments", "result", "failed", "result_sha256", "ts", "dur_s", "ctx")
_OF_HASHES = ("t", "a", "an", "r", "rn", "rv", "f", "x", "ts", "d")
_TIMES = ("ts", "dur_s", "d")
SHOWN = 400  # characters of a text that are written down; what follows is told apart by a word
DEEP = 20  # levels of nesting that are written down
_KNOWN_SECRET = 8  # characters from which a value is looked for everywhere once it was found under a secret name
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of nothing


def calls_of(path: str, session: str | None, bad: Callable[[int, str], None]) -> list[Row]:
    """The calls of one session of a recording.

    Args:
        path: The recording.
        session: Its id; None if the recording has one only.
        bad: Told of each bad line.

    Raises:
        BadInput: There is no such session, or more than one to choose from.
    """
    found: list[Row] = []
    seen: dict[str, None] = {}
    for number, line in read(path, bad):
        try:
            row = parsed(line)
        except BadLine as error:
            bad(number, str(error))
            continue
        if row is None:
            continue
        name = row["session"] if "session" in row else row.get("s")
        if not isinstance(name, str):
            bad(number, "is no call of a session")
            continue
        seen[name] = None
        if session is None and len(seen) > 1:
            continue
        if session in (None, name):
            found.append(row)
    if session is None and len(seen) > 1:
        raise BadInput(f"{path}: holds {len(seen)} sessions; choose one with --session, such as {next(iter(seen))}")
    if not found:
        raise BadInput(f"{path}: holds no call" + (f" of session {session}" if session is not None else ""))
    return found


def recorded(rows: list[Row], rules: Rules, bad: Callable[[int, str], None]) -> Case:
    """The case of a session, tried.

    Raises:
        BadInput: Nothing trips, or not without what must not be written down.
    """
    rows = _checked(rows, rules.policy, bad)
    found = tried(rows, rules.policy)
    if found is None:
        raise BadInput("no circuit opened, there is no case to export; --profile or --policy names other rules")
    wanted = {key: found[key] for key in (*SAME, "index")}
    start, end = _bounds(rows, wanted, rules.policy)
    for kept in _written(rows[start:end], rows):
        trip = tried(kept, rules.policy)
        if trip is not None and same(trip, wanted | {"index": wanted["index"] - start}):
            how = f"Recorded; {start} calls before these make no difference and are left out." if start else "Recorded."
            return Case(kept, rules, trip, "A case from a recorded session.", how, start)
    raise BadInput(f"{found['rule']}: what trips here depends on parts of texts that an exported file must not hold")


def _checked(rows: list[Row], policy: Policy, bad: Callable[[int, str], None]) -> list[Row]:
    """The rows that are calls, without what else stands on them."""
    texts, hashes = Texts(policy, Signer(b"check"), policy.chain.needs), Hashes(policy)
    kept: list[Row] = []
    for number, row in enumerate(rows, 1):
        hashed = "s" in row and "session" not in row
        try:
            (hashes if hashed else texts).parts(row)
        except BadLine as error:
            bad(number, f"(of the session) {error}")
            continue
        if kept and ("t" in kept[0]) != hashed:
            bad(number, "(of the session) is a call with text among hashes, or the reverse")
            continue
        kept.append({key: row[key] for key in (_OF_HASHES if hashed else _OF_TEXTS) if key in row})
    return kept


def _bounds(rows: list[Row], wanted: Row, policy: Policy) -> tuple[int, int]:
    """First call that is needed, and the end: calls that overlap may be judged only when a later one starts."""
    index, end = wanted["index"], wanted["index"] + 1
    while end < len(rows) and not same(tried(rows[:end], policy), wanted):
        end = min(len(rows), index + 1 + 2 * (end - index))
    low, high = 0, index  # from ``low`` on it is known to trip the same
    while low < high:
        middle = (low + high + 1) // 2
        if same(tried(rows[middle:end], policy), wanted | {"index": index - middle}):
            low = middle
        else:
            high = middle - 1
    return low, end


def _written(rows: list[Row], session: list[Row]) -> Iterator[list[Row]]:
    """Ways to write the calls down, the plainest first."""
    timed = any(key in row for row in rows for key in _TIMES)
    for shown in (SHOWN, None):
        bare = _Tidied(rows, session, shown).rows()
        if timed:
            yield [{key: value for key, value in row.items() if key not in _TIMES} for row in bare]
        yield from ([_shifted(bare)] if timed else [])
        yield bare


def _shifted(rows: list[Row]) -> list[Row]:
    """The calls as if the first had been made in the first second of the epoch."""
    times = [row["ts"] for row in rows if type(row.get("ts")) in (int, float) and isfinite(row["ts"])]
    first = floor(min(times, default=0))
    return [row | {"ts": row["ts"] - first} if type(row.get("ts")) in (int, float) else row for row in rows]


class _Tidied:
    """Calls without secrets, long texts and directories: each replaced by a word, the same for the same.

    Args:
        rows: The calls.
        session: All calls of the session: a secret that one of them names may come again in others.
        shown: Characters of a text that are kept; None for all.
    """

    def __init__(self, rows: list[Row], session: list[Row], shown: int | None) -> None:
        self._rows = rows
        self._shown = shown
        self._known: dict[tuple[str, Any], int] = {}
        self._counts: dict[Any, int] = {}
        self._secrets: dict[str, None] = {}
        self._home = ""
        with suppress(RuntimeError):
            self._home = str(Path.home())
        for row in session:
            self._collect(row.get("arguments"), "")
            self._collect(row.get("result"), "")
        self._secrets = dict.fromkeys(sorted(self._secrets, key=len, reverse=True))  # one may hold another

    def rows(self) -> list[Row]:
        """The calls."""
        return [row if "t" in row else self._row(row) for row in self._rows]

    def _row(self, row: Row) -> Row:
        made = {key: value for key, value in row.items() if key != "ctx"}
        made["arguments"] = self._value(row["arguments"], "", masked=False)
        made["result"] = self._value(row["result"], "", masked=True)
        if row["failed"] and isinstance(row["result"], str) and is_transient(None, row["result"]):
            made["result"] = _transient(made["result"])
        sha, context = row.get("result_sha256"), row.get("ctx") or {}
        if sha is not None and sha != _EMPTY:
            made["result_sha256"] = f"sha {self._word('sha', sha)}"
        where = context.get("cwd") or context.get("working_dir")
        if isinstance(where, str):
            made["ctx"] = {"cwd": f"directory {self._word('cwd', where)}"}
        return made

    def _collect(self, value: Any, name: str, depth: int = 0) -> None:
        """Finds the values under secret names, which may come again in other texts."""
        if isinstance(value, dict) and depth < DEEP:
            for key, inner in value.items():
                self._collect(inner, name if SECRET_NAME.search(name) else key, depth + 1)
        elif isinstance(value, list) and depth < DEEP:
            for inner in value:
                self._collect(inner, name, depth + 1)
        elif isinstance(value, str) and len(value) >= _KNOWN_SECRET and SECRET_NAME.search(name):
            self._secrets[value] = None

    def _value(self, value: Any, name: str, *, masked: bool, depth: int = 0) -> Any:
        secret = SECRET_NAME.search(name) is not None
        if depth > DEEP and isinstance(value, (dict, list)):
            return f"(nested {self._word('deep', json.dumps(value, sort_keys=True))})"
        if isinstance(value, dict):
            return {self._text(key, masked=False): self._value(inner, name if secret else key, masked=masked,
                    depth=depth + 1) for key, inner in value.items()}  # fmt: skip
        if isinstance(value, list):
            return [self._value(inner, name, masked=masked, depth=depth + 1) for inner in value]
        if secret and value is not None and not isinstance(value, bool):
            return f"(redacted {self._word('secret', str(value))})"
        return self._text(value, masked=masked) if isinstance(value, str) else value

    def _text(self, text: str, *, masked: bool) -> str:
        for known in (known for known in self._secrets if known in text):
            text = text.replace(known, f"(redacted {self._word('secret', known)})")
        text = SECRET_VALUE.sub(lambda found: f"(redacted {self._word('secret', found[0])})", text)
        if len(self._home) > 1:
            text = text.replace(self._home, "~")
        if self._shown is None or len(text) <= self._shown:
            return text
        return f"{text[: self._shown]} … {self._rest(text[self._shown :], masked=masked)}"

    def _rest(self, rest: str, *, masked: bool) -> str:
        """A word for the rest of a long text; rests that are alike to a rule get words that are alike to it."""
        passing = volatile(rest) if masked else rest
        bare = numbers(volatile(rest))
        word = f"and more: {self._word('rest', bare)} {self._nth(('rest', bare), passing)}"
        at = self._nth(("exact", passing), rest)
        return f"{word} at {at // 3600 % 24:02}:{at // 60 % 60:02}:{at % 60:02}" if masked and at else word

    def _word(self, kind: str, key: Any) -> str:
        return letters(self._nth(kind, key))

    def _nth(self, kind: Any, key: Any) -> int:
        """How many others of its kind came before it."""
        nth = self._known.get((kind, key))
        if nth is None:
            nth = self._known[kind, key] = self._counts.get(kind, 0)
            self._counts[kind] = nth + 1
        return nth


def _transient(text: str) -> str:
    """The text of a failure that may pass, which must still say so."""
    return text if is_transient(None, text) else f"timed out: {text}"
