"""What a person sees in Jaeger after the demo, asked through Jaeger's own API."""

from __future__ import annotations

import time

import pytest
from services.jaeger import Jaeger
from services.stack import PROTOCOLS, run_demo, telemetry

LIMIT, PERIOD, CEILING = 3, 2, 6


@pytest.fixture(scope="module", params=PROTOCOLS)
def demo(request, jaeger):
    """The demo's own account of a run whose spans went straight to Jaeger, the Jaeger, and the service's name."""
    service = f"straight-{request.param.split('/')[0]}"
    spans_alone = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    env = telemetry(jaeger, service=service, protocol=request.param, **spans_alone)
    runs = run_demo(env, "--limit", str(LIMIT), "--period", str(PERIOD), "--ceiling", str(CEILING))
    return runs, jaeger, service


def test_each_call_of_the_loop_is_a_span_below_the_agent(demo):
    """Jaeger shows N·P tool spans under the agent's span, with signature and class, and the last one tripped."""
    runs, jaeger, _service = demo
    spans = jaeger.trace(runs["loop"]["trace_id"], spans=LIMIT * PERIOD + 1)
    (root,) = [span for span in spans if not span.get("parentSpanId")]
    tools = sorted((span for span in spans if span is not root), key=lambda span: int(span["endTimeUnixNano"]))
    assert len(tools) == LIMIT * PERIOD
    assert {span["parentSpanId"] for span in tools} == {root["spanId"]}
    assert all(span["said"]["toolguard.signature"].startswith(span["said"]["gen_ai.tool.name"] + ":") for span in tools)
    assert [bool(span["said"].get("toolguard.tripped")) for span in tools] == [False] * (len(tools) - 1) + [True]


def test_refused_calls_point_to_the_call_that_opened_the_circuit(demo):
    """Jaeger keeps the link from each refused span to the tripping one."""
    runs, jaeger, _service = demo
    spans = jaeger.trace(runs["ceiling"]["trace_id"], spans=CEILING + 3)
    refused = [span for span in spans if span["said"].get("toolguard.outcome") == "refused"]
    (tripping,) = [span for span in refused if span["said"].get("toolguard.tripped")]
    others = [span for span in refused if span is not tripping]
    assert others
    assert {link["spanId"] for span in others for link in span["links"]} == {tripping["spanId"]}


def test_a_trip_is_found_by_its_attribute(demo):
    """Searching for the tripped attribute finds the traces of the two stopped runs and not the healthy one."""
    runs, jaeger, service = demo
    found = jaeger.search(service, {"toolguard.tripped": "true"})
    assert found == {runs["loop"]["trace_id"], runs["ceiling"]["trace_id"]}


def test_it_tells_nobody_of_its_own_pages(had):
    """Whoever listens at the usual port, such as Jaeger itself or a Collector, gets no spans of a service jaeger."""
    with had():
        jaeger = Jaeger()
    jaeger.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_grpc, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with jaeger:
        assert jaeger.search("nobody") == set()
        seen = [jaeger.services() for _ in range(20) if not time.sleep(0.1)]
    assert seen == [set()] * 20
