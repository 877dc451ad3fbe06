"""Connections to a server that speaks HTTP."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from otel_toolguard.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT = 30.0  # seconds that a connection may take; an answer may take as long as it likes
KEPT = 8  # idle connections
FAULTS = (OSError, http.client.HTTPException)
CHUNKED = ("Transfer-Encoding", "chunked")


class Answer:
    """The beginning of an answer, and the stream of the rest."""

    def __init__(self, upstream: Upstream, connection: http.client.HTTPConnection) -> None:
        self._upstream = upstream
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.reason = self._response.reason
        self.headers = self._response.headers
        self.kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        self.read = self._response.read
        self.read_some = self._response.read1

    def done(self) -> None:
        """Gives the connection back if the answer was read to its end."""
        if self._response.isclosed() and not self._response.will_close:
            self._upstream.keep(self._connection)
        else:
            self.close()

    def close(self) -> None:
        """Ends the connection, which tells the server that nobody waits any more."""
        try:
            if self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._response.close()
        self._connection.close()


class Upstream:
    """A server at an address.

    Raises:
        SettingsError: It is no address of HTTP.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as fault:
            raise SettingsError(f"--url {url!r}: {fault}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"--url {url!r}: an address looks like http://127.0.0.1:8000/mcp")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self.path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def send(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None, path: str | None = None
    ) -> Answer:
        """Sends a request; returns when the answer begins.

        Raises:
            OSError: The server cannot be reached.
            http.client.HTTPException: It does not speak HTTP.
        """
        connection = self._connection()
        try:
            connection.request(method, path or self.path, body, dict(headers))
            return Answer(self, connection)
        except BaseException:
            connection.close()
            raise

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Keeps a connection for the next request."""
        with self._lock:
            if len(self._idle) < KEPT:
                self._idle.append(connection)
                return
        connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                found = self._idle.pop() if self._idle else None
            if found is None:
                break
            if found.sock is not None and not select.select([found.sock], [], [], 0)[0]:
                return found
            found.close()  # the server has closed it
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        made = kind(self._host, self._port, timeout=CONNECT)
        made.connect()
        made.sock.settimeout(None)
        made.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return made
