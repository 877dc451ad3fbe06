"""Other people's instrumentations, as they are published, around and inside guarded calls.

They need an environment of their own (``make enrich``), and are collected only where this folder is asked for by name.
One file is one process: some of these packages cannot be taken out again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard import guard_tool

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(items):
    if len({item.path for item in items}) > 1:
        raise pytest.UsageError("one file of tests/enrich at a time: make enrich")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "default")  # what these packages are warned of is theirs to mend


@pytest.fixture(scope="session")
def providers():
    """The process's providers: some of these packages know no others."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(MeterProvider([reader]))
    return SimpleNamespace(tracing=tracing, exporter=exporter, reader=reader)


class Seen:
    """What was exported since the test began."""

    def __init__(self, providers):
        self.providers = providers
        self.exporter = providers.exporter
        self._measured = self._durations()

    def spans(self):
        return self.exporter.get_finished_spans()

    def told(self):
        """Spans with an outcome of ours."""
        return [span for span in self.spans() if "toolguard.outcome" in span.attributes]

    def outcomes(self):
        return [span.attributes["toolguard.outcome"] for span in self.told()]

    def ours(self):
        return [span for span in self.spans() if span.instrumentation_scope.name == "otel_toolguard"]

    def only_theirs(self, outcomes):
        """Whether calls of the tool had these outcomes, each told once, on a span that is not ours."""
        ids = [[span.context.span_id for span in spans] for spans in (self.of_tool(), self.told(), self.ours())]
        return ids[0] == ids[1] and not ids[2] and self.outcomes() == list(outcomes)

    def of_tool(self, tool="search"):
        """All spans, whoever made them, that a back end would show as a call of this tool."""
        return [span for span in self.spans() if _is_of(span, tool)]

    def inside(self):
        """What the tool's body traced itself."""
        return [span for span in self.spans() if span.name == "GET"]

    def measured(self):
        """Durations of tool calls that anybody recorded."""
        return self._durations() - self._measured

    def _durations(self):
        data = self.providers.reader.get_metrics_data()
        return sum(
            point.count
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "gen_ai.execute_tool.duration"
            for point in metric.data.data_points
        )


def _is_of(span, tool):
    said = span.attributes
    marked = (
        said.get("gen_ai.operation.name") == "execute_tool"
        or said.get("openinference.span.kind") == "TOOL"
        or said.get("traceloop.span.kind") == "tool"
        or said.get("logfire.msg_template") == "Function: {name}"
    )
    return marked and tool in {span.name, said.get("gen_ai.tool.name"), said.get("tool.name"), said.get("name"),
                               said.get("traceloop.entity.name")}  # fmt: skip


@pytest.fixture
def seen(providers):
    providers.exporter.clear()
    return Seen(providers)


def _tool(awaited):
    def look_up(q):
        with trace.get_tracer("http").start_as_current_span("GET"):
            if q == "bad":
                raise LookupError(q)
        return f"found {q}"

    def search(q: str) -> str:
        """Looks something up."""
        return look_up(q)

    async def search_async(q: str) -> str:
        """Looks something up."""
        return look_up(q)

    search_async.__name__ = search_async.__qualname__ = "search"
    return search_async if awaited else search


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def search(request):
    """A guarded tool that makes a request of its own, and fails when it is asked for "bad"."""
    return guard_tool(_tool(request.param))


@pytest.fixture(params=["decorator", "adapter", "both"])
def layers(request):
    """Which of our guards are there."""
    return request.param


@pytest.fixture
def refused_around():
    """Whether a call that is refused never comes so far as their span."""
    return False
