"""What the Collector keeps and drops: nothing bad is lost, and everything is counted."""

from __future__ import annotations

import pytest
from services.collector import Collector
from services.places import until
from services.sender import Sender, trace_id

DROP_THE_REST = {"COLLECTOR_KEEP_PERCENT": "0", "COLLECTOR_DECISION_WAIT": "1s"}
HEALTHY = {"toolguard.outcome": "ok"}
BAD = {
    "a trip": ({"toolguard.tripped": True, "toolguard.outcome": "ok"}, None),
    "a trip in observe mode": ({"toolguard.would_trip": True, "toolguard.outcome": "ok"}, None),
    "a refusal": ({"toolguard.outcome": "refused"}, None),
    "an error": ({"toolguard.outcome": "failed"}, "it failed"),
}


@pytest.fixture(scope="module")
def collector(stack):
    """A Collector in front of the stack's Jaeger that keeps no trace but for its reasons."""
    with Collector(stack.jaeger.grpc_address, settings=DROP_THE_REST) as collector:
        yield collector


@pytest.mark.parametrize("kind", BAD)
def test_a_trace_with_something_bad_is_kept_whole(stack, collector, kind):
    """A healthy root and call arrive with the bad call of their trace, each once; no healthy trace does."""
    attributes, error = BAD[kind]
    service = f"sampled {kind}"
    with Sender(collector, service=service) as sender:
        for _ in range(20):
            sender.span("healthy", HEALTHY)
        root = sender.span("root")
        sender.span("good", HEALTHY, below=root)
        sender.span("bad", attributes, below=root, error=error)
    spans = stack.jaeger.trace(trace_id(root), spans=3)
    assert sorted(span["name"] for span in spans) == ["bad", "good", "root"]
    assert collector.total("traces_span_metrics_calls_total", at_least=23, job=service) == 23
    assert stack.jaeger.search(service) == {trace_id(root)}


@pytest.mark.parametrize("kind", BAD)
def test_something_bad_is_kept_when_its_trace_is_gone_already(stack, collector, kind):
    """A trip that comes after its trace was judged healthy and dropped still arrives, by itself."""
    attributes, error = BAD[kind]
    with Sender(collector, service=f"late {kind}") as sender:
        root = sender.span("root", HEALTHY)
        sender.flush()
        assert until(lambda: undecided(collector) == 0)
        sender.span("bad", attributes, below=root, error=error)
    spans = stack.jaeger.trace(trace_id(root))
    assert [span["name"] for span in spans] == ["bad"]


def test_a_long_run_is_kept(stack, collector):
    """A trace whose run made a hundred calls is kept though nothing in it is bad."""
    with Sender(collector, service="long") as sender:
        short = sender.span("call 99", HEALTHY | {"toolguard.run.calls": 99})
        long = sender.span("call 100", HEALTHY | {"toolguard.run.calls": 100})
    assert stack.jaeger.trace(trace_id(long))
    assert stack.jaeger.search("long") == {trace_id(long)} != {trace_id(short)}


def test_a_stop_decides_what_is_pending(stack, start):
    """A trace that still waits for its decision when the Collector is asked to end is decided, and arrives."""
    collector = start(Collector, stack.jaeger.grpc_address, settings={"COLLECTOR_DECISION_WAIT": "1h"})
    with Sender(collector, service="pending") as sender:
        root = sender.span("root", HEALTHY)
        sender.span("bad", {"toolguard.tripped": True}, below=root)
    assert [span["name"] for span in stack.jaeger.trace(trace_id(root))] == ["bad"]
    collector.restart()
    assert len(stack.jaeger.trace(trace_id(root), spans=2)) == 2


def undecided(collector):
    """How many of the traces that the sampler has seen wait for its decision."""
    of_sampler = "otelcol_processor_tail_sampling_"
    seen = collector.own_metrics(f"{of_sampler}new_trace_id_received")
    decided = collector.own_metrics(f"{of_sampler}global_count_traces_sampled")
    return sum(sample.value for sample in seen) - sum(sample.value for sample in decided)
