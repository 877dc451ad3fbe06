"""What settings may say about a tool's texts: a part of arguments or result to compare, and how texts are folded."""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT_LIMIT = 1 << 20  # characters of one text; what is longer is left as it is
ITEMS_LIMIT = 4096  # values looked at when folding; those beyond are left as they are
_ABSENT = "\0absent"


def part_of(value: Any, paths: Sequence[str]) -> Any:
    """The parts of a value that the paths name.

    Args:
        value: Anything; a text that is a JSON object or array is read.
        paths: Names of keys, places in lists (from 0) or attributes, joined by dots: ``job.state``, ``rows.0.id``.

    Returns:
        The parts in the order of the paths; the value itself where it has none of them.
    """
    known = _read(value)
    parts = [_at(known, path.split(".")) for path in paths]
    return value if all(part is _ABSENT for part in parts) else parts


def _read(value: Any) -> Any:
    if type(value) is str and len(value) <= TEXT_LIMIT and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _at(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        if isinstance(value, dict):
            value = value.get(name, _ABSENT)
        elif isinstance(value, (list, tuple)):
            value = value[int(name)] if name.isdecimal() and int(name) < len(value) else _ABSENT
        elif name.startswith("_") or isinstance(value, (str, bytes, int, float)) or value is None:
            value = _ABSENT
        else:
            value = getattr(value, name, _ABSENT)
        if value is _ABSENT:
            break
    return value


def folded(value: Any) -> Any:
    """The value with every text in dicts and lists in composed form (NFC) and without outer blanks.

    Keys of dicts stay, and so does what is neither text, dict nor list.
    """
    return _Fold().of(value, 0)


class _Fold:
    """Folds one value; shared parts may make it larger than it looks, hence the count."""

    def __init__(self) -> None:
        self._left = ITEMS_LIMIT

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        kind = type(value)
        if self._left < 0 or depth > 32:
            return value
        if kind is str:
            return unicodedata.normalize("NFC", value).strip() if len(value) <= TEXT_LIMIT else value
        if kind is dict:
            return {key: self.of(item, depth + 1) for key, item in value.items()}
        if kind in (list, tuple):
            return [self.of(item, depth + 1) for item in value]
        return value
