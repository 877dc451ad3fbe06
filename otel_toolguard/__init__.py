"""One decorator on an agent's tools: every call an OpenTelemetry span, every runaway stopped.

The names below are loaded when they are first used, so that a command that needs one of them starts fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from otel_toolguard._version import __version__

if sys.version_info < (3, 11):  # noqa: UP036  # pragma: no cover  (one sentence beats a syntax error)
    raise RuntimeError("otel-toolguard needs Python 3.11 or newer")

if TYPE_CHECKING:
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.decorator import guard_tool
    from otel_toolguard.errors import (
        CircuitOpen,
        SessionMissing,
        SessionStopped,
        SettingsError,
        SettingsWarning,
        ToolGuardError,
        find_trip,
    )
    from otel_toolguard.inspection import assert_guarded
    from otel_toolguard.lookup import current_session
    from otel_toolguard.session import Session
    from otel_toolguard.settings import Policy
    from otel_toolguard.stores.memory import MemoryStore

__all__ = [
    "CircuitOpen",
    "MemoryStore",
    "Policy",
    "Session",
    "SessionMissing",
    "SessionStopped",
    "SettingsError",
    "SettingsWarning",
    "ToolGuardError",
    "Trip",
    "__version__",
    "assert_guarded",
    "current_session",
    "find_trip",
    "guard_tool",
]

_HOMES = {
    "CircuitOpen": "errors",
    "MemoryStore": "stores.memory",
    "Policy": "settings",
    "Session": "session",
    "SessionMissing": "errors",
    "SessionStopped": "errors",
    "SettingsError": "errors",
    "SettingsWarning": "errors",
    "ToolGuardError": "errors",
    "Trip": "core.decision",
    "assert_guarded": "inspection",
    "current_session": "lookup",
    "find_trip": "errors",
    "guard_tool": "decorator",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'otel_toolguard' has no attribute {name!r}")
    value = getattr(import_module(f"otel_toolguard.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
