"""Recorded calls, read from files: lines, their two kinds, and what the rules need to know of each.

One kind holds calls with text (keys ``session``, ``i``, ``tool``, ``arguments``, ``result``, ``failed``, …), the other
calls as hashes (keys ``s``, ``i``, ``t``, ``a``, …). The keys of a line tell which it is.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from contextlib import ExitStack
from hashlib import sha256
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from otel_toolguard.core.call import Failure, Outcome, OutcomeKind, ToolCall
from otel_toolguard.core.canonical import Signer, canonical, fingerprints
from otel_toolguard.core.failures import is_transient
from otel_toolguard.core.masks import MASK_LIMIT, numbers, volatile
from otel_toolguard.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_toolguard.settings import Policy

LINE_LIMIT = 64 << 20  # bytes; what is longer is no line of a recording, and would only fill the memory
REMEMBERED = 4096  # results whose masks are remembered
REMEMBERED_TEXT = 2048  # characters of the longest of them
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_EMPTY = sha256(b"").hexdigest()
_ANY_DIGIT = re.compile(r"\d")


class BadLine(Exception):
    """A line that is no call; its text is the reason."""


def read(path: str, bad: Callable[[int, str], None]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, numbered from 1.

    Args:
        path: Plain or gzip, whatever its name; ``-`` is standard input.
        bad: Told the number and what is wrong where the file cannot be read on.

    Yields:
        Number and bytes of each line.
    """
    number = 0
    try:
        with ExitStack() as stack:
            file = _opened(path, stack)
            while line := file.readline(LINE_LIMIT):
                number += 1
                if len(line) == LINE_LIMIT and not line.endswith(b"\n"):
                    while line and not line.endswith(b"\n"):
                        line = file.readline(LINE_LIMIT)
                    bad(number, f"is longer than {LINE_LIMIT} bytes")
                    continue
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        bad(number + 1, f"cannot be read: {error}")


def _opened(path: str, stack: ExitStack) -> io.BufferedReader:
    if path == "-":
        raw = cast("io.BufferedReader", sys.stdin.buffer)
        if not hasattr(raw, "peek"):
            raw = io.BufferedReader(cast("io.RawIOBase", raw))
    else:
        raw = stack.enter_context(open(path, "rb"))  # noqa: PTH123, SIM115
    if raw.peek(2)[:2] != _GZIP:
        return raw
    plain = stack.enter_context(gzip.GzipFile(fileobj=raw))
    return stack.enter_context(io.BufferedReader(cast("io.RawIOBase", plain), 1 << 17))


_decoder = json.JSONDecoder()
_begun = _decoder.raw_decode


