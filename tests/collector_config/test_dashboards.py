"""The dashboards can be imported as they are, and ask for what there is."""

import json
import re

import pytest
import yaml
from emitted_series import CONFIG, NAMES, measured, of_spans, rules
from promql_names import names

FOLDER = CONFIG / "grafana" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
BOARDS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
EXPRESSIONS = {
    f"{board}: {panel['title']}, {target['refId']}": target["expr"]
    for board, whole in BOARDS.items()
    for panel in whole["panels"]
    for target in panel["targets"]
    if "expr" in target
}
SCHEMA = 39  # of classic JSON; newer Grafanas lift older schemas themselves
OF_GRAFANA = {"__range", "__url_time_range", "__value"}


def known():
    """Every series that a panel may use, and its labels."""
    recorded = {rule["record"]: names(rule["expr"])[1] for rule in rules("rules.yaml")}
    of_alerts = {"alertname", "alertstate", "severity"}.union(
        *(names(rule["expr"])[1] for rule in rules("alerts.yaml"))
    )
    return measured() | of_spans() | recorded | {"ALERTS": of_alerts}


def test_there_are_three():
    """One dashboard for all agents, one for a session, one for setting limits."""
    assert list(BOARDS) == ["overview", "session", "tuning"]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_panel_asks_for_what_is_emitted(name):
    """Each expression uses series that we, the Collector or a rule make, and labels that they have."""
    series, labels = names(EXPRESSIONS[name])
    assert series
    assert series <= set(known())
    assert labels <= set().union(*(known()[one] for one in series))


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_is_nobody_s_in_particular(board):
    """A dashboard has a fixed uid and schema, no number of some Grafana's own, and names no data source."""
    whole = BOARDS[board]
    assert (whole["uid"], whole["schemaVersion"], whole["id"]) == (f"toolguard-{board}", SCHEMA, None)
    assert not any("id" in panel for panel in whole["panels"])
    sources = [part["datasource"] for panel in whole["panels"] for part in (panel, *panel["targets"])]
    sources += [variable["datasource"] for variable in variables(whole) if "datasource" in variable]
    offered = {f"${{{one['name']}}}": one["query"] for one in variables(whole) if one["type"] == "datasource"}
    assert all(offered[source["uid"]] == source["type"] for source in sources)


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_uses_the_variables_that_it_has(board):
    """Each variable is defined and used."""
    whole = BOARDS[board]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(whole)))
    assert used - OF_GRAFANA == {variable["name"] for variable in variables(whole)}


@pytest.mark.parametrize("board", BOARDS)
def test_variables_ask_for_what_is_emitted(board):
    """The choices of a variable are values of a label of a series of ours."""
    asked = [variable["definition"] for variable in variables(BOARDS[board]) if variable["type"] == "query"]
    assert asked
    for one in asked:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", one).groups()
        (series,), labels = names(selector)
        assert labels | {label} <= known()[series]


@pytest.mark.parametrize("board", BOARDS)
def test_panels_do_not_overlap(board):
    """Each panel has a title, a description and a place of its own."""
    taken = set()
    for panel in BOARDS[board]["panels"]:
        assert panel["title"]
        assert panel["description"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    titles = [panel["title"] for panel in BOARDS[board]["panels"]]
    assert len(set(titles)) == len(titles)


def test_traces_are_searched_by_what_spans_carry():
    """The dashboard of a session finds traces by attributes that are emitted."""
    targets = [target for panel in BOARDS["session"]["panels"] for target in panel["targets"] if "tags" in target]
    assert len(targets) == 2
    for target in targets:
        assert set(re.findall(r"([\w.]+)=", target["tags"])) <= NAMES


def test_latency_leads_to_traces():
    """The panel of durations shows exemplars, of a series that has them, and the data source knows where they lead."""
    (target,) = [t for panel in BOARDS["overview"]["panels"] for t in panel["targets"] if t.get("exemplar")]
    assert "gen_ai_execute_tool_duration_seconds_bucket" in names(target["expr"])[0]
    file = CONFIG / "grafana" / "provisioning" / "datasources" / "toolguard.yaml"
    sources = {one["type"]: one for one in yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]}
    (leads,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert leads == {"name": "trace_id", "datasourceUid": sources["jaeger"]["uid"]}


def variables(whole):
    """The variables of a dashboard."""
    return whole["templating"]["list"]
