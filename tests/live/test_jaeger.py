"""What a person sees in Jaeger after the demo, asked through Jaeger's own API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("otel-toolguard"))
LIMIT, PERIOD, CEILING = 3, 2, 6


@pytest.fixture(scope="module", params=["http/protobuf", "grpc"])
def demo(request, jaeger):
    """The demo's own account of a run whose spans went to Jaeger, and the Jaeger."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
    env |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_grpc if request.param == "grpc" else jaeger.otlp_http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": request.param,
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SERVICE_NAME": f"demo-{request.param.split('/')[0]}",
    }
    argv = [COMMAND, "demo", "--json", "--limit", str(LIMIT), "--period", str(PERIOD), "--ceiling", str(CEILING)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    runs = {run["name"]: run for run in json.loads(done.stdout)["runs"]}
    print("traces", {name: run["trace_id"] for name, run in runs.items()})
    return runs, jaeger, env["OTEL_SERVICE_NAME"]


def said(span):
    return {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]}


def test_each_call_of_the_loop_is_a_span_below_the_agent(demo):
    """Jaeger shows N·P tool spans under the agent's span, with signature and class, and the last one tripped."""
    runs, jaeger, _service = demo
    spans = jaeger.trace(runs["loop"]["trace_id"], spans=LIMIT * PERIOD + 1)
    (root,) = [span for span in spans if not span.get("parentSpanId")]
    tools = sorted((span for span in spans if span is not root), key=lambda span: int(span["endTimeUnixNano"]))
    assert len(tools) == LIMIT * PERIOD
    assert {span["parentSpanId"] for span in tools} == {root["spanId"]}
    assert all(said(span)["toolguard.signature"].startswith(said(span)["gen_ai.tool.name"] + ":") for span in tools)
    assert [bool(said(span).get("toolguard.tripped")) for span in tools] == [False] * (len(tools) - 1) + [True]


def test_refused_calls_point_to_the_call_that_opened_the_circuit(demo):
    """Jaeger keeps the link from each refused span to the tripping one."""
    runs, jaeger, _service = demo
    spans = jaeger.trace(runs["ceiling"]["trace_id"], spans=CEILING + 3)
    refused = [span for span in spans if said(span).get("toolguard.outcome") == "refused"]
    (tripping,) = [span for span in refused if said(span).get("toolguard.tripped")]
    others = [span for span in refused if span is not tripping]
    assert others
    assert {link["spanId"] for span in others for link in span["links"]} == {tripping["spanId"]}


def test_a_trip_is_found_by_its_attribute(demo):
    """Searching for the tripped attribute finds the traces of the two stopped runs and not the healthy one."""
    runs, jaeger, service = demo
    found = jaeger.search(service, {"toolguard.tripped": "true"})
    assert found == {runs["loop"]["trace_id"], runs["ceiling"]["trace_id"]}
