"""Rules of third parties: installed beside the library, built from their own parameters, never felt when they fail."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent / "plugins_example"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example distribution as an installer would leave it: its module, and what it says of itself."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(EXAMPLE / "toolguard_plugins_example.py", site)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (said / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


@pytest.fixture
def run(installed):
    """Runs code where the example is installed; returns what it printed last as JSON, and what it logged."""

    def run(code):
        head = "import json\nfrom otel_toolguard import *\nfrom otel_toolguard.telemetry import Telemetry\n"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOOLGUARD_")}
        done = subprocess.run(
            [sys.executable, "-c", head + code], env=environment | {"PYTHONPATH": str(installed)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


PLAY = """
@guard_tool
def a(i): return i
@guard_tool
def b(i): return i
def play(policy, calls):
    said = ""
    with Session(policy=policy) as session:
        for i, name in enumerate(calls):
            try: said += str({"a": a, "b": b}[name](i) == i)[0]
            except SessionStopped as stopped: said += stopped.trip.rule[0]
        session.report_retry("k", 1)
        session.report_cost(1.0)
    return said, session
"""


def test_an_installed_rule_judges_under_its_own_name(run):
    """It stops, warns and reports like one of the library's own, with its parameters, after others in the chain."""
    code = """
plugins = [{"plugin": "repeat_guard", "limit": 9}, {"plugin": "same_tool", "limit": 4, "spare": ["b"]}]
said, session = play(Policy(plugins=plugins, on_warn="nudge"), "aabaabaaa" + "a")
trip = session.trip
print(json.dumps([said, trip.rule, trip.limit, trip.observed, session.report()["same_tool"], session.report()["nudges"]]))
"""
    answer, logged = run(PLAY + code)
    assert answer == ["TTTTTsssss", "same_tool", 4, 4, 4, {"same_tool": 2}]
    assert "same_tool limit = 5 would do" in logged


def test_its_settings_are_shown_like_any_other(run):
    """to_dict has the table as it was given; from_settings is asked where there is one."""
    code = """
policy = Policy(plugins=[{"plugin": "from_table", "size": 3}])
print(json.dumps([policy.to_dict()["tool_plugins"], Session(policy=policy).report()["from_table"]]))
"""
    answer, _ = run(code)
    assert answer == [[{"plugin": "from_table", "size": 3}], {"colour": "blue", "size": 3}]


WRONG = [
    (
        {"plugin": "same_tool", "limt": 4},
        "plugins[0] (same_tool): same_tool: unknown parameter 'limt'; valid parameters are limit, spare",
    ),
    ({"plugin": "same_tool"}, "missing 1 required positional argument: 'limit'; valid parameters are limit, spare"),
    ({"plugin": "from_table", "size": -1}, "from_table: size must not be negative; valid parameters are colour, size"),
    ({"plugin": "same_tol"}, "unknown plugin 'same_tol'; valid are broken_hooks, broken_import, call_ceiling"),
    ({"plugin": "repeat_guard", "limit": 1}, "repeat_guard: limit: Input should be greater than or equal to 2"),
]


@pytest.mark.parametrize(("table", "says"), WRONG)
def test_wrong_parameters_name_those_that_there_are(run, table, says):
    """Unknown, missing and refused parameters are SettingsErrors; a name of the library's own stays its own."""
    code = f"""
try: Policy(plugins=[{table!r}])
except SettingsError as error: print(json.dumps(str(error)))
"""
    answer, _ = run(code)
    assert says in answer


def test_one_that_cannot_be_loaded_is_skipped(run):
    """It is logged once, and the rest of the chain judges."""
    code = """
said, session = play(Policy(plugins=[{"plugin": "broken_import", "any": 1}, {"plugin": "call_ceiling", "run": 2}]), "aba")
print(json.dumps([said, session.trip.rule]))
"""
    answer, logged = run(PLAY + code)
    assert answer == ["TTc", "call_ceiling"]
    assert logged.count("plugin broken_import (toolguard_plugins_example:Missing) cannot be loaded; it is skipped") == 1


def test_one_whose_hooks_fail_is_never_felt(run):
    """Each call runs, the other rules judge, and each hook is said once."""
    code = """
policy = Policy(plugins=[{"plugin": "broken_hooks"}, {"plugin": "call_ceiling", "tools": {"a": 2}}, {"plugin": "tool_stats"}])
said = ""
with Session(policy=policy) as session:
    for i in range(6):
        try: said += str(a(i) == i)[0]
        except CircuitOpen: said += "r"
    said += str(b(1) == 1)[0]
    session.report_retry("k", 1)
    session.report_cost(1.0)
    session.report_cost(1.0)
print(json.dumps([said, session.report()["calls"], session.report()["trips"][0]["rule"]]))
"""
    answer, logged = run(PLAY + code)
    assert answer == ["TTrrrrT", 3, "call_ceiling"]
    for hook in ("start", "admit", "settle", "refused", "on_retry", "on_cost", "report"):
        assert logged.count(f"plugin broken_hooks failed in {hook}; it is skipped there") == 1
    assert "the guard failed to" not in logged
