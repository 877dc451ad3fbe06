"""A server that speaks streamable HTTP, for clients that do so too."""

from __future__ import annotations

import http.server
import logging
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from otel_toolguard.cli.mcp_frames import bytes_of, error_text
from otel_toolguard.cli.mcp_http import JSON, SESSION, STREAM
from otel_toolguard.cli.mcp_sse import events
from otel_toolguard.cli.mcp_stdio import SIGNALS
from otel_toolguard.cli.mcp_upstream import CHUNKED, FAULTS, Answer, Upstream
from otel_toolguard.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_toolguard.cli.mcp_connections import Connections
    from otel_toolguard.cli.mcp_gate import Gate, Passage
    from otel_toolguard.cli.mcp_judge import Judge

logger = logging.getLogger("otel_toolguard")
PIECE = 1 << 20  # bytes
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Between two neighbours only, or made anew here.
_OURS = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
         "upgrade", "host", "content-length", "accept-encoding", "expect"}  # fmt: skip


class _ClientGone(OSError):
    """The client has closed its connection."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def _any(self) -> None:
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if self.server.local and host not in LOOPBACK:  # a page of some site, under a name that it made lead here
            self._answer(403, b"the proxy is there for this machine only", "text/plain")
            return
        try:
            body = self._body()
        except ValueError as fault:  # half a message must not be taken for a whole one
            self.close_connection = True  # nobody knows where the next request begins
            self._answer(400, f"the request has no proper body: {fault}".encode(), "text/plain")
            return
        name = self.headers.get(SESSION)
        made: tuple[Judge, Gate] | None = None
        gate, passage = None, None
        if self.command == "POST" and body is not None:
            if name is None and b'"initialize"' in body:
                made = self.server.connections.fresh()
            gate = made[1] if made is not None else self.server.connections.of(name)
            passage = gate.asked(body, {key.lower(): value for key, value in self.headers.items()})
            if passage.forward is None:
                self._refused(passage)
                return
            body = passage.forward
        elif self.command == "GET" and name is not None:
            gate = self.server.connections.of(name)
        self._pass(body, gate, passage, made)
        if self.command == "DELETE":
            self.server.connections.end(name)

    do_GET = do_POST = do_DELETE = do_OPTIONS = do_HEAD = do_PUT = do_PATCH = _any  # noqa: N815

    def _body(self) -> bytes | None:
        if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
            parts = []
            while size := _size(self.rfile.readline().partition(b";")[0], 16):
                parts.append(self._exactly(size))
                if self.rfile.readline() not in (b"\r\n", b"\n"):
                    raise ValueError(f"a chunk is longer than {size} bytes")
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        lengths = set(self.headers.get_all("Content-Length") or ())
        if len(lengths) > 1:
            raise ValueError("it has two lengths")
        return self._exactly(_size(lengths.pop().encode(), 10)) if lengths else None

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self.rfile.read(min(size - len(found), PIECE))  # room is made for what comes, not for what is said
            if not part:
                raise ValueError(f"{len(found)} of {size} bytes")
            found += part
        return bytes(found)

    def _refused(self, passage: Passage) -> None:
        answer = passage.answer()
        self._answer(202 if answer is None else 200, answer or b"", JSON)

    def _pass(
        self, body: bytes | None, gate: Gate | None, passage: Passage | None, made: tuple[Judge, Gate] | None
    ) -> None:
        keys = passage.keys if passage is not None else ()
        path = self.server.upstream.path if self.path in ("", "/") else self.path
        sent = {name: value for name, value in self.headers.items() if name.lower() not in _OURS} | self.server.sent
        try:
            answer = self.server.upstream.send(self.command, sent, body, path)
        except FAULTS as fault:
            why = f"the server cannot be reached: {fault or type(fault).__name__}"
            lost = gate.lost(keys, why) if gate is not None else []
            self._answer(502, lost[0] if lost else bytes_of(error_text("null", why)), JSON)
            return
        name = answer.headers.get(SESSION)
        if made is not None and name:
            self.server.connections.keep(name, *made)
        early = passage.answer() if passage is not None else None
        try:
            if answer.kind == STREAM:
                self._stream(answer, gate, keys, early)
            elif answer.kind == JSON:
                self._whole(answer, gate, early)
            else:
                self._raw(answer, early)
            answer.done()
        except (*FAULTS, ValueError, AttributeError):  # either side is gone
            answer.close()
            self.close_connection = True
        if gate is not None and name is None and self.headers.get(SESSION) is None:
            gate.close()  # without a name nothing can be taken up later

    def _whole(self, answer: Answer, gate: Gate | None, early: bytes | None) -> None:
        body = answer.read()
        body = body if gate is None else gate.answered(body)
        if early is not None:
            rest = body.strip()
            rest = rest[1:-1] if rest.startswith(b"[") else rest
            body = early[:-1] + b"," + rest + b"]"
        self._begin(answer, len(body))
        self.wfile.write(body)

    def _raw(self, answer: Answer, early: bytes | None) -> None:
        body = answer.read()
        if early is not None and not body:
            self._answer(200, early, JSON)
            return
        self._begin(answer, None if self.command == "HEAD" or answer.status in (204, 304) else len(body))
        self.wfile.write(body)

    def _stream(self, answer: Answer, gate: Gate | None, keys: tuple[str, ...], early: bytes | None) -> None:
        self._begin(answer, None)
        self.send_header(*CHUNKED)
        self.end_headers()
        if early is not None:
            self._chunk(b"event: message\ndata: " + early + b"\n\n")
        can_resume = False
        try:
            for event in events(answer.read_some):
                can_resume = can_resume or event.id is not None
                told = event.data if gate is None or not event.data else gate.answered(event.data)
                self._chunk(event.raw if told is None else event.saying(told))
        except _ClientGone:
            if gate is not None:
                gate.left(keys)
            raise
        except FAULTS:
            answer.close()
        for error in gate.lost(keys) if gate is not None and not can_resume else ():
            self._chunk(b"event: message\ndata: " + error + b"\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        except (OSError, ValueError) as fault:
            raise _ClientGone from fault

    def _begin(self, answer: Answer, length: int | None) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _OURS:
                self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
            self.end_headers()
        elif answer.kind != STREAM:
            self.end_headers()

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing: each request would be a line."""


