"""Ten thousand spans with one trip among them, through the real Collector to the real Jaeger and Prometheus."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from agents.agent import LOOP_SPANS, Agent, delivered, stopped_in_time
from agents.program import LIMIT
from services.places import until
from services.stack import PROTOCOLS, Stack, telemetry

TRACES, SPANS = 1000, 10  # a healthy trace has as many spans as that of the trip
CALLS = SPANS - 1
HEALTHY = TRACES - 1
KEPT = 0.1
# Of 999 coin throws at one in ten: a right Collector is outside once in more than ten million runs.
MARGIN = 6 * math.sqrt(HEALTHY * KEPT * (1 - KEPT))
QUEUE = {"OTEL_BSP_MAX_QUEUE_SIZE": "20000", "OTEL_BSP_SCHEDULE_DELAY": "200"}


@pytest.fixture(scope="module")
def own(had):
    """A stack that hears of nothing else, so that its own counters are of these traces alone."""
    with had():
        made = Stack(settings={"COLLECTOR_KEEP_PERCENT": str(round(100 * KEPT))})
    with made:
        yield made


@pytest.fixture(scope="module", params=PROTOCOLS)
def sent(request, own):
    """The thousand traces, told and judged: their service, ids, that of the trip, how many are kept, the agent's word."""
    service = f"volume-{request.param.split('/')[0]}"
    before, kept = judged(own), judged(own, sampled="true")
    with Agent(telemetry(own.collector, service=service, protocol=request.param, **QUEUE)) as agent:
        healthy = agent.ask("healthy", traces=TRACES // 2, calls=CALLS)["traces"]
        loop = agent.ask("loop")
        healthy += agent.ask("healthy", traces=HEALTHY - TRACES // 2, calls=CALLS)["traces"]
        account = agent.end()
    assert len({*healthy, loop["trace"]}) == TRACES
    assert until(lambda: judged(own) - before, enough=lambda count: count >= TRACES) == TRACES
    print("trace of the trip", service, loop["trace"])
    kept = judged(own, sampled="true") - kept
    return SimpleNamespace(service=service, loop=loop, healthy=healthy, kept=kept, account=account)


@pytest.fixture(scope="module")
def arrived(own, sent):
    """The spans of each trace that Jaeger has; it is asked for every one of the thousand by its id."""
    found = until(lambda: own.jaeger.search(sent.service, limit=TRACES), enough=lambda ids: len(ids) >= sent.kept)
    spans = {each: own.jaeger.trace(each, spans=SPANS) for each in found}
    gone = {*sent.healthy, sent.loop["trace"]} - found
    return spans | {each: late for each in gone if (late := own.jaeger.trace(each, wait_s=0))}


def judged(own, **labels):
    """How many traces the Collector has decided about, or has decided so."""
    name = "otelcol_processor_tail_sampling_global_count_traces_sampled"
    return sum(sample.value for sample in own.collector.own_metrics(name, **labels))


def test_the_program_drops_no_span(sent):
    """The SDK's queue took all ten thousand spans, and each was delivered; the guard stopped the one loop at its limit."""
    assert sent.account == delivered(TRACES * SPANS)
    assert stopped_in_time(sent.loop)


def test_the_trip_is_found_by_its_attribute(own, sent, arrived):
    """Searching for the tripped attribute finds one trace of the thousand, and it has all its spans, each once."""
    spans = arrived[sent.loop["trace"]]
    assert own.jaeger.search(sent.service, {"toolguard.tripped": "true"}, limit=TRACES) == {sent.loop["trace"]}
    assert len({span["spanId"] for span in spans}) == len(spans) == LOOP_SPANS
    assert sum(span["said"].get("toolguard.outcome") == "ok" for span in spans) == LIMIT


def test_a_healthy_trace_is_whole_or_gone(arrived):
    """No trace was cut: what the Collector kept has all its spans, each once."""
    cut = {each: len(spans) for each, spans in arrived.items() if len({span["spanId"] for span in spans}) != SPANS}
    assert cut == {}
    assert sum(map(len, arrived.values())) == len(arrived) * SPANS


def test_about_one_healthy_trace_in_ten_is_kept(own, sent, arrived):
    """The others are gone: Jaeger has the trip's and within six standard deviations of one in ten, and no more by search."""
    assert abs(len(arrived) - 1 - HEALTHY * KEPT) < MARGIN
    assert len(arrived) == sent.kept
    assert own.jaeger.search(sent.service, limit=TRACES) == set(arrived)


@pytest.mark.parametrize(
    ("metric", "count"),
    [
        ("traces_span_metrics_calls_total", TRACES * SPANS),
        ("gen_ai_execute_tool_duration_seconds_count", HEALTHY * CALLS + LIMIT),
        ("toolguard_run_calls_count", TRACES),
        ("toolguard_calls_refused_total", 1),
        ("toolguard_circuit_trips_total", 1),
    ],
)
def test_metrics_count_all_of_it(own, sent, metric, count):
    """The Collector's page and Prometheus have every span, call and run, of kept and dropped traces alike."""
    assert own.collector.total(metric, at_least=count, job=sent.service) == count
    assert own.prometheus.value(f'sum({metric}{{job="{sent.service}"}})', at_least=count) == count
