"""The fake clock."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from otel_toolguard import Session, guard_tool, testing
from otel_toolguard.testing import FakeClock


def test_time_passes_only_by_hand():
    """The clock stands still until it is advanced, by any number of seconds, none included."""
    clock = FakeClock(100)
    assert (clock(), clock(), clock.advance(0), clock.advance(2.5), clock()) == (100.0, 100.0, 100.0, 102.5, 102.5)
    assert repr(clock) == "<FakeClock 102.5 s>"


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan")])
def test_it_never_goes_back(seconds):
    """Negative seconds, and what is no number, are refused."""
    clock = FakeClock()
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(seconds)
    assert clock() == 0.0


def test_threads_may_advance_it():
    """No second of several threads is lost."""
    clock = FakeClock()
    threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock() == 2000.0


def test_a_session_takes_it():
    """A cooldown measured on the clock ends when the clock says so."""
    clock = FakeClock()

    @guard_tool
    def connect(host):
        raise ConnectionError(host)

    from otel_toolguard import CircuitOpen, Policy

    rule = {"plugin": "signature_failures", "limit": 1, "cooldown": 30.0}
    with Session(policy=Policy(plugins=[rule]), clock=clock):
        for seconds, error in ((0, ConnectionError), (29, CircuitOpen), (1, ConnectionError)):
            clock.advance(seconds)
            with pytest.raises(error):
                connect("db")


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_it_loads_neither_pytest_nor_the_sdk():
    """A clock needs none of what the contracts and the capture of spans may need."""
    code = (
        "from otel_toolguard.testing import FakeClock; import sys; "
        "print(*(m for m in sys.modules if m in ('pytest', 'opentelemetry.sdk', 'opentelemetry', 'pydantic', 'wrapt')))"
    )
    assert run_python(code) == []


def test_no_name_of_the_kit_needs_pytest():
    """All of the kit is importable where pytest is absent, and the SDK too until spans are captured."""
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['opentelemetry.sdk'] = None; "
        "from otel_toolguard import testing; print(*(type(getattr(testing, n)).__name__ for n in testing.__all__))"
    )
    assert len(run_python(code)) == len(testing.__all__)


def test_the_library_does_not_load_the_kit():
    """A program that uses the library pays nothing for its test kit."""
    code = (
        "import sys, otel_toolguard; [getattr(otel_toolguard, n) for n in otel_toolguard.__all__]; "
        "import otel_toolguard.adapter; print(*(m for m in sys.modules if m.startswith('otel_toolguard.testing')))"
    )
    assert run_python(code) == []


def test_the_names():
    """The kit's names are sorted, importable and all that dir() lists; another is an AttributeError."""
    assert sorted(testing.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)) == testing.__all__
    assert dir(testing) == sorted(testing.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        testing.nothing  # noqa: B018
