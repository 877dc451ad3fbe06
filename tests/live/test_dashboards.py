"""What the dashboards show after the demo, asked as Grafana would ask."""

from __future__ import annotations

import json
import math
import re
import time

import pytest
from services.places import CONFIG, until
from services.prometheus import Prometheus
from services.stack import run_demo, telemetry

SERVICE = "dashboards"
BOARDS = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((CONFIG / "grafana" / "dashboards").glob("*.json"))
}
CHOSEN = {
    "job": SERVICE,
    "service": SERVICE,
    "instance": ".*",
    "tool": ".*",
    "session": "demo-loop",
    "__range": "10m",
}
PANELS = [
    pytest.param(panel["title"], target["expr"], id=f"{board}: {panel['title']}, {target['refId']}")
    for board, whole in BOARDS.items()
    for panel in whole["panels"]
    for target in panel["targets"]
    if "expr" in target
]
# No call of the demo fails, and its guards enforce: what these show is 0.
NOTHING = {"Failed", "Failed share by tool", "Would-trips", "Would-trips by rule"}


@pytest.fixture(scope="module")
def asked(stack, had):
    """A Prometheus that keeps exemplars, as in compose.yaml, and has seen the demo; the demo's runs; the Jaeger."""
    with had():
        prometheus = Prometheus({"otel-collector": stack.collector.prometheus})
    prometheus._argv.append("--enable-feature=exemplar-storage")
    with prometheus:
        runs = run_demo(telemetry(stack.collector, service=SERVICE))
        prometheus.series(f'ALERTS{{alertname="ToolguardTripped",job="{SERVICE}"}}')
        yield prometheus, runs, stack.jaeger


def filled(text):
    """The text with the dashboard's variables replaced by what was chosen."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: CHOSEN[found[1]], text)


@pytest.mark.parametrize(("title", "expression"), PANELS)
def test_a_panel_has_data(asked, title, expression):
    """Each panel shows something after the demo, and 0 only where nothing of the kind happened."""
    prometheus, _, _ = asked

    def numbers():
        found = [float(series["value"][1]) for series in prometheus.query(filled(expression))]
        return [number for number in found if not math.isnan(number)]

    shown = until(numbers, enough=lambda found: found and (max(found) > 0 or title in NOTHING))
    assert shown
    assert (max(shown) == 0) is (title in NOTHING)


def test_the_numbers_are_those_of_the_demo(asked):
    """Calls, refusals and trips of the overview are the demo's own."""
    prometheus, runs, _ = asked
    shown = {
        panel["title"]: sum(
            float(series["value"][1]) for series in prometheus.query(filled(panel["targets"][0]["expr"]))
        )
        for panel in BOARDS["overview"]["panels"]
        if panel["type"] == "stat"
    }
    assert shown["Calls that ran"] == sum(run["bodies"] for run in runs.values())
    assert shown["Trips"] == 2
    assert shown["Refused"] >= 1
    assert (shown["Failed"], shown["Would-trips"]) == (0, 0)


def test_the_traces_of_a_session_are_found(asked):
    """The searches of the session's dashboard find its trace in Jaeger, and the one with a trip in it."""
    _, runs, jaeger = asked
    searches = [t["tags"] for panel in BOARDS["session"]["panels"] for t in panel["targets"] if "tags" in t]
    assert len(searches) == 2
    for search in searches:
        tags = {key: text.strip('"') for key, text in re.findall(r'([\w.]+)=("[^"]*"|\S+)', filled(search))}
        found = until(lambda tags=tags: jaeger.search(SERVICE, tags))
        assert found == {runs["loop"]["trace_id"]}


def test_a_duration_leads_to_its_trace(asked):
    """The panel of durations has exemplars, by the panel's own expression, and they name traces of the demo."""
    prometheus, runs, _ = asked
    (expression,) = [t["expr"] for p in BOARDS["overview"]["panels"] for t in p["targets"] if t.get("exemplar")]

    def traces():
        now = time.time()
        answer = prometheus._api("query_exemplars", query=filled(expression), start=str(now - 600), end=str(now))
        return {one["labels"]["trace_id"] for series in answer or [] for one in series["exemplars"]}

    found = until(traces)
    assert found
    assert found <= {run["trace_id"] for run in runs.values()}
