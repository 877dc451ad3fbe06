"""What Prometheus has of us: the series that the Collector makes of our measurements, and of our spans."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.telemetry import Telemetry, attributes

CONFIG = Path(__file__).parents[2] / "collector-config"
OF_SOURCE = {"job", "instance"}  # service.name and service.instance.id
NAMES = {value for value in vars(attributes).values() if isinstance(value, str)}
SUFFIXES = {"1": "", "s": "_seconds", "{call}": "", "{trip}": ""}  # a unit in braces leaves no trace


@guard_tool
def search(q: str) -> str:
    """Fails if it is asked to."""
    if q == "bad":
        raise ValueError(q)
    return q


@cache
def measured() -> dict[str, set[str]]:
    """Our series and their labels, as the SDK tells of a run that works, fails, is stopped and is refused a call."""
    reader = InMemoryMetricReader()
    telemetry = Telemetry(meter_provider=MeterProvider([reader]))
    with Session(policy=Policy(plugins=[{"plugin": "call_ceiling", "run": 2}]), telemetry=telemetry):
        for q in ("good", "bad", "one too many"):
            try:
                search(q)
            except (CircuitOpen, ValueError):
                continue
    (resource,) = reader.get_metrics_data().resource_metrics
    found: dict[str, set[str]] = {}
    for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
        name = spelled(metric.name) + SUFFIXES[metric.unit]
        labels = {spelled(key) for point in metric.data.data_points for key in point.attributes} | OF_SOURCE
        if hasattr(metric.data, "is_monotonic"):
            found[f"{name}_total"] = labels
        else:
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
    return found


@cache
def of_spans() -> dict[str, set[str]]:
    """What collector.yaml has the Collector count of spans."""
    config = yaml.safe_load((CONFIG / "collector.yaml").read_text(encoding="utf-8"))
    dimensions = {dimension["name"] for dimension in config["connectors"]["span_metrics"]["dimensions"]}
    assert dimensions <= NAMES
    labels = {spelled(name) for name in dimensions} | {"job", "span_name", "span_kind", "status_code"}
    return {"traces_span_metrics_calls_total": labels}


def of_collector() -> dict[str, set[str]]:
    """What the Collector counts of itself, by the names that it has without units and suffixes."""
    labels = {"job", "instance", "exporter"}
    return {f"otelcol_exporter_{what}_failed_spans": labels for what in ("enqueue", "send")}


@cache
def rules(file: str) -> list[dict]:
    """The rules of rules.yaml or alerts.yaml."""
    groups = yaml.safe_load((CONFIG / "prometheus" / file).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def spelled(name: str) -> str:
    """A name of ours as Prometheus has it."""
    return name.replace(".", "_")
