"""An instrumentation that does not make its spans current: asked for its span, which is enriched, or ours hangs below it."""

import sys
from types import SimpleNamespace

import pytest
from opentelemetry import trace

from otel_toolguard.core.call import Outcome, ToolCall

CALL = ToolCall("search", "search:0123456789abcdef")


@pytest.fixture
def hidden(monkeypatch, told):
    """Stands for the instrumentation: ``hidden.span`` is the one that it would name."""
    state = SimpleNamespace(span=None, asked=0, in_use=True, tracer=told.tracing.get_tracer("openinference.x"))

    def get_current_span():
        state.asked += 1
        if isinstance(state.span, Exception):
            raise state.span
        return state.span

    instrumentor = SimpleNamespace(is_instrumented_by_opentelemetry=True)
    state.instrumentor = instrumentor
    module = SimpleNamespace(get_current_span=get_current_span, LangChainInstrumentor=lambda: instrumentor)
    monkeypatch.setitem(sys.modules, "openinference.instrumentation.langchain", module)
    return state


def made(telemetry, inside=None):
    """One call; what ``inside`` does happens in its body."""
    live = telemetry.start(CALL, session_id="s1", run_id="r1")
    token = live.attach()
    if inside is not None:
        inside()
    live.detach(token)
    telemetry.end(live, CALL, Outcome("ok"), None, None, seconds=0.1)
    return live


def test_its_tool_span_is_enriched_and_made_current(told, hidden):
    """Its span of this tool has no attributes yet and bears the tool's name: ours go there, and the body is below it."""
    hidden.span = hidden.tracer.start_span("search")
    made(told.telemetry(), lambda: told.tracing.get_tracer("http").start_span("GET").end())
    assert hidden.span.is_recording()
    hidden.span.end()
    inner, span = told.spans()
    assert (span.name, span.attributes["toolguard.outcome"]) == ("search", "ok")
    assert inner.parent.span_id == span.context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


def test_below_any_other_span_of_its(told, hidden):
    """Where its span is another one, of a node perhaps, ours is a child of that and no root of a trace."""
    hidden.span = hidden.tracer.start_span("tools")
    made(told.telemetry())
    assert told.spans()[0].parent.span_id == hidden.span.get_span_context().span_id


def test_what_began_last_is_the_parent(told, hidden):
    """Of its span and the current one in the same trace the younger is the parent, for it is the inner one."""
    with told.tracing.get_tracer("app").start_as_current_span("request"):
        hidden.span = hidden.tracer.start_span("tools")
        made(told.telemetry())
        with told.tracing.get_tracer("app").start_as_current_span("inner") as inner:
            made(told.telemetry())
    first, second = [span for span in told.spans() if span.name == "execute_tool search"]
    assert first.parent.span_id == hidden.span.get_span_context().span_id
    assert second.parent.span_id == inner.get_span_context().span_id


def test_a_span_of_another_trace_is_no_parent(told, hidden):
    """A span that it remembers from elsewhere does not take the call out of the current trace."""
    hidden.span = hidden.tracer.start_span("tools")
    with told.tracing.get_tracer("app").start_as_current_span("request") as around:
        made(told.telemetry())
    assert told.spans()[0].parent.span_id == around.get_span_context().span_id


def test_a_call_inside_its_tool_span_is_a_child(told, hidden):
    """A guarded call of the same name inside the guarded call has a span of its own, below the enriched one."""
    hidden.span = hidden.tracer.start_span("search")
    telemetry = told.telemetry()
    made(telemetry, lambda: made(telemetry))
    (inner,) = told.spans()
    assert (inner.name, inner.parent.span_id) == ("execute_tool search", hidden.span.get_span_context().span_id)


def test_below_our_own_span_ours_stays_the_parent(told, hidden):
    """Inside a call that has our own span, the younger one of the instrumentation does not come between."""
    telemetry = told.telemetry()
    outer = made(telemetry, lambda: (setattr(hidden, "span", hidden.tracer.start_span("tools")), made(telemetry)))
    inner = told.spans()[0]
    assert inner.parent.span_id == outer.span.get_span_context().span_id


def test_a_recorded_parent_is_asked_for_first(told, hidden):
    """A tool span that is current is the host; nobody else is asked."""
    host = {"gen_ai.operation.name": "execute_tool"}
    with told.tracing.get_tracer("host").start_as_current_span("host", attributes=host):
        made(told.telemetry())
    assert (hidden.asked, told.outcomes()) == (0, ["ok"])


def test_not_in_use(told, hidden):
    """Loaded and not in use it is not asked: it would print that it is not."""
    hidden.instrumentor.is_instrumented_by_opentelemetry = False
    made(told.telemetry())
    assert hidden.asked == 0
    assert told.spans()[0].parent is None


@pytest.mark.parametrize("span", [None, trace.INVALID_SPAN, ZeroDivisionError()], ids=["none", "invalid", "raises"])
def test_nothing_to_name(told, hidden, span):
    """Where it names no span, or raises, the call has our own span as ever."""
    hidden.span = span
    made(told.telemetry())
    assert [span.name for span in told.spans()] == ["execute_tool search"]


def test_an_ended_span_is_not_enriched(told, hidden):
    """A span that has ended gets nothing; ours is its child."""
    hidden.span = hidden.tracer.start_span("search")
    hidden.span.end()
    made(told.telemetry())
    assert [span.name for span in told.spans()] == ["search", "execute_tool search"]


def test_an_explicit_parent_goes_first(told, hidden):
    """A call that was bound to a span belongs there, whatever the instrumentation names."""
    hidden.span = hidden.tracer.start_span("search")
    around = told.tracing.get_tracer("app").start_span("agent")
    live = told.telemetry().start(CALL, session_id="s", run_id="r", parent=trace.set_span_in_context(around))
    assert live.own
    assert hidden.asked == 0
