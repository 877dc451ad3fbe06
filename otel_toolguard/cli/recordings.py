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
from hashlib import sha256
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from otel_toolguard.core.call import Failure, Outcome, OutcomeKind, ToolCall
from otel_toolguard.core.canonical import MASK_LIMIT, Signer, canonical, fingerprints
from otel_toolguard.core.classify import Classified, classify, command_text, is_shell_like
from otel_toolguard.core.failures import is_transient
from otel_toolguard.core.masks import digits, volatile
from otel_toolguard.settings import POLLER_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_toolguard.core.classify import Risk, ToolClass
    from otel_toolguard.settings import Policy, ToolSettings

LINE_LIMIT = 64 << 20  # bytes; what is longer is no line of a recording, and would only fill the memory
REMEMBERED = 4096  # results, arguments and commands whose masks or classes are remembered
REMEMBERED_TEXT = 2048  # characters of the longest of them
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_EMPTY = sha256(b"").hexdigest()
_ANY_DIGIT = re.compile(r"\d")


class BadLine(Exception):  # noqa: N818  (a finding about the input, caught where lines are counted)
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
        with _opened(path) as file:
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


def _opened(path: str) -> io.BufferedReader:
    raw = cast("io.BufferedReader", sys.stdin.buffer) if path == "-" else open(path, "rb")  # noqa: PTH123, SIM115
    if not hasattr(raw, "peek"):
        raw = io.BufferedReader(cast("io.RawIOBase", raw))
    if raw.peek(2)[:2] != _GZIP:
        return raw
    return io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=raw)), 1 << 17)


_decode = json.JSONDecoder().decode


