"""Beside another instrumentation that opens the span of a call nearer to the body than an adapter stands."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

from otel_toolguard.tool_objects import is_tool_object, rewrapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_toolguard.attempt import Attempt


def instrumented_by(others: Mapping[str, str]) -> bool:
    """Whether one of these instrumentors is in use: names of their classes, by that of the module."""
    try:
        found = ((sys.modules.get(module), name) for module, name in others.items())
        return any(module and getattr(module, name)().is_instrumented_by_opentelemetry for module, name in found)
    except Exception:  # of another release, perhaps; what it opens then stands beside our span
        return False


def traced_within(tool: Any, attempt: Attempt) -> Any:
    """A copy of a tool object whose function opens the span of this call: it then is the other's, if there is one."""
    if not is_tool_object(tool):
        return tool

    def wrap(function: Any, **_of_guards: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with attempt.tracing():
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with attempt.tracing():
                return await function(*args, **kwargs)

        return run_async if inspect.iscoroutinefunction(function) else run

    try:
        return rewrapped(tool, wrap)
    except Exception:  # one that cannot be copied, or has no function of its own
        return tool
