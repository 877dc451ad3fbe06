"""Starts all services, runs the demo through them, says where everything is, and keeps them up.

``python tests/live/services/up.py [--minutes N]``; Ctrl-C, SIGTERM, or the time being over ends them.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from services.binaries import CannotGetError
from services.stack import PROTOCOLS, Stack, run_demo, telemetry

MINUTES = 60.0


def main() -> int:
    """Runs until it is told to end; 1 if a program cannot be had."""
    asked = argparse.ArgumentParser(description="Jaeger, Collector and Prometheus on loopback, and a demo through them")
    asked.add_argument("--minutes", type=float, default=MINUTES, help=f"how long to stay up (default {MINUTES:.0f})")
    minutes = asked.parse_args().minutes
    over = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: over.set())
    try:
        stack = Stack()
    except CannotGetError as error:
        print(error, file=sys.stderr)
        return 1
    with stack:
        for line in endpoints(stack):
            print(line)
        for protocol in PROTOCOLS:
            service = f"demo-{protocol.split('/')[0]}"
            print(f"demo over {protocol} as {service}")
            for name, run in run_demo(telemetry(stack.collector, service=service, protocol=protocol)).items():
                kept = "" if name != "healthy" else "  (of healthy traces one in ten is kept)"
                print(f"  {name}: {stack.jaeger.ui}/api/v3/traces/{run['trace_id']}{kept}")
        print(f"up for {minutes:g} minutes; Ctrl-C ends it", flush=True)
        over.wait(minutes * 60)
    print("ended")
    return 0


def endpoints(stack: Stack) -> list[str]:
    """A line for each address, and the environment that leads a program here."""
    collector, jaeger, prometheus = stack.collector, stack.jaeger, stack.prometheus
    return [
        f"jaeger {jaeger.ui} (pid {jaeger.pid}; OTLP {jaeger.otlp_grpc} grpc, {jaeger.otlp_http} http)",
        f"collector http://{collector.prometheus}/metrics (pid {collector.pid}; its own http://{collector.own}/metrics)",
        f"collector's logs {collector.folder / 'logs.jsonl'}",
        f"prometheus {prometheus.url} (pid {prometheus.pid})",
        f"export OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_ENDPOINT={collector.otlp_grpc}",
        f"export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf OTEL_EXPORTER_OTLP_ENDPOINT={collector.otlp_http}",
    ]


if __name__ == "__main__":
    sys.exit(main())
