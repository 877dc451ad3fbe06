"""The rules, as promtool and a real Prometheus see them: through SDK, OTLP and Collector to an alert."""

from __future__ import annotations

import subprocess

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from services import binaries
from services.places import CONFIG, addresses, until
from services.prometheus import Prometheus
from services.stack import run_demo, telemetry

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.telemetry import Telemetry

RULES = CONFIG / "prometheus"
FLUSH_MS = 20_000


@pytest.fixture(scope="module")
def promtool(had):
    """Runs promtool; it must find nothing wrong."""
    with had():
        program = binaries.promtool().path

    def run(*argv):
        done = subprocess.run([program, *argv], cwd=RULES, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def agent(stack, request):
    """A service of the test's own whose measurements go to the Collector when it says so."""
    name = request.node.originalname.replace("_", "-")
    resource = Resource.create({"service.name": name, "service.instance.id": f"{name}-1"})
    exporter = OTLPMetricExporter(endpoint=f"{stack.collector.otlp_http}/v1/metrics")
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)], resource)
    yield Agent(name, provider, stack.prometheus)
    provider.shutdown()


class Agent:
    """Calls a tool, and knows what Prometheus says of it."""

    def __init__(self, name, provider, prometheus):
        self.name = name
        self.prometheus = prometheus
        self._provider = provider
        self._telemetry = Telemetry(meter_provider=provider)

    def session(self, *plugins, mode="enforce"):
        return Session(policy=Policy(plugins=list(plugins), mode=mode), telemetry=self._telemetry)

    def export(self):
        assert self._provider.force_flush(FLUSH_MS)

    def alerts(self, state):
        mine = [one for one in self.prometheus.alerts() if one["labels"].get("job") == self.name]
        return {one["labels"]["alertname"] for one in mine if one["state"] == state}


@guard_tool
def search(q):
    if q == "bad":
        raise ValueError(q)
    return "nothing found"


def call(q, times):
    """Asks so often, whatever comes of it; how often the guard said no."""
    refused = 0
    for _ in range(times):
        try:
            search(q)
        except CircuitOpen:
            refused += 1
        except ValueError:
            continue
    return refused


@pytest.mark.parametrize("argv", [("rules", "rules.yaml", "alerts.yaml"), ("config", "prometheus.yaml")])
def test_promtool_checks(promtool, argv):
    """Promtool finds nothing wrong with the rules and the configuration."""
    assert "SUCCESS" in promtool("check", *argv)


@pytest.mark.parametrize("file", sorted(path.name for path in (RULES / "tests").glob("*.yaml")))
def test_promtool_tests(promtool, file):
    """Promtool's tests of the rules pass: each alert fires when it should and only then."""
    assert "SUCCESS" in promtool("test", "rules", f"tests/{file}")


def test_every_rule_works(stack):
    """Prometheus has loaded every rule, and none of them fails."""
    health = until(stack.prometheus.rule_health, enough=lambda rules: set(rules.values()) == {"ok"})
    assert len(health) >= 15
    assert set(health.values()) == {"ok"}


def test_the_first_trip_of_a_process_that_is_gone(stack):
    """The demo exports once, so its trip counters begin at 1; both of its trips fire all the same."""
    service = "first-trip"
    run_demo(telemetry(stack.collector, service=service), "--limit", "3", "--period", "2", "--ceiling", "6")

    def rules():
        fired = [one["labels"] for one in stack.prometheus.alerts() if one["labels"]["alertname"] == "ToolguardTripped"]
        return {labels["toolguard_rule"] for labels in fired if labels["job"] == service}

    assert until(rules, enough=lambda found: len(found) == 2) == {"repeat_guard", "call_ceiling"}
    assert stack.prometheus.query(f'increase(toolguard_circuit_trips_total{{job="{service}"}}[5m]) > 0') == []


def test_the_first_trip_of_a_process_that_was_there_before(agent):
    """A counter that Prometheus saw at 0 fires at its first trip, and nothing fires before."""
    with agent.session({"plugin": "repeat_guard", "limit": 3}):
        search("a")
        agent.export()
        trips = f'toolguard_circuit_trips_total{{job="{agent.name}",toolguard_mode="enforce"}}'
        seen = agent.prometheus.series(trips)
        assert {series["metric"]["toolguard_rule"]: series["value"][1] for series in seen}["repeat_guard"] == "0"
        recorded = f'job_instance_rule_mode:toolguard_circuit_trips:increase5m{{job="{agent.name}"}}'
        assert {series["value"][1] for series in agent.prometheus.series(recorded)} == {"0"}
        assert agent.alerts("firing") == set()
        call("a", 3)
        agent.export()
    assert until(lambda: agent.alerts("firing"), enough=lambda found: "ToolguardTripped" in found) == {
        "ToolguardTripped"
    }


def test_a_guard_that_only_watches(agent):
    """In observe mode nothing is stopped, and what would have been is an alert of its own."""
    with agent.session({"plugin": "repeat_guard", "limit": 3}, mode="observe"):
        assert call("a", 4) == 0
    agent.export()
    assert until(lambda: agent.alerts("firing")) == {"ToolguardWouldTrip"}


def test_a_long_run(agent):
    """A run of more than 200 calls fires when it ends."""
    with agent.session({"plugin": "tool_stats"}):
        for n in range(201):
            search(str(n))
    agent.export()
    assert until(lambda: agent.alerts("firing")) == {"ToolguardRunCallsHigh"}


def test_the_same_call_over_and_over(agent):
    """A run that ends by itself after one call made eight times fires when it ends."""
    with agent.session({"plugin": "tool_stats"}):
        call("a", 8)
    agent.export()
    assert until(lambda: agent.alerts("firing")) == {"ToolguardDistinctRatioLow"}


def test_refusals_and_failures(agent):
    """A tool that fails, and calls that are asked for though they are refused, are alerts that wait for their time."""
    with agent.session({"plugin": "signature_failures", "limit": 6}):
        assert call("bad", 12) == 6
    agent.export()
    expected = {"ToolguardRefusedRateHigh", "ToolguardToolFailing"}
    assert until(lambda: agent.alerts("pending"), enough=lambda found: found >= expected) == expected


def test_a_collector_that_is_away(start):
    """A Collector that does not answer is an alert that waits for its time."""
    prometheus = start(Prometheus, {"otel-collector": addresses("nobody")["nobody"]})

    def down():
        return [one for one in prometheus.alerts() if one["labels"]["alertname"] == "ToolguardCollectorDown"]

    (alert,) = until(down)
    assert alert["state"] == "pending"
