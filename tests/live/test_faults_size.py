"""Batches that are larger than a receiver takes: who says so, what is lost, and what helps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from agents.agent import LOOP_SPANS, Agent, delivered, failed, stopped_in_time
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from services.collector import Collector
from services.places import until
from services.stack import telemetry

USUAL = 4 << 20  # what a gRPC server takes if nobody says otherwise
BULK, SIZE = 100, 400_000  # 40 MB in one batch
KEEP_ALL = {"COLLECTOR_KEEP_PERCENT": "100"}
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "60000"}  # what is there makes one batch
SAID = {"grpc": "received message larger than max", "http/protobuf": "Failed to export spans batch code: 400"}


class UsualReceiver(TraceServiceServicer):
    """A back end with gRPC's usual limit; keeps the size of each message and how many spans it had."""

    def __init__(self):
        self.messages = []

    def Export(self, request, context):
        count = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        self.messages.append((request.ByteSize(), count))
        return ExportTraceServiceResponse()


@pytest.fixture
def receiver():
    """The back end, and its ``host:port``."""
    receiver, server = UsualReceiver(), grpc.server(ThreadPoolExecutor(max_workers=2))
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield receiver
    server.stop(grace=None).wait()


@pytest.mark.parametrize("protocol", SAID)
def test_a_batch_that_is_too_large_is_lost_alone(stack, protocol):
    """The Collector refuses it, the SDK says so and goes on: the next batch arrives, and the guard is as exact as ever."""
    service = f"large-{protocol.split('/')[0]}"
    impatient = {"OTEL_EXPORTER_OTLP_TIMEOUT": "5"}
    with Agent(telemetry(stack.collector, service=service, protocol=protocol, **AT_ONCE, **impatient)) as agent:
        large = agent.ask("bulky", spans=BULK, size=SIZE)
        assert agent.ask("flush") == failed(BULK)
        loop = agent.ask("loop")
        account = agent.end()
        assert (account["delivered"], account["failed"]) == (LOOP_SPANS, BULK)
        assert SAID[protocol] in agent.said()
    assert stopped_in_time(loop)
    assert len(stack.jaeger.trace(loop["trace"], spans=LOOP_SPANS)) == LOOP_SPANS
    assert stack.jaeger.trace(large["trace"], wait_s=0) == []


@pytest.mark.parametrize("protocol", SAID)
def test_smaller_batches_of_the_same_spans_arrive(start, stack, protocol):
    """The same forty megabytes arrive whole once the SDK's batch size is set to a quarter of them."""
    collector = start(Collector, stack.jaeger.grpc_address, settings=KEEP_ALL)
    smaller = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(BULK // 4)}
    with Agent(telemetry(collector, service="smaller", protocol=protocol, **smaller)) as agent:
        large = agent.ask("bulky", spans=BULK, size=SIZE)
        assert agent.end() == delivered(BULK)
    assert len(stack.jaeger.trace(large["trace"], spans=BULK)) == BULK


@pytest.mark.parametrize("protocol", SAID)
def test_the_collector_splits_what_the_back_end_would_refuse(start, receiver, protocol):
    """One batch of 24 MB reaches a back end that takes 4 MiB at a time: every span, each once, no message larger."""
    collector = start(Collector, receiver.address, settings=KEEP_ALL)
    with Agent(telemetry(collector, service="split", protocol=protocol, **AT_ONCE)) as agent:
        agent.ask("bulky", spans=60, size=SIZE)
        assert agent.end() == delivered(60)
    assert until(lambda: sum(count for _size, count in receiver.messages), enough=lambda count: count >= 60) == 60
    assert max(size for size, _count in receiver.messages) < USUAL
