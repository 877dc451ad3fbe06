"""Keeps the report apart from what modules write, and ends although they may have left something running."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING

from otel_toolguard.cli.check import note

if TYPE_CHECKING:
    from collections.abc import Iterator

_OUT, _ERR = 1, 2  # descriptors


def opened() -> bool:
    """Whether there is a standard output; what is closed leads nowhere from now on, lest a file get its number."""
    there = sys.stdout is not None
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  (open to the end)
    return there


@contextmanager
def apart() -> Iterator[None]:
    """What is written on standard output meanwhile, by whatever means, comes out on standard error."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    kept = _moved()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, _OUT)
            os.close(kept)


def _moved() -> int | None:
    """Standard output leads to standard error; returns where it led before, None if it could not be moved."""
    try:
        kept = os.dup(_OUT)
    except OSError:
        return None
    try:
        os.dup2(_ERR, _OUT)
    except OSError:
        os.close(kept)
        return None
    return kept


def written(text: str) -> bool:
    """Writes the report; whether all of it could be.

    Raises:
        BrokenPipeError: Nobody reads on.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as fault:  # a full disk; a stream that the module closed
        note(f"the report cannot be written: {getattr(fault, 'strerror', None) or fault}")
        with open(os.devnull, "w", encoding="utf-8") as nowhere, suppress(OSError, ValueError):  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # what is still buffered shall not fail once more
        return False
    return True


class Running:
    """Threads that modules start, and for which the end of the process would wait."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def names(self) -> list[str]:
        """Those that still run, by name."""
        return [each.name for each in threading.enumerate() if not each.daemon and each not in self._before]

    def leave(self, code: int) -> int:
        """Ends the process at once if one of them still runs; else returns the exit code."""
        if self.names():
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)
        return code
