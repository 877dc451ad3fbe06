"""What judges the calls of one session: rules, store, telemetry and clock; and the one rule for faults of our own."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.canonical import FORM_VERSION, signer
from otel_toolguard.core.state import AFRESH
from otel_toolguard.stores.memory import MemoryStore
from otel_toolguard.tool import hushed
from otel_toolguard.trip_log import log_trip

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.core.canonical import Signer
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.core.state import SessionState
    from otel_toolguard.settings import Policy
    from otel_toolguard.stores import SessionStore
    from otel_toolguard.telemetry import Telemetry
    from otel_toolguard.telemetry.spans import Live
    from otel_toolguard.trip_log import By

logger = logging.getLogger("otel_toolguard")
_faults: set[tuple[str, type[Exception]]] = set()  # said already
_FAULTS = 64


def unfelt(step: str, fault: Exception) -> None:
    """Says that the guard itself failed: one ERROR per process, step and exception class, with the stack.

    The one rule for failures of our own: the tool does not feel them. A call that could not be admitted runs unguarded,
    one that could not be settled leaves with its own result. Only what is no ``Exception``, and in admission a
    ``CircuitOpen`` by which a store says that it refuses, passes.
    """
    kind = (step, type(fault))
    if kind in _faults or len(_faults) >= _FAULTS:
        return
    _faults.add(kind)
    _log(logging.ERROR, f"the guard failed to {step}; the tool is not affected, and this is said once", hushed(fault))


def _log(level: int, text: str, fault: Any = None, trip: Trip | None = None) -> None:
    try:
        logger.log(level, "%s", text, exc_info=fault, extra={"toolguard": trip.to_dict()} if trip else None)
    except Exception:  # a filter or handler of the application that raises must not be felt either
        pass


class Guard:
    """What judges the calls of one session, or (without a session) only traces them.

    Args:
        policy: The rules.
        signer: Makes signatures.
        telemetry: Where spans, metrics and events go; None for nowhere.
        store: Keeps the state; looked at only together with ``session_id``.
        session_id: The session; None for calls outside any.
        conversation_id: The caller's own id of the conversation, None if there is none.
        on_trip: Told of each trip; an exception it raises is logged, never felt.
        clock: Seconds on a clock that never goes back.

    Attributes:
        judges: Whether calls are counted and may be refused.
        chain: The rules of the policy.
    """

    __slots__ = ("_entry", "_key_id", "chain", "clock", "conversation_id", "judges", "on_trip", "policy", "quiet",
                 "session_id", "signer", "store", "telemetry")  # fmt: skip

    def __init__(
        self,
        policy: Policy,
        signer: Signer,
        telemetry: Telemetry | None,
        store: SessionStore,
        *,
        session_id: str | None = None,
        conversation_id: str | None = None,
        on_trip: Callable[[Trip], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.signer = signer
        self.telemetry = telemetry
        self.store = store
        self.session_id = session_id
        self.conversation_id = conversation_id
        self.on_trip = on_trip
        self.clock = clock
        self.quiet: set[str] = set()  # what has had its refused spans
        self.judges = session_id is not None and policy.mode != "off"
        self.chain = policy.chain
        self._key_id = signer.key_id
        # A store of this process needs no closure for a step.
        self._entry = store.entry if isinstance(store, MemoryStore) and store.is_plain else None

    def transact(self, step: Callable[..., Any], *given: Any) -> Any:
        """Runs ``step(state, *given)`` on the session's state as one atomic step.

        Signatures of another key or canonical form make the session start fresh.
        """
        find, key_id = self._entry, self._key_id
        if find is None:

            def checked(state: SessionState) -> Any:
                if state.key_id != key_id or state.form != FORM_VERSION:
                    self._begin(state)
                return step(state, *given)

            return self.store.transact(self.session_id or "", checked)
        while True:
            entry = find(self.session_id or "")
            with entry.lock:
                if entry.gone:  # forgotten between look-up and lock
                    continue
                state = entry.state
                if state.key_id != key_id or state.form != FORM_VERSION:
                    self._begin(state)
                return step(state, *given)

    def _begin(self, state: SessionState) -> None:
        """Signs as the store does by now; a state of yet another key or canonical form starts fresh."""
        if self._entry is None:  # its key may be in a file that could not be read before
            self.signer = signer(self.policy.signature_key or self.store.key)
            self._key_id = self.signer.key_id
        if state.begin_under(self._key_id, FORM_VERSION):
            _log(logging.WARNING, AFRESH.format(state.id))

    def tell(self, trip: Trip, live: Live | None, *, observed_only: bool = False, by: By | None = None) -> None:
        """Says once, everywhere, that a circuit opened (or, observing, would have), and by which call if by one."""
        if self.telemetry is not None:
            self.telemetry.opened(live, trip, observed_only=observed_only)
        # Whose session it was stands beside the sentence, in the record's attribute ``toolguard``.
        _log(logging.WARNING, f"would have stopped: {trip.why}" if observed_only else trip.why, trip=trip)
        log_trip(self, trip, observed=observed_only, by=by)
        if self.on_trip is not None:
            try:
                self.on_trip(trip)
            except (Exception, SystemExit) as fault:
                fault.__suppress_context__ = True  # that of a tool's own failure, perhaps
                _log(logging.ERROR, "on_trip raised; the trip stands", fault)
