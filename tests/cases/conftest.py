"""What the tests of this folder share: sessions with a small chain of their own, and a caller that never gives up."""

from __future__ import annotations

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped

SETTINGS = ("mode", "on_warn", "latch", "tools", "capture_arguments")


@pytest.fixture
def opened():
    """Makes sessions over one store; the rules are tables, or the name of a profile."""
    kept = MemoryStore()

    def opened(*rules, name="s", **more):
        settings = {key: more.pop(key) for key in SETTINGS if key in more}
        chain = {"profile": rules[0]} if rules and isinstance(rules[0], str) else {"plugins": rules}
        return Session(name, **{"policy": Policy(**chain, **settings), "store": kept} | more)

    return opened


@pytest.fixture
def tried():
    """Makes the calls, whatever comes of them; one letter each: . ran, ! failed, r refused, S stopped."""

    def tried(tool, calls):
        said = ""
        for arguments in calls:
            try:
                tool(**arguments) if isinstance(arguments, dict) else tool(arguments)
                said += "."
            except SessionStopped:
                said += "S"
            except CircuitOpen:
                said += "r"
            except Exception:
                said += "!"
        return said

    return tried


@pytest.fixture
def words():
    """A word without digits for each number: rules see through numbers, and a new word is something new."""
    return lambda n: "".join(chr(ord("a") + int(digit)) for digit in f"{n:04d}")
