"""Beside another instrumentation that opens the span of a call nearer to the body than an adapter stands."""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter.answers import settle
from otel_toolguard.tool_objects import is_tool_object, rewrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_toolguard.adapter.answers import Answers
    from otel_toolguard.attempt import Attempt


def instrumented_by(others: Mapping[str, str]) -> bool:
    """Whether one of these instrumentors is in use: names of their classes, by that of the module."""
    try:
        found = ((sys.modules.get(module), name) for module, name in others.items())
        return any(module and getattr(module, name)().is_instrumented_by_opentelemetry for module, name in found)
    except Exception:  # of another release, perhaps; what it opens then stands beside our span
        return False


def traced_within(tool: Any, attempt: Attempt, answers: Answers) -> Any:
    """A copy of a tool object whose function opens the span of this call: it then is the other's, if there is one.

    The call is settled there too, for the other's span ends before the adapter sees the answer.
    """
    if not is_tool_object(tool):
        return tool

    def wrap(function: Any, **_of_guards: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _settling(attempt, answers) as call:
                call.result = function(*args, **kwargs)
            return call.result

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with _settling(attempt, answers) as call:
                call.result = await function(*args, **kwargs)
            return call.result

        return run_async if inspect.iscoroutinefunction(function) else run

    try:
        return rewrapped(tool, wrap)
    except Exception:  # one that cannot be copied, or has no function of its own
        return tool


@contextmanager
def _settling(attempt: Attempt, answers: Answers) -> Iterator[SimpleNamespace]:
    call = SimpleNamespace()
    with attempt.tracing():
        try:
            yield call
        except BaseException as error:
            settle(attempt, answers, None, error)
            raise
        settle(attempt, answers, call.result, None)
