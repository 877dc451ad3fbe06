"""JSON-RPC messages as bytes: read to be judged, passed on as they came, changed only by putting a few bytes in.

Bytes that are no UTF-8 survive: they are read as lone surrogates and written back as what they were.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GONE = -32000  # the code of errors that a proxy answers in a server's stead
_CHUNK = 1 << 16
_DIGITS = 4000  # of a whole number; Python converts no longer ones
_BLANK = re.compile(r"[\ufeff \t\r\n]*+")
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MARKS = re.compile(rf"{_STRING}|[\[{{]|[\]}}]", re.DOTALL)
_SCALAR = re.compile(rf"{_STRING}|[^\s,\]}}]++", re.DOTALL)
_DECODER = json.JSONDecoder()
_LENIENT = json.JSONDecoder(strict=False, parse_int=lambda text: int(text) if len(text) <= _DIGITS else text)

Span = tuple[int, int]


def lines(descriptor: int) -> Iterator[bytes]:
    """What arrives on a file descriptor, line by line with its line feed; at the end what is left without one."""
    parts: list[bytes] = []
    while data := _read(descriptor):
        start = 0
        while end := data.find(b"\n", start) + 1:
            parts.append(data[start:end])
            yield b"".join(parts)
            parts, start = [], end
        if start < len(data):
            parts.append(data[start:])
    if parts:
        yield b"".join(parts)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:  # a terminal that is gone, a descriptor that was closed
        return b""


def text_of(frame: bytes) -> str:
    """The frame as text; ``bytes_of`` gives the same bytes back."""
    return frame.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The bytes of a text that was made by ``text_of``, or of our own."""
    return text.encode("utf-8", "surrogateescape")


def value_of(text: str) -> Any:
    """The message in a text, as far as Python can read it; None for what is no JSON.

    What is nested too deeply for that is left as text, two floors down: the name of a tool can always be read.
    """
    start = _start(text, 0)
    try:
        return _DECODER.decode(text[start:] if start else text)
    except RecursionError:
        return _shallow(text, start, 2)
    except ValueError:
        try:
            return _LENIENT.decode(text[start:])
        except RecursionError:
            return _shallow(text, start, 2)
        except ValueError:
            return None


def _shallow(text: str, start: int, floors: int) -> Any:
    if floors and text[start : start + 1] == "{":
        return {name: _shallow(text, at, floors - 1) for name, (at, _) in members(text, start).items()}
    end = _end(text, start)
    try:
        return _LENIENT.decode(text[start:end])
    except (RecursionError, ValueError):
        return text[start:end]


def _start(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _end(text: str, start: int) -> int:
    """Where the value ends that begins there."""
    try:
        return int(_DECODER.raw_decode(text, start)[1])
    except (RecursionError, ValueError):
        pass
    if text[start : start + 1] not in ("{", "["):
        found = _SCALAR.match(text, start)
        return found.end() if found else start + 1
    depth = 0
    for mark in _MARKS.finditer(text, start):
        first = mark[0][0]
        depth += (first in "{[") - (first in "}]")
        if depth == 0:
            return mark.end()
    return len(text)


def members(text: str, start: int = 0) -> dict[str, Span]:
    """Where the values of the object stand that begins there; of names said twice the last, as readers take it.

    Of what is no object, or only half of one, as many as can be told.
    """
    found: dict[str, Span] = {}
    at = _start(text, _start(text, start) + 1)
    while at < len(text) and text[at] == '"':
        name_ends = _end(text, at)
        try:
            name = _LENIENT.decode(text[at:name_ends])
        except ValueError:  # half a name
            break
        value = _start(text, _start(text, name_ends) + 1)
        end = _end(text, value)
        found[name] = (value, end)
        at = _start(text, end)
        if text[at : at + 1] != ",":
            break
        at = _start(text, at + 1)
    return found


def elements(text: str, start: int = 0) -> list[Span]:
    """Where the values of the array stand that begins there."""
    found: list[Span] = []
    at = _start(text, _start(text, start) + 1)
    while at < len(text) and text[at] != "]":
        end = _end(text, at)
        found.append((at, end))
        at = _start(text, end)
        at = _start(text, at + 1) if text[at : at + 1] == "," else len(text)
    return found


def with_meta(text: str, entries: Mapping[str, str]) -> str:
    """The request with entries in its ``params._meta``; every other byte stays as it is."""
    params = members(text).get("params")
    if params is None or text[params[0]] != "{":
        return text
    inside = members(text, params[0])
    meta = inside.get("_meta")
    if meta is None:
        more = "," if inside else ""
        return _put(text, [((params[0] + 1, params[0] + 1), f'"_meta":{json.dumps(dict(entries))}{more}')])
    if text[meta[0]] != "{":
        return _put(text, [(meta, json.dumps(dict(entries)))]) if text[meta[0] : meta[1]] == "null" else text
    said = members(text, meta[0])
    edits = [(said[name], json.dumps(value)) for name, value in entries.items() if name in said]
    new = {name: value for name, value in entries.items() if name not in said}
    if new:
        edits.append(((meta[0] + 1, meta[0] + 1), json.dumps(new)[1:-1] + ("," if said else "")))
    return _put(text, edits)


def with_block(text: str, sentence: str) -> str:
    """The response with one more text in its result's content."""
    result = members(text).get("result")
    content = members(text, result[0]).get("content") if result and text[result[0]] == "{" else None
    if content is None or text[content[0]] != "[":
        return text
    blocks = elements(text, content[0])
    at = blocks[-1][1] if blocks else content[0] + 1
    block = json.dumps({"type": "text", "text": sentence})
    return _put(text, [((at, at), f", {block}" if blocks else block)])


def _put(text: str, edits: list[tuple[Span, str]]) -> str:
    for (start, end), new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def raw_id(text: str) -> str:
    """The id of a message, to the letter, on one line."""
    span = members(text).get("id")
    return "null" if span is None else text[span[0] : span[1]].replace("\n", " ").replace("\r", " ")


def key_of(given: Any) -> str:
    """What an id is known by; 1.0 is what some servers make of 1, or the other way round."""
    whole = isinstance(given, float) and given.is_integer()
    return json.dumps(int(given) if whole else given, sort_keys=True)


def result_text(given_id: str, result: Any) -> str:
    """A response of our own."""
    return f'{{"jsonrpc":"2.0","id":{given_id},"result":{json.dumps(result)}}}'


def error_text(given_id: str, message: str) -> str:
    """An error of our own."""
    return f'{{"jsonrpc":"2.0","id":{given_id},"error":{json.dumps({"code": GONE, "message": message})}}}'
