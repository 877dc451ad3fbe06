"""Long dictionaries of a session, kept entry by entry.

So that a call costs the same however many came before it: of a dictionary with thousands of entries (calls by
signature, what was seen) only those are written that a step has changed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

LONG = 64  # entries from which on a dictionary is kept by entries
_SCALARS = (str, int, float, type(None))


class Long(OrderedDict[str, Any]):
    """A dictionary that remembers which of its entries were changed since they were written.

    Attributes:
        place: Its number in the session; 0 if it needs another one, since what the file has under it is void.
        fresh: Whether nothing of it is written yet.
        seq: The number of the newest entry there ever was; entries are read in this order.
        set: Keys to be written, each with its number (None: it keeps the one it has).
        gone: Keys to be deleted first.
        loose: Keys whose values may change without this being told.
    """

    def __init__(self, place: int, entries: Iterable[tuple[str, Any]] = ()) -> None:
        self.place, self.seq, self.fresh = place, 0, False
        self.set: dict[str, int | None] = {}
        self.gone: set[str] = set()
        self.loose: set[str] = set()
        super().__init__()
        for key, value in entries:
            self._put(key, value)

    @classmethod
    def made_of(cls, place: int, entries: dict[str, Any]) -> Long:
        """A long dictionary of which nothing is written yet."""
        made = cls(place)
        made.fresh = True
        for key, value in entries.items():
            made[key] = value
        return made

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            self.seq += 1
            self.set[key] = self.seq
        else:
            self.set.setdefault(key, None)
        self._put(key, value)

    def _put(self, key: str, value: Any) -> None:
        if not isinstance(value, _SCALARS):
            self.loose.add(key)
        super().__setitem__(key, value)

    def follow(self, key: str, seq: int, value: str | None) -> None:
        """Takes an entry as another process has left it: its number and value, None if it is gone.

        Several are taken in the order of their numbers, and ``seq`` is brought up to date after all of them.
        """
        if value is None or seq > self.seq:  # deleted, and perhaps made again since
            self.loose.discard(key)
            if key in self:
                super().__delitem__(key)
        if value is not None:
            self._put(key, json.loads(value))

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.loose.discard(key)
        self.set.pop(key, None)
        self.gone.add(key)

    def clear(self) -> None:
        """Deletes every entry, in the file with one stroke."""
        super().clear()
        self.set.clear()
        self.gone.clear()
        self.loose.clear()
        self.place = 0

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """Deletes the newest entry, or the oldest; returns it."""
        key = next(reversed(self) if last else iter(self))
        return key, self.pop(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Deletes an entry; returns its value."""
        if key not in self:
            return super().pop(key, *default)
        value = self[key]
        del self[key]
        return value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is the default from now on if it had none."""
        if key not in self:
            self[key] = default
        return self[key]

    def move_to_end(self, key: str, last: bool = True) -> None:
        """Makes an entry the newest, or the oldest."""
        value = self.pop(key)
        rest = {} if last else dict(self)
        if not last:
            self.clear()
        for each, other in ((key, value), *rest.items()):
            self[each] = other

    @property
    def changed(self) -> bool:
        """Whether there is something to write."""
        for key in self.loose:
            self.set.setdefault(key, None)
        return bool(self.set or self.gone)

    def rows(self) -> list[tuple[str, int, str]]:
        """Key, number and value of each entry to be written."""
        return [(key, seq or 0, json.dumps(self[key])) for key, seq in self.set.items()]

    def written(self) -> None:
        """Notes that all of it is in the file."""
        self.set.clear()
        self.gone.clear()
        self.fresh = False


def is_flat(entries: dict[str, Any]) -> bool:
    """Whether a dictionary can be kept by entries."""
    return all(type(key) is str and isinstance(value, _SCALARS) for key, value in entries.items())
