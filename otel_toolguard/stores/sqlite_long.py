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
        place: Its number in the session.
        seq: The number of the newest entry; entries are read in this order.
        set: Keys to be written, each with its number (None: it keeps the one it has).
        gone: Keys to be deleted first; all of them if ``wiped``.
        loose: Keys whose values may change without this being told.
    """

    def __init__(self, place: int, entries: Iterable[tuple[str, Any]] = (), seq: int = 0) -> None:
        self.place, self.seq = place, seq
        self.set: dict[str, int | None] = {}
        self.gone: set[str] = set()
        self.loose: set[str] = set()
        self.wiped = False
        super().__init__()
        for key, value in entries:
            OrderedDict.__setitem__(self, key, value)
            if not isinstance(value, _SCALARS):
                self.loose.add(key)

    @classmethod
    def made_of(cls, place: int, entries: dict[str, Any]) -> Long:
        """A long dictionary of which nothing is written yet."""
        made = cls(place)
        made.wiped = True
        for key, value in entries.items():
            made[key] = value
        return made

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            self.seq += 1
            self.set[key] = self.seq
        else:
            self.set.setdefault(key, None)
        if not isinstance(value, _SCALARS):
            self.loose.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.loose.discard(key)
        self.set.pop(key, None)
        self.gone.add(key)

    def clear(self) -> None:
        """Deletes every entry."""
        super().clear()
        self.set.clear()
        self.gone.clear()
        self.loose.clear()
        self.wiped = True

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
        whole = OrderedDict(self)
        whole.move_to_end(key, last)
        self.clear()
        for each, value in whole.items():
            self[each] = value

    @property
    def changed(self) -> bool:
        """Whether there is something to write."""
        for key in self.loose:
            self.set.setdefault(key, None)
        return bool(self.wiped or self.set or self.gone)

    def rows(self) -> list[tuple[str, int, str]]:
        """Key, number and value of each entry to be written."""
        return [(key, seq or 0, json.dumps(self[key])) for key, seq in self.set.items()]

    def written(self) -> None:
        """Notes that all of it is in the file."""
        self.set.clear()
        self.gone.clear()
        self.wiped = False


def is_flat(entries: dict[str, Any]) -> bool:
    """Whether a dictionary can be kept by entries."""
    return all(type(key) is str and isinstance(value, _SCALARS) for key, value in entries.items())
