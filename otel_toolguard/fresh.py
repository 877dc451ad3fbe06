"""A stopped run tried again in a fresh run of the same session, whose ceilings go on counting."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from otel_toolguard.errors import SessionStopped, find_trip

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_toolguard.core.decision import Trip

RETRY = "fresh_run"  # the kind of retry that the rules are told of


def run_fresh(session: Any, function: Callable[[], Any], attempts: int) -> Any:
    """See ``Session.run_fresh``."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(f"attempts = {attempts!r:.60}; it is a whole number from 1, the first try included")
    inner = getattr(function, "func", function)  # a partial
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return _run_async(session, function, attempts)
    return _run(session, function, attempts)


def _run(session: Any, function: Callable[[], Any], attempts: int) -> Any:
    attempt = _Attempt(session, attempts)
    while attempt.again:
        with attempt:
            result = function()
    return result


async def _run_async(session: Any, function: Callable[[], Any], attempts: int) -> Any:
    attempt = _Attempt(session, attempts)
    while attempt.again:
        with attempt:
            result = await function()
    return result


class _Attempt:
    """One run of a ``Session`` after the other; ``again`` says whether another one is wanted."""

    def __init__(self, session: Any, attempts: int) -> None:
        self.again = True
        self._session = session
        self._left = attempts
        self._made = 0

    def __enter__(self) -> None:
        self._session.__enter__()
        if self._made:
            self._session.report_retry(RETRY, self._made)
        self._made += 1
        self._left -= 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # A framework may have made an ordinary answer of a stopped run, so that nothing was raised.
        trip: Trip | None = self._session.trip if error is None else find_trip(error)
        self._session.__exit__(kind, error, trace)
        self.again = self._left > 0 and (error is None or isinstance(error, Exception)) and self._helps(trip)
        if error is None and trip is not None and trip.stops and not self.again:
            raise SessionStopped(trip)
        return self.again and error is not None

    def _helps(self, trip: Trip | None) -> bool:
        """Whether a fresh run may get further: neither an operator nor a ceiling of the session has spoken."""
        return trip is not None and trip.scope == "run" and trip.session_id == str(self._session.id)
