"""What is counted and measured, and the event of an opened circuit."""

from types import SimpleNamespace

import pytest
from opentelemetry._logs import NoOpLogger, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from otel_toolguard._version import __version__
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.decision import Circuit, Member, Refuse, Trip
from otel_toolguard.telemetry import Telemetry
from otel_toolguard.telemetry.events import circuit_opened

CALL = ToolCall("search", "search:0123456789abcdef", tool_class="read", agent="clerk")
TRIP = Trip(id="t1", rule="repeat_guard", scope="run", tool="search", signature=CALL.signature, tool_class="read", limit=8, observed=8,
            members=(Member("search", CALL.signature),), session_id="s1", run_id="r1", loop_type="exact_repeat", why="Eight laps.")  # fmt: skip
SCHEMA = "https://opentelemetry.io/schemas/1.41.0"


@pytest.fixture
def world():
    reader, exporter = InMemoryMetricReader(), InMemoryLogRecordExporter()
    logs = LoggerProvider()
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    provider = TracerProvider()
    telemetry = Telemetry(tracer_provider=provider, meter_provider=MeterProvider([reader]), logger_provider=logs)
    return SimpleNamespace(telemetry=telemetry, reader=reader, events=exporter.get_finished_logs, provider=provider)


def read(world):
    """Metrics by name."""
    data = world.reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def points(metric):
    """Values by attributes."""
    return {frozenset(point.attributes.items()): getattr(point, "value", None) for point in metric.data.data_points}


def start(world):
    return world.telemetry.start(CALL, session_id="s1", run_id="r1")


def test_duration(world):
    """The duration of a call is in seconds, in the conventions' buckets, with tool, type, agent and class."""
    world.telemetry.end(start(world), CALL, Outcome("ok"), None, None, seconds=0.5)
    metric = read(world)["gen_ai.execute_tool.duration"]
    (point,) = metric.data.data_points
    assert metric.unit == "s"
    assert point.attributes == {"gen_ai.tool.name": "search", "gen_ai.tool.type": "function", "gen_ai.agent.name": "clerk",
                                "toolguard.tool.class": "read"}  # fmt: skip
    assert (point.count, point.sum) == (1, 0.5)
    assert point.explicit_bounds == (
        0.01,
        0.02,
        0.04,
        0.08,
        0.16,
        0.32,
        0.64,
        1.28,
        2.56,
        5.12,
        10.24,
        20.48,
        40.96,
        81.92,
    )


def test_tools_that_a_model_invented_are_one_series(world):
    """Calls that reached no tool share one metric label, whatever name the model gave; the span keeps the name."""
    for n in range(50):
        call = ToolCall(f"invented_{n}", f"invented_{n}:1", reached=False)
        live = world.telemetry.start(call, session_id="s1", run_id="r1")
        assert live.span.name == f"execute_tool invented_{n}"
        world.telemetry.end(live, call, Outcome("failed"), None, None, seconds=0.1)
        world.telemetry.refused(None, call, Refuse(Circuit(TRIP), fresh=False, nth=11))
    for name in ("gen_ai.execute_tool.duration", "toolguard.calls.refused"):
        (point,) = read(world)[name].data.data_points
        assert point.attributes["gen_ai.tool.name"] == "(unknown)"


def test_failed_duration(world):
    """A failed call is measured with the same error.type that its span has."""
    live = start(world)
    world.telemetry.end(live, CALL, Outcome("failed", error_type="builtins.OSError"), None, None, seconds=0.5)
    (point,) = read(world)["gen_ai.execute_tool.duration"].data.data_points
    assert point.attributes["error.type"] == live.span.attributes["error.type"] == "builtins.OSError"


def test_exemplar(world):
    """A measurement leads to the span of its call, whether or not the span was ever made current."""
    for attach in (True, False):
        live = start(world)
        live.detach(live.attach() if attach else None)
        world.telemetry.end(live, CALL, Outcome("ok"), None, None, seconds=0.5)
        (point,) = read(world)["gen_ai.execute_tool.duration"].data.data_points
        assert live.span.get_span_context().span_id in {exemplar.span_id for exemplar in point.exemplars}


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_durations(world, seconds, caplog):
    """A clock that ran backwards is not measured, and the SDK has nothing to complain about."""
    world.telemetry.end(start(world), CALL, Outcome("ok"), None, None, seconds=seconds)
    assert read(world) == {}
    assert caplog.records == []


def test_refused(world):
    """A refused call is counted with tool, class and rule, with or without a span, and has no duration."""
    refuse = Refuse(Circuit(TRIP, link=None), fresh=False, nth=11)
    world.telemetry.refused(start(world), CALL, refuse)
    world.telemetry.refused(None, CALL, refuse)
    found = read(world)
    assert set(found) == {"toolguard.calls.refused"}
    assert found["toolguard.calls.refused"].unit == "{call}"
    labels = {"gen_ai.tool.name": "search", "toolguard.tool.class": "read", "toolguard.rule": "repeat_guard"}
    assert points(found["toolguard.calls.refused"]) == {frozenset(labels.items()): 2}


