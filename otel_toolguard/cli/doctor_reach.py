"""Asks an endpoint in both protocols, with a real but empty OTLP export, and waits for an answer some seconds only."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from otel_toolguard.cli.doctor_finding import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from otel_toolguard.cli.doctor_variables import Export

Kind = Literal["ok", "away", "silent", "untrusted", "tls", "other", "denied", "no_path", "busy", "odd", "unasked"]
SECONDS = 3.0
_SERVICES = {"traces": "trace.v1.TraceService", "metrics": "metrics.v1.MetricsService", "logs": "logs.v1.LogsService"}
_DENIED, _NO_PATH, _BUSY = (401, 403, 407), (404, 405, 501), (429, 502, 503, 504)


class Answer(NamedTuple):
    """How an endpoint answered.

    Attributes:
        kind: ``ok``; ``away``: nobody is there; ``silent``: no answer in time; ``untrusted``: its certificate is not;
            ``tls``: TLS on one side only, or otherwise broken; ``other``: this protocol is not spoken there;
            ``denied``; ``no_path``: it does not take this signal at this address; ``busy``; ``odd``: anything else;
            ``unasked``: it could not be asked from here.
        text: The same in words.
    """

    kind: Kind
    text: str


def ask_all(questions: Mapping[Hashable, Callable[[], Answer]]) -> dict[Hashable, Answer]:
    """Asks all at once; who has not answered in time, perhaps as a name is still being looked up, is silent."""
    answers: dict[Hashable, Answer] = {}

    def ask(key: Hashable, question: Callable[[], Answer]) -> None:
        try:
            answers[key] = question()
        except Exception as fault:  # whatever an address can do to the libraries that are asked
            answers[key] = Answer("odd", f"cannot be asked: {type(fault).__name__}")

    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    until = time.monotonic() + SECONDS + 1
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = Answer("silent", f"no answer within {SECONDS:g} s")
    return {key: answers.get(key, late) for key in questions}


# ------------------------------------------------------------------------------------------------ HTTP


def ask_http(export: Export) -> Answer:
    """Posts an export of nothing, as the exporter would: by the same proxy, under the same certificates."""
    if not export.endpoint.lower().startswith(("http://", "https://")):
        return Answer("odd", "the address has no http:// or https://")

    headers = {"content-type": "application/x-protobuf", "user-agent": "otel-toolguard-doctor", **export.headers}
    try:
        opener = urllib.request.build_opener(_Unmoved, urllib.request.HTTPSHandler(context=_tls(export)))
        request = urllib.request.Request(export.endpoint, b"", headers, method="POST")  # noqa: S310  (looked at above)
        with opener.open(request, timeout=SECONDS) as response:
            return _of_status(response.status, response.headers.get_content_type())
    except urllib.error.HTTPError as answer:
        with answer:
            return _of_status(answer.code, answer.headers.get_content_type())
    except urllib.error.URLError as fault:
        return _of_fault(fault.reason)
    except (OSError, ValueError, http.client.HTTPException) as fault:
        return _of_fault(fault)


class _Unmoved(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a request that is moved is no longer a POST."""

    def redirect_request(self, *_given: Any) -> None:
        """None, which makes of the redirect an answer like any other."""


def _tls(export: Export) -> ssl.SSLContext:
    """What the exporter trusts and shows: the file that is set, else the authorities that ``requests`` would take."""
    usual = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if not usual and find_spec("certifi"):
        import certifi

        usual = certifi.where()
    context = ssl.create_default_context(cafile=export.certificate or usual)
    certificate, key = export.client
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def _of_status(status: int, content: str) -> Answer:
    said = f"HTTP {status}"
    if status in _DENIED:
        return Answer("denied", f"refuses the credentials ({said})")
    if status in _NO_PATH:
        return Answer("no_path", f"does not take this ({said})")
    if status in _BUSY:
        return Answer("busy", f"is there, and cannot take anything now ({said})")
    if not 200 <= status < 300:
        return Answer("odd", f"answers {said}")
    if content == "text/html":
        return Answer("odd", f"answers {said} with a web page: no OTLP receiver")
    return Answer("ok", "answers")


def _of_fault(fault: Any) -> Answer:
    kind, text = next(
        ((kind, text) for known, kind, text in _FAULTS if isinstance(fault, known)), ("odd", "cannot be asked")
    )
    said = next((said for name in ("verify_message", "reason", "strerror") if (said := getattr(fault, name, None))), "")
    return Answer(kind, f"{text} ({one_line(said)})" if said and text.endswith(_SAYS_WHY) else text)


_SAYS_WHY = ("trusted", "fails", "reached")
_FAULTS: tuple[tuple[Any, Kind, str], ...] = (  # the narrower ones first
    (ssl.SSLCertVerificationError, "untrusted", "its certificate is not trusted"),
    (ssl.SSLError, "tls", "TLS fails"),
    (TimeoutError, "silent", f"no answer within {SECONDS:g} s"),
    (socket.gaierror, "away", "no such host"),
    ((ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected), "other", "hangs up on HTTP/1.1"),
    ((http.client.BadStatusLine, http.client.LineTooLong), "other", "no HTTP/1.1 is spoken there"),
    (OSError, "away", "cannot be reached"),
)


# ------------------------------------------------------------------------------------------------ gRPC


def ask_grpc(export: Export) -> Answer:
    """Calls ``Export`` with nothing. Needs ``grpcio``, which comes with the gRPC exporter."""
    if find_spec("grpc") is None:
        return Answer("unasked", "cannot be asked without grpcio")
    if not all(value.isascii() and value.isprintable() for value in export.headers.values()):
        return Answer("odd", "a header has a value that gRPC cannot send")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its library would print each failed handshake
    grpc: Any = import_module("grpc")
    channel = _channel(grpc, export)
    call = channel.unary_unary(f"/opentelemetry.proto.collector.{_SERVICES[export.signal]}/Export")
    try:
        call(b"", timeout=SECONDS, metadata=tuple(export.headers.items()))
    except grpc.RpcError as error:
        return _of_code(error.code().name, str(error.details() or ""))
    finally:
        channel.close()
    return Answer("ok", "answers")


def _channel(grpc: Any, export: Export) -> Any:
    if not export.secure:
        return grpc.insecure_channel(export.target)
    certificate, key = export.client
    read = [_content(export.certificate), _content(key), _content(certificate)]
    if export.certificate is None:
        read = [None, None, None]  # the exporter shows a client's certificate only beside a file of authorities
    return grpc.secure_channel(export.target, grpc.ssl_channel_credentials(*read))


def _content(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


_CODES: dict[str, tuple[Kind, str]] = {
    "UNAUTHENTICATED": ("denied", "refuses the credentials"),
    "PERMISSION_DENIED": ("denied", "refuses the credentials"),
    "UNIMPLEMENTED": ("no_path", "does not take this"),
    "DEADLINE_EXCEEDED": ("silent", f"no answer within {SECONDS:g} s"),
    "RESOURCE_EXHAUSTED": ("busy", "is there, and cannot take anything now"),
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


def _of_code(code: str, details: str) -> Answer:
    if code in _CODES:
        kind, text = _CODES[code]
        return Answer(kind, text if kind == "silent" else f"{text} ({code})")
    if code == "UNAVAILABLE":
        found = next(((kind, text) for words, kind, text in _DETAILS if words in details), None)
        return Answer(*found) if found else Answer("busy", "is there, and cannot take anything now (UNAVAILABLE)")
    return Answer("odd", f"answers {code}")
