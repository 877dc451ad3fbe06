"""The rules of Prometheus fit what is emitted, and each alert says what to do."""

import re
from pathlib import Path

import pytest
import yaml
from emitted_series import CONFIG, measured, of_collector, of_spans, rules
from promql_names import names

ROOT = Path(__file__).parents[2]
PROMETHEUS = CONFIG / "prometheus"
RECORDED = {rule["record"]: rule["expr"] for rule in rules("rules.yaml")}
INCREASES = [name for name in RECORDED if name.endswith(":increase5m")]
LEVELS = {
    "class": "toolguard_tool_class",
    "error": "error_type",
    "mode": "toolguard_mode",
    "outcome": "toolguard_outcome",
    "rule": "toolguard_rule",
    "tool": "gen_ai_tool_name",
}
ALERTS = {rule["alert"]: rule for rule in rules("alerts.yaml")}
TESTED = [
    case
    for file in sorted((PROMETHEUS / "tests").glob("*.yaml"))
    for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
    for case in test.get("alert_rule_test", [])
]


def known():
    """Every series that a rule may use, and its labels."""
    recorded = {name: names(expression)[1] for name, expression in RECORDED.items()}
    return measured() | of_spans() | of_collector() | recorded | {"up": {"job", "instance"}}


@pytest.mark.parametrize(
    ("expression", "series", "labels"),
    [
        ("x", {"x"}, set()),
        ('sum by (a, b) (rate(x_total{c=~"y,d=",e!="z"}[5m] offset 1h)) > 0.5', {"x_total"}, {"a", "b", "c", "e"}),
        ("l:x:op * on (a) group_left (b) y unless z or 2e3 * vector(1)", {"l:x:op", "y", "z"}, {"a", "b"}),
        ("max_over_time(count_over_time(x[30m:1m])[1h:1m]) >= bool 1", {"x"}, set()),
        ('x{a="$b"}[$__range] offset $__range or y', {"x", "y"}, {"a"}),
    ],
)
def test_names_of_an_expression(expression, series, labels):
    """The series and labels of an expression are found, and nothing else in it."""
    assert names(expression) == (series, labels)


@pytest.mark.parametrize("name", [*RECORDED, *ALERTS])
def test_an_expression_speaks_of_what_is_emitted(name):
    """Each rule uses series that we, the Collector or a rule make, and labels that they have."""
    series, labels = names(RECORDED.get(name) or ALERTS[name]["expr"])
    assert series <= set(known())
    assert labels <= set().union(*(known()[one] for one in series))


@pytest.mark.parametrize("name", INCREASES)
def test_an_increase_asks_its_three_questions(name):
    """A recorded increase is that of one series: born, begun anew or grown, and summed by its own labels."""
    level, metric, _ = name.split(":")
    (series,) = names(RECORDED[name])[0]
    assert series.removesuffix("_total") == metric
    by = re.match(r"sum by \(([^()]+)\) \(\s", RECORDED[name])[1].split(", ")
    assert [LEVELS.get(part, part) for part in level.split("_")] == by
    x = re.search(r"last_over_time\(([a-z_]+(?:\{.*?\})?)\[5m\]\) unless", RECORDED[name])[1]
    now = f"last_over_time({x}[5m])"
    anew = f"({now} and min_over_time({x}[5m]) < {before(x)})"
    questions = f"({now} unless {before(x)}) or {anew} or ({now} - {before(x)})"
    assert " ".join(RECORDED[name].split()) == f"sum by ({', '.join(by)}) ( {questions} )"


def before(x):
    """What a series was before the last five minutes."""
    return f"last_over_time({x}[1h] offset 5m)"


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_means_and_where_to_read_on(name):
    """Each alert has a severity, a summary, a description, and a section of its own in the runbook."""
    rule = ALERTS[name]
    assert set(rule["labels"]) == {"severity"}
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert all(rule["annotations"].values())
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert f"\n## {name}\n" in (ROOT / path).read_text(encoding="utf-8")
    assert anchor == name.lower()


def test_the_runbook_has_no_other_alerts():
    """Each section of the runbook is that of an alert."""
    text = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("fires", [True, False])
@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_tested_both_ways(name, fires):
    """The tests for promtool have a case in which the alert fires, and one in which it does not."""
    assert any(case["alertname"] == name and bool(case.get("exp_alerts")) is fires for case in TESTED)


def test_prometheus_reads_the_collector_as_the_rules_expect():
    """The configuration loads both files of rules, and keeps job and instance of the agents."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text(encoding="utf-8"))
    (scrape,) = config["scrape_configs"]
    assert config["rule_files"] == ["rules.yaml", "alerts.yaml"]
    assert scrape["honor_labels"] is True
    assert f'up{{job="{scrape["job_name"]}"}}' in ALERTS["ToolguardCollectorDown"]["expr"]


@pytest.mark.parametrize("file", ["targets.yaml", "targets-compose.yaml"])
def test_the_targets_are_the_collector_s_ports(file):
    """Prometheus looks where collector.yaml offers the agents' metrics and its own."""
    (group,) = yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))
    assert [target.rpartition(":")[2] for target in group["targets"]] == ["8889", "8888"]
    text = (CONFIG / "collector.yaml").read_text(encoding="utf-8")
    assert "COLLECTOR_PROMETHEUS:-0.0.0.0:8889" in text
    assert "COLLECTOR_SELF_PORT:-8888" in text