def test_trips(world):
    """The trip counter stands at zero for each rule and mode before the first trip, and counts by rule and mode alone."""

    def by(rule, mode):
        return frozenset({"toolguard.rule": rule, "toolguard.mode": mode}.items())

    world.telemetry.prepare(["repeat_guard", "stagnation"])
    before = read(world)["toolguard.circuit.trips"]
    assert before.unit == "{trip}"
    assert before.data.is_monotonic
    assert points(before) == {
        by(rule, mode): 0 for rule in ("repeat_guard", "stagnation") for mode in ("enforce", "observe")
    }
    world.telemetry.opened(start(world), TRIP)
    world.telemetry.opened(None, TRIP, observed_only=True)
    after = points(read(world)["toolguard.circuit.trips"])
    assert [after[by("repeat_guard", mode)] for mode in ("enforce", "observe")] == [1, 1]
    assert [after[by("stagnation", mode)] for mode in ("enforce", "observe")] == [0, 0]


def test_neither_signature_nor_session(world):
    """Nothing that grows with sessions or arguments is on a metric."""
    live = start(world)
    world.telemetry.opened(live, TRIP)
    world.telemetry.end(live, CALL, Outcome("ok"), None, None, seconds=0.5)
    world.telemetry.refused(None, CALL, Refuse(Circuit(TRIP, link=None), fresh=False, nth=1))
    told = {
        value
        for metric in read(world).values()
        for point in metric.data.data_points
        for value in point.attributes.values()
    }
    assert not told & {CALL.signature, "s1", "r1"}


@pytest.mark.parametrize(
    ("scope", "measured"), [("opentelemetry.instrumentation.genai.langchain", False), ("openinference", True)]
)
def test_host_that_measures(world, scope, measured):
    """The duration is left to a host that records the same histogram."""
    attributes = {"gen_ai.operation.name": "execute_tool"}
    with world.provider.get_tracer(scope).start_as_current_span("host", attributes=attributes):
        world.telemetry.end(start(world), CALL, Outcome("ok"), None, None, seconds=0.5)
    assert ("gen_ai.execute_tool.duration" in read(world)) is measured


def test_scope_of_measurements_and_events(world):
    """Metrics and events carry the same scope, version and schema as spans."""
    world.telemetry.opened(None, TRIP)
    (resource,) = world.reader.get_metrics_data().resource_metrics
    (event,) = world.events()
    for scope in (resource.scope_metrics[0].scope, event.instrumentation_scope):
        assert (scope.name, scope.version, scope.schema_url) == ("otel_toolguard", __version__, SCHEMA)


def test_event(world):
    """The event of an opened circuit is a warning in the context of the tripping span, with what the span says."""
    live = start(world)
    world.telemetry.opened(live, TRIP)
    (event,) = world.events()
    record = event.log_record
    expected = {
        "toolguard.rule": "repeat_guard",
        "toolguard.mode": "enforce",
        "toolguard.limit": 8.0,
        "toolguard.observed": 8.0,
        "toolguard.signature": CALL.signature,
        "toolguard.tool.class": "read",
        "toolguard.session.id": "s1",
        "toolguard.cycle": (CALL.signature,),
        "gen_ai.tool.name": "search",
    }
    assert dict(record.attributes) == expected
    assert type(record.attributes["toolguard.limit"]) is float
    assert (record.event_name, record.severity_number, record.severity_text) == (
        "toolguard.circuit.opened",
        SeverityNumber.WARN,
        "WARN",
    )
    assert SeverityNumber.WARN.value == 13
    assert record.body == "Eight laps."
    here = live.span.get_span_context()
    assert (record.trace_id, record.span_id, record.trace_flags) == (here.trace_id, here.span_id, here.trace_flags)


@pytest.mark.parametrize(
    ("mode", "observed_only", "told"),
    [("observe", False, "observe"), ("enforce", True, "observe"), ("enforce", False, "enforce")],
)
def test_mode_of_the_event(mode, observed_only, told):
    """The mode is that of the settings, and observe for a rule that only watches."""
    exporter, logs = InMemoryLogRecordExporter(), LoggerProvider()
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    Telemetry(logger_provider=logs, mode=mode).opened(None, TRIP, observed_only=observed_only)
    (event,) = exporter.get_finished_logs()
    assert event.log_record.attributes["toolguard.mode"] == told


def test_stop_without_a_call(world):
    """An operator's stop is counted and told without tool, signature and numbers."""
    trip = Trip(
        id="t2",
        rule="stopped_by_operator",
        scope="session",
        session_id="s1",
        loop_type="stopped_by_operator",
        why="Enough.",
    )
    world.telemetry.opened(None, trip)
    (event,) = world.events()
    assert dict(event.log_record.attributes) == {"toolguard.rule": "stopped_by_operator", "toolguard.mode": "enforce",
                                                 "toolguard.session.id": "s1"}  # fmt: skip


def test_no_event_for_nobody():
    """Where the API can say that nobody listens, the event is not built; where it cannot, it is emitted."""
    emitted = []

    class Asked(NoOpLogger):
        def enabled(self, **_):
            return False

        def emit(self, *_, **record):
            emitted.append(record)

    class Unasked:
        def emit(self, *_, **record):
            emitted.append(record)

    circuit_opened(Asked("x"), TRIP, "enforce", None)
    assert emitted == []
    circuit_opened(Unasked(), TRIP, "enforce", None)
    assert [record["event_name"] for record in emitted] == ["toolguard.circuit.opened"]