def parsed(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None for a blank one.

    Raises:
        BadLine: It is no JSON object.
    """
    try:
        row = _decode(line.decode())
    except RecursionError:
        raise BadLine("is nested too deeply") from None
    except ValueError as error:
        if not line.strip():
            return None
        if line.startswith(_BOM):
            return parsed(line[len(_BOM) :])
        raise BadLine(f"is no JSON: {_reason(error)}") from None
    if type(row) is not dict:
        raise BadLine(f"is no JSON object but {type(row).__name__}")
    return row


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}"
    return str(error)


class Traits:
    """What does not change between two calls of one tool, or of one shell command."""

    __slots__ = ("enabled", "ignore", "neutral", "patience", "poll", "reached", "risk", "shell", "tool_class")

    def __init__(self, tool: str, known: Classified, settings: ToolSettings) -> None:
        self.tool_class: ToolClass = known.tool_class
        self.risk: Risk = settings.risk or known.risk
        self.neutral = known.neutral
        self.reached = known.reached
        poll = settings.poll
        self.poll = known.poll if poll is None else bool(poll)
        # A number says how many times the limit; True is a number to Python, but not here.
        self.patience = poll if poll and poll is not True else POLLER_PATIENCE if self.poll else 1
        self.ignore = frozenset(settings.ignore)
        self.enabled = settings.enabled
        self.shell = is_shell_like(tool)


def described(tool: str, arguments: Mapping[str, object] | None, policy: Policy) -> Traits:
    """Class, risk and patience of a call: by its name, its shell text, and what the policy says about the tool."""
    settings = policy.tool(tool)
    return Traits(tool, classify(tool, arguments, override=settings.tool_class), settings)


class Parts(NamedTuple):
    """A line that is a call: what is the same in both kinds, and what only its own kind understands."""

    session: str
    i: int
    tool: str
    started: Any
    seconds: Any
    rest: tuple[Any, ...]


def overlap(parts: Parts) -> tuple[float, float] | None:
    """Start and end in seconds; None where the clock is too coarse to tell what overlapped."""
    start, seconds = parts.started, parts.seconds
    if type(start) is not float or type(seconds) is not float or start.is_integer() or seconds.is_integer():
        return None
    if not (isfinite(start) and isfinite(seconds)) or seconds < 0:
        return None
    return start, start + seconds


class Hashes:
    """Calls as hashes. Class, pollers and neutral tools are known by name alone, and nothing is transient."""

    _REQUIRED = itemgetter("s", "i", "t", "a", "an", "r", "rn", "rv", "f")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._traits: dict[str, Traits] = {}

    def parts(self, row: dict[str, Any]) -> Parts:
        """The line, checked.

        Raises:
            BadLine: A key is missing or has a wrong type.
        """
        session, i, tool, *hashes, failed = self._REQUIRED(row)
        world = row.get("x")
        if not (
            type(session) is type(tool) is str and type(i) is int and i >= 0 and (failed is None or type(failed) is bool)
            and all(type(value) is str for value in hashes) and (world is None or type(world) is str)
        ):  # fmt: skip
            raise BadLine(_wrong(row, _TYPES_OF_HASHES))
        return Parts(session, i, tool, row.get("ts"), row.get("d"), (*hashes, failed, world))

    def traits(self, parts: Parts) -> Traits:
        """What is known about the call's tool."""
        found = self._traits.get(parts.tool)
        if found is None:
            found = self._traits[parts.tool] = described(parts.tool, None, self._policy)
        return found

    def call(self, parts: Parts, traits: Traits) -> ToolCall:
        """The call."""
        tool = parts.tool
        a, an, _, _, _, _, world = parts.rest
        place = f"{tool}:" if world is None else f"{tool}:{world}+"
        return ToolCall(
            tool, place + a, shape=place + an, tool_class=traits.tool_class, risk=traits.risk, neutral=traits.neutral,
            poll=traits.poll, patience=traits.patience, reached=traits.reached,
        )  # fmt: skip

    def outcome(self, parts: Parts) -> Outcome:
        """How it came out."""
        _, _, r, rn, rv, failed, _ = parts.rest
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
        self._traits: dict[tuple[str, str | None], Traits] = {}
        self._masked: dict[tuple[str, bool | None], tuple[str, str, Failure | None]] = {}
        self._shapes: dict[str, str] = {}

    def parts(self, row: dict[str, Any]) -> Parts:
        """The line, checked.

        Raises:
            BadLine: A key is missing or has a wrong type.
        """
        session, i, tool, arguments, result, failed = self._REQUIRED(row)
        sha, context = row.get("result_sha256"), row.get("ctx")
        if not (
            type(session) is type(tool) is str and type(i) is int and i >= 0 and (failed is None or type(failed) is bool)
            and (type(arguments) is dict or arguments is None or type(arguments) is str)
            and (sha is None or type(sha) is str) and (context is None or type(context) is dict)
        ):  # fmt: skip
            raise BadLine(_wrong(row, _TYPES_OF_TEXTS))
        return Parts(session, i, tool, row.get("ts"), row.get("dur_s"), (arguments, result, failed, sha, context))

    def traits(self, parts: Parts) -> Traits:
        """What is known about the call's tool, and about its command if it runs one."""
        arguments = parts.rest[0]
        said = arguments if type(arguments) is dict else None
        key = (parts.tool, command_text(said))
        found = self._traits.get(key)
        if found is None:
            found = described(parts.tool, said, self._policy)
            if type(arguments) is str:
                found.reached = False  # arguments that could not be parsed never reached a tool
            elif len(key[1] or "") <= REMEMBERED_TEXT:
                _remember(self._traits, key, found)
        return found

    def call(self, parts: Parts, traits: Traits) -> ToolCall:
        """The call."""
        arguments = parts.rest[0]
        if traits.ignore and type(arguments) is dict:
            arguments = {name: value for name, value in arguments.items() if name not in traits.ignore}
        text, whole = canonical(arguments)
        world = _world(parts.rest[4]) if traits.shell else None
        signature = self._signer.signature(parts.tool, text, world)
        shape = ""
        if "digits" in self._needs:
            shape = self._shapes.get(signature, "")
            if not shape:
                shape = self._signer.signature(parts.tool, digits(text[:MASK_LIMIT]) + text[MASK_LIMIT:], world)
                _remember(self._shapes, signature, shape)
        return ToolCall(
            parts.tool, signature, shape=shape, whole=whole, tool_class=traits.tool_class, risk=traits.risk,
            neutral=traits.neutral, poll=traits.poll, patience=traits.patience, reached=traits.reached,
        )  # fmt: skip

    def outcome(self, parts: Parts) -> Outcome:
        """How it came out."""
        _, result, failed, sha, _ = parts.rest
        kind: OutcomeKind = "unknown" if failed is None else "failed" if failed else "ok"
        seconds = parts.seconds
        ms = seconds * 1000 if type(seconds) in (int, float) else None
        if sha is None:
            exact, masked, numberless = fingerprints(
                self._signer, result, failed=bool(failed), needs=self._needs, volatile=volatile, digits=digits
            )
            return Outcome(
                kind, failure=_failure(result) if failed else None, exact=exact, volatile=masked, digits=numberless, ms=ms
            )
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
        return first, self._signer.digest(flag + digits(masked) + rest), failure


def _failure(result: Any) -> Failure:
    message = result if type(result) is str else canonical(result).text
    return "transient" if is_transient(None, message) else "permanent"


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
