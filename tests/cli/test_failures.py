"""Which failures pass by themselves."""

import pytest

from otel_toolguard.core.failures import is_transient

TRANSIENT = [
    "Request timed out",
    "MCP error -32001: Request timed out",
    "HTTP 429",
    "Error code: 429 - slow down",
    "429 Too Many Requests",
    "status=503",
    "HTTP/1.1 500 Internal Server Error",
    "502 Bad Gateway",
    "[Errno 104] Connection reset by peer",
    "read ECONNRESET",
    "Rate limit reached",
]
PERMANENT = [
    "No such file or directory",
    "404 Not Found",
    "line 503: syntax error",
    "500 tests passed, 1 failed",
    "unknown option --timeout",
    "exit code 1",
    "permission denied",
    "",
]


@pytest.mark.parametrize("message", TRANSIENT)
def test_transient_by_message(message):
    """Timeouts, 429, 5xx and connection resets may be gone at the next try."""
    assert is_transient(None, message)


@pytest.mark.parametrize("message", PERMANENT)
def test_permanent_by_message(message):
    """Everything else would fail again, numbers of the same look included."""
    assert not is_transient(None, message)


@pytest.mark.parametrize("name", ["TimeoutError", "httpx.ReadTimeout", "openai.RateLimitError", "ConnectionResetError"])
def test_transient_by_type(name):
    """The class of an exception says so whatever the message is."""
    assert is_transient(name, "")
    assert not is_transient("builtins.ValueError", "")


def test_the_middle_of_a_long_text_does_not_count():
    """A log that quotes a timeout somewhere is not the message of a timeout."""
    log = "x" * 5000
    assert not is_transient(None, f"{log} timed out {log}")
    assert is_transient(None, f"{log} timed out")
