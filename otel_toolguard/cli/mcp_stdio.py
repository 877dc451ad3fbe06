"""A server that is a program of its own, between its standard streams and those of the client."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING, Any, cast

from otel_toolguard.cli.mcp_frames import lines
from otel_toolguard.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_toolguard.cli.mcp_gate import Gate

GRACE = 5.0  # seconds that a server has to end after its input did, before it is asked to by a signal
PATIENCE = 60.0  # the same while it still has something to answer
TERM = 1.5  # seconds from that signal to the one that it cannot refuse; clients give us two
DRAIN = 2.0  # seconds that what an ended server left in its pipe may take
_GROUPS = hasattr(os, "killpg")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Out:
    """A descriptor to which whole messages are written, from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._whole = True
        self.broken = False

    def write(self, frame: bytes) -> bool:
        """Writes what another wrote; False if nobody reads any more."""
        with self._lock:
            return self._write(frame)

    def say(self, message: bytes) -> bool:
        """Writes a message of our own as a line, also after a line that nobody ended."""
        with self._lock:
            return self._write(message + b"\n" if self._whole else b"\n" + message + b"\n")

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.broken = True
            return False
        self._whole = data.endswith(b"\n") if data else self._whole
        return True


class Server:
    """The program, in a process group of its own, so that what it starts ends with it."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603  (the user's own words, and no shell)
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=_GROUPS
            )
        except (OSError, ValueError) as fault:
            raise SettingsError(f"the server {command[0]!r} cannot be started: {fault}") from None
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self.output: int = cast("IO[bytes]", self._process.stdout).fileno()
        self.input = Out(self._stdin.fileno())

    def wait(self) -> int:
        """Waits for its end; returns what a shell would call its exit code."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def close_input(self) -> None:
        """Ends its input, by which the protocol asks a server to end."""
        try:
            self._stdin.close()
        except OSError:
            pass

    def send(self, number: int) -> None:
        """Sends a signal to it and to what it started."""
        try:
            if _GROUPS:
                os.killpg(self._process.pid, number)
            else:
                self._process.terminate()
        except OSError:  # it has ended meanwhile
            pass

    def end_within(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        until = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

    def end(self, number: int = signal.SIGTERM) -> None:
        """Asks it to end, and sees to it that it does."""
        self.send(number)
        if not self.end_within(TERM):
            self.send(getattr(signal, "SIGKILL", signal.SIGTERM))


class StdioProxy:
    """Passes messages between the client on our standard streams and a server.

    Args:
        server: The server.
        gate: Judges what passes.
    """

    def __init__(self, server: Server, gate: Gate) -> None:
        self._server = server
        self._gate = gate
        self._client = Out(1)

    def run(self) -> int:
        """Runs until the server has ended; returns its exit code."""
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        back = threading.Thread(target=self._to_client, name="mcp-proxy-server", daemon=True)
        back.start()
        threading.Thread(target=self._to_server, name="mcp-proxy-client", daemon=True).start()
        code = self._server.wait()
        back.join(DRAIN)  # a program that it left behind may hold the pipe open for ever
        for error in self._gate.gone():
            self._client.say(error)
        return code

    def _to_client(self) -> None:
        for frame in lines(self._server.output):
            if not self._client.write(self._gate.answered(frame)):
                break
        # Its output has ended, or nobody reads it: it is of no more use. One that still works through its last
        # messages may do so.
        if not self._server.end_within(GRACE):
            self._server.end()

    def _to_server(self) -> None:
        for frame in lines(0):
            passage = self._gate.asked(frame)
            answer = passage.answer()
            if answer is not None:
                self._client.say(answer)
            if passage.forward is not None and not self._server.input.write(passage.forward):
                break
        self._server.close_input()
        until = time.monotonic() + PATIENCE
        while self._gate.waiting and time.monotonic() < until and not self._server.end_within(0.1):
            pass
        if not self._server.end_within(GRACE):
            self._server.end()

    def _signalled(self, number: int, _frame: Any) -> None:
        threading.Thread(target=self._server.end, args=(number,), daemon=True).start()
