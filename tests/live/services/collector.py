"""A real Collector with the files of collector-config/, what it wrote and what it counts."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from services import binaries
from services.otlp import logs_of
from services.places import CONFIG, WAIT_S, addresses, text_of, until
from services.process import Service

TEST_SETTINGS = {
    "COLLECTOR_DECISION_WAIT": "3s",
    "COLLECTOR_SPAN_METRICS_INTERVAL": "1s",
    "COLLECTOR_SELF_HOST": "127.0.0.1",
}
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*?)\})? (?P<value>\S+)(?: |$)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """A number on a metrics page."""

    name: str
    labels: dict[str, str]
    value: float


class Collector(Service):
    """A Collector that sends traces to one OTLP address.

    Attributes:
        otlp_grpc: Endpoint for OTLP over gRPC, as ``http://host:port``; ``otlp_http`` for HTTP.
        prometheus: ``host:port`` of the metrics of the agents, for a scrape.
        own: ``host:port`` of the Collector's metrics of itself.
    """

    def __init__(self, back_end: str, *files: str, settings: dict[str, str] | None = None) -> None:
        """``back_end`` is ``host:port``; ``files`` names the configurations, ``settings`` sets their variables."""
        at = addresses("OTLP_GRPC", "OTLP_HTTP", "HEALTH", "PROMETHEUS", "SELF")
        env = {f"COLLECTOR_{name}": address for name, address in at.items() if name != "SELF"}
        env |= {"COLLECTOR_SELF_PORT": at["SELF"].rpartition(":")[2], "COLLECTOR_JAEGER": back_end}
        argv = [part for file in files or ("collector.yaml",) for part in ("--config", str(CONFIG / file))]
        health = f"http://{at['HEALTH']}/"
        super().__init__(binaries.collector(), argv, env=env | TEST_SETTINGS | (settings or {}), health=health)
        self.env.setdefault("COLLECTOR_FOLDER", str(self.folder))
        self.grpc_address = at["OTLP_GRPC"]
        self.otlp_grpc = f"http://{at['OTLP_GRPC']}"
        self.otlp_http = f"http://{at['OTLP_HTTP']}"
        self.prometheus = at["PROMETHEUS"]
        self.own = at["SELF"]

    def endpoint(self, protocol: str) -> str:
        """For ``OTEL_EXPORTER_OTLP_ENDPOINT``; ``protocol`` as in ``OTEL_EXPORTER_OTLP_PROTOCOL``."""
        return self.otlp_grpc if protocol == "grpc" else self.otlp_http

    def logs(self, *, service: str, at_least: int = 1, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """The log records of a service, once there are as many or time is over; see ``otlp.logs_of``."""

        def look() -> list[dict[str, Any]]:
            file = self.folder / "logs.jsonl"
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            records = [record for line in whole for record in logs_of(line["resourceLogs"])]
            return [record for record in records if record["resource"].get("service.name") == service]

        return until(look, enough=lambda found: len(found) >= at_least, wait_s=wait_s)

    def metrics(self, name: str, **labels: str) -> list[Sample]:
        """The agents' metrics of this name, as Prometheus spells it, that have these labels, as of now."""
        return _samples(self.prometheus, name, labels)

    def own_metrics(self, name: str, **labels: str) -> list[Sample]:
        """The same of the Collector itself, such as ``otelcol_exporter_queue_size``."""
        return _samples(self.own, name, labels)

    def total(self, name: str, *, at_least: float, wait_s: float = WAIT_S, **labels: str) -> float:
        """The sum of an agents' metric over its series, once it is as high or time is over."""

        def look() -> float:
            return sum(sample.value for sample in self.metrics(name, **labels))

        return until(look, enough=lambda total: total >= at_least, wait_s=wait_s)


def _samples(address: str, name: str, labels: dict[str, str]) -> list[Sample]:
    page = text_of(f"http://{address}/metrics") or ""
    lines = (_SAMPLE.match(line) for line in page.splitlines() if line.startswith(name))
    all_of_it = [Sample(m["name"], dict(_LABEL.findall(m["labels"] or "")), float(m["value"])) for m in lines if m]
    return [sample for sample in all_of_it if sample.name == name and labels.items() <= sample.labels.items()]
