"""What a ``sqlite:`` address says, and where the file is if it says nothing."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from otel_toolguard.errors import SettingsError

POLICIES = ("local", "closed", "open")
_SECONDS = {"timeout": "timeout_s", "lease": "lease_s", "ttl": "ttl_s"}
_COUNTS = ("max_sessions", "local_calls")
OPTIONS = ("on_error", *_SECONDS, *_COUNTS, "namespace")


def options_of(url: str) -> dict[str, Any]:
    """The arguments of ``SQLiteStore`` that an address stands for.

    Three slashes or four, the path is absolute: nothing that a guarded agent is told to work in is ever looked at.

    Raises:
        SettingsError: It names a host, an option that does not exist or a value that cannot be.
    """
    parts = urlsplit(url)
    if parts.netloc:
        raise SettingsError("a SQLite store is a file: write sqlite:///absolute/path, or sqlite: for the usual place")
    given: dict[str, Any] = {}
    path = unquote(parts.path).lstrip("/")
    if path:
        home = path == "~" or path.startswith("~/")
        is_drive = path[1:2] == ":"
        given["path"] = Path(path).expanduser() if home else Path(path if is_drive else f"/{path}")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            raise SettingsError(f"sqlite: unknown option {name!r:.60}; valid are {', '.join(OPTIONS)}")
        if name in _SECONDS:
            given[_SECONDS[name]] = _number(name, value)
        elif name in _COUNTS:
            given[name] = int(value) if value.isdecimal() else value
        else:
            given[name] = value
    return given


def checked(*, on_error: str, seconds: dict[str, float], counts: dict[str, tuple[int, int]]) -> None:
    """Whether the options can be honoured.

    Args:
        on_error: The policy.
        seconds: Positive numbers, by name.
        counts: Whole numbers and the least that each may be, by name.

    Raises:
        SettingsError: One of them cannot.
    """
    if on_error not in POLICIES:
        raise SettingsError(f"sqlite: on_error is {on_error!r:.60}; valid are {', '.join(POLICIES)}")
    for name, number in seconds.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise SettingsError(f"sqlite: {name} takes seconds above 0, not {number!r:.60}")
    for name, (count, least) in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise SettingsError(f"sqlite: {name} takes a whole number from {least}, not {count!r:.60}")


def usual_path() -> Path:
    """The file in the user's own folder for state."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
        folder = Path(base) if base else Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_STATE_HOME", "")
        # A relative one is to be ignored, says the specification; here it could lie where the agent works.
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"  # noqa: PTH117
    return folder / "otel-toolguard" / "sessions.sqlite3"


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise SettingsError(f"sqlite: {name} takes seconds above 0, not {value!r:.60}") from None
