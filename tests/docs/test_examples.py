"""What the documents show is what runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from otel_toolguard import Policy, Session, guard_tool

ROOT = Path(__file__).parents[2]


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("path", ["README.md"])
def test_python_examples_run(path):
    """Each Python block of the document runs, one after the other, in one namespace."""
    namespace = {}
    for block in blocks(path, "python"):
        exec(compile(block, path, "exec"), namespace)


def test_toml_examples_are_policies(tmp_path):
    """Each TOML block of the README is a policy that can be honoured."""
    for block in blocks("README.md", "toml"):
        file = tmp_path / "policy.toml"
        file.write_text(block, encoding="utf-8")
        assert tomllib.loads(block)["tool_plugins"]
        assert Policy.from_toml(file).plugins


def test_the_limits_table_is_that_of_the_profiles():
    """The README's table of limits holds the numbers that the profiles hold."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for column, profile in enumerate(("conservative", "balanced", "strict")):
        for name, settings in Policy.profile(profile).plugins:
            row = re.search(rf"\| `{name}` \|[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|", text)
            if row is None:
                assert name in ("classify", "tool_stats")
                continue
            limit = getattr(settings, "limit", None) or settings.run
            assert row.group(column + 1).split("/")[0].strip() == f"{limit:g}"


@pytest.mark.parametrize(("profile", "one", "two"), [("balanced", 6, 9), ("strict", 6, 9), ("conservative", 9, 12)])
def test_where_plain_loops_end_is_as_the_readme_says(profile, one, two):
    """One call over and over, and two in turn, stop after the numbers of calls that the README names."""

    @guard_tool
    def search(q):
        return "nothing found"

    for queries, expected in (("a", one), ("ab", two)):
        with Session(policy=Policy.profile(profile)) as session:
            ran = 0
            while session.trip is None:
                search(queries[ran % len(queries)])
                ran += 1
            assert (ran, session.trip.rule) == (expected, "stagnation")
