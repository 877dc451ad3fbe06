"""What reaches Jaeger, Prometheus' page and the log file by way of the real Collector with collector.yaml."""

from __future__ import annotations

import pytest
from services.stack import PROTOCOLS, run_demo, telemetry

LIMIT, PERIOD, CEILING = 3, 2, 6
LOOP, STOPPED = LIMIT * PERIOD + 1, CEILING + 3  # spans, the agent's included


@pytest.fixture(scope="module", params=PROTOCOLS)
def demo(request, stack):
    """The demo's own account of a run that told the Collector all, and the name of its service."""
    service = f"demo-{request.param.split('/')[0]}"
    env = telemetry(stack.collector, service=service, protocol=request.param)
    return run_demo(env, "--limit", str(LIMIT), "--period", str(PERIOD), "--ceiling", str(CEILING)), service


def split(spans):
    """The root, and the other spans in the order in which they ended."""
    (root,) = [span for span in spans if not span.get("parentSpanId")]
    return root, sorted((span for span in spans if span is not root), key=lambda span: int(span["endTimeUnixNano"]))


def test_a_trace_with_a_trip_arrives_whole_and_once(demo, stack):
    """The two stopped runs are in Jaeger span by span, none twice, though the bad spans went another way than the rest."""
    runs, _service = demo
    for name, count in (("loop", LOOP), ("ceiling", STOPPED)):
        spans = stack.jaeger.trace(runs[name]["trace_id"], spans=count)
        root, tools = split(spans)
        assert len({span["spanId"] for span in spans}) == len(spans) == count
        assert {span["parentSpanId"] for span in tools} == {root["spanId"]}


def test_attributes_of_the_guard_are_as_they_were_sent(demo, stack):
    """The tripping span tells rule, limit, cycle and signature; no part of the Collector takes them for a secret."""
    runs, _service = demo
    _root, tools = split(stack.jaeger.trace(runs["loop"]["trace_id"], spans=LOOP))
    assert [span["said"].get("toolguard.tripped", False) for span in tools] == [False] * (len(tools) - 1) + [True]
    said = tools[-1]["said"]
    assert said["toolguard.rule"] == "repeat_guard"
    assert (said["toolguard.limit"], said["toolguard.repeat.length"]) == (LIMIT, PERIOD)
    assert said["toolguard.cycle"] == [span["said"]["toolguard.signature"] for span in tools[-PERIOD:]]
    assert all(span["said"]["toolguard.session.id"] == "demo-loop" for span in tools)


def test_links_of_refused_calls_survive(demo, stack):
    """Each refused span still points to the one that opened the circuit."""
    runs, _service = demo
    _root, tools = split(stack.jaeger.trace(runs["ceiling"]["trace_id"], spans=STOPPED))
    refused = [span for span in tools if span["said"]["toolguard.outcome"] == "refused"]
    (tripping,) = [span for span in refused if span["said"].get("toolguard.tripped")]
    others = [span for span in refused if span is not tripping]
    assert others
    assert {link["spanId"] for span in others for link in span["links"]} == {tripping["spanId"]}


def test_a_trip_is_found_by_its_attribute(demo, stack):
    """Searching for the tripped attribute finds the two stopped runs and not the healthy one."""
    runs, service = demo
    for name in ("loop", "ceiling"):
        assert stack.jaeger.trace(runs[name]["trace_id"])
    stopped = {runs["loop"]["trace_id"], runs["ceiling"]["trace_id"]}
    assert stack.jaeger.search(service, {"toolguard.tripped": "true"}) == stopped


def test_the_event_of_a_trip_arrives_with_its_trace(demo, stack):
    """Both trips are log records at the Collector, with rule and the ids of the tripping spans."""
    runs, service = demo
    logs = stack.collector.logs(service=service, at_least=2)
    assert {log["eventName"] for log in logs} == {"toolguard.circuit.opened"}
    found = {log["said"]["toolguard.rule"]: log["traceId"] for log in logs}
    assert found == {"repeat_guard": runs["loop"]["trace_id"], "call_ceiling": runs["ceiling"]["trace_id"]}


@pytest.mark.parametrize("rule", ["repeat_guard", "call_ceiling"])
def test_a_trip_is_counted(demo, stack, rule):
    """Prometheus has the counter of the rule at 1, from the Collector's page, under the service's own job and instance."""
    _runs, service = demo
    labels = f'job="{service}",instance="{service}-1",toolguard_rule="{rule}",toolguard_mode="enforce"'
    assert stack.prometheus.value(f"toolguard_circuit_trips_total{{{labels}}}", at_least=1) == 1


def test_metrics_of_spans_count_the_healthy_run_too(demo, stack):
    """The metric made from spans has every span of all three runs, also of a trace that sampling drops."""
    runs, service = demo
    sent = LOOP + STOPPED + runs["healthy"]["bodies"] + 1
    assert stack.collector.total("traces_span_metrics_calls_total", at_least=sent, job=service) == sent
    refused = stack.collector.metrics("traces_span_metrics_calls_total", job=service, toolguard_outcome="refused")
    assert sum(sample.value for sample in refused) == 2
