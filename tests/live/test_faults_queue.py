"""Jaeger is away: what the Collector has taken waits on its disk, over a restart and a kill, and comes later."""

from __future__ import annotations

import pytest
from agents.agent import LOOP_SPANS, Agent, delivered, stopped_in_time
from services.collector import Collector
from services.jaeger import Jaeger
from services.places import until
from services.stack import telemetry

SPANS = 10
FLAGGED = 2  # of a loop: the tripping call and the refused one


@pytest.fixture
def jaeger(start):
    """A Jaeger of one's own, which is down."""
    jaeger = start(Jaeger)
    jaeger.stop()
    return jaeger


def waiting(collector):
    """What waits for Jaeger, in bytes."""
    return sum(sample.value for sample in collector.own_metrics("otelcol_exporter_queue_size"))


def test_what_jaeger_missed_comes_when_it_is_back(jaeger, start):
    """Jaeger is down for a whole run: the agent delivers all and feels nothing, and Jaeger gets all of it, once."""
    collector = start(Collector, jaeger.grpc_address, settings={"COLLECTOR_KEEP_PERCENT": "100"})
    with Agent(telemetry(collector, service="missed", protocol="grpc")) as agent:
        traces = agent.ask("healthy", traces=20)["traces"]
        loop = agent.ask("loop")
        assert agent.end() == delivered(21 * SPANS)
    assert stopped_in_time(loop)
    traces.append(loop["trace"])
    assert until(lambda: waiting(collector) > 0)
    jaeger.start()
    came = {each: len(jaeger.trace(each, spans=SPANS)) for each in traces}
    assert came == dict.fromkeys(traces, SPANS)
    assert until(lambda: waiting(collector) == 0)


def flagged(said):
    """Whether a span goes to Jaeger without a wait for its trace."""
    return bool(said.get("toolguard.tripped")) or said.get("toolguard.outcome") == "refused"


@pytest.mark.parametrize(("end", "spans"), [("stop", LOOP_SPANS), ("kill", FLAGGED)])
def test_the_queue_outlives_the_collector(jaeger, start, end, spans):
    """With Jaeger down a stopped Collector brings all spans after its restart, and a killed one those of the trip."""
    collector = start(Collector, jaeger.grpc_address, settings={"COLLECTOR_DECISION_WAIT": "1h"})
    with Agent(telemetry(collector, service=f"queue-{end}", protocol="grpc")) as agent:
        loop = agent.ask("loop")
        assert agent.end() == delivered(LOOP_SPANS)
    assert stopped_in_time(loop)
    getattr(collector, end)()
    jaeger.start()
    collector.start()
    assert jaeger.trace(loop["trace"], spans=spans)
    assert until(lambda: waiting(collector) == 0)
    came = jaeger.trace(loop["trace"])
    assert len({span["spanId"] for span in came}) == len(came) == spans
    assert sum(flagged(span["said"]) for span in came) == FLAGGED


def test_a_full_queue_is_said_and_counted(jaeger, start):
    """With its share of the disk used up the Collector refuses a trip's spans: the SDK is told, and the guard goes on."""
    settings = {"COLLECTOR_QUEUE_BYTES": "300000", "COLLECTOR_KEEP_PERCENT": "100", "COLLECTOR_DECISION_WAIT": "1s"}
    collector = start(Collector, jaeger.grpc_address, settings=settings)

    def refused():
        return sum(sample.value for sample in collector.own_metrics("otelcol_exporter_enqueue_failed_spans"))

    with Agent(telemetry(collector, service="full", protocol="grpc", OTEL_EXPORTER_OTLP_TIMEOUT="2")) as agent:
        agent.ask("healthy", traces=200)
        assert agent.ask("flush") == delivered(200 * SPANS)
        assert until(refused)
        loops = []
        # The first ones may still fit into what is left.
        assert until(lambda: loops.append(agent.ask("loop")) or agent.ask("flush")["failed"]) == LOOP_SPANS
        assert "sending queue is full" in agent.said()
    assert all(map(stopped_in_time, loops))
