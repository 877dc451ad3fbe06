"""Which failures may be gone at the next try: timeouts, 429, 5xx and connection resets."""

from __future__ import annotations

import re

TOOL_ERROR = "tool_error"  # the type of an error that was returned as a value: GenAI and MCP conventions
MESSAGE_LIMIT = 4096  # characters of a failure that are kept
EXIT_CODES = ("exit_code", "returncode", "exitCode", "exit_status")  # names under which a result has one
ENDS = 400  # characters at each end of a message that are looked at: between them a log may quote anything
_TYPES = (
    "timeout", "timedout", "connectionreset", "ratelimit", "toomanyrequests", "serviceunavailable",
    "internalservererror", "badgateway", "deadlineexceeded", "overloaded",
)  # fmt: skip
_PHRASES = (
    "timed out", "timeout exceeded", "time-out", "timeouterror", "gateway timeout", "read timeout", "connect timeout",
    "connection timeout", "request timeout", "deadline exceeded", "etimedout", "too many requests", "rate limit",
    "ratelimit", "internal server error", "bad gateway", "service unavailable", "temporarily unavailable", "overloaded",
    "connection reset", "connection was reset", "econnreset", "connectionreseterror", "socket hang up",
)  # fmt: skip
_CODE_WORDS = ("http", "status", "code", "error")
_CODE = re.compile(r"(?:\bhttp(?:/[0-9.]{1,3})?|\bstatus|code|error)[\s:=(\"']{1,4}(?:429|5[0-9][0-9])(?![\w.])")


def is_transient(error_type: str | None, message: str) -> bool:
    """Whether the same call may well succeed later.

    Args:
        error_type: Name of the exception's class, qualified or not; None for an error that was returned as a value.
        message: What it says; of a long text only the first and the last 400 characters count.

    Returns:
        True for timeouts, 429, 5xx and connection resets; False for everything else.
    """
    if error_type:
        name = error_type.rpartition(".")[2].lower()
        if any(word in name for word in _TYPES):
            return True
    text = (message if len(message) <= 2 * ENDS else f"{message[:ENDS]}\n{message[-ENDS:]}").lower()
    if any(phrase in text for phrase in _PHRASES):
        return True
    return any(word in text for word in _CODE_WORDS) and _CODE.search(text) is not None
