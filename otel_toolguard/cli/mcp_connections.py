"""The connections of HTTP clients: what each is called, and who judges its calls."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from otel_toolguard.cli.mcp_gate import Gate
from otel_toolguard.cli.mcp_http import SESSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.cli.mcp_judge import Judge

logger = logging.getLogger("otel_toolguard")
KEPT = 1024  # connections of clients that are remembered
_SHARED = (
    "a client tells no %s: all such clients of this proxy share one session of the guard, and a stop of one is a stop "
    "of all; this is said once"
)


class Connections:
    """The clients' connections, by the name that the server gave each.

    Args:
        judge: Makes the judge of a new one.
        carry: Whether trace context is put into requests.
        named: Whether all of them belong to one session by the user's own wish.
    """

    def __init__(self, judge: Callable[[], Judge], *, carry: bool, named: bool) -> None:
        self._judge = judge
        self._carry = carry
        self._named = named
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Judge, Gate]] = OrderedDict()
        self._shared: Judge | None = None

    def fresh(self) -> tuple[Judge, Gate]:
        """One that begins."""
        judge = self._judge()
        return judge, Gate(judge, carry=self._carry)

    def of(self, name: str | None) -> Gate:
        """What passes one connection; without a name each request is by itself, and one judge judges them all."""
        with self._lock:
            if name is not None:
                found = self._known.get(name)
                if found is not None:
                    self._known.move_to_end(name)
                    return found[1]
            elif self._shared is not None:
                return Gate(self._shared, carry=self._carry)
        judge, gate = self.fresh()
        if name is not None:
            return self.keep(name, judge, gate)
        with self._lock:
            if self._shared is None:
                self._shared = judge
                if not self._named:
                    logger.warning(_SHARED, SESSION)
            return Gate(self._shared, carry=self._carry)

    def keep(self, name: str, judge: Judge, gate: Gate) -> Gate:
        """Remembers one under the name that the server gave it; returns the gate of that name."""
        with self._lock:
            kept = self._known.setdefault(name, (judge, gate))
            gone = [] if kept[1] is gate else [(judge, gate)]
            gone += [self._known.popitem(last=False)[1] for _ in range(len(self._known) - KEPT)]
        for each in gone:
            _close(*each)
        return kept[1]

    def end(self, name: str | None) -> None:
        """Forgets one that its client has ended."""
        with self._lock:
            found = self._known.pop(name or "", None)
        if found is not None:
            _close(*found)

    def close(self) -> None:
        """Ends all of them."""
        with self._lock:
            found, shared = list(self._known.values()), self._shared
            self._known.clear()
        for each in found:
            _close(*each)
        if shared is not None:
            shared.close()


def _close(judge: Judge, gate: Gate) -> None:
    gate.close()
    judge.close()
