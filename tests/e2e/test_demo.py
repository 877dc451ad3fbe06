"""The demo as its users run it: a process of its own, its telemetry taken by a real OTLP receiver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from otlp_receiver import GrpcReceiver, HttpReceiver, attributes

COMMAND = str(Path(sys.executable).with_name("otel-toolguard"))
LIMIT, PERIOD, CEILING = 3, 3, 9
ERROR = 2  # STATUS_CODE_ERROR in OTLP


def run_demo(receiver=None, *options):
    env = {name: text for name, text in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
    if receiver is not None:
        env |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol,
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
        }
    argv = [COMMAND, "demo", "--limit", str(LIMIT), "--period", str(PERIOD), "--ceiling", str(CEILING), *options]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module", params=[HttpReceiver, GrpcReceiver], ids=["http", "grpc"])
def exported(request):
    """One run of the demo with a receiver: (what it printed, what arrived)."""
    with request.param() as receiver:
        done = run_demo(receiver, "--json")
        assert done.returncode == 0, done.stderr
        yield {run["name"]: run for run in json.loads(done.stdout)["runs"]}, receiver


def tool_spans(receiver, run):
    mine = [span for span in receiver.spans if span.trace_id.hex() == run["trace_id"]]
    return sorted((span for span in mine if span.name.startswith("execute_tool ")), key=lambda s: s.end_time_unix_nano)


def test_a_healthy_run_is_left_alone(exported):
    """The healthy agent ends by itself: no trip, every call answered, every call a span."""
    runs, receiver = exported
    run = runs["healthy"]
    assert run["trip"] is None
    assert run["unanswered_ids"] == []
    spans = tool_spans(receiver, run)
    assert len(spans) == run["bodies"]
    assert {attributes(span)["toolguard.outcome"] for span in spans} == {"ok"}


def test_a_loop_is_stopped_after_its_laps(exported):
    """N laps of P calls run, each call one span, the last one tripped, and no model call follows."""
    runs, receiver = exported
    run = runs["loop"]
    spans = tool_spans(receiver, run)
    assert (run["bodies"], len(spans)) == (LIMIT * PERIOD, LIMIT * PERIOD)
    assert (run["model_calls_after_stop"], run["unanswered_ids"]) == (0, [])
    assert (run["trip"]["rule"], run["trip"]["period"], run["trip"]["limit"]) == ("repeat_guard", PERIOD, LIMIT)
    tripped = [attributes(span).get("toolguard.tripped", False) for span in spans]
    assert tripped == [False] * (len(spans) - 1) + [True]
    assert len(run["trip"]["members"]) == PERIOD


def test_a_ceiling_lets_exactly_its_calls_run(exported):
    """C bodies run; the first refused call is the tripping span, the others link to it, and each id is answered."""
    runs, receiver = exported
    run = runs["ceiling"]
    assert (run["bodies"], run["model_calls_after_stop"], run["unanswered_ids"]) == (CEILING, 0, [])
    by_outcome = Counter(attributes(span)["toolguard.outcome"] for span in tool_spans(receiver, run))
    assert by_outcome["ok"] == CEILING
    refused = [span for span in tool_spans(receiver, run) if attributes(span)["toolguard.outcome"] == "refused"]
    (tripping,) = [span for span in refused if attributes(span).get("toolguard.tripped")]
    assert not tripping.links
    assert len(refused) > 1
    for span in refused:
        assert span.status.code == ERROR
        assert attributes(span)["error.type"] == "otel_toolguard.CircuitOpen"
        if span is not tripping:
            assert [link.span_id for link in span.links] == [tripping.span_id]


def test_trips_are_counted_and_told_as_events(exported):
    """Beside the spans, each trip is a metric that began at zero and a log event in the tripping span's context."""
    _runs, receiver = exported
    assert {"gen_ai.execute_tool.duration", "toolguard.calls.refused", "toolguard.circuit.trips"} <= set(
        receiver.metrics
    )
    trips = {}
    for point in receiver.metrics["toolguard.circuit.trips"].sum.data_points:
        trips[attributes(point)["toolguard.rule"], attributes(point)["toolguard.mode"]] = point.as_int
    assert (trips["repeat_guard", "enforce"], trips["call_ceiling", "enforce"]) == (1, 1)
    assert trips["stagnation", "enforce"] == trips["repeat_guard", "observe"] == 0
    tripping = {span.span_id for span in receiver.spans if attributes(span).get("toolguard.tripped")}
    assert {record.span_id for record in receiver.logs} == tripping
    assert {attributes(record)["toolguard.rule"] for record in receiver.logs} == {"repeat_guard", "call_ceiling"}


def test_the_printed_trees_are_the_exported_spans():
    """The text shows the same spans that an OTLP receiver gets, the rule, and the exception that was caught."""
    with HttpReceiver() as receiver:
        done = run_demo(receiver)
    assert done.returncode == 0, done.stderr
    printed = Counter(re.findall(r"execute_tool \w+", done.stdout))
    assert printed == Counter(span.name for span in receiver.spans if span.name.startswith("execute_tool "))
    for word in ("repeat_guard", "call_ceiling", "the caller caught CircuitOpen", "tool_stats", "longest_fail_streak"):
        assert word in done.stdout


def test_json_stands_alone_on_standard_output_without_a_receiver():
    """With ``--json`` standard output is one JSON object, whether or not anybody takes the traces."""
    done = run_demo(None, "--json")
    assert done.returncode == 0, done.stderr
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["healthy", "loop", "ceiling"]


def test_a_receiver_that_is_gone_is_said_and_does_no_harm():
    """An endpoint where nobody listens delays the demo by seconds at most and changes no result."""
    with HttpReceiver() as receiver:
        pass
    done = run_demo(receiver, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["runs"][1]["bodies"] == LIMIT * PERIOD
    assert "OTLP" in done.stderr


@pytest.mark.parametrize("options", [("--limit", "1"), ("--ceiling", "0"), ("--period", "0")])
def test_limits_that_cannot_be_are_usage_errors(options):
    """A limit below its bound ends with exit code 2 and names the option's valid values."""
    done = subprocess.run([COMMAND, "demo", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip()


def test_telemetry_off_sends_nothing_and_stops_all_the_same():
    """With TOOLGUARD_TELEMETRY=off the demo's runs are stopped as ever and no span leaves the process."""
    with HttpReceiver() as receiver:
        env = {name: text for name, text in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "TOOLGUARD_TELEMETRY": "off"}
        done = subprocess.run([COMMAND, "demo", "--limit", "3", "--json"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][1]["bodies"] == 6
    assert receiver.spans == []
