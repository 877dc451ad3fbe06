"""Whose span it is: another instrumentation's tool span is enriched, and there is never a second one beside it."""

from types import SimpleNamespace

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.decision import Circuit, Permit, Refuse, Trip
from otel_toolguard.telemetry import Telemetry


@pytest.fixture
def world():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=provider, meter_provider=NoOpMeterProvider())
    return SimpleNamespace(telemetry=telemetry, provider=provider, spans=exporter.get_finished_spans)


def a_call(tool="search"):
    return ToolCall(tool, f"{tool}:0123456789abcdef", tool_class="read", call_id="call_1", agent="clerk")


def a_trip():
    return Trip(id="t1", rule="repeat_guard", scope="run", session_id="s1", loop_type="exact_repeat", why="Eight laps.")


def made(world, outcome=None):
    """One whole call; returns the span that ended last."""
    live = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
    token = live.attach()
    live.detach(token)
    world.telemetry.end(live, a_call(), outcome or Outcome("ok"), Permit(1, 2, 3, 4), None, seconds=0.5)
    return world.spans()[-1]


HOSTS = {
    "genai": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"},
    "genai without name": {"gen_ai.operation.name": "execute_tool"},
    "openinference": {"openinference.span.kind": "TOOL", "tool.name": "search"},
    "openinference for agents": {"openinference.span.kind": "TOOL"},
    "openllmetry": {"traceloop.span.kind": "tool", "traceloop.entity.name": "search"},
    "logfire": {"logfire.msg_template": "Function: {name}", "name": "search"},
}
STRANGERS = {
    "no tool": {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "clerk"},
    "bare": {},
    "another tool": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "open"},
    "another tool, openinference": {"openinference.span.kind": "TOOL", "tool.name": "open"},
    "another tool, logfire": {"logfire.msg_template": "Function: {name}", "name": "open"},
    "chain": {"openinference.span.kind": "CHAIN", "tool.name": "search"},
}


@pytest.mark.parametrize("attributes", HOSTS.values(), ids=HOSTS)
def test_enrich(world, attributes):
    """A span that another instrumentation opened for this call gets our attributes and stays open; there is no second one."""
    with world.provider.get_tracer("host").start_as_current_span("host", attributes=attributes) as around:
        made_inside = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
        token = made_inside.attach()
        assert trace.get_current_span() is around
        made_inside.detach(token)
        world.telemetry.opened(made_inside, a_trip())
        world.telemetry.end(made_inside, a_call(), Outcome("ok"), Permit(1, 2, 3, 4), None, seconds=0.1)
        assert around.is_recording()
    (span,) = world.spans()
    assert {key: value for key, value in span.attributes.items() if not key.startswith("toolguard.")} == attributes
    assert span.attributes["toolguard.outcome"] == "ok"
    assert span.attributes["toolguard.tool.class"] == "read"
    assert span.attributes["toolguard.session.id"] == "s1"
    assert span.attributes["toolguard.tripped"] is True
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("attributes", STRANGERS.values(), ids=STRANGERS)
def test_no_host(world, attributes):
    """Any other span is the parent of our own."""
    with world.provider.get_tracer("host").start_as_current_span("host", attributes=attributes) as around:
        span = made(world)
    assert span.parent.span_id == around.get_span_context().span_id
    assert "toolguard.outcome" not in world.spans()[-1].attributes


def test_an_ended_host_is_not_enriched(world):
    """A tool span that somebody left current after its end gets nothing; ours is its child."""
    stale = world.provider.get_tracer("host").start_span("host", attributes=HOSTS["genai"])
    with trace.use_span(stale, end_on_exit=False):
        stale.end()
        span = made(world)
    assert span.name == "execute_tool search"
    assert span.parent.span_id == stale.get_span_context().span_id


def test_nested_in_an_enriched_host(world):
    """A guarded call inside a guarded call of the same name does not write over the host span of the outer one."""
    with world.provider.get_tracer("host").start_as_current_span("host", attributes=HOSTS["genai"]) as around:
        outer = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
        token = outer.attach()
        span = made(world, Outcome("failed"))
        outer.detach(token)
        world.telemetry.end(outer, a_call(), Outcome("ok"), None, None, seconds=0.1)
    assert span.parent.span_id == around.get_span_context().span_id
    assert world.spans()[-1].attributes["toolguard.outcome"] == "ok"
    assert len(world.spans()) == 2


def test_nested_in_our_own(world):
    """A guarded tool that calls itself has two spans, also if the outer was never made current by us (generators)."""
    for attach in (True, False):
        outer = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
        token = outer.attach() if attach else None
        with trace.use_span(outer.span, end_on_exit=False):
            inner = made(world)
        outer.detach(token)
        world.telemetry.end(outer, a_call(), Outcome("ok"), None, None, seconds=0.1)
        assert inner.parent.span_id == outer.span.get_span_context().span_id


def test_a_host_inside_a_guarded_call(world):
    """A host span that a framework opened inside an outer guarded call is enriched by the inner guarded call."""
    outer = world.telemetry.start(a_call("agent"), session_id="s1", run_id="r1")
    token = outer.attach()
    with world.provider.get_tracer("host").start_as_current_span("host", attributes=HOSTS["genai"]):
        inner = world.telemetry.start(a_call(), session_id="s1", run_id="r2")
        world.telemetry.end(inner, a_call(), Outcome("ok"), None, None, seconds=0.1)
    outer.detach(token)
    world.telemetry.end(outer, a_call("agent"), Outcome("ok"), None, None, seconds=0.1)
    assert [span.name for span in world.spans()] == ["host", "execute_tool agent"]
    assert world.spans()[0].attributes["toolguard.run.id"] == "r2"


def test_the_host_names_its_error_first(world):
    """On a failed call the host's own error.type and status stay; where it has none it gets ours."""
    told = []
    for own in ({}, {"error.type": "host.Error"}):
        with world.provider.get_tracer("host").start_as_current_span("host", attributes=HOSTS["genai"] | own):
            live = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
            world.telemetry.end(live, a_call(), Outcome("failed", error_type="our.Error"), None, None, seconds=0.1)
        span = world.spans()[-1]
        told.append((span.attributes["error.type"], span.status.status_code))
    assert told == [("our.Error", StatusCode.ERROR), ("host.Error", StatusCode.UNSET)]


def test_refused_on_a_host(world):
    """A refusal on a host's span is an error there with our attributes and link, and no gen_ai attribute of ours."""
    live = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
    link = live.link()
    with world.provider.get_tracer("host").start_as_current_span("host", attributes=HOSTS["openinference"]):
        hosted = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
        world.telemetry.refused(hosted, a_call(), Refuse(Circuit(a_trip(), link=link), fresh=False, nth=1))
    (span,) = world.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "otel_toolguard.CircuitOpen"
    assert len(span.links) == 1
    assert not [key for key in span.attributes if key.startswith("gen_ai.")]
