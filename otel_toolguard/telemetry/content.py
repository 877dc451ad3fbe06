"""What a call was given and what it answered, in words: only where content was asked for, bounded and redacted.

Values whose name sounds like a secret, and text that has the form of one, are masked in any case; a redactor of the
user's sees what is left. Where anything of this fails nothing of the value is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

from otel_toolguard.core.shapes import SECRET_NAME, SECRET_VALUE
from otel_toolguard.telemetry.values import VALUE_LIMIT, text

if TYPE_CHECKING:
    from collections.abc import Callable

    Redact = Callable[[str, str], str | None]

NOTHING: Final = object()  # the result of a call that has none
MASK: Final = "(redacted)"
FAILED: Final = "(redaction failed)"
_ROOM: Final = 4 * VALUE_LIMIT  # characters looked at: a secret that a cut divides has to be recognised before it
_DEPTH: Final = 8
_WHOLE: Final = 1 << 63


class Content:
    """Makes text of arguments, results and errors' words.

    Args:
        redact: Asked with the attribute's name and the text, after secrets were masked; returns what may be told, None
            for nothing. One that raises has the value replaced by a placeholder.
    """

    __slots__ = ("_redact",)

    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact

    def words(self, name: str, value: str) -> str | None:
        """A text as it may be told."""
        return self._checked(name, lambda: value)[0]

    def json(self, name: str, value: Any) -> tuple[str | None, bool]:
        """A value as sorted JSON, a text as it is; and whether that is not all of it."""
        room = _Room()

        def said() -> str:
            plain = _plain(value, room, 0)
            return plain if isinstance(value, str) else json.dumps(plain, ensure_ascii=False, sort_keys=True)

        told, cut = self._checked(name, said)
        return told, cut or room.cut

    def _checked(self, name: str, said: Callable[[], str]) -> tuple[str | None, bool]:
        try:
            whole = said()
            masked: str | None = SECRET_VALUE.sub(MASK, whole[:_ROOM])
            if self._redact is not None:
                masked = self._redact(name, masked or "")
            if masked is None:
                return None, False
            told, cut = text(masked), len(masked.encode("utf-8", "replace")) > VALUE_LIMIT
        except Exception:  # whatever the value or the redactor raised: its words may quote the value
            return FAILED, False
        return told, cut or len(whole) > _ROOM


class _Room:
    """What may still be said."""

    __slots__ = ("cut", "left")

    def __init__(self) -> None:
        self.left = _ROOM
        self.cut = False

    def take(self, size: int) -> bool:
        """Whether there is room for that many characters; takes it."""
        self.left -= size
        self.cut = self.cut or self.left < 0
        return self.left >= 0


def _plain(value: Any, room: _Room, depth: int) -> Any:
    """A copy of JSON values, as large as there is room; what is no JSON value is named by its type."""
    kind = type(value)
    if kind is str:
        if not room.take(len(value)):
            value = value[: _ROOM + 1]
        return value.encode("utf-8", "replace").decode()
    if value is None or kind is bool or kind is float or (kind is int and -_WHOLE <= value < _WHOLE):
        room.take(8)
        return value if value == value and value not in _ENDLESS else str(value)  # noqa: PLR0124  (NaN is not itself)
    if not room.take(8) or depth >= _DEPTH:
        room.cut = True
        return "…"
    if isinstance(value, Mapping):
        return _table(value, room, depth)
    if isinstance(value, (list, tuple, AbstractSet)):
        return [_plain(item, room, depth + 1) for item in _some(value, room)]
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _table(value: Mapping[Any, Any], room: _Room, depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key in _some(value, room):
        name = key if type(key) is str else _plain(key, room, depth + 1)
        name = str(name)[:VALUE_LIMIT].encode("utf-8", "replace").decode()
        room.take(len(name))
        table[name] = MASK if SECRET_NAME.search(name) else _plain(value[key], room, depth + 1)
    return table


def _some(values: Any, room: _Room) -> Any:
    """The items for which there is room."""
    for item in values:
        if room.left <= 0:
            room.cut = True
            return
        yield item


_ENDLESS: Final = (float("inf"), float("-inf"))
