"""Makes the pictures of the documents from a real run: agents, Collector, Jaeger, and what Jaeger answers.

``make pictures``; the Collector and Jaeger are those of the live tests, whose folder is on the path.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from services.collector import Collector
from services.jaeger import Jaeger
from services.stack import run_demo, telemetry

from pictures.stuck import RUNS, run
from pictures.waterfall import waterfall

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

HERE = Path(__file__).resolve().parent
KEEP_ALL = {"COLLECTOR_KEEP_PERCENT": "100"}  # healthy traces too, which would be sampled
DEMO = {  # spans of each: the agent's and those of all calls it asked for
    "healthy": ("The demo's healthy agent", 7),
    "loop": ("The demo's looping agent: two calls in turn, stopped in lap 8", 17),
    "ceiling": ("The demo's over-using agent: call 26 is refused, and the run ends", 29),
}
STUCK = {
    "loop": "One call over and over: stopped by stagnation after the 6th",
    "stagnation": "Four pages again and again, in no fixed order: stopped by stagnation",
    "storm": "One call that cannot work: refused after 6 failures, the run ended after 2 refusals",
    "observe": "The loop with mode=observe: marked where it would have been stopped",
}


class Counted(SpanProcessor):
    """Counts the spans of each trace, so that all of them are waited for."""

    def __init__(self) -> None:
        self.spans: dict[str, int] = {}

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        trace_id = format(span.context.trace_id, "032x")
        self.spans[trace_id] = self.spans.get(trace_id, 0) + 1


def main() -> None:
    """Writes each picture beside this file."""
    with Jaeger() as jaeger, Collector(jaeger.grpc_address, settings=KEEP_ALL) as collector:
        demo = run_demo(telemetry(collector, service="pictures-demo"))
        wanted = {f"demo-{name}": (title, demo[name]["trace_id"], spans) for name, (title, spans) in DEMO.items()}
        wanted |= stuck_agents(collector)
        for name, (title, trace_id, count) in wanted.items():
            spans = jaeger.trace(trace_id, spans=count)
            if len(spans) != count:
                sys.exit(f"{name}: Jaeger has {len(spans)} spans of {count}")
            (HERE / f"{name}.svg").write_text(waterfall(title, spans), encoding="utf-8")


def stuck_agents(collector: Collector) -> dict[str, tuple[str, str, int]]:
    """Runs them; title, trace and number of spans of each."""
    counted = Counted()
    provider = TracerProvider(resource=Resource.create({"service.name": "pictures"}))
    provider.add_span_processor(counted)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector.otlp_http}/v1/traces")))
    traces = {name: run(name, provider)[0] for name in RUNS}
    provider.shutdown()
    return {f"stuck-{name}": (STUCK[name], trace_id, counted.spans[trace_id]) for name, trace_id in traces.items()}


if __name__ == "__main__":
    main()
