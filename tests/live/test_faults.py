"""An agent whose Collector is restarted, frozen or not there: its calls are counted and stopped as ever."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from agents.agent import LOOP_SPANS, Agent, delivered, failed, stopped_in_time
from services.collector import Collector
from services.places import addresses, until
from services.stack import PROTOCOLS, telemetry

SPANS = 10
KEEP_ALL = {"COLLECTOR_KEEP_PERCENT": "100"}
PATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "60", "OTEL_BSP_SCHEDULE_DELAY": "100"}
IMPATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "2"}

both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


@contextmanager
def frozen(service):
    """A service that takes connections and requests, and answers none, for a while."""
    os.kill(service.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(service.pid, signal.SIGCONT)


def lengths(jaeger, traces):
    """How many spans of each trace have come, once all have; a span that came twice counts twice."""
    return {each: len(jaeger.trace(each, spans=SPANS)) for each in traces}


@both_protocols
def test_a_restart_of_the_collector_loses_nothing(stack, start, protocol):
    """What was sent before it stopped, while it was away and after it came back is in Jaeger, all of it and once."""
    collector = start(Collector, stack.jaeger.grpc_address, settings=KEEP_ALL)
    with Agent(telemetry(collector, service="restart", protocol=protocol, **PATIENT)) as agent:
        traces = agent.ask("healthy", traces=20)["traces"]
        collector.stop()
        loop = agent.ask("loop")
        traces += [loop["trace"], *agent.ask("healthy", traces=20)["traces"]]
        assert until(lambda: "retrying" in agent.said()), agent.said()
        collector.start()
        traces += agent.ask("healthy", traces=20)["traces"]
        assert agent.end() == delivered(61 * SPANS)
    assert stopped_in_time(loop)
    assert lengths(stack.jaeger, traces) == dict.fromkeys(traces, SPANS)


@both_protocols
def test_a_collector_that_does_not_answer_is_not_felt(stack, start, protocol):
    """While it holds the first request a hundred runs go on and a loop is stopped; when it answers, all of it comes."""
    collector = start(Collector, stack.jaeger.grpc_address, settings=KEEP_ALL)
    with Agent(telemetry(collector, service="frozen", protocol=protocol, **PATIENT)) as agent:
        traces = agent.ask("healthy")["traces"]
        assert agent.ask("flush") == delivered(SPANS)
        with frozen(collector):
            traces += agent.ask("healthy")["traces"]
            assert until(lambda: agent.ask("account")["tried"] > SPANS)
            runs = agent.ask("healthy", traces=100)
            loop = agent.ask("loop")
            assert agent.ask("account")["delivered"] == SPANS
        traces += [*runs["traces"], loop["trace"]]
        assert agent.end() == delivered(103 * SPANS)
    assert runs["bodies"] == 100 * (SPANS - 1)
    assert stopped_in_time(loop)
    assert lengths(stack.jaeger, traces) == dict.fromkeys(traces, SPANS)


@both_protocols
def test_an_end_does_not_wait_for_a_collector_that_does_not_answer(stack, start, protocol):
    """The program ends while the Collector still holds its request, and the SDK has counted the spans as failed."""
    collector = start(Collector, stack.jaeger.grpc_address)
    with Agent(telemetry(collector, service="held", protocol=protocol, **IMPATIENT)) as agent, frozen(collector):
        loop = agent.ask("loop")
        assert agent.end() == failed(LOOP_SPANS)
    assert stopped_in_time(loop)


@both_protocols
def test_a_limit_holds_without_any_collector(protocol):
    """Where nobody listens the loop is stopped at the same call and the program ends well; the SDK says what it lost."""
    nobody = SimpleNamespace(endpoint=lambda _protocol: f"http://{addresses('nobody')['nobody']}")
    with Agent(telemetry(nobody, service="alone", protocol=protocol, **IMPATIENT)) as agent:
        healthy, loop = agent.ask("healthy"), agent.ask("loop")
        assert agent.end() == failed(SPANS + LOOP_SPANS)
        assert "Failed to export" in agent.said()
    assert healthy["bodies"] == SPANS - 1
    assert stopped_in_time(loop)
