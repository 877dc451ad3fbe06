"""A server that speaks streamable HTTP, for a client on our standard streams."""

from __future__ import annotations

import base64
import signal
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.mcp_frames import key_of, lines, text_of, value_of
from otel_toolguard.cli.mcp_judge import VERSION
from otel_toolguard.cli.mcp_sse import events
from otel_toolguard.cli.mcp_stdio import PATIENCE, SIGNALS, Out
from otel_toolguard.cli.mcp_upstream import FAULTS, Answer, Upstream

if TYPE_CHECKING:
    from otel_toolguard.cli.mcp_gate import Gate, Passage

SESSION, PROTOCOL, LAST_EVENT = "Mcp-Session-Id", "MCP-Protocol-Version", "Last-Event-ID"
STREAM, JSON = "text/event-stream", "application/json"
RETRIES = 5  # of a broken stream without a word from the server
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_IN_ORDER = 10.0  # seconds that the next message waits for one that goes before it
_LISTENING = 0.5  # that the beginning of the server's own stream may take; what it says earlier would be lost
_LEAVING = 2.0  # seconds that the farewell may take


class HttpProxy:
    """Passes messages between the client on our standard streams and a server at an address.

    Args:
        upstream: The server.
        gate: Judges what passes.
        headers: Sent with each request.
    """

    def __init__(self, upstream: Upstream, gate: Gate, headers: Mapping[str, str]) -> None:
        self._upstream = upstream
        self._gate = gate
        self._given = dict(headers)
        self._client = Out(1)
        self._over = threading.Event()
        self._listening = threading.Event()
        self._code = 0
        self._session: str | None = None
        self._version: str | None = None
        self._open: dict[str, Answer] = {}  # streams, by the request that they answer

    def run(self) -> int:
        """Runs until the client's input ends, or a signal says so."""
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        threading.Thread(target=self._from_client, name="mcp-proxy-client", daemon=True).start()
        self._over.wait()
        for error in self._gate.gone("the proxy was ended before the server answered"):
            self._client.say(error)
        if self._session is not None:
            farewell = threading.Thread(target=self._leave, daemon=True)
            farewell.start()
            farewell.join(_LEAVING)
        return self._code

    def _signalled(self, number: int, _frame: Any) -> None:
        self._code = 128 + number
        self._over.set()

    def _from_client(self) -> None:
        for frame in lines(0):
            if not frame.strip():
                continue
            passage = self._gate.asked(frame)
            answer = passage.answer()
            if answer is not None:
                self._client.say(answer)
            if passage.forward is None:
                continue
            post = threading.Thread(target=self._post, args=(passage,), daemon=True)
            post.start()
            if "initialize" in passage.methods or not passage.keys:
                post.join(_IN_ORDER)  # what follows must not overtake it
        until = time.monotonic() + PATIENCE
        while self._gate.waiting and time.monotonic() < until and not self._client.broken:
            time.sleep(0.02)
        self._over.set()

    def _post(self, passage: Passage) -> None:
        body = passage.forward or b""
        message = value_of(text_of(body))
        why = "the server answered nothing"
        last: str | None = None
        wait = 1.0
        try:
            answer = self._upstream.send("POST", self._headers(message), body.rstrip(b"\r\n"))
            if "initialize" in passage.methods and answer.headers.get(SESSION):
                self._session = answer.headers[SESSION]
            if answer.kind == STREAM:
                last, wait = self._stream(answer, passage.keys)
            else:
                why = self._whole(answer, passage.keys) or why
        except FAULTS as fault:
            why = f"the server cannot be reached: {fault or type(fault).__name__}"
        if last is not None:
            self._resume(passage.keys, last, wait)
        for error in self._gate.lost(passage.keys, why):
            self._client.say(error)
        if "notifications/initialized" in passage.methods:
            threading.Thread(target=self._listen, daemon=True).start()
            self._listening.wait(_LISTENING)
        if "notifications/cancelled" in passage.methods:
            self._hang_up(message)

    def _whole(self, answer: Answer, keys: tuple[str, ...]) -> str | None:
        """Passes on an answer in one piece; returns why it was none, if it was none."""
        body = answer.read()
        answer.done()
        value = value_of(text_of(body)) if answer.kind == JSON else None
        if isinstance(value, Mapping) and value.get("id") is None and isinstance(value.get("error"), Mapping) and keys:
            return str(value["error"].get("message"))  # it did not get as far as the id
        if isinstance(value, (Mapping, list)) and ("jsonrpc" in value or isinstance(value, list)):
            self._deliver(body)
        return f"HTTP {answer.status} {answer.reason}"

    def _stream(self, answer: Answer, keys: tuple[str, ...]) -> tuple[str | None, float]:
        """Passes on a stream to its end; returns where it can be taken up, and how many seconds later."""
        last, wait = None, 1.0
        self._open.update(dict.fromkeys(keys, answer))
        try:
            for event in events(answer.read_some):
                last = event.id or last
                wait = event.retry if event.retry is not None else wait
                if event.data:
                    self._deliver(event.data)
        except (*FAULTS, ValueError, AttributeError):  # ended by the other side, or by us while it was read
            answer.close()
        finally:
            for key in keys:
                self._open.pop(key, None)
        answer.done()
        return last, wait

    def _resume(self, keys: tuple[str, ...], last: str, wait: float) -> None:
        """Takes up a stream that ended before its answers came."""
        fails = 0
        while fails < RETRIES and self._gate.waits_for(keys) and not self._over.wait(wait):
            fails += 1
            try:
                answer = self._upstream.send("GET", {**self._headers(None), LAST_EVENT: last})
                if answer.kind != STREAM:
                    answer.close()
                    continue
                reached, wait = self._stream(answer, keys)
            except FAULTS:
                continue
            if reached is not None:
                last, fails = reached, 0

    def _listen(self) -> None:
        """Passes on what the server says by itself, if it does."""
        last, wait, fails = None, 0.0, 0
        while fails < RETRIES and not self._over.wait(wait):
            fails += 1
            wait = wait or 1.0
            try:
                headers = self._headers(None)
                answer = self._upstream.send("GET", headers if last is None else {**headers, LAST_EVENT: last})
                self._listening.set()
                if answer.kind != STREAM:
                    answer.close()
                    return
                reached, wait = self._stream(answer, ())
            except FAULTS:
                continue
            last, fails = reached or last, 0 if reached else fails

    def _deliver(self, data: bytes) -> None:
        told = self._gate.answered(data)
        if self._version is None and b"protocolVersion" in told:
            value = value_of(text_of(told))
            result = value.get("result") if isinstance(value, Mapping) else None
            version = result.get("protocolVersion") if isinstance(result, Mapping) else None
            self._version = version if isinstance(version, str) else None
        if b"\n" in told or b"\r" in told:  # blanks of JSON, for inside its texts they are escaped
            told = told.replace(b"\r", b" ").replace(b"\n", b" ")
        self._client.say(told)

    def _hang_up(self, message: Any) -> None:
        """Closes the stream of a cancelled request: without a handshake that is how a server is told."""
        params = message.get("params") if isinstance(message, Mapping) else None
        if self._version is None and isinstance(params, Mapping):
            stream = self._open.get(key_of(params.get("requestId")))
            if stream is not None:
                stream.close()

    def _leave(self) -> None:
        try:
            self._upstream.send("DELETE", self._headers(None)).close()
        except FAULTS:
            pass

    def _headers(self, message: Any) -> dict[str, str]:
        made = {"Accept": f"{JSON}, {STREAM}" if message is not None else STREAM, "Content-Type": JSON, **self._given}
        if self._session is not None:
            made[SESSION] = self._session
        if self._version is not None:
            made[PROTOCOL] = self._version
        method = message.get("method") if isinstance(message, Mapping) else None
        params = message.get("params") if isinstance(message, Mapping) else None
        meta = params.get("_meta") if isinstance(params, Mapping) else None
        version = meta.get(VERSION) if isinstance(meta, Mapping) else None
        if isinstance(params, Mapping) and isinstance(version, str) and isinstance(method, str):
            made |= {PROTOCOL: version, "Mcp-Method": method}
            name = params.get(_NAMED.get(method, ""))
            if isinstance(name, str):
                made["Mcp-Name"] = _header(name)
        return {name: value for name, value in made.items() if value.isprintable()}


def _header(value: str) -> str:
    """A text as a header may have it; of others the protocol wants base64."""
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="
