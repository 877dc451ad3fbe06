"""What may be told about arguments: names, types and lengths, and previews only where they were asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ARGUMENTS_SHOWN = 32
PREVIEW_LIMIT = 200  # characters
SECRET_NAME = re.compile(r"(?i)pass|pwd|secret|token|api[_-]?key|auth|credential|cookie")
# Inside values: private keys, credentials of an address, headers that carry them, bearer tokens, well-known forms of
# keys, assignments to secret names in whatever notation.
SECRET_VALUE = re.compile(
    r"(?i)-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^-]{0,8192}|(?<=://)[^/\s:@]{0,64}:[^/\s@]{1,256}(?=@)"
    r"|\b(?:authorization|cookie|set-cookie)[\"']?\s{0,4}[:=]\s{0,4}[^\r\n]+"
    r"|\bbearer\s+\S+|\b(?:sk|pk|ghp|gho|xox[abp])[-_][\w-]{8,}|\bAKIA[0-9A-Z]{12,}|\beyJ[\w-]{8,}\.[\w.-]+"
    r"|(?<![\w-])[\w-]{0,32}(?:passw|pwd|secret|token|api[_-]?key|credential)[\w-]{0,32}[\"']?\s{0,4}[=:]\s{0,4}"
    r"(?:\"[^\"]*\"?|'[^']*'?|[^&\s,}]+)"
)


def argument_shapes(arguments: Mapping[str, Any] | None, *, capture: bool = False) -> dict[str, str]:
    """Names with types and lengths, as ``{"q": "str(12)"}``; {} where nothing is known.

    With ``capture`` each value's preview of at most 200 characters follows, left out where the name sounds like a
    secret. Never raises.
    """
    shapes: dict[str, str] = {}
    try:
        for name, value in list((arguments or {}).items())[:ARGUMENTS_SHOWN]:
            shapes[str(name)[:80]] = _shape(value) + (_preview(str(name), value) if capture else "")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        shapes["…"] = "unreadable"
    return shapes


def _shape(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, (str, bytes, list, tuple, dict, set, frozenset)):
        return f"{kind}({len(value)})"
    return kind


def _preview(name: str, value: Any) -> str:
    if SECRET_NAME.search(name):
        return " = (redacted)"
    if isinstance(value, str):
        return " = " + SECRET_VALUE.sub("(redacted)", value[: 4 * PREVIEW_LIMIT])[:PREVIEW_LIMIT]
    if isinstance(value, (bool, int, float, type(None))):
        return " = " + repr(value)[:PREVIEW_LIMIT]
    return ""
