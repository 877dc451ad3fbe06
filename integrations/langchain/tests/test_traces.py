"""A stop in LangSmith's traces, and what is measured when a run is over."""

from __future__ import annotations

import contextlib
from unittest.mock import MagicMock

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.langchain import LangChainTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command, interrupt
from langsmith import Client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.telemetry import Telemetry

from . import graphs as g
from . import scripted as s
from .test_stop import CAN_DRAIN, thread

FEW = {"recursion_limit": 60}


class Kept(BaseTracer):
    """Keeps whole traces, as a tracer that sends them would see them."""

    def __init__(self):
        super().__init__()
        self.roots = []

    def _persist_run(self, run):
        self.roots.append(run)


def agent_of(model, tools, stop):
    guard = ToolGuardMiddleware(s.repeat(3), stop=stop)
    return create_agent(model, tools, middleware=[guard], checkpointer=InMemorySaver())


def graph_of(model, tools, stop):
    return g.graph(model, g.tools_in(tools, s.repeat(3), stop=stop), checkpointer=InMemorySaver())


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize(
    ("make", "stop"), [(agent_of, stop) for stop in ("raise", "drain", "end", "interrupt")] + [(graph_of, "raise")]
)
def test_a_trip_is_in_the_trace(make, stop, run):
    """Whatever way a run is stopped, the trace's root carries the record as metadata."""
    tracer, seen = Kept(), s.look_up()
    agent = make(s.model(s.for_ever("search")), [seen.tool], stop)
    raised = pytest.raises(GraphBubbleUp) if stop in ("raise", "drain") else contextlib.nullcontext()
    with raised:
        run(agent, s.ask(), thread() | FEW | {"callbacks": [tracer]})
    root = next(one for one in tracer.roots if one.parent_run_id is None)
    assert root.extra["metadata"]["toolguard"]["rule"] == "repeat_guard"
    if stop == "raise" or (stop == "drain" and not CAN_DRAIN):
        assert "came round 3 times" in root.error


def test_langsmith_is_sent_the_trip():
    """LangSmith's own tracer, with a client that sends nothing, hands the record over with the run's end."""
    client = MagicMock(spec=Client)
    client.tracing_queue = None
    agent = agent_of(s.model(s.for_ever("search")), [s.look_up().tool], "raise")
    with pytest.raises(CircuitOpen):
        agent.invoke(s.ask(), thread() | {"callbacks": [LangChainTracer(client=client)]})
    ended = [call.kwargs for call in client.update_run.call_args_list]
    roots = [one for one in ended if "came round 3 times" in str(one.get("error"))]
    assert roots
    assert any(one["extra"]["metadata"].get("toolguard", {}).get("rule") == "repeat_guard" for one in roots)


@pytest.fixture
def measured():
    reader = InMemoryMetricReader()
    telemetry = Telemetry(meter_provider=MeterProvider(metric_readers=[reader]))

    def runs():
        data = reader.get_metrics_data()
        found = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if metric.name == "toolguard.run.calls"
        ]
        return sum(point.count for point in found), sum(point.sum for point in found)

    return telemetry, runs


@pytest.mark.parametrize("run", s.WAYS)
def test_a_run_that_is_stopped_is_measured(run, measured):
    """A run that ends by a raised stop is in the histogram once, with the calls that it made."""
    telemetry, runs = measured
    guard = ToolGuardMiddleware(s.repeat(3), telemetry=telemetry)
    with pytest.raises(CircuitOpen):
        run(create_agent(s.model(s.for_ever("search")), [s.look_up().tool], middleware=[guard]), s.ask())
    assert runs() == (1, 3)


@pytest.mark.parametrize("run", s.WAYS)
def test_a_run_of_a_graph_that_is_stopped_is_measured(run, measured):
    """A run of a graph of one's own that a stop ends is in the histogram once, too."""
    telemetry, runs = measured
    node = g.tools_in([s.look_up().tool], s.repeat(3), telemetry=telemetry)
    with pytest.raises(CircuitOpen):
        run(g.graph(s.model(s.for_ever("search")), node), s.ask())
    assert runs() == (1, 3)


@pytest.mark.parametrize("run", s.WAYS)
def test_a_run_that_ends_is_measured(run, measured):
    """The histogram of calls per run has a run as soon as it has ended by itself, and has it once."""
    telemetry, runs = measured
    guard = ToolGuardMiddleware(telemetry=telemetry)
    for n in (1, 2):
        model = s.model([[("search", {"q": "a"})], [("search", {"q": "b"})]])
        run(create_agent(model, [s.look_up().tool], middleware=[guard]), s.ask())
        assert runs() == (n, 2 * n)


def test_a_paused_run_is_not_over(measured):
    """A run that waits for a person is measured when it has been resumed and has ended, with all its calls."""
    telemetry, runs = measured

    @tool
    def ask_person() -> str:
        """Asks."""
        return interrupt("well?")

    model = s.model([[("search", {})], [("ask_person", {})], [("search", {"q": "b"})]])
    guard = ToolGuardMiddleware(telemetry=telemetry)
    agent = create_agent(model, [ask_person, s.look_up().tool], middleware=[guard], checkpointer=InMemorySaver())
    config = thread()
    agent.invoke(s.ask(), config)
    assert runs() == (0, 0)
    agent.invoke(Command(resume="go on"), config)
    assert runs()[0] == 1


def test_a_run_ended_with_a_message_is_measured_once(measured):
    """A stop by a last message is an end too; the session's own end adds only the block's run."""
    telemetry, runs = measured
    with Session(policy=s.repeat(3), telemetry=telemetry) as session:
        guard = ToolGuardMiddleware(stop="end")
        create_agent(s.model(s.for_ever("search")), [s.look_up().tool], middleware=[guard]).invoke(s.ask())
        assert runs() == (1, 3)
        assert session.trip.rule == "repeat_guard"
    assert runs()[1] == 3
