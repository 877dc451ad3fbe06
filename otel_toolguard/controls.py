"""What a caller tells a session from outside, beside stopping it: a higher ceiling, a circuit held, costs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from otel_toolguard.core.holds import hold
from otel_toolguard.core.overrides import CIRCUIT_STATES

if TYPE_CHECKING:
    from otel_toolguard.core.decision import Settled
    from otel_toolguard.core.overrides import CircuitState
    from otel_toolguard.core.state import SessionState
    from otel_toolguard.guard import Guard
    from otel_toolguard.place import Place
    from otel_toolguard.settings import Policy


class Controls:
    """A part of ``Session``."""

    guard: Guard
    policy: Policy

    def _current_place(self) -> Place | None:
        raise NotImplementedError

    def raise_ceiling(self, name: str, value: int, reason: str, expires_at: float | datetime) -> None:
        """Lets a ceiling of ``call_ceiling`` be higher for a while; a run that was stopped stays so until ``reset``.

        Args:
            name: run, session, signature, ``tools.GLOB`` or ``classes.CLASS``, as the policy has it.
            value: Above what holds now.
            reason: Listed by ``audit``.
            expires_at: When the old value holds again: seconds on the session's clock, or a date and time.

        Raises:
            ValueError: There is no such ceiling, it is not lower, the reason is empty, or the time is over.
        """
        rule = next((plugin for plugin in self.policy.chain.plugins if plugin.name == "call_ceiling"), None)
        if rule is None:
            raise ValueError("the policy has no call_ceiling that could be raised")
        now, why = self.guard.clock(), reason_of(reason)
        until = _moment(expires_at, now)
        self.guard.transact(lambda state: rule.raise_to(state, name, value, why, until=until, at=now))
        self.guard.quiet.clear()

    def set_circuit(
        self, state: CircuitState, reason: str, *, tool: str | None = None, signature: str | None = None,
        expires_at: float | datetime | None = None,
    ) -> None:  # fmt: skip
        """Holds the circuit of one tool, or of one signature, in a state, for all runs of the session.

        What the settings say about the tool holds again when the time is over. A run that was stopped stays so.

        Args:
            state: "forced_open" refuses every call; "observe" and "disabled" let no rule refuse single calls (the first
                says what would have been refused); "closed" is as usual, also where the settings say otherwise.
            reason: Listed by ``audit``, and told with each refusal.
            tool: The tool's name.
            signature: The signature, as ``{tool}:{16 hex}``; it goes before its tool.
            expires_at: Seconds on the session's clock, or a date and time; None for good.

        Raises:
            ValueError: An unknown state, not exactly one of tool and signature, an empty reason, or the time is over.
        """
        if state not in CIRCUIT_STATES:
            raise ValueError(f"unknown state {state!r:.60}; valid are {', '.join(CIRCUIT_STATES)}")
        if (tool is None) == (signature is None) or not isinstance(tool or signature, str):
            raise ValueError("name either a tool or a signature")
        why, now = reason_of(reason), self.guard.clock()
        until = None if expires_at is None else _moment(expires_at, now)
        key = f"tool:{tool}" if signature is None else f"signature:{signature}"
        self.guard.transact(lambda session: hold(session, key, state, why, until))
        self.guard.quiet.clear()

    def report_cost(self, amount: float) -> None:
        """Tells the rule ``cost`` what something cost; the limit reached is a stop, and ``trip`` says so at once.

        Belongs to the current run and those above it; outside one, to the last run.

        Raises:
            ValueError: The amount is negative or no number.
        """
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < float("inf"):
            raise ValueError(f"a cost is a finite number of 0 and more, not {amount!r}")
        guard, place, at = self.guard, self._current_place(), self.guard.clock()
        if not guard.judges:
            return

        def step(state: SessionState) -> Settled:
            run_id, above = (place.run_id, place.above) if place is not None else (state.last_run or "", None)
            return self.policy.chain.cost(state, run_id, amount, above=above, at=at)

        settled: Settled = guard.transact(step)
        trip = settled.trip or settled.would_trip
        if trip is not None:
            guard.tell(trip, None, observed_only=settled.trip is None)


def reason_of(reason: str) -> str:
    """The reason without outer blanks.

    Raises:
        ValueError: It is empty.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("a reason is needed: it is listed by session.audit()")
    return reason.strip()


def _moment(at: float | datetime, now: float) -> float:
    """A moment to come, in seconds on a clock that shows ``now``; a date and time without a zone is local."""
    if isinstance(at, datetime):
        at = now + (at - datetime.now(at.tzinfo)).total_seconds()
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not now < at < float("inf"):
        raise ValueError(f"expires_at must be a moment to come: seconds above {now:.3f}, or a date and time")
    return float(at)
