"""A stream of server-sent events, event by event and to the byte."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK = 1 << 16
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """One event.

    Attributes:
        raw: Its bytes, the blank line at its end included.
        data: What it says; None if it has no data.
        id: By which a stream can be taken up after it, None if it says none.
        retry: Seconds to wait before that, None likewise.
    """

    raw: bytes
    data: bytes | None
    id: str | None
    retry: float | None

    def saying(self, data: bytes) -> bytes:
        """The bytes of the event if it said something else, on one line."""
        if data == self.data:
            return self.raw
        kept = [line for line in _LINE.split(self.raw) if line and not line.startswith(b"data:")]
        return b"\n".join((*kept, b"data: " + data, b"", b""))


def events(read: Callable[[int], Any]) -> Iterator[Event]:
    """The events of a stream; ``read`` returns what has arrived, b"" at the end."""
    kept, looked_at = bytearray(), 0
    while data := read(CHUNK):
        kept += data
        while found := _END.search(kept, looked_at):
            yield _event(bytes(kept[: found.end()]))
            del kept[: found.end()]
            looked_at = 0
        looked_at = max(0, len(kept) - 3)
    if kept:
        yield _event(bytes(kept))


def _event(raw: bytes) -> Event:
    said: dict[bytes, list[bytes]] = {}
    for line in _LINE.split(raw):
        name, _, value = line.partition(b":")
        said.setdefault(name, []).append(value.removeprefix(b" "))
    data = b"\n".join(said[b"data"]) if b"data" in said else None
    last = said[b"id"][-1].decode("utf-8", "replace") if b"id" in said else None
    retry = said[b"retry"][-1] if b"retry" in said else b""
    return Event(raw, data, last, int(retry) / 1000 if retry.isdigit() and len(retry) < 9 else None)
