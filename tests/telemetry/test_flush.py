"""What was told is exported when it is asked for, and nobody waits longer than was said."""

import subprocess
import sys
import threading

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard import CircuitOpen, Policy, Session, SettingsError, guard_tool
from otel_toolguard.telemetry import Telemetry

CEILING = Policy(plugins=[{"plugin": "call_ceiling", "run": 1}])


@guard_tool
def search(q):
    return q


class Batched:
    """A provider that would export in an hour."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(BatchSpanProcessor(self.exporter, schedule_delay_millis=3_600_000))

    def exported(self):
        return [span.attributes["toolguard.outcome"] for span in self.exporter.get_finished_spans()]


@pytest.fixture
def batched():
    made = Batched()
    yield made
    made.provider.shutdown()


def trip(telemetry, policy=CEILING):
    with Session(policy=policy, telemetry=telemetry) as session:
        while session.trip is None:
            try:
                search("a")
            except CircuitOpen:
                break
    return session


@pytest.mark.parametrize(("seconds", "exported"), [(0.0, []), (30.0, ["ok", "refused"])])
def test_a_trip_is_exported_at_once_only_if_asked_for(batched, seconds, exported):
    """With ``flush_seconds`` the tripping call's span has left the process before its caller goes on; by default not."""
    trip(Telemetry(tracer_provider=batched.provider, flush_seconds=seconds))
    assert batched.exported() == exported


def test_a_trip_by_a_result_too(batched):
    """The span of the call whose result tripped is in it."""
    repeat = Policy(plugins=[{"plugin": "repeat_guard", "limit": 2}])
    trip(Telemetry(tracer_provider=batched.provider, flush_seconds=30.0), repeat)
    assert batched.exported() == ["ok", "ok"]


def test_a_stop_from_outside_too(batched):
    """When an operator stops a session, what its calls told before is exported."""
    with Session(policy=CEILING, telemetry=Telemetry(tracer_provider=batched.provider, flush_seconds=30.0)) as session:
        search("a")
        session.stop("enough")
    assert batched.exported() == ["ok"]


def test_a_stop_by_one_refusal_too_many_too(batched):
    """A call that an open circuit refuses, and that stops the run by that, is exported at once as well."""
    rules = Policy(plugins=[{"plugin": "call_ceiling", "tools": {"search": 1}}, {"plugin": "max_refusals", "limit": 3}])
    with Session(policy=rules, telemetry=Telemetry(tracer_provider=batched.provider, flush_seconds=30.0)):
        search("a")
        seen = []
        for _ in range(3):
            with pytest.raises(CircuitOpen):
                search("a")
            seen.append(len(batched.exported()))
    assert seen == [2, 2, 4]


def test_refusals_after_the_trip_flush_no_more(batched):
    """One flush a trip: later refusals wait for their turn."""
    with Session(policy=CEILING, telemetry=Telemetry(tracer_provider=batched.provider, flush_seconds=30.0)):
        for _ in range(4):
            try:
                search("a")
            except CircuitOpen:
                continue
    assert batched.exported() == ["ok", "refused"]


def test_flush_by_hand(batched):
    """``flush`` has everything exported and says that it was; for a worker about to be recycled."""
    telemetry = Telemetry(tracer_provider=batched.provider)
    with Session(telemetry=telemetry):
        search("a")
        assert batched.exported() == []
        assert telemetry.flush(30.0) is True
    assert batched.exported() == ["ok"]


def test_with_no_provider_there_is_nothing_to_flush():
    """Where the API's own providers stand for none, a flush is done at once and starts no thread."""
    code = (
        "import threading; from otel_toolguard.telemetry import Telemetry;"
        "print(Telemetry().flush(5.0), threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True 1\n"


class Hanging:
    """A provider whose flush ends when the test says so."""

    def __init__(self):
        self.go_on, self.asked = threading.Event(), 0

    def force_flush(self, timeout_millis):
        self.asked += 1
        return self.go_on.wait()


def test_a_flush_that_hangs_is_left_behind():
    """A flush that does not end in time is given up; while it hangs no second one begins; afterwards one does again."""
    hanging = Hanging()
    telemetry = Telemetry(meter_provider=None, logger_provider=hanging)
    assert [telemetry.flush(0.01) for _ in range(5)] == [False] * 5
    assert hanging.asked == 1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "otel-toolguard-flush"]
    assert thread.daemon, "it does not hold up the end of the process"
    hanging.go_on.set()
    thread.join()
    assert telemetry.flush(30.0) is True


class Broken:
    def force_flush(self, timeout_millis):
        raise ZeroDivisionError


def test_a_provider_that_raises_does_not_keep_the_others_from_it(batched):
    """Each provider is flushed, whatever another does, and the answer says that not all were."""
    telemetry = Telemetry(tracer_provider=batched.provider, logger_provider=Broken())
    with Session(telemetry=telemetry):
        search("a")
    assert telemetry.flush(30.0) is False
    assert batched.exported() == ["ok"]


def test_no_thread_to_be_had(monkeypatch, batched):
    """Where no thread can be started the flush is not made, and that is not felt."""
    telemetry = Telemetry(tracer_provider=batched.provider)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: 1 / 0)
        assert telemetry.flush(1.0) is False
    assert telemetry.flush(30.0) is True


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), True])
def test_impossible_seconds(seconds):
    """A time that is none is an error where it is set."""
    with pytest.raises(SettingsError, match="flush_seconds"):
        Telemetry(flush_seconds=seconds)
