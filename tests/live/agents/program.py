"""A guarded agent: each line of its input is a step as JSON, and each line of its output says what came of one.

The standard variables alone configure where its telemetry goes and how it is batched.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from importlib import import_module

from opentelemetry import metrics, trace
from opentelemetry._logs import set_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.telemetry import recommended_views

LIMIT = 8
PATIENCE = 5  # times its limit that a looping agent asks
POLICY = Policy(plugins=[{"plugin": "repeat_guard", "limit": LIMIT}, {"plugin": "tool_stats"}])


def exporter(signal):
    """The exporter of a signal, as the protocol's variable has it."""
    module, kind = {
        "traces": ("trace_exporter", "OTLPSpanExporter"),
        "metrics": ("metric_exporter", "OTLPMetricExporter"),
        "logs": ("_log_exporter", "OTLPLogExporter"),
    }[signal]
    wire = "grpc" if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc" else "http"
    return getattr(import_module(f"opentelemetry.exporter.otlp.proto.{wire}.{module}"), kind)()


class Ended(SpanProcessor):
    """Counts the spans that ended."""

    def __init__(self):
        self.spans = 0

    def on_end(self, span):
        self.spans += 1


class Watched(SpanExporter):
    """The real exporter; counts the spans that it was given, and those that it said to have delivered or not."""

    def __init__(self):
        self._exporter = exporter("traces")
        self.tried = self.delivered = self.failed = 0

    def export(self, spans):
        self.tried += len(spans)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
        else:
            self.failed += len(spans)
        return result

    def shutdown(self):
        self._exporter.shutdown()


class Agent:
    """The steps that it can be asked for."""

    def __init__(self):
        self.ended, self.watched = Ended(), Watched()
        self.spans = TracerProvider()
        self.spans.add_span_processor(self.ended)
        self.spans.add_span_processor(BatchSpanProcessor(self.watched))
        self.metrics = MeterProvider([PeriodicExportingMetricReader(exporter("metrics"))], views=recommended_views())
        self.logs = LoggerProvider()
        self.logs.add_log_record_processor(BatchLogRecordProcessor(exporter("logs")))
        trace.set_tracer_provider(self.spans)
        metrics.set_meter_provider(self.metrics)
        set_logger_provider(self.logs)
        self.tracer = trace.get_tracer("agent")
        self.bodies = 0
        self.search = guard_tool(name="search")(self._search)
        self.fresh = itertools.count()

    def _search(self, question: str) -> str:
        self.bodies += 1
        return f"nothing about {question}"

    def healthy(self, traces=1, calls=9):
        """Runs that nothing is wrong with, each a trace of one span more than it has calls."""
        before = self.bodies
        ids = [self._run(f"question {next(self.fresh)}" for _ in range(calls))[0] for _ in range(traces)]
        return {"traces": ids, "bodies": self.bodies - before}

    def loop(self):
        """A run that asks the same until it is told to stop, and would go on for long."""
        before = self.bodies
        trace_id, stop = self._run("the same" for _ in range(PATIENCE * LIMIT))
        told = stop and {"rule": stop.trip.rule, "limit": stop.trip.limit}
        return {"trace": trace_id, "bodies": self.bodies - before, "stopped": told}

    def _run(self, questions):
        with self.tracer.start_as_current_span("invoke_agent agent") as root, Session(policy=POLICY):
            stop = self._ask(questions)
        return format(root.get_span_context().trace_id, "032x"), stop

    def _ask(self, questions):
        try:
            for question in questions:
                self.search(question)
        except CircuitOpen as stop:
            return stop
        return None

    def bulky(self, spans, size):
        """A trace of large spans, as of an instrumentation that captures documents."""
        with self.tracer.start_as_current_span("invoke_agent agent") as root:
            for _ in range(spans - 1):
                self.tracer.start_span("chat", attributes={"document": "x" * size}).end()
        return {"trace": format(root.get_span_context().trace_id, "032x")}

    def flush(self):
        """Sends what is waiting."""
        self.spans.force_flush()
        return self.account()

    def end(self):
        """Shuts everything down as a program does at its end."""
        for provider in (self.spans, self.metrics, self.logs):
            provider.shutdown()
        return self.account()

    def account(self):
        """What became of the spans; those that ended and were never tried are waiting or were dropped."""
        sent = self.watched
        return {"ended": self.ended.spans, "tried": sent.tried, "delivered": sent.delivered, "failed": sent.failed}


def main():
    logging.basicConfig(level=logging.WARNING)  # to standard error
    agent = Agent()
    for line in sys.stdin:
        step = json.loads(line)
        print(json.dumps(getattr(agent, step.pop("step"))(**step)), flush=True)


if __name__ == "__main__":
    main()
