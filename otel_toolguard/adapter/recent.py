"""What was asked for lately: frameworks rarely say that something is over."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A bounded mapping, safe in threads, that forgets what was not asked for longest.

    Args:
        most: How many entries are kept, from 1.
        over: Called with each entry that is forgotten to make room.
    """

    def __init__(self, most: int, over: Callable[[K, V], object] | None = None) -> None:
        self._most = most
        self._over = over
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, V] = OrderedDict()

    def of(self, key: K, make: Callable[[], V]) -> V:
        """What is kept under a key; made now if nothing is."""
        gone = []
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                gone.append(self._kept.popitem(last=False))
            found = self._kept[key]
        for each in gone if self._over is not None else ():
            self._over(*each)  # type: ignore[misc]
        return found

    def get(self, key: K) -> V | None:
        """What is kept under a key, None if nothing is; asking so makes it no younger."""
        return self._kept.get(key)

    def pop(self, key: K) -> V | None:
        """Forgets a key, and returns what was kept under it."""
        with self._lock:
            return self._kept.pop(key, None)

    def values(self) -> list[V]:
        """All that is kept, what was asked for longest ago first."""
        with self._lock:
            return list(self._kept.values())

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter(list(self._kept))

    def __len__(self) -> int:
        return len(self._kept)
