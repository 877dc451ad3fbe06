"""What doctor says of the policy: each value with the place that it comes from, and what is said in vain."""

from __future__ import annotations

import pytest

from .doctored import SECRET, clean, page, report

FILE = """profile = "strict"
mode = "observe"
latch = "session"

[tools."search_*"]
class = "network"
"""
CHAIN = """[[tool_plugins]]
plugin = "repeat_guard"
limit = 9

[[tool_plugins]]
plugin = "tool_stats"
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Writes a settings file and names it."""

    def write(text, **variables):
        path = tmp_path / "guard.toml"
        path.write_text(text, encoding="utf-8")
        clean(monkeypatch, TOOLGUARD_CONFIG=str(path), **variables)
        return path

    return write


def test_defaults_are_said_to_be_defaults(monkeypatch):
    """With nothing set each value is the default or the profile's."""
    clean(monkeypatch)
    told = report()["policy"]
    assert (told["mode"]["value"], told["mode"]["source"]) == ("enforce", "default")
    assert (told["profile"]["value"], told["profile"]["source"]) == ("balanced", "default")
    values = told["repeat_guard"]["values"]
    assert values["limit"] == {"value": 8, "source": "profile balanced"}
    assert values["max_period"] == {"value": 3, "source": "default"}


@pytest.mark.parametrize(
    ("variables", "name", "value", "source"),
    [
        ({}, "mode", "observe", "{file}:2"),
        ({}, "profile", "strict", "{file}:1"),
        ({}, "latch", "session", "{file}:3"),
        ({}, "strict", False, "default"),
        ({}, 'tools."search_*"', {"class": "network"}, "{file}:5"),
        ({"TOOLGUARD_MODE": "enforce"}, "mode", "enforce", "TOOLGUARD_MODE"),
        ({"TOOLGUARD_STRICT": "1"}, "strict", True, "TOOLGUARD_STRICT"),
        ({"TOOLGUARD_CAPTURE_ARGUMENTS": "on"}, "capture_arguments", True, "TOOLGUARD_CAPTURE_ARGUMENTS"),
        ({"TOOLGUARD_PROFILE": "conservative"}, "profile", "conservative", "TOOLGUARD_PROFILE"),
        ({"TOOLGUARD_MODE": ""}, "mode", "observe", "{file}:2"),
    ],
)
def test_sources(variables, name, value, source, settings):
    """A variable speaks before the file, the file with its line before the default; an empty variable is not set."""
    path = settings(FILE, **variables)
    told = report()["policy"][name]
    assert (told.get("value", told.get("values")), told["source"]) == (value, source.format(file=path))


def test_a_chain_of_the_file_has_lines(settings):
    """Parameters of a chain in the file have the line in which they stand, the others are defaults."""
    path = settings(CHAIN)
    told = report()["policy"]
    assert told["profile"]["value"] is None
    assert told["repeat_guard"]["values"]["limit"] == {"value": 9, "source": f"{path}:3"}
    assert told["repeat_guard"]["values"]["compare"]["source"] == "default"
    assert told["tool_stats"]["text"] == f"on ({path}:5)"
    assert "stagnation" not in told


@pytest.mark.parametrize(
    ("text", "variables", "level", "words"),
    [
        (FILE, {"TOOLGUARD_MODE": "off"}, "note", "mode of the file"),
        (FILE, {"TOOLGUARD_PROFILE": "strict"}, "warn", "profile of the file"),
        (CHAIN, {"TOOLGUARD_PROFILE": "strict"}, "warn", "tool_plugins of the file"),
        ('profile = "strict"\n' + CHAIN, {}, "warn", "tool_plugins decides instead"),
    ],
)
def test_what_the_file_says_in_vain(text, variables, level, words, settings):
    """What something else speaks before is named with its line; a chain that does not count is a warning."""
    path = settings(text, **variables)
    told = report()["policy"]["not used"]
    assert told["level"] == level
    assert words in told["text"]
    assert str(path) in told["text"]


@pytest.mark.parametrize(("mode", "level"), [("enforce", "ok"), ("observe", "note"), ("off", "warn")])
def test_modes(mode, level, monkeypatch):
    """Observing is a note, a guard that is off is a warning, and neither is a failure."""
    clean(monkeypatch, TOOLGUARD_MODE=mode)
    assert report()["policy"]["mode"]["level"] == level


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mood = 1", "unknown key 'mood'"),
        ('[[tool_plugins]]\nplugin = "repeat_gard"', "unknown plugin"),
        ('[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = "x"', ":3: "),
        ("= = =", "is no TOML"),
    ],
)
def test_settings_that_cannot_be_honoured(text, words, settings):
    """A settings error is one failing line with the error's own words; the rest of the page is there all the same."""
    settings(text)
    told = report(code=1)
    assert told["policy"]["settings"]["level"] == "fail"
    assert words in told["policy"]["settings"]["text"]
    assert told["store"]


def test_an_empty_chain_stops_nothing(settings):
    """A chain without a rule is a warning."""
    settings("tool_plugins = []")
    assert report()["policy"]["rules"]["level"] == "warn"


def test_a_variable_that_is_none_of_ours(monkeypatch):
    """A misspelled variable is a warning with the one that was probably meant."""
    clean(monkeypatch, TOOLGUARD_MODUS="observe")
    told = report()["policy"]["variable"]
    assert (told["level"], told["advice"]) == ("warn", "did you mean TOOLGUARD_MODE?")


def test_the_key_is_never_shown(monkeypatch):
    """Of the signature key no more is said than that it is set."""
    clean(monkeypatch, TOOLGUARD_SIGNATURE_KEY=SECRET)
    shown = page() + page("--json")
    assert SECRET not in shown
    assert "set (TOOLGUARD_SIGNATURE_KEY)" in shown