def _size(text: bytes, base: int) -> int:
    """A number of bytes, without the signs, blanks and underscores that Python would take as well."""
    if not text.strip().isalnum():
        raise ValueError(f"{text[:20]!r} is no length")
    return int(text, base)


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], upstream: Upstream, connections: Connections, headers: Mapping[str, str]
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.upstream = upstream
        self.connections = connections
        self.sent = dict(headers)
        self.local = address[0] in LOOPBACK

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Lets a connection that broke end without a word."""


def serve(address: str, upstream: Upstream, connections: Connections, headers: Mapping[str, str]) -> int:
    """Serves until a signal says so.

    Raises:
        SettingsError: The address cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    try:
        listener = _Listener((host.strip("[]") or "127.0.0.1", int(port)), upstream, connections, headers)
    except (OSError, ValueError, OverflowError) as fault:
        raise SettingsError(f"--listen {address!r}: {fault}; an address looks like 127.0.0.1:8001") from None
    over, codes = threading.Event(), [0]

    def signalled(number: int, _frame: Any) -> None:
        codes.append(128 + number)
        over.set()

    for number in SIGNALS:
        signal.signal(number, signalled)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    at, port_at = listener.server_address[:2]
    logger.warning("listening on http://%s:%s%s", f"[{at!s}]" if ":" in str(at) else at, port_at, upstream.path)
    over.wait()
    listener.server_close()
    connections.close()
    return codes[-1]
