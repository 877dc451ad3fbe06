"""What the answer of an endpoint means: HTTP statuses, gRPC codes, and what goes wrong before there is one."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from otel_toolguard.cli.doctor_finding import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal[
    "ok", "away", "silent", "untrusted", "tls", "other", "denied", "no_path", "busy", "odd", "unasked",
    "proxy", "moved", "empty", "refused", "files",
]  # fmt: skip


class Answer(NamedTuple):
    """How an endpoint answered.

    Attributes:
        kind: ``ok``; ``away``: nobody is there; ``silent``: no answer in time; ``untrusted``: its certificate is not;
            ``tls``: TLS on one side only, or otherwise broken; ``other``: this protocol is not spoken there;
            ``denied``; ``no_path``: it does not take this signal at this address; ``busy``; ``proxy``: what stands
            between is away; ``moved``: it sends elsewhere; ``empty``: it may be that only the empty export is refused;
            ``refused``: by the exporter itself, which does not come up; ``files``: those of TLS cannot be used;
            ``odd``: anything else; ``unasked``: it could not be asked from here.
        text: The same in words.
        trusts: The file of authorities that was used over HTTP; None for the usual ones.
    """

    kind: Kind
    text: str
    trusts: str | None = None


def of_status(status: int, content: str, location: str) -> Answer:
    """What an HTTP response means.

    Args:
        status: Its code.
        content: The media type of what came with it.
        location: Where it sends to.
    """
    said = f"HTTP {status}"
    if status in _STATUSES:
        kind, text = _STATUSES[status]
        return Answer(kind, f"{text} ({said})")
    if 300 <= status < 400:
        where = f" to {location}" if location else ""
        return Answer("moved", f"redirects{where} ({said}): the exporter takes that for success, and nothing arrives")
    if not 200 <= status < 300:
        return Answer("odd", f"answers {said}")
    if content == "text/html":
        return Answer("odd", f"answers {said} with a web page: no OTLP receiver")
    return Answer("ok", "answers")


def of_fault(fault: Exception, seconds: float) -> Answer:
    """What an exception of ``requests`` means: the cause lies in it somewhere below.

    Args:
        fault: What was raised.
        seconds: How long was waited.
    """
    causes = list(_causes(fault))
    for words, kind, text in _WORDS:
        if any(words in type(cause).__name__ or words in str(cause) for cause in causes):
            return Answer(kind, text)
    for known, kind, text in _FAULTS:
        found = next((cause for cause in causes if isinstance(cause, known)), None)
        if found is not None:
            if kind == "silent":
                return Answer(kind, f"{text} within {seconds:g} s")
            said = next((said for name in _REASONS if isinstance(said := getattr(found, name, None), str)), "")
            return Answer(kind, f"{text} ({one_line(said)})" if said and text.endswith(_SAYS_WHY) else text)
    return Answer("odd", f"cannot be asked ({type(fault).__name__})")


def _causes(fault: Any, depth: int = 8) -> Iterator[BaseException]:
    """An exception and all that it was made from, the innermost first."""
    if isinstance(fault, BaseException) and depth:
        for inner in (fault.__cause__, fault.__context__, getattr(fault, "reason", None), *fault.args):
            yield from _causes(inner, depth - 1)
        yield fault


_REASONS = ("verify_message", "reason", "strerror")
_SAYS_WHY = ("trusted", "fails", "reached")
# By words, where a class would say too little.
_WORDS: tuple[tuple[str, Kind, str], ...] = (
    ("ProxyError", "proxy", "the proxy in between cannot be used"),
    ("Could not find", "files", "a file of its TLS settings is not there"),
    ("SOCKS", "proxy", "the proxy in between speaks SOCKS, for which a package is missing (PySocks)"),
)
_FAULTS: tuple[tuple[Any, Kind, str], ...] = (  # the narrower ones first
    (ssl.SSLCertVerificationError, "untrusted", "its certificate is not trusted"),
    (ssl.SSLError, "tls", "TLS fails"),
    (TimeoutError, "silent", "no answer"),
    (socket.gaierror, "away", "no such host"),
    ((ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected), "other", "hangs up on HTTP/1.1"),
    ((http.client.BadStatusLine, http.client.LineTooLong), "other", "no HTTP/1.1 is spoken there"),
    (ValueError, "odd", "cannot be asked"),
    (OSError, "away", "cannot be reached"),
)
_Meaning = tuple[Kind, str]
_DENIED: _Meaning = ("denied", "refuses the credentials")
_NO_PATH: _Meaning = ("no_path", "does not take this")
_BUSY: _Meaning = ("busy", "is there, and cannot take anything now")
_EMPTY: _Meaning = ("empty", "refuses an empty export")
_STATUSES: dict[int, _Meaning] = {
    400: _EMPTY,
    **dict.fromkeys((401, 403, 407), _DENIED),
    **dict.fromkeys((404, 405, 501), _NO_PATH),
    **dict.fromkeys((429, 502, 503, 504), _BUSY),
}
_CODES: dict[str, _Meaning] = {
    "UNAUTHENTICATED": _DENIED,
    "PERMISSION_DENIED": _DENIED,
    "UNIMPLEMENTED": _NO_PATH,
    "RESOURCE_EXHAUSTED": _BUSY,
    "INVALID_ARGUMENT": _EMPTY,
}
# What its library says of a connection that failed, and what that means.
_DETAILS: tuple[tuple[str, Kind, str], ...] = (
    ("CERTIFICATE_VERIFY_FAILED", "untrusted", "its certificate is not trusted"),
    ("Hostname Verification Check failed", "untrusted", "its certificate is for another name"),
    ("andshake failed", "tls", "TLS fails"),
    ("andshaker", "tls", "TLS fails"),
    ("Failed parsing HTTP/2", "other", "no HTTP/2 is spoken there"),
    ("http1.x server", "other", "no HTTP/2 is spoken there"),
    ("resolving", "away", "no such host"),
    ("resolution", "away", "no such host"),
    ("Connection refused", "away", "cannot be reached (Connection refused)"),
    ("ailed to connect", "away", "cannot be reached"),
    ("Socket closed", "other", "hangs up on HTTP/2"),
    ("reset by peer", "other", "hangs up on HTTP/2"),
)


def of_code(code: str, details: str, seconds: float) -> Answer:
    """What a gRPC status means.

    Args:
        code: Its name.
        details: What its library says of it.
        seconds: How long was waited.
    """
    if code == "DEADLINE_EXCEEDED":
        return Answer("silent", f"no answer within {seconds:g} s")
    if code in _CODES:
        kind, text = _CODES[code]
        return Answer(kind, f"{text} ({code})")
    if code == "UNAVAILABLE":
        found = next(((kind, text) for words, kind, text in _DETAILS if words in details), None)
        return Answer(*found) if found else Answer(_BUSY[0], f"{_BUSY[1]} ({code})")
    return Answer("odd", f"answers {code}")
