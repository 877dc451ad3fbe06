"""One started program: its log, its health, its end by request or by force, and its start again at the same place."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from services.places import WAIT_S, bare_environment, text_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from services.binaries import Binary

STOP_S = 30
# Should this process be killed itself, what it started ends as well, where the system can do that.
ENDS_WITH_US = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


class Service:
    """A program that runs until it is stopped, at addresses that it keeps over a restart.

    As a context manager it is started on entry and stopped on exit, and its folder is removed.

    Attributes:
        binary: What it was started from.
        folder: What it keeps on disk; stays over a restart.
        env: Its environment; change it before ``start`` or ``restart``.
    """

    def __init__(self, binary: Binary, argv: list[str], *, env: dict[str, str], health: str) -> None:
        """``argv`` follows the program's name; ``health`` is an address that answers with a success when it is ready."""
        self.binary = binary
        self.env = env
        self._argv = argv
        self._health = health
        self._kept = tempfile.TemporaryDirectory(prefix=f"{binary.name}-")
        self.folder = Path(self._kept.name)
        self._log = self.folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._kept.cleanup()

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None, f"{self.binary.name} was never started"
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it says that it is ready.

        Raises:
            RuntimeError: It ended, or was not ready in time; with the end of its log.
        """
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*ENDS_WITH_US, self.binary.path, *self._argv],
                env=bare_environment() | self.env, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        end = time.monotonic() + WAIT_S
        while self.running and time.monotonic() < end:
            if text_of(self._health) is not None:
                return
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"{self.binary.name} did not start:\n{self.log()[-3000:]}")

    def stop(self) -> None:
        """Asks it to end (SIGTERM) and waits; by force if it does not."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Ends it by force (SIGKILL): it can save nothing more."""
        if self.running:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stops it if it runs, and starts it at the same addresses with the same folder."""
        self.stop()
        self.start()

    def log(self) -> str:
        """All that it has written, over all its starts."""
        return self._log.read_text(encoding="utf-8", errors="replace")
