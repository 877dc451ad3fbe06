"""Spans, metrics and events kept for a test."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from opentelemetry import trace

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing import capture_spans

CEILING = Policy(plugins=[{"plugin": "call_ceiling", "run": 2}])


@guard_tool
def search(q):
    return f"nothing about {q}"


@guard_tool
def fetch(url):
    raise ConnectionError(url)


def used_up(**more):
    """Two calls that run, and one that is refused."""
    with Session(policy=CEILING, **more) as session:
        for q in "abc":
            try:
                search(q)
            except CircuitOpen:
                return session
    raise AssertionError("the ceiling did not hold")


@pytest.mark.parametrize("handed", [False, True])
def test_all_three_signals(handed):
    """Spans, measurements and the event of a trip are there, whether the session was handed the telemetry or not."""
    with capture_spans() as captured:
        used_up(**({"telemetry": captured.telemetry} if handed else {}))
    assert captured.outcomes() == ["ok", "ok", "refused"]
    assert [span.name for span in captured.spans()] == ["execute_tool search"] * 3
    assert captured.count(names.DURATION) == 2
    assert captured.count(names.REFUSED) == 1
    assert captured.count(names.TRIPS, {names.RULE: "call_ceiling"}) == 1
    assert captured.count(names.TRIPS, {names.RULE: "stagnation"}) == captured.count("no such metric") == 0
    (duration,) = captured.points(names.DURATION)
    assert (duration.attributes[names.TOOL_NAME], duration.measurements, duration.value > 0) == ("search", 2, True)
    (event,) = captured.events()
    assert (event.name, event.severity) == (names.CIRCUIT_OPENED, "WARN")
    assert "call_ceiling" in event.body
    assert event.attributes[names.RULE] == "call_ceiling"


def test_one_tools_spans():
    """Spans and outcomes can be asked for one tool; a test's own spans are kept apart."""
    with capture_spans() as captured, captured.tracer.start_as_current_span("mine") as mine, Session():
        search("a")
        with pytest.raises(ConnectionError):
            fetch("b")
    assert (captured.outcomes("fetch"), captured.outcomes("search")) == (["failed"], ["ok"])
    assert {span.parent.span_id for span in captured.spans()} == {mine.get_span_context().span_id}
    assert [span.name for span in captured.all_spans()] == ["execute_tool search", "execute_tool fetch", "mine"]


def test_sessions_made_before_and_threads():
    """Sessions made before the block, and calls in other threads, are captured; after the block nothing is."""
    session = Session()
    bound = session.bind(search)
    before = trace.get_tracer_provider()
    with capture_spans() as captured:
        thread = threading.Thread(target=bound, args=("a",))
        thread.start()
        thread.join()
        with session:
            search("b")
    with session:
        search("c")
    assert captured.outcomes() == ["ok", "ok"]
    assert trace.get_tracer_provider() is before


def test_calls_outside_any_session():
    """A call that belongs to no session is captured all the same."""
    with capture_spans() as captured:
        search("a")
    assert captured.outcomes() == ["ok"]


def test_clear():
    """After clear() only what comes later is there, and counted."""
    with capture_spans() as captured:
        used_up()
        captured.clear()
        assert (captured.spans(), captured.events(), captured.count(names.DURATION)) == ([], [], 0)
        used_up()
    assert (len(captured.spans()), len(captured.events())) == (3, 1)
    assert (captured.count(names.DURATION), captured.count(names.REFUSED)) == (2, 1)


def test_blocks_may_be_nested():
    """The inner block captures, then the outer one does again; an error in a block does not hinder that."""
    with capture_spans() as outer, Session():
        search("a")
        with pytest.raises(ConnectionError), capture_spans() as inner:
            fetch("b")
        search("c")
    assert (len(outer.spans()), len(inner.spans())) == (2, 1)


def test_observing(monkeypatch):
    """What would have been stopped is captured from sessions that only observe."""
    monkeypatch.setenv("TOOLGUARD_MODE", "observe")
    with capture_spans() as captured, Session(policy=Policy(plugins=[{"plugin": "call_ceiling", "run": 2}])):
        for q in "abc":
            search(q)
    assert captured.outcomes() == ["ok"] * 3
    assert captured.count(names.TRIPS, {names.MODE: "observe"}) == 1


@pytest.mark.parametrize("content", [True, False])
def test_options_of_the_telemetry(content):
    """What Telemetry takes can be said to the capture, for sessions that name none: here, whether content is told."""
    with capture_spans(content=content) as captured, Session(), pytest.raises(ConnectionError):
        fetch("the words of the error")
    (span,) = captured.spans()
    assert ("the words of the error" in str(span.status.description)) is content


def test_telemetry_switched_off(monkeypatch):
    """Under TOOLGUARD_TELEMETRY=off a session tells nothing unless it is handed the capture's telemetry."""
    monkeypatch.setenv("TOOLGUARD_TELEMETRY", "off")
    with capture_spans() as captured:
        used_up()
        assert captured.spans() == []
        used_up(telemetry=captured.telemetry)
    assert len(captured.spans()) == 3


def test_without_the_sdk():
    """Where the SDK is not installed the error says what to install, in one sentence."""
    code = """if True:
        import sys
        sys.modules["opentelemetry.sdk"] = None
        from otel_toolguard.testing import capture_spans
        try:
            with capture_spans():
                pass
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "capture_spans needs the OpenTelemetry SDK: install opentelemetry-sdk"
