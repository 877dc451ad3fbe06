"""How long a step waits for a lock: for ever so often others give it back, for moments if nobody does."""

from __future__ import annotations

import time

MOST = 10  # times the patience with one holder; beyond it even a file that others can use is away


class Patience:
    """Ends some seconds after anybody else was last seen to get on.

    A lock that passes from hand to hand is no outage: whoever waits behind many has their turn to come.

    Args:
        seconds: How long one holder is waited for; all of them together ``MOST`` times as long.
    """

    __slots__ = ("_last", "_mark", "_seconds", "_until")

    def __init__(self, seconds: float) -> None:
        now = time.monotonic()
        self._seconds = seconds
        self._until = now + seconds
        self._last = now + MOST * seconds
        self._mark: object = None

    @property
    def left(self) -> float:
        """Seconds until it ends if nobody gets on."""
        return max(0.0, self._until - time.monotonic())

    def goes_on(self, mark: object) -> bool:
        """Whether to wait on; the mark is another one whenever somebody has got on since the last look."""
        now = time.monotonic()
        if mark != self._mark:
            self._mark, self._until = mark, min(now + self._seconds, self._last)
        return now < self._until
