"""What stands between a client and its server: each message passes, and the tool calls among them are judged."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.cli.mcp_frames import (
    bytes_of,
    elements,
    error_text,
    key_of,
    raw_id,
    result_text,
    text_of,
    value_of,
    with_block,
    with_meta,
)
from otel_toolguard.cli.mcp_judge import Judge, carried
from otel_toolguard.errors import CircuitOpen
from otel_toolguard.guard import unfelt
from otel_toolguard.outcomes import Ended, failed_result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_toolguard.attempt import Attempt

CALL, LISTING, CANCELLED, HELLO = "tools/call", "tools/list", "notifications/cancelled", "initialize"
WAITED_FOR = 4096  # requests that may be under way; beyond it the oldest is taken for unanswered
UNANSWERED = "the server ended before it answered"


class Passage(NamedTuple):
    """What becomes of a message from the client.

    Attributes:
        forward: What the server gets, None for nothing.
        answers: What the client gets at once.
        keys: The requests in ``forward``.
        methods: Their methods, and those of notifications.
        batch: Whether the message is an array, and so must be an answer to it.
    """

    forward: bytes | None
    answers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    batch: bool = False

    def answer(self) -> bytes | None:
        """The answers as one message."""
        if not self.answers:
            return None
        return bytes_of(f"[{','.join(self.answers)}]" if self.batch else self.answers[0])


class _Waiting(NamedTuple):
    key: str
    raw_id: str
    attempt: Attempt | None
    listing: bool
    wanted: bool = True  # until it is cancelled: a server then need not answer it any more


class Gate:
    """One exchange of messages, with the requests in it that are not answered yet.

    Args:
        judge: Judges its tool calls.
        carry: Whether the call's trace context is put into a request's ``_meta``.
    """

    def __init__(self, judge: Judge, *, carry: bool = True) -> None:
        self._judge = judge
        self._carry = carry
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._count = self._unwanted = 0

    @property
    def waiting(self) -> int:
        """How many requests are not answered yet, and not cancelled."""
        return self._count - self._unwanted

    def waits_for(self, keys: Iterable[str]) -> bool:
        """Whether one of these requests is not answered yet."""
        return any(key in self._waiting for key in keys)

    def asked(self, frame: bytes, headers: Mapping[str, str] | None = None) -> Passage:
        """Judges a message from the client; ``headers`` may tell its trace where the message does not."""
        try:
            text = text_of(frame)
            value = value_of(text)
            if isinstance(value, list):
                return self._batch(frame, text, headers or {})
            return self._one(frame, text, value, headers or {})
        except Exception as fault:
            unfelt("judge a message", fault)
            return Passage(frame)

    def answered(self, frame: bytes) -> bytes:
        """Takes note of a message from the server, and returns what the client gets."""
        if not self._count:
            return frame
        try:
            text = text_of(frame)
            value = value_of(text)
            if not isinstance(value, list):
                told = self._settled(text, value)
                return frame if told is text else bytes_of(told)
            for start, end in elements(text):
                self._settled(text[start:end], value_of(text[start:end]))
        except Exception as fault:
            unfelt("read an answer", fault)
        return frame

    def lost(self, keys: Iterable[str], why: str = UNANSWERED) -> list[bytes]:
        """Errors for those of the requests that are not answered yet, and will not be."""
        found = [each for key in keys if (each := self._pop(key)) is not None]
        for each in found:
            if each.attempt is not None:
                self._judge.settle(each.attempt, why, failed_result(f"connection closed: {why}"))
        return [bytes_of(error_text(each.raw_id, why)) for each in found if each.wanted]

    def gone(self, why: str = UNANSWERED) -> list[bytes]:
        """The same for all of them."""
        with self._lock:
            keys = [each.key for several in self._waiting.values() for each in several]
        return self.lost(keys, why)

    def left(self, keys: Iterable[str]) -> None:
        """Notes that whoever made these requests does not wait for the answers any more."""
        for key in keys:
            self._cancelled(key)

    def close(self) -> None:
        """Takes what is under way for something of which nobody will hear."""
        with self._lock:
            keys = [each.key for several in self._waiting.values() for each in several]
        for key in keys:
            self._forget(self._pop(key))

    def _batch(self, frame: bytes, text: str, headers: Mapping[str, str]) -> Passage:
        parts = [text[start:end] for start, end in elements(text)]
        passed = [self._one(bytes_of(part), part, value_of(part), headers) for part in parts]
        kept = [each.forward for each in passed if each.forward is not None]
        whole = all(text_of(each) == part for each, part in zip(kept, parts, strict=False)) and len(kept) == len(parts)
        end = b"\n" if frame.endswith(b"\n") else b""
        return Passage(
            frame if whole else b"[" + b",".join(kept) + b"]" + end if kept else None,
            tuple(answer for each in passed for answer in each.answers),
            tuple(key for each in passed for key in each.keys),
            tuple(method for each in passed for method in each.methods),
            batch=True,
        )

    def _one(self, frame: bytes, text: str, value: Any, headers: Mapping[str, str]) -> Passage:
        method = value.get("method") if isinstance(value, Mapping) else None
        if not isinstance(method, str):  # an answer to the server, or what only the server can make sense of
            return Passage(frame)
        params = value.get("params")
        if method == CALL and isinstance(params, Mapping) and isinstance(params.get("name"), str):
            return self._call(frame, text, value, headers)
        if method == HELLO and isinstance(params, Mapping):
            self._judge.introduced(params.get("clientInfo"))
        if method == CANCELLED and isinstance(params, Mapping) and "requestId" in params:
            self._cancelled(key_of(params["requestId"]))
        if "id" not in value:
            return Passage(frame, methods=(method,))
        key = key_of(value["id"])
        self._wait(_Waiting(key, raw_id(text), None, method == LISTING))
        return Passage(frame, keys=(key,), methods=(method,))

    def _call(self, frame: bytes, text: str, value: Mapping[str, Any], headers: Mapping[str, str]) -> Passage:
        params, asks = value["params"], "id" in value
        meta = params.get("_meta")
        meta = meta if isinstance(meta, Mapping) else {}
        carrier = {name: said for name, said in meta.items() if isinstance(said, str)}
        key, given_id = (key_of(value["id"]), raw_id(text)) if asks else ("", "")
        try:
            attempt = self._judge.admit(params["name"], params, carrier if "traceparent" in carrier else headers)
            error = attempt.error() if attempt.refused is not None else None
        except CircuitOpen as refused:
            error = refused
        if error is not None:
            if isinstance(params.get("task"), Mapping):  # who asked for a task takes nothing else but an error
                answer = error_text(given_id, error.to_tool_message())
            else:
                answer = result_text(given_id, self._judge.refusal(error, params["name"], meta))
            return Passage(None, (answer,) if asks else (), methods=(CALL,))
        if not asks:  # nobody will say what became of it
            self._judge.settle(attempt, None, Ended("unknown"))
            return Passage(frame, methods=(CALL,))
        self._wait(_Waiting(key, given_id, attempt, listing=False))
        return Passage(self._carrying(frame, text, attempt, carrier), keys=(key,), methods=(CALL,))

    def _carrying(self, frame: bytes, text: str, attempt: Attempt, said: Mapping[str, str]) -> bytes:
        if not self._carry:
            return frame
        try:
            new = {name: value for name, value in carried(attempt).items() if said.get(name) != value}
            return bytes_of(with_meta(text, new)) if new else frame
        except Exception as fault:
            unfelt("carry a trace", fault)
            return frame

    def _settled(self, text: str, value: Any) -> str:
        if not isinstance(value, Mapping) or "method" in value or not ("result" in value or "error" in value):
            return text
        found = self._pop(key_of(value.get("id")))
        if found is None:
            return text
        if found.listing:
            self._judge.listed(value.get("result"))
        if found.attempt is None:
            return text
        if "error" not in value:
            nudges = self._judge.settle(found.attempt, value["result"])
            return with_block(text, "\n\n".join(nudges)) if nudges else text
        error = value["error"]
        said = error.get("message") if isinstance(error, Mapping) else error
        self._judge.settle(found.attempt, said, failed_result(str(said)))
        return text

    def _cancelled(self, key: str) -> None:
        """The request is over for whoever made it; its server may answer all the same, or not."""
        with self._lock:
            several = self._waiting.get(key)
            found = several[0] if several else None
            if found is None or not found.wanted:
                return
            several[0] = found._replace(attempt=None, wanted=False)  # type: ignore[index]
            self._unwanted += 1
        if found.attempt is not None:
            self._judge.settle(found.attempt, None, Ended("cancelled"))

    def _wait(self, request: _Waiting) -> None:
        oldest = None
        with self._lock:
            if self._count >= WAITED_FOR:
                oldest = next(iter(self._waiting))
            self._waiting.setdefault(request.key, deque()).append(request)
            self._count += 1
        if oldest is not None:
            self._forget(self._pop(oldest))

    def _pop(self, key: str) -> _Waiting | None:
        with self._lock:
            several = self._waiting.get(key)
            if not several:
                return None
            found = several.popleft()
            self._count -= 1
            self._unwanted -= not found.wanted
            if not several:
                del self._waiting[key]
            return found

    def _forget(self, request: _Waiting | None) -> None:
        if request is not None and request.attempt is not None:
            self._judge.settle(request.attempt, None, Ended("unknown"))
