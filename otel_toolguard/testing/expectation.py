"""Assertions that need no pytest and hold under ``python -O``."""

from __future__ import annotations

from typing import Any
from unittest import SkipTest

SHOWN = 1000  # characters of each value


def expect(seen: Any, wanted: Any, what: str) -> None:
    """Fails with a sentence where the two differ.

    Raises:
        AssertionError: They differ.
    """
    __tracebackhide__ = True  # pytest shows the line of the check instead
    if seen != wanted:
        raise AssertionError(f"{what}: expected {_short(wanted)}, saw {_short(seen)}")


def skip(why: str) -> None:
    """Leaves the rest of a check out, with the reason.

    Raises:
        SkipTest: Always; pytest and unittest both know it.
    """
    raise SkipTest(why)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"
