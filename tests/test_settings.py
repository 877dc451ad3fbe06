"""Settings: what is accepted, which source speaks, and errors that name the place and the valid choices."""

import json
import os
import re
import warnings
from types import MappingProxyType

import pytest

from otel_toolguard import Policy, SettingsError, SettingsWarning
from otel_toolguard.settings import PLUGINS, PROFILES, ToolSettings

NAMES = (
    "call_ceiling, classify, cost, deadline, depth, distinct_ratio, failure_streak, file_edits, max_in_flight, "
    "max_refusals, repeat_guard, same_answer, signature_failures, stagnation, tool_stats"
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("CONFIG", "PROFILE", "MODE", "STRICT", "SIGNATURE_KEY", "STORE", "TELEMETRY", "CAPTURE_ARGUMENTS"):
        monkeypatch.delenv(f"TOOLGUARD_{name}", raising=False)


@pytest.fixture
def toml(tmp_path):
    """Writes a file and returns its path."""

    def write(text, name="guard.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def plugin(name="repeat_guard", **parameters):
    return [{"plugin": name, **parameters}]


# ------------------------------------------------------------------------------------------------ wrong in code

# (arguments of Policy, what the error says)
WRONG = [
    ({"plugins": plugin("repeat_gaurd", limit=5)}, f"plugins[0] (repeat_gaurd): unknown plugin 'repeat_gaurd'; valid are {NAMES}"),
    ({"plugins": plugin(limt=5)}, "valid parameters are limit, max_period, compare, limits, failed_limit"),
    ({"plugins": plugin(limit=5, limt=5)}, "unknown parameter 'limt'; valid parameters are limit, max_period, compare, limits, failed_limit"),
    ({"plugins": plugin("classify", limit=5)}, "unknown parameter 'limit'; valid parameters are none: it has no parameters"),
    ({"plugins": plugin(limit=1)}, "plugins[0] (repeat_guard): repeat_guard: limit: Input should be greater than or equal to 2 (given: 1)"),
    ({"plugins": plugin(limit=5, failed_limit=1)}, "failed_limit: Input should be greater than or equal to 2"),
    ({"plugins": plugin(limit=5, limits={1: 1})}, "limits.1: Input should be greater than or equal to 2"),
    ({"plugins": plugin(limit=5, limits={4: 5})}, "limits has period 4, valid are 1 to max_period = 3"),
    ({"plugins": plugin(limit=5, limits={0: 5})}, "limits has period 0, valid are 1 to max_period = 3"),
    ({"plugins": plugin(limit=5, limits=5)}, "limits: Input should be a valid dictionary"),
    ({"plugins": plugin(limit=5, limits={"x": 5})}, "limits"),
    ({"plugins": plugin(limit=5, max_period=0)}, "max_period: Input should be greater than or equal to 1"),
    ({"plugins": plugin(limit=5, compare="loose")}, "compare: Input should be 'volatile', 'exact' or 'call' (given: 'loose')"),
    ({"plugins": plugin("failure_streak", limit=5, across_tools=1)}, "across_tools: Input should be a valid boolean"),
    ({"plugins": plugin("stagnation", limit=0.5)}, "limit: Input should be greater than or equal to 1"),
    ({"plugins": plugin("stagnation", limit=float("inf"))}, "limit: Input should be a finite number"),
    ({"plugins": plugin("stagnation", limit=float("nan"))}, "limit: Input should be a finite number"),
    ({"plugins": plugin("stagnation", limit=True)}, "limit: Input should be a valid number"),
    ({"plugins": plugin("stagnation", limit="5")}, "limit: Input should be a valid number"),
    ({"plugins": plugin("same_answer", limit=1)}, "limit: Input should be greater than or equal to 2"),
    ({"plugins": plugin("call_ceiling")}, "call_ceiling needs at least one of run, session, tools, classes, signature"),
    ({"plugins": plugin("call_ceiling", classes={"reading": 5})}, "classes.reading"),
    ({"plugins": plugin("call_ceiling", tools={"a": 0})}, "tools.a: Input should be greater than or equal to 1"),
    ({"plugins": plugin("call_ceiling", tools=5)}, "tools: Input should be a valid dictionary"),
    ({"plugins": plugin("max_refusals", limit=2, total=0)}, "total: Input should be greater than or equal to 1"),
    ({"plugins": [*plugin(limit=5), *plugin("classify"), *plugin(limit=6)]}, "plugins[2] (repeat_guard): repeat_guard is listed twice"),
    ({"plugins": "repeat_guard"}, "tool_plugins must be a list of tables, not str"),
    ({"plugins": {"plugin": "repeat_guard"}}, "tool_plugins must be a list of tables, not dict"),
    ({"plugins": ["repeat_guard"]}, 'plugins[0] (?): each plugin is a table with a key "plugin"'),
    ({"plugins": [{"limit": 5}]}, 'each plugin is a table with a key "plugin"'),
    ({"plugins": [{"plugin": 5}]}, 'each plugin is a table with a key "plugin"'),
    ({"profile": "lenient"}, "unknown profile 'lenient'; valid are balanced, cmdc, conservative, crucible, openhands, skill, strict"),
    ({"profile": "lenient", "plugins": []}, "unknown profile 'lenient'"),
    ({"profile": 5}, "unknown profile 5; valid are balanced"),
    ({"mode": "watch"}, "unknown mode 'watch'; valid are enforce, observe, off"),
    ({"latch": "ever"}, "unknown latch 'ever'; valid are run, session"),
    ({"on_warn": "shout"}, "unknown on_warn 'shout'; valid are none, nudge"),
    ({"plugins": plugin(limit=5, on_limit="shout")}, "on_limit: Input should be 'stop' or 'nudge' (given: 'shout')"),
    ({"plugins": plugin(limit=5, failed_nudge=1)}, "failed_nudge: Input should be greater than or equal to 2"),
    ({"plugins": plugin(limit=5, same_error="no")}, "same_error: Input should be a valid boolean"),
    ({"plugins": plugin("failure_streak", limit=5, on_limit=True)}, "on_limit: Input should be 'stop' or 'nudge'"),
    ({"plugins": plugin("file_edits", limit=5, onlimit="stop")}, "unknown parameter 'onlimit'; valid parameters are limit, on_limit"),
    ({"plugins": plugin("distinct_ratio", window=1)}, "window: Input should be greater than or equal to 2"),
    ({"plugins": plugin("distinct_ratio", window=257)}, "window: Input should be less than or equal to 256"),
    ({"plugins": plugin("distinct_ratio", window=2)}, "distinct must be less than window = 2"),
    ({"plugins": plugin("deadline", seconds=0)}, "seconds: Input should be greater than 0"),
    ({"plugins": plugin("deadline", seconds=float("inf"))}, "seconds: Input should be a finite number"),
    ({"plugins": plugin("deadline", seconds=5, scope="tool")}, "scope: Input should be 'run' or 'session'"),
    ({"plugins": plugin("cost")}, "limit: Field required; valid parameters are limit, scope"),
    ({"plugins": plugin("cost", limit=-1)}, "limit: Input should be greater than 0"),
    ({"strict": "perhaps"}, "strict = 'perhaps'; valid are true and false"),
    ({"signature_key": b"k" * 65}, "signature_key must be 1 to 64 bytes"),
    ({"signature_key": ""}, "signature_key must be 1 to 64 bytes"),
    ({"tools": 5}, "tools must be a table of tables"),
    ({"tools": {5: {}}}, "tools must be a table of tables"),
    ({"tools": {"a": 5}}, 'tools["a"]: '),
    ({"tools": {"a": {"colour": 1}}}, "tools[\"a\"]: unknown parameter 'colour'; valid keys are class, risk, poll, ignore, key, result_key, fold, limits, transient, circuit, enabled"),
    ({"tools": {"a": {"class": "reading"}}}, "class: Input should be 'read', 'write'"),
    ({"tools": {"a": {"risk": "high"}}}, "risk: Input should be 'read_only', 'reversible' or 'irreversible'"),
    ({"tools": {"a": {"poll": 0}}}, "poll"),
    ({"tools": {"a": {"poll": 1.5}}}, "poll"),
    ({"tools": {"a": {"enabled": "no"}}}, "enabled: Input should be a valid boolean"),
]  # fmt: skip
COUNTS = [
    ("repeat_guard", "limit"),
    ("failure_streak", "limit"),
    ("same_answer", "limit"),
    ("max_refusals", "limit"),
    ("file_edits", "limit"),
    ("depth", "limit"),
    ("max_in_flight", "limit"),
    ("distinct_ratio", "distinct"),
    ("call_ceiling", "run"),
    ("call_ceiling", "session"),
    ("call_ceiling", "signature"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_wrong_settings_name_place_and_choices(arguments, says):
    """Every wrong setting is a SettingsError whose text says where it stands and what would be right."""
    with pytest.raises(SettingsError) as caught:
        Policy(**arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize(("name", "parameter"), COUNTS)
@pytest.mark.parametrize("value", [0, -1, True, False, 5.0, "5", None, [5], float("nan")])
def test_a_count_is_a_positive_integer_and_nothing_else(name, parameter, value):
    """Zero, negative, bool, float and text are refused wherever a count is asked for."""
    if value is None and name == "call_ceiling":
        return
    with pytest.raises(SettingsError, match=f"{parameter}.*|at least one"):
        Policy(plugins=plugin(name, **{parameter: value}))


# ------------------------------------------------------------------------------------------------ limits that cannot be reached

CEILING, REPEAT = "call_ceiling", "repeat_guard"
# (first plugin, second plugin, the parameter that can never be reached or None)
REACH = [
    ((REPEAT, {"limit": 25, "max_period": 1}), (CEILING, {"run": 24}), "limit"),
    ((REPEAT, {"limit": 25, "max_period": 1}), (CEILING, {"run": 25}), None),
    ((REPEAT, {"limit": 25, "max_period": 1}), (CEILING, {"session": 24}), "limit"),
    ((REPEAT, {"limit": 25, "max_period": 1}), (CEILING, {"signature": 24}), "limit"),
    ((REPEAT, {"limit": 25, "max_period": 1}), (CEILING, {"signature": 25}), None),
    ((REPEAT, {"limit": 25, "max_period": 2, "limits": {1: 10, 2: 3}}), (CEILING, {"signature": 4}), None),
    ((REPEAT, {"limit": 25, "max_period": 1, "failed_limit": 5}), (CEILING, {"run": 10}), "limit"),
    ((REPEAT, {"limit": 5, "max_period": 1, "failed_limit": 11}), (CEILING, {"run": 10}), "failed_limit"),
    ((REPEAT, {"limit": 5, "max_period": 1, "failed_limit": 10}), (CEILING, {"run": 10}), None),
    (("failure_streak", {"limit": 6}), (CEILING, {"run": 5}), "limit"),
    (("failure_streak", {"limit": 5}), (CEILING, {"run": 5}), None),
    (("same_answer", {"limit": 6}), (CEILING, {"run": 5}), "limit"),
    (("same_answer", {"limit": 5}), (CEILING, {"run": 5}), None),
    (("stagnation", {"limit": 6.5}), (CEILING, {"run": 3}), "limit"),
    (("stagnation", {"limit": 6.5}), (CEILING, {"run": 4}), None),
    (("stagnation", {"limit": 12.0}), (CEILING, {"run": 5}), "limit"),
    (("stagnation", {"limit": 12.0}), (CEILING, {"run": 6}), None),
    (("stagnation", {"limit": 1e300}), (CEILING, {"run": 500}), "limit"),
    (("max_refusals", {"limit": 100}), (CEILING, {"run": 5}), None),
    (("signature_failures", {"limit": 6}), (CEILING, {"run": 5}), "limit"),
    (("signature_failures", {"limit": 5}), (CEILING, {"run": 5, "signature": 4}), "limit"),
    (("signature_failures", {"limit": 4}), (CEILING, {"run": 5, "signature": 4}), None),
    (("file_edits", {"limit": 5}), (CEILING, {"run": 5}), "limit"),
    (("file_edits", {"limit": 4}), (CEILING, {"session": 5}), None),
    (("max_in_flight", {"limit": 5}), (CEILING, {"session": 5}), "limit"),
    (("max_in_flight", {"limit": 4}), (CEILING, {"run": 5}), None),
    (("depth", {"limit": 5}), (CEILING, {"run": 5}), "limit"),
    (("depth", {"limit": 4}), (CEILING, {"run": 5}), None),
    (("deadline", {"seconds": 1e9}), (CEILING, {"run": 1}), None),
    (("cost", {"limit": 1e9}), (CEILING, {"run": 1}), None),
    (("distinct_ratio", {}), (CEILING, {"run": 4}), None),
    ((REPEAT, {"limit": 5, "failed_nudge": 5}), ("classify", {}), "failed_nudge"),
    ((REPEAT, {"limit": 5, "failed_nudge": 4}), ("classify", {}), None),
    ((REPEAT, {"limit": 5, "failed_limit": 3, "failed_nudge": 3}), ("classify", {}), "failed_nudge"),
    ((REPEAT, {"limit": 5, "failed_limit": 4, "failed_nudge": 3}), ("classify", {}), None),
    ((REPEAT, {"limit": 5, "limits": {2: 7}, "failed_nudge": 6}), ("classify", {}), None),
    (("classify", {}), (CEILING, {"run": 50, "session": 40}), "run"),
    (("classify", {}), (CEILING, {"run": 40, "session": 50}), None),
    (("classify", {}), (CEILING, {"run": 5, "tools": {"a": 5}}), "tools"),
    (("classify", {}), (CEILING, {"run": 5, "tools": {"a": 4}}), None),
    (("classify", {}), (CEILING, {"session": 5, "classes": {"read": 6}}), "classes"),
    (("classify", {}), (CEILING, {"run": 5, "signature": 5}), "signature"),
]  # fmt: skip


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("one", "other", "parameter"), REACH)
def test_a_limit_that_can_never_be_reached_is_an_error(one, other, parameter, swap, toml):
    """Where another rule stops first on every sequence the error names place, rule and both numbers; at the limit it is fine."""
    chain = [{"plugin": name, **parameters} for name, parameters in ((other, one) if swap else (one, other))]
    lines = [
        f"{line}\n"
        for table in chain
        for line in ["[[tool_plugins]]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    ]
    path = toml("".join(lines))
    if parameter is None:
        Policy(plugins=chain)
        Policy.from_toml(path)
        return
    with pytest.raises(SettingsError, match=r"plugins\[[01]\] .* can never be reached: .*(raise|lower)"):
        Policy(plugins=chain)
    with pytest.raises(SettingsError, match="can never be reached") as caught:
        Policy.from_toml(path)
    line = int(re.match(rf"{re.escape(path)}:(\d+): ", str(caught.value)).group(1))
    assert lines[line - 1].startswith(parameter)


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {item}' for key, item in value.items()) + "}"
    return json.dumps(value)


HARDLY = [(8, 3, 23, True), (8, 3, 24, False), (8, 1, 8, False), (25, 3, 25, True)]


@pytest.mark.parametrize(("limit", "max_period", "ceiling", "warned"), HARDLY)
def test_a_limit_that_is_hardly_reachable_is_a_warning(limit, max_period, ceiling, warned):
    """A ceiling below max_period * limit is a SettingsWarning at the caller's line; at it there is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Policy(plugins=[*plugin(limit=limit, max_period=max_period), *plugin(CEILING, run=ceiling)])
    assert [(warning.category, warning.filename) for warning in caught] == [(SettingsWarning, __file__)] * warned
    assert not warned or f"only after {limit * max_period} calls" in str(caught[0].message)


# ------------------------------------------------------------------------------------------------ files

GOOD = """\
version = 1
latch = "session"

[[tool_plugins]]
plugin = "repeat_guard"
limit = 25
limits = {1 = 30}
[[tool_plugins]]
plugin = "call_ceiling"
[tool_plugins.tools]
"a*" = 7

[tools."search_*"]
class = "network"
ignore = ["ts"]
[tools."*"]
poll = 3
"""


def test_a_file_and_the_same_in_python_are_one_policy(toml):
    """TOML and code give the same effective settings, and mappings of any kind are taken."""
    tools = {"search_*": {"class": "network", "ignore": ["ts"]}, "*": ToolSettings(poll=3)}
    chain = [
        MappingProxyType({"plugin": "repeat_guard", "limit": 25, "limits": {1: 30}}),
        *plugin(CEILING, tools={"a*": 7}),
    ]
    read, made = Policy.from_toml(toml(GOOD)), Policy(plugins=tuple(chain), tools=tools, latch="session")
    assert read.to_dict() == made.to_dict()
    assert [rule.name for rule in read.chain.plugins] == ["repeat_guard", "call_ceiling"]
    assert read.chain.lasting_stop
    assert (read.tool("search_web").tool_class, read.tool("search_web").poll, read.tool("x").poll) == (
        "network",
        None,
        3,
    )


# (text, line, what the error says)
BROKEN = [
    ("version = 1\nprofil = 'x'\n", 2, "unknown key 'profil'; valid are version, profile, mode, strict, latch, on_warn, capture_arguments, tool_plugins, tools"),
    ("version = 1\n\n[plugins]\nx = 1\n", 3, "unknown key 'plugins'"),
    ("version = 1\n\n[[plugin]]\nx = 1\n", 3, "unknown key 'plugin'"),
    ("\n\n[tool.x]\nclass = 'read'\n", 3, "unknown key 'tool'"),
    ("\nversion = 2\n", 2, "version = 2; this library reads 1"),
    ("\n\nprofile = 'lax'\n", 3, "unknown profile 'lax'; valid are balanced"),
    ("\nmode = 'watch'\n", 2, "unknown mode 'watch'; valid are enforce, observe, off"),
    ("\nstrict = 'maybe'\n", 2, "valid are true and false"),
    ("\nlatch = 'x'\n", 2, "unknown latch 'x'; valid are run, session"),
    ("\ntools = 5\n", 2, "tools must be a table"),
    ("\ntool_plugins = 5\n", 2, "must be a list of tables, not int"),
    ("\n[tool_plugins]\nplugin = 'classify'\n", 2, "must be a list of tables, not dict"),
    ("\n[[tool_plugins]]\nplugin = 'classify'\n[[tool_plugins]]\nplugin = 'nope'\n", 5, f"unknown plugin 'nope'; valid are {NAMES}"),
    ("\n[[tool_plugins]]\nplugin = 'classify'\n[[tool_plugins]]\nlimit = 5\n", 4, 'a key "plugin"'),
    ("[[tool_plugins]]\nplugin = 'repeat_guard'\n# words\nlimit = true\n", 4, "limit: Input should be a valid integer"),
    ("[[tool_plugins]]\nplugin = 'repeat_guard'\nlimit = 5\nlimt = 5\n", 4, "unknown parameter 'limt'"),
    ("[[tool_plugins]]\nplugin = 'stagnation'\nlimit = inf\n", 3, "finite"),
    ("[[tool_plugins]]\nplugin = 'classify'\n\n[[tool_plugins]]\nplugin = 'classify'\n", 4, "listed twice"),
    ("\n\ntool_plugins = [\n  {plugin = 'nope'},\n]\n", 3, "unknown plugin 'nope'"),
    ('[tools.a]\npoll = true\n\n[tools."b*"]\nenabled = true\ncolour = 1\n', 6, "unknown parameter 'colour'; valid keys are class, risk, poll, ignore, key, result_key, fold, limits, transient, circuit, enabled"),
    ("[tools.a]\npoll = true\n[tools.'b*']\nclass = 'reading'\n", 4, "class: Input should be"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "says"), BROKEN)
def test_a_wrong_file_is_named_with_the_line(text, line, says, toml):
    """The error begins with file:line of the very setting and goes on with the valid choices."""
    path = toml(text)
    with pytest.raises(SettingsError) as caught:
        Policy.from_toml(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert says in str(caught.value)


def test_broken_toml_is_named_with_the_line(toml):
    """What is no TOML is a SettingsError with file and line."""
    path = toml("version = 1\nlimit = = 5\n")
    with pytest.raises(SettingsError, match=r"is no TOML: .*line 2") as caught:
        Policy.from_toml(path)
    assert str(caught.value).startswith(path)


def test_a_file_that_cannot_be_read(tmp_path):
    """Absent files, folders and other encodings are SettingsErrors that name the path."""
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"mode = '\xff'\n")
    for path, says in ((tmp_path / "absent.toml", "cannot be read"), (tmp_path, "cannot be read"), (latin, "no UTF-8")):
        with pytest.raises(SettingsError, match=says) as caught:
            Policy.from_toml(path)
        assert str(caught.value).startswith(str(path))


def test_only_a_plain_file_is_read(tmp_path):
    """A device without end and a pipe, which all but its first reader find empty, are refused; nothing is no settings."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(SettingsError, match=f"^{path}: is no plain file$"):
            Policy.from_toml(path)
    assert Policy.from_toml(os.devnull).profile_name == "balanced"


# ------------------------------------------------------------------------------------------------ precedence


def names(policy):
    return [name for name, _ in policy.plugins]


def test_code_before_environment_before_file_before_profile(toml, monkeypatch):
    """Of the sources that say a thing the nearest one counts, one thing at a time."""
    assert (Policy().profile_name, Policy().mode, Policy().strict) == ("balanced", "enforce", False)
    monkeypatch.setenv(
        "TOOLGUARD_CONFIG", toml("profile = 'conservative'\nmode = 'off'\nstrict = true\nlatch = 'session'\n")
    )
    policy = Policy()
    assert (policy.profile_name, policy.mode, policy.strict, policy.latch) == ("conservative", "off", True, "session")
    monkeypatch.setenv("TOOLGUARD_PROFILE", "strict")
    monkeypatch.setenv("TOOLGUARD_MODE", "observe")
    monkeypatch.setenv("TOOLGUARD_STRICT", "off")
    monkeypatch.setenv("TOOLGUARD_SIGNATURE_KEY", "k")
    monkeypatch.setenv("TOOLGUARD_CAPTURE_ARGUMENTS", "1")
    policy = Policy()
    assert (policy.profile_name, policy.mode, policy.strict, policy.latch) == ("strict", "observe", False, "session")
    assert (policy.signature_key, policy.capture_arguments, policy.chain.observe) == (b"k", True, True)
    policy = Policy("crucible", mode="enforce", strict=True, signature_key="own", capture_arguments=False)
    assert (policy.profile_name, policy.mode, policy.strict, policy.latch) == ("crucible", "enforce", True, "session")
    assert (policy.signature_key, policy.capture_arguments) == (b"own", False)


def test_a_named_file_replaces_the_one_of_the_environment(toml, monkeypatch):
    """from_toml reads its own file, and the environment still speaks before it."""
    monkeypatch.setenv("TOOLGUARD_CONFIG", toml("latch = 'session'\n", "other.toml"))
    monkeypatch.setenv("TOOLGUARD_MODE", "observe")
    policy = Policy.from_toml(toml("mode = 'off'\nstrict = true\n"))
    assert (policy.latch, policy.mode, policy.strict) == ("run", "observe", True)


def test_a_nearer_profile_beats_a_farther_chain_and_the_reverse(toml, monkeypatch):
    """A profile named in the environment replaces the file's chain; a chain in code replaces the profile."""
    monkeypatch.setenv("TOOLGUARD_CONFIG", toml("profile = 'strict'\n[[tool_plugins]]\nplugin = 'classify'\n"))
    assert names(Policy()) == ["classify"]
    monkeypatch.setenv("TOOLGUARD_PROFILE", "crucible")
    assert names(Policy()) == ["classify", "repeat_guard", "tool_stats"]
    assert names(Policy(plugins=[])) == []


@pytest.mark.parametrize("name", ["PROFILE", "MODE", "STRICT", "CAPTURE_ARGUMENTS", "SIGNATURE_KEY"])
def test_a_wrong_variable_is_named_itself(name, toml, monkeypatch):
    """The error of a wrong environment variable names that variable, not the file beside it."""
    monkeypatch.setenv("TOOLGUARD_CONFIG", toml("mode = 'off'\nstrict = true\nprofile = 'strict'\n"))
    monkeypatch.setenv(f"TOOLGUARD_{name}", "x" * 65)
    with pytest.raises(SettingsError, match=f"^TOOLGUARD_{name}: "):
        Policy()


def test_the_working_directory_is_never_searched(toml, monkeypatch, tmp_path):
    """A file that lies where the agent can write changes nothing."""
    for name in ("toolguard.toml", "otel-toolguard.toml", "pyproject.toml"):
        toml("mode = 'off'\n", name)
    monkeypatch.chdir(tmp_path)
    assert Policy().mode == "enforce"


# ------------------------------------------------------------------------------------------------ chains


@pytest.mark.parametrize("empty", [[], ()])
def test_an_empty_chain_is_no_rule_at_all(empty, toml):
    """An empty list, in code or file, is honoured."""
    assert Policy(plugins=empty).chain.plugins == ()
    assert Policy.from_toml(toml("tool_plugins = []\n")).chain.plugins == ()


LIMITS = [
    ("conservative", 12, 20, 30, 25, None, 5),
    ("balanced", 8, 12, 25, 20, 6, 2),
    ("strict", 7, 10, 20, 16, 5, 2),
]


@pytest.mark.parametrize(("name", "repeat", "stagnation", "same", "failures", "signature", "refusals"), LIMITS)
def test_profiles_have_their_limits(name, repeat, stagnation, same, failures, signature, refusals):
    """Each profile is the documented chain with the documented limits."""
    chain = {plugin.pop("plugin"): plugin for plugin in Policy.profile(name).to_dict()["tool_plugins"]}
    assert list(chain) == [
        "classify",
        "repeat_guard",
        "stagnation",
        "same_answer",
        "failure_streak",
        *(["signature_failures"] if signature else []),
        "call_ceiling",
        "max_refusals",
        "tool_stats",
    ]
    assert (chain["repeat_guard"]["limit"], chain["stagnation"]["limit"], chain["same_answer"]["limit"]) == (
        repeat,
        stagnation,
        same,
    )
    assert (chain["failure_streak"]["limit"], chain["call_ceiling"]["run"]) == (failures, 500)
    assert chain.get("signature_failures", {}).get("limit") == signature
    assert chain["max_refusals"] == {"limit": refusals, "total": 25}


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_are_silent_and_can_be_spelled_out(name):
    """No profile warns, and its effective settings, given as a chain, are the same policy."""
    spelled = Policy(
        plugins=[
            {key: value for key, value in table.items() if value is not None}
            for table in Policy.profile(name).to_dict()["tool_plugins"]
        ]
    )
    assert spelled.to_dict()["tool_plugins"] == Policy.profile(name).to_dict()["tool_plugins"]


def test_every_plugin_builds_under_its_name():
    """The name in the table is the name on trips, and settings never change after construction."""
    for name, kind in PLUGINS.items():
        needed = {field: 5 for field, info in kind.model_fields.items() if info.is_required()}
        made = kind(**(needed or ({"run": 5} if name == CEILING else {})))
        assert made.build().name == name
        for field in type(made).model_fields:
            with pytest.raises(ValueError, match="frozen"):
                setattr(made, field, 1)


def test_the_key_is_never_shown():
    """The secret is in no dict and no repr."""
    policy = Policy(signature_key="hunter2")
    assert "hunter2" not in f"{policy!r}{policy.to_dict()}"


# ------------------------------------------------------------------------------------------------ the originals as profiles


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("openhands", ["classify", "repeat_guard", "tool_stats"]),
        ("skill", ["classify", "signature_failures", "call_ceiling", "distinct_ratio", "tool_stats"]),
        ("cmdc", ["classify", "file_edits", "repeat_guard", "failure_streak", "tool_stats"]),
    ],
)
def test_the_profiles_after_other_guards(name, rules):
    """Each holds the checks of its original and nothing else."""
    assert names(Policy.profile(name)) == rules


def test_what_is_off_is_in_no_profile():
    """deadline, cost, depth and max_in_flight are nobody's default, nor is file_edits outside the original's profile."""
    for name in PROFILES:
        assert {"deadline", "cost", "depth", "max_in_flight"}.isdisjoint(names(Policy.profile(name)))
        assert ("file_edits" in names(Policy.profile(name))) == (name == "cmdc")


def test_warnings_may_nudge(toml):
    """on_warn in code or file reaches the chain; the default is none."""
    assert (Policy().on_warn, Policy().chain.nudge_on_warn, Policy().to_dict()["on_warn"]) == ("none", False, "none")
    for policy in (Policy(on_warn="nudge"), Policy.from_toml(toml('on_warn = "nudge"\n'))):
        assert (policy.on_warn, policy.chain.nudge_on_warn) == ("nudge", True)
        assert policy.profile_name == "balanced"
