"""A store in one file, shared by processes: the smallest thing that a second view can be opened on."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import weakref
from contextlib import contextmanager

from otel_toolguard.core.state import SessionState


class FileStore:
    """Sessions as plain data in a JSON file, read and written whole at each step under a lock on the file."""

    def __init__(self, path, *, ttl_s, clock):
        self.path, self._ttl, self._clock = path, ttl_s, clock
        self._lock = threading.RLock()
        self._handle = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR)
        weakref.finalize(self, os.close, self._handle)
        self._open = {}  # what the steps in progress of this thread work on
        with self._locked() as sessions:
            self.key = bytes.fromhex(sessions.setdefault("key", secrets.token_hex(16)))

    @contextmanager
    def _locked(self):
        with self._lock:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                sessions = json.loads(self.path.read_text()) if self.path.exists() else {}
                yield sessions
                self.path.write_text(json.dumps(sessions))
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    def transact(self, session_id, step):
        with self._lock:
            if self._open:
                return self._within(session_id, step)
            with self._locked() as sessions:
                self._open[None] = sessions
                try:
                    answer = self._within(session_id, step)
                    for name, state in self._open.items():
                        if name is not None:
                            sessions[f"s{name}"] = [state.to_plain(), self._clock()]
                    return answer
                finally:
                    self._open.clear()

    def _within(self, session_id, step):
        if session_id not in self._open:
            plain, used = self._open[None].get(f"s{session_id}", [None, 0.0])
            alive = plain is not None and self._clock() - used <= self._ttl
            self._open[session_id] = SessionState.from_plain(plain) if alive else SessionState(session_id)
        return step(self._open[session_id])

    async def transact_async(self, session_id, step):
        return self.transact(session_id, step)

    def again(self):
        """Another handle on the same file."""
        return type(self)(self.path, ttl_s=self._ttl, clock=self._clock)
