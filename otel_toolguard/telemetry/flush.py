"""Has what was told exported now, and waits for it no longer than was asked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from opentelemetry._logs import get_logger_provider
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import get_tracer_provider

if TYPE_CHECKING:
    from collections.abc import Callable


class Flusher:
    """Flushes the three providers in a thread of its own: some exporters take no time limit, whatever is asked.

    Args:
        tracer_provider: None for the global one, even if that is set later.
        meter_provider: None likewise.
        logger_provider: None likewise.
    """

    __slots__ = ("_busy", "_providers")

    def __init__(self, tracer_provider: Any, meter_provider: Any, logger_provider: Any) -> None:
        self._providers = (
            (tracer_provider, get_tracer_provider),
            (logger_provider, get_logger_provider),
            (meter_provider, get_meter_provider),
        )
        self._busy = threading.Lock()

    def __call__(self, seconds: float) -> bool:
        """Whether everything was handed over in time; False too while an earlier flush still hangs."""
        flushes = [flush for flush in map(_flush_of, self._providers) if flush is not None]
        if not flushes:
            return True
        if not self._busy.acquire(blocking=False):
            return False
        done: list[bool] = []

        def run() -> None:
            try:
                handed_over = [_flushed(flush, seconds) for flush in flushes]  # each, also after one that failed
                done.append(all(handed_over))
            finally:
                self._busy.release()

        thread = threading.Thread(target=run, name="otel-toolguard-flush", daemon=True)
        try:
            thread.start()
        except BaseException:  # no thread can be had, or the interpreter is on its way out
            self._busy.release()
            raise
        thread.join(seconds)
        return bool(done) and done[0]


def _flush_of(provider: tuple[Any, Callable[[], Any]]) -> Callable[[int], Any] | None:
    given, of_process = provider
    # The API's own providers, which stand for none, have nothing to flush.
    flush: Callable[[int], Any] | None = getattr(given if given is not None else of_process(), "force_flush", None)
    return flush


def _flushed(flush: Callable[[int], Any], seconds: float) -> bool:
    try:
        return flush(max(1, int(seconds * 1000))) is not False
    except Exception:
        return False