def parsed(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None for a blank one.

    Raises:
        BadLine: It is no JSON object.
    """
    try:
        text = line.decode()
        row, end = _begun(text)
    except (ValueError, RecursionError):
        row = _carefully_parsed(line)
    else:
        if row is None or (text[end:] != "\n" and text[end:].strip()):
            row = _carefully_parsed(line)
    if type(row) is not dict and row is not None:
        raise BadLine(f"is no JSON object but {_JSON_NAMES[type(row)]}")
    return row


def _carefully_parsed(line: bytes) -> Any:
    """The value on a line that may begin with blanks, or be blank, or be no JSON at all."""
    line = line.removeprefix(_BOM)
    if not line.strip():
        return None
    try:
        row = _decoder.decode(line.decode())
    except RecursionError:
        raise BadLine("is nested too deeply") from None
    except ValueError as error:
        raise BadLine(f"is no JSON: {_reason(error)}") from None
    if row is None:
        raise BadLine("is no JSON object but null")
    return row


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}"
    return str(error)


# A line that is a call: session, i, tool, start, seconds, and what only its own kind of source understands. A plain
# tuple, for there are many.
Parts = tuple[str, int, str, Any, Any, tuple[Any, ...]]


def overlap(start: Any, seconds: Any) -> tuple[float, float] | None:
    """Start and end in seconds; None where the clock is too coarse to tell what overlapped."""
    if type(start) is not float or type(seconds) is not float or start.is_integer() or seconds.is_integer():
        return None
    if not (isfinite(start) and isfinite(seconds)) or seconds < 0:
        return None
    return start, start + seconds


def moment(seconds: Any) -> float:
    """A recorded time or duration in seconds; 0 where it is unknown."""
    return float(seconds) if type(seconds) in (int, float) and isfinite(seconds) else 0.0


class Hashes:
    """Calls as hashes. Class, pollers and neutral tools are known by name alone, and nothing is transient."""

    _REQUIRED = itemgetter("s", "i", "t", "a", "an", "r", "rn", "rv", "f")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tools: dict[str, Tool] = {}

    def parts(self, row: dict[str, Any]) -> Parts:
        """The line, checked.

        Raises:
            BadLine: A key is missing or has a wrong type.
        """
        try:
            session, i, tool, a, an, r, rn, rv, failed = self._REQUIRED(row)
        except KeyError as missing:
            raise BadLine(f"key {missing} is missing") from None
        world = row.get("x")
        if not (
            type(session) is type(tool) is type(a) is type(an) is type(r) is type(rn) is type(rv) is str
            and type(i) is int and i >= 0 and (failed is False or failed is True or failed is None)
            and (world is None or type(world) is str)
        ):  # fmt: skip
            raise BadLine(_wrong(row, _TYPES_OF_HASHES))
        return session, i, tool, row.get("ts"), row.get("d"), (a, an, r, rn, rv, failed, world)

    def call(self, parts: Parts) -> ToolCall:
        """The call."""
        tool = parts[2]
        traits = (self._tools.get(tool) or self._tools.setdefault(tool, Tool(tool))).traits(self._policy, None)
        a, an, _, _, _, _, world = parts[5]
        place = f"{tool}:" if world is None or not traits.shell else f"{tool}:{world}+"
        return ToolCall(
            tool, place + a, shape=place + an, tool_class=traits.tool_class, risk=traits.risk, neutral=traits.neutral,
            poll=traits.poll, patience=traits.patience, reached=traits.reached, overrides=traits.overrides,
        )  # fmt: skip

    def outcome(self, parts: Parts) -> Outcome:
        """How it came out."""
        _, _, r, rn, rv, failed, _ = parts[5]
        if failed:
            return Outcome("failed", failure="permanent", exact=r, volatile="!" + rv, digits="!" + rn)
        return Outcome("ok" if failed is False else "unknown", exact=r, volatile=rv, digits=rn)


class Texts:
    """Calls with text.

    Args:
        policy: Knows what was set for each tool.
        signer: Makes signatures and fingerprints.
        needs: The fingerprints that the rules compare.
    """

    _REQUIRED = itemgetter("session", "i", "tool", "arguments", "result", "failed")

    def __init__(self, policy: Policy, signer: Signer, needs: frozenset[str]) -> None:
        self._policy = policy
        self._signer = signer
        self._needs = needs
        self._tools: dict[str, Tool] = {}
        self._masked: dict[tuple[str, bool | None], tuple[str, str, Failure | None]] = {}

    def parts(self, row: dict[str, Any]) -> Parts:
        """The line, checked.

        Raises:
            BadLine: A key is missing or has a wrong type.
        """
        try:
            session, i, tool, arguments, result, failed = self._REQUIRED(row)
        except KeyError as missing:
            raise BadLine(f"key {missing} is missing") from None
        sha, context = row.get("result_sha256"), row.get("ctx")
        if not (
            type(session) is type(tool) is str and type(i) is int and i >= 0 and type(failed) in (bool, type(None))
            and type(arguments) in (dict, str, type(None))
            and (sha is None or type(sha) is str) and (context is None or type(context) is dict)
        ):  # fmt: skip
            raise BadLine(_wrong(row, _TYPES_OF_TEXTS))
        return session, i, tool, row.get("ts"), row.get("dur_s"), (arguments, result, failed, sha, context)

    def call(self, parts: Parts) -> ToolCall:
        """The call."""
        name = parts[2]
        tool = self._tools.get(name) or self._tools.setdefault(name, Tool(name))
        return tool.call(parts[5][0], self._policy, self._signer, world=_world(parts[5][4]))

    def outcome(self, parts: Parts) -> Outcome:
        """How it came out."""
        _, result, failed, sha, _ = parts[5]
        kind: OutcomeKind = "unknown" if failed is None else "failed" if failed else "ok"
        seconds = parts[4]
        ms = seconds * 1000 if type(seconds) in (int, float) else None
        tool = self._tools[parts[2]]
        found = self._outcome(tool, kind, result, failed, sha, ms)
        if found.failure is not None:
            may_pass = tool.passes(self._policy, None, _text(result), found.failure == "transient")
            found.failure = "transient" if may_pass else "permanent"
        return found

    def _outcome(
        self, tool: Tool, kind: OutcomeKind, result: Any, failed: bool | None, sha: str | None, ms: float | None
    ) -> Outcome:
        compared = tool.comparer(self._policy)
        if compared is not None and (part := compared(result)) is not result:
            result, sha = part, None
        if sha is None:
            exact, masked, numberless = fingerprints(self._signer, result, failed=bool(failed), needs=self._needs)
            failure = _failure(result) if failed else None
            return Outcome(kind, failure=failure, exact=exact, volatile=masked, digits=numberless, ms=ms)
        if type(result) is not str or len(result) > REMEMBERED_TEXT or (not result and sha != _EMPTY):
            masked, numberless, failure = self._mask(result, failed, sha)
        else:
            known = self._masked.get((result, failed))
            if known is None:
                known = self._mask(result, failed, sha)
                _remember(self._masked, (result, failed), known)
            masked, numberless, failure = known
        return Outcome(kind, failure=failure, exact=sha, volatile=masked, digits=numberless, ms=ms)

    def _mask(self, result: Any, failed: bool | None, sha: str) -> tuple[str, str, Failure | None]:
        """Volatile and digit-masked fingerprints of a result whose hash is known, and whether its failure passes."""
        flag = "!" if failed else ""
        failure = _failure(result) if failed else None
        if result is None or (result == "" and sha != _EMPTY):  # emptied by whoever recorded it
            return flag + sha, flag + sha, failure
        needs = self._needs
        text = result if type(result) is str else canonical(result, volatile).text
        rest = text[MASK_LIMIT:] and sha
        masked = volatile(text[:MASK_LIMIT]) if "volatile" in needs or "digits" in needs else ""
        first = self._signer.digest(flag + masked + rest) if "volatile" in needs else ""
        if "digits" not in needs:
            return first, "", failure
        if first and _ANY_DIGIT.search(masked) is None:
            return first, first, failure
        return first, self._signer.digest(flag + numbers(masked) + rest), failure


def _failure(result: Any) -> Failure:
    return "transient" if is_transient(None, _text(result)) else "permanent"


def _text(result: Any) -> str:
    return result if type(result) is str else canonical(result).text


def _world(context: dict[str, Any] | None) -> str | None:
    world = (context.get("cwd") or context.get("working_dir")) if context else None
    return world if type(world) is str else None


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = value


_TYPES_OF_TEXTS: dict[str, tuple[Any, ...]] = {
    "session": (str,), "i": (int,), "tool": (str,), "arguments": (dict, str, type(None)), "failed": (bool, type(None)),
    "result_sha256": (str, type(None)), "ctx": (dict, type(None)),
}  # fmt: skip
_TYPES_OF_HASHES: dict[str, tuple[Any, ...]] = {
    "s": (str,), "i": (int,), "t": (str,), **dict.fromkeys(("a", "an", "r", "rn", "rv"), (str,)),
    "f": (bool, type(None)), "x": (str, type(None)),
}  # fmt: skip


def _wrong(row: dict[str, Any], types: dict[str, tuple[Any, ...]]) -> str:
    for key, allowed in types.items():
        value = row.get(key)
        if type(value) not in allowed:
            names = " or ".join(_JSON_NAMES[kind] for kind in allowed)
            return f"{key} is {_JSON_NAMES[type(value)]}, not {names}"
    return "i is negative"


_JSON_NAMES: dict[Any, str] = {
    str: "a string", int: "an integer", float: "a number", bool: "true or false", type(None): "null", dict: "an object",
    list: "a list",
}  # fmt: skip
