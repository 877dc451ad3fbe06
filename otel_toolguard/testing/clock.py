"""A clock that a test moves by hand."""

from __future__ import annotations

import threading


class FakeClock:
    """Seconds that pass only when ``advance`` is called; for ``Session(clock=...)`` and ``MemoryStore(clock=...)``.

    Args:
        start: Seconds at the beginning.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Seconds now."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Lets that many seconds pass, 0 for none; returns the seconds then.

        Raises:
            ValueError: The seconds are negative or no number: the clocks that this one stands for never go back.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock never goes back: {seconds!r} seconds cannot pass")
        with self._lock:
            self._now += seconds
            return self._now

    def __repr__(self) -> str:
        return f"<FakeClock {self._now:g} s>"
