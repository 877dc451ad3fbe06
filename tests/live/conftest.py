"""The services of the live tests: one of each for the whole run, and more for tests that break theirs."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@contextmanager
def _had():
    """Without a program that cannot be had the tests fail in CI and are skipped, with advice, elsewhere."""
    from services.binaries import CannotGetError

    try:
        yield
    except CannotGetError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def had():
    """What a test gets programs in that are no service of its own: a context, by calling this."""
    return _had


@pytest.fixture(scope="session")
def stack():
    """Jaeger, Collector and Prometheus for the whole run; leave them running."""
    from services.stack import Stack

    with _had():
        made = Stack()
    with made:
        yield made


@pytest.fixture(scope="session")
def jaeger(stack):
    """The Jaeger of the stack, for what speaks to Jaeger without a Collector."""
    return stack.jaeger


@pytest.fixture
def start():
    """Starts services for one test, which may break them: ``start(Collector, back_end, settings={...})``."""
    from contextlib import ExitStack

    with ExitStack() as started:

        def start(kind, *given, **named):
            with _had():
                made = kind(*given, **named)
            return started.enter_context(made)

        yield start
