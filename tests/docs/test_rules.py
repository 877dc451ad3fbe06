"""The page about the rules names every rule and parameter, with the defaults that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_toolguard import Policy
from otel_toolguard.settings import PLUGINS, PROFILES

TEXT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE))
WORDS = {None: "none", True: "`true`", False: "`false`"}


def word(field):
    """How the page writes a default."""
    if field.is_required():
        return "–"  # noqa: RUF001
    if field.default is None or isinstance(field.default, bool):
        return WORDS[field.default]
    return {str: f'`"{field.default}"`', dict: "`{}`"}.get(type(field.default), f"{field.default}")


def test_every_rule_has_a_section():
    """One section for each rule, and none for a rule that is gone."""
    assert set(PLUGINS) == set(SECTIONS) - {"Your"}


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_every_parameter_is_named_with_its_default(name):
    """The table's rows are the parameters of the settings class, in order, with the defaults that hold."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", SECTIONS[name], flags=re.MULTILINE)
    assert rows == [(parameter, word(field)) for parameter, field in PLUGINS[name].model_fields.items()]
    assert rows or "No parameters." in SECTIONS[name]


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_every_example_is_a_policy(name, tmp_path):
    """The example of a section is a chain of that one rule."""
    (block,) = re.findall(r"```toml\n(.*?)```", SECTIONS[name], flags=re.DOTALL)
    file = tmp_path / "policy.toml"
    file.write_text(block, encoding="utf-8")
    assert [rule for rule, _ in Policy.from_toml(file).plugins] == [name]


@pytest.mark.parametrize("name", ["repeat_guard", "stagnation", "same_answer", "failure_streak", "signature_failures"])
def test_the_limits_per_profile_are_those_that_hold(name):
    """Conservative / balanced / strict, as the profiles have them."""
    limits = []
    for profile in ("conservative", "balanced", "strict"):
        found = [table["limit"] for table in PROFILES[profile] if table["plugin"] == name]
        limits += [f"{found[0]:g}" if found else "none"]
    assert f"{' / '.join(limits)}." in SECTIONS[name]


def test_every_profile_is_named():
    """The three of the table's head, and the others with their chains."""
    assert [name for name in PROFILES if name not in TEXT] == []
