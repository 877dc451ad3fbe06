"""All of it wired: a program's OTLP to the Collector, its traces to Jaeger, its metrics to Prometheus."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.collector import Collector
from services.jaeger import Jaeger
from services.places import bare_environment
from services.prometheus import Prometheus

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

COMMAND = str(Path(sys.executable).with_name("otel-toolguard"))
PROTOCOLS = ("http/protobuf", "grpc")
RUN_S = 180


def telemetry(to: Jaeger | Collector, *, service: str, protocol: str = "http/protobuf", **more: str) -> dict[str, str]:
    """The whole environment for a program that tells ``to`` everything as this service; ``more`` is added to it."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": to.endpoint(protocol),
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_SERVICE_NAME": service,
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={service}-1",
    }
    return bare_environment() | env | more


def run_demo(env: dict[str, str], *options: str) -> dict[str, dict[str, Any]]:
    """What ``otel-toolguard demo --json`` tells of its runs (``healthy``, ``loop``, ``ceiling``) by their names."""
    done = run([COMMAND, "demo", "--json", *options], env)
    runs = {each["name"]: each for each in json.loads(done)["runs"]}
    print("traces", {name: each["trace_id"] for name, each in runs.items()})
    return runs


def run(argv: list[str], env: dict[str, str]) -> str:
    """A program's output; it must end well."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Stack:
    """Jaeger, the Collector that sends to it, and the Prometheus that scrapes the Collector; a context manager.

    Attributes:
        jaeger: Asked for traces.
        collector: Told everything; asked for logs and metrics.
        prometheus: Asked for metrics and alerts.
    """

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        """``settings`` sets variables of collector.yaml."""
        self.jaeger = Jaeger()
        self.collector = Collector(self.jaeger.grpc_address, settings=settings)
        self.prometheus = Prometheus(
            {"otel-collector": self.collector.prometheus, "otel-collector-self": self.collector.own}
        )
        self._started = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for service in (self.jaeger, self.collector, self.prometheus):
                started.enter_context(service)
            self._started = started.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._started.close()
