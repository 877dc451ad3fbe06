"""A session: what lasts over the runs of one conversation or job, and the handle to everything about it."""

from __future__ import annotations

import contextvars
import os
import secrets
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from otel_toolguard.binding import bound
from otel_toolguard.controls import Controls, reason_of
from otel_toolguard.core.canonical import signer
from otel_toolguard.errors import CircuitOpen, SessionStopped, SettingsError
from otel_toolguard.fresh import run_fresh
from otel_toolguard.guard import Guard, unfelt
from otel_toolguard.place import Place, here
from otel_toolguard.settings import ENVIRONMENT, Policy
from otel_toolguard.stores import resolve
from otel_toolguard.stores.memory import MemoryStore
from otel_toolguard.stores.workers import tell_once
from otel_toolguard.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_toolguard.core.decision import Trip
    from otel_toolguard.core.report import RunEnd
    from otel_toolguard.core.state import RunState, SessionState
    from otel_toolguard.stores import SessionStore

F = TypeVar("F")


class Session(Controls):
    """Counts and judges the guarded calls made inside its ``with`` block (also ``async with``).

    Each entry is a new run: rings, streaks, refusals and the stop belong to the run; ceilings of the session go on
    counting over all runs until the store forgets the session. Sessions of the same id share their state.

    Args:
        id: What lasts: a conversation, a job. None draws a random one.
        policy: The rules; None takes those of environment, file and default profile.
        on_trip: Called with the ``Trip`` of each circuit that opens, after it opened. What it raises is logged.
        store: Keeps the state; None is what ``TOOLGUARD_STORE`` names, else the memory of this process.
        clock: Seconds on a clock that never goes back; cooldowns are measured on it.
        telemetry: Where spans, metrics and events go; None is the process's OpenTelemetry providers, or nowhere under
            ``TOOLGUARD_TELEMETRY=off``.
    """

    def __init__(
        self,
        id: str | None = None,  # noqa: A002  (the field's word)
        *,
        policy: Policy | None = None,
        on_trip: Callable[[Trip], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        store: SessionStore | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        if isinstance(id, Policy):
            raise SettingsError("the first argument of Session is its id; write Session(id, policy=...)")
        if policy is not None and not isinstance(policy, Policy):
            raise SettingsError(f"policy takes a Policy, not {type(policy).__name__}; try Policy.profile(name)")
        self.id = secrets.token_hex(8) if id is None else str(id)
        self.policy = policy or default_policy()
        kept = resolve(store)
        if id is not None and isinstance(kept, MemoryStore):
            tell_once()  # a session without a name is nobody else's
        telemetry = telemetry or default_telemetry(self.policy.mode)
        if telemetry is not None:
            telemetry.prepare(self.policy.rules)
        self.guard = Guard(
            self.policy,
            signer(self.policy.signature_key or kept.key),
            telemetry,
            kept,
            session_id=self.id,
            conversation_id=None if id is None else self.id,
            on_trip=on_trip,
            clock=clock,
        )

    def __enter__(self) -> Self:
        outer = here.get()
        here.set(self.place(outer=outer))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Found through the context, not kept on the session: one object may be entered in several tasks at once.
        place, inner = here.get(), None
        while place is not None and (place.session is not self or place.inside is not None):
            place, inner = place.outer, place
        if place is None:
            return
        if inner is None:
            here.set(place.outer)
        else:  # a block that began later, in a generator perhaps, is still open: it stays the current one
            inner.outer = place.outer
        try:
            self._tell_end(self.end_run(place.run_id))
        except Exception as fault:
            unfelt("end a run", fault)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def place(self, run_id: str | None = None, *, outer: Place | None = None) -> Place:
        """Where calls of a run are made; a new run unless ``run_id`` names one.

        A run that starts inside a guarded call of this session is nested in the run of that call.
        """
        above = None
        if outer is not None and outer.inside is not None and outer.guard.session_id == self.id:
            above = outer.run_id
        place = Place(self.guard, run_id or secrets.token_hex(8), above=above, outer=outer, session=self)
        if outer is not None and outer.inside is None and outer.session is self:
            outer.last = place.run_id
        return place

    def end_run(self, run_id: str) -> RunEnd | None:
        """Notes that a run makes no more calls; what is known about it stays. None if that was noted before."""
        if not self.guard.judges:
            return None
        ended: RunEnd | None = self.guard.transact(self.guard.chain.end_run, run_id)
        quiet, telemetry = self.guard.quiet, self.guard.telemetry
        if quiet:
            quiet.difference_update([each for each in list(quiet) if each.partition("|")[0] == run_id])
        if ended is not None and telemetry is not None:
            telemetry.run_ended(
                calls=ended.calls, peak_repeats=ended.peak_repeats, tripped=ended.tripped, distinct=ended.distinct
            )
        return ended

    def _tell_end(self, ended: RunEnd | None) -> None:
        """Says what the session came to so far, at the end of a block."""
        telemetry = self.guard.telemetry
        if ended is not None and telemetry is not None:
            report = self.report() if telemetry.reports else None
            telemetry.session_ended(self.id, calls=ended.session_calls, tripped=ended.session_tripped, report=report)

    @property
    def trip(self) -> Trip | None:
        """Why the current run was stopped (outside one: the last run); None if it was not.

        In a block, between a framework's invocations, that is the block's own run or the last invocation.
        """
        place = self._current_place()
        if place is None:
            return self.trip_of(None)
        return self.trip_of(place.run_id) or (self.trip_of(place.last) if place.last != place.run_id else None)

    def trip_of(self, run_id: str | None) -> Trip | None:
        """Why a run was stopped; of the last run where ``run_id`` is None. None if it was not."""

        def step(state: SessionState) -> Trip | None:
            if state.stop is not None:
                return state.stop.trip
            run: RunState | None = state.runs.get(state.last_run or "" if run_id is None else run_id)
            while run is not None:
                if run.stop is not None:
                    return run.stop.trip
                run = run.above
            return None

        found: Trip | None = self.guard.transact(step)
        return found

    def raise_if_open(self) -> None:
        """The gate for model boundaries.

        Raises:
            SessionStopped: The current run (outside one: the last run) was stopped.
        """
        trip = self.trip
        if trip is not None:
            raise SessionStopped(trip) if trip.stops else CircuitOpen(trip)

    def report(self) -> dict[str, Any]:
        """What the session did so far, as JSON values: the ``tool_stats`` of all runs, peaks, refusals and trips."""
        report: dict[str, Any] = self.guard.transact(self.policy.chain.report)
        return report

    def stop(self, reason: str) -> Trip:
        """Stops every run of the session, in any thread, task or (shared store) process, until ``reset``.

        Raises:
            ValueError: The reason is empty.
        """
        why = reason_of(reason)

        def step(state: SessionState) -> tuple[Trip, bool]:
            fresh = state.stop is None
            trip = self.policy.chain.stop(state, why)
            state.audit.append({"action": "stop", "reason": why, "trip": trip.id})
            return trip, fresh

        trip, fresh = self.guard.transact(step)
        if fresh:
            self.guard.tell(trip, None)
        found: Trip = trip
        return found

    def reset(self, reason: str, *, ceilings: bool = False) -> None:
        """Clears stop, rings, streaks and refusals of every run; the counters of ceilings only with ``ceilings``.

        Raises:
            ValueError: The reason is empty.
        """
        why = reason_of(reason)

        def step(state: SessionState) -> None:
            self.policy.chain.reset(state, ceilings=ceilings)
            state.audit.append({"action": "reset", "reason": why, "ceilings": ceilings})

        self.guard.transact(step)
        self.guard.quiet.clear()

    def audit(self) -> list[dict[str, Any]]:
        """What was done to the session by hand, oldest first: stops, resets and raised ceilings, with their reasons."""
        entries: list[dict[str, Any]] = self.guard.transact(lambda state: [dict(entry) for entry in state.audit])
        return entries

    def report_retry(self, kind: str, attempt: int) -> None:
        """Tells the rules of a retry that the host made by itself; ``attempt`` counts from 1."""
        run_id = self._current_run() or ""
        self.guard.transact(lambda state: self.policy.chain.retry(state, run_id, kind, attempt))

    def run_fresh(self, function: Callable[[], Any], *, attempts: int = 2) -> Any:
        """Calls the function in a run of its own, and again in a fresh one while the run was stopped.

        Rings, streaks and refusals start anew each time, ceilings of the session go on counting. Rules are told of each
        further try as a retry of the kind ``fresh_run``.

        Args:
            function: Takes nothing; sync or async.
            attempts: How often it is called at most, the first time included.

        Returns:
            What the function returned; an awaitable of that if the function is async.

        Raises:
            ValueError: ``attempts`` is no whole number from 1.
            CircuitOpen: The last run was stopped too, or the session as a whole, which no fresh run would help. It is
                the exception that left the function; ``SessionStopped`` where a framework swallowed it.
        """
        return run_fresh(self, function, attempts)

    def bind(self, function: F) -> F:
        """The function, made to run in this session and under the current span, in whatever thread it is called.

        For raw threads and executors, which lose context variables. Outside the session's block the calls belong to a
        new run. Of a tool object (see ``guard_tool``) it is a copy whose function is bound.

        Raises:
            SettingsError: It is neither a function nor a known tool object.
        """
        place = self._current_place() or self.place()
        captured = contextvars.copy_context()
        captured.run(here.set, place)
        made: F = bound(captured, function)
        return made

    def _current_place(self) -> Place | None:
        place = here.get()
        return place if place is not None and place.guard.session_id == self.id else None

    def _current_run(self) -> str | None:
        place = self._current_place()
        return place.run_id if place is not None else None

    def __repr__(self) -> str:
        return f"<Session {self.id!r} {self.policy!r}>"


def default_policy() -> Policy:
    """What environment, file and default profile say now."""
    return _policy(tuple(map(os.environ.get, ENVIRONMENT)))


@lru_cache(maxsize=16)
def _policy(_environment: tuple[str | None, ...]) -> Policy:
    return Policy()


def default_telemetry(mode: str) -> Telemetry | None:
    """Telemetry of the process's providers; None under ``TOOLGUARD_TELEMETRY=off``."""
    said = os.environ.get("TOOLGUARD_TELEMETRY", "on").lower()
    if said not in _ON and said not in _OFF:
        raise SettingsError(f"TOOLGUARD_TELEMETRY: {said!r}; valid are on and off")
    if said in _OFF:
        return None
    return _telemetry("observe" if mode == "observe" else "enforce")


_ON, _OFF = ("on", "1", "true", "yes", ""), ("off", "0", "false", "no")


@lru_cache(maxsize=2)
def _telemetry(mode: str) -> Telemetry:
    return Telemetry(mode=mode)


def unguarded() -> Guard:
    """What traces calls made outside any session, as environment and file say now."""
    return _unguarded(tuple(map(os.environ.get, ENVIRONMENT)), os.environ.get("TOOLGUARD_TELEMETRY"))


@lru_cache(maxsize=16)
def _unguarded(_environment: tuple[str | None, ...], _telemetry: str | None) -> Guard:
    policy = default_policy()
    store = resolve(None)
    return Guard(policy, signer(policy.signature_key or store.key), default_telemetry(policy.mode), store)
