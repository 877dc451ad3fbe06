"""Where things are, and the small talk of all services: free ports, JSON over HTTP, waiting."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "collector-config"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-toolguard"
WAIT_S = 60
# The two bundles because requests, by which OTLP over HTTP is sent, prefers them to OTEL_EXPORTER_OTLP_CERTIFICATE.
LEADING = ("OTEL_", "TOOLGUARD_", "COLLECTOR_", "JAEGER_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

T = TypeVar("T")


def addresses(*names: str) -> dict[str, str]:
    """A free loopback address, ``host:port``, for each name."""
    sockets = {name: socket.socket() for name in names}
    for one in sockets.values():
        one.bind(("127.0.0.1", 0))
    found = {name: f"127.0.0.1:{one.getsockname()[1]}" for name, one in sockets.items()}
    for one in sockets.values():
        one.close()
    return found


def text_of(url: str, *, timeout: float = 10) -> str | None:
    """What an address answers; None unless it answers with a success."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.read().decode()
    except (OSError, urllib.error.URLError):
        return None


def json_of(url: str) -> Any:
    """What an address answers, read as JSON; None unless it answers with a success."""
    answer = text_of(url)
    return None if answer is None else json.loads(answer)


def until(look: Callable[[], T], *, enough: Callable[[T], Any] = bool, wait_s: float = WAIT_S) -> T:
    """Looks until it is enough, and gives what was seen last: the caller's assertion says what is missing."""
    end = time.monotonic() + wait_s
    while not enough(seen := look()) and time.monotonic() < end:
        time.sleep(0.2)
    return seen


def bare_environment() -> dict[str, str]:
    """This process' environment without what would lead telemetry elsewhere or change the guard."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LEADING)}
