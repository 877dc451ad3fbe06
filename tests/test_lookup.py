"""Where a call belongs that is made outside any block: baggage, the current trace, or nowhere."""

from __future__ import annotations

import secrets
import threading
import warnings

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_toolguard import CircuitOpen, Session, SessionMissing, current_session, guard_tool

tracer = TracerProvider().get_tracer("tests")


@guard_tool
def look(at="a"):
    return f"seen {current_session().id if current_session() else None}"


@pytest.fixture(autouse=True)
def three_laps(monkeypatch, tmp_path):
    """The policy of calls outside any block comes from the environment."""
    path = tmp_path / "guard.toml"
    path.write_text('[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\n')
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(path))


@pytest.fixture
def named():
    """A session's id in baggage, as a gateway in front would have sent it."""
    name = f"conversation-{secrets.token_hex(4)}"
    token = context.attach(baggage.set_baggage("session.id", name))
    yield name
    context.detach(token)


def bodies():
    """How many equal calls had a body until one was refused."""
    for n in range(9):
        try:
            look()
        except CircuitOpen:
            return n
    return 9


def test_each_trace_is_a_session():
    """Calls under one trace are counted together, those of another trace for themselves, in spans that are not sampled too."""
    for tracing in (tracer, TracerProvider(sampler=ALWAYS_OFF).get_tracer("off")):
        for _ in range(2):
            with tracing.start_as_current_span("request"):
                assert bodies() == 3


def test_the_session_of_a_trace_can_be_asked():
    """Under a trace current_session() is its session, with trip and gate, inside and outside a tool."""
    with tracer.start_as_current_span("request") as span:
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        assert look() == f"seen trace:{trace_id}"
        assert bodies() == 2
        session = current_session()
        assert (session.id, session.trip.rule) == (f"trace:{trace_id}", "repeat_guard")
        assert session.guard.conversation_id is None
        with pytest.raises(CircuitOpen):
            session.raise_if_open()
    assert current_session() is None


def test_baggage_names_the_session(named):
    """A session named by baggage is the one of that name, each trace under it a run of its own."""
    for _ in range(2):
        with tracer.start_as_current_span("request"):
            assert look() == f"seen {named}"
            assert bodies() == 2
    assert bodies() == 3
    assert current_session().report()["calls"] == 9
    with Session(named) as session:
        assert session.report()["calls"] == 9


def test_a_block_goes_before_baggage_and_trace(named):
    """Inside a block neither baggage nor the trace decides."""
    with tracer.start_as_current_span("request"), Session("block") as session:
        assert look() == "seen block"
        assert current_session() is session


def test_threads_see_their_own_context(named):
    """A thread without the context has neither baggage nor trace: its calls are not counted."""
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=lambda: seen.append(look()))
        thread.start()
        thread.join()
    assert seen == ["seen None"]


@pytest.mark.parametrize("value", ["", 5, None])
def test_baggage_that_names_nothing(value):
    """Baggage without a text is as none."""
    token = context.attach(baggage.set_baggage("session.id", value))
    try:
        assert current_session() is None
    finally:
        context.detach(token)


def test_a_long_name_is_cut():
    """What comes from outside is bounded."""
    token = context.attach(baggage.set_baggage("session.id", "x" * 10_000))
    try:
        assert current_session().id == "x" * 256
    finally:
        context.detach(token)


def test_strict_is_content_with_a_trace(monkeypatch):
    """Under strict a call in a trace has a session, and one outside everything is an error."""
    monkeypatch.setenv("TOOLGUARD_STRICT", "1")
    with tracer.start_as_current_span("request"):
        assert look().startswith("seen trace:")
    with pytest.raises(SessionMissing):
        look()


def test_a_context_that_fails_is_never_felt(monkeypatch):
    """Where OpenTelemetry's context raises, the call runs as outside any session."""

    def broken(*_):
        raise RuntimeError("no context")

    monkeypatch.setattr("opentelemetry.baggage.get_baggage", broken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert look() == "seen None"
