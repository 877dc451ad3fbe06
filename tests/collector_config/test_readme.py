"""README.md of collector-config/ tells of what is there, and of nothing else."""

import re

import pytest
from deployed import CONFIG, VARIABLE

TEXT = (CONFIG / "README.md").read_text(encoding="utf-8")
CONFIGURATIONS = [*CONFIG.glob("collector*.yaml"), CONFIG / "jaeger.yaml"]
READ = {found for path in CONFIGURATIONS for found in VARIABLE.findall(path.read_text(encoding="utf-8"))}
ROWS = re.findall(r"^\| (`(?:COLLECTOR|JAEGER)_[^|]*) \| ([^|]*) \|", TEXT, flags=re.MULTILINE)


def told():
    """The variables of the table and the default of each, "" for none."""
    for row in ROWS:
        names, defaults = ([word.strip("`") for word in cell.split(", ")] for cell in row)
        yield from ((name, "" if default == "none" else default) for name, default in zip(names, defaults, strict=True))


def test_each_variable_is_told_with_its_default():
    """The table has every variable that a configuration reads, with the default that it has there."""
    assert set(told()) == READ


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z/-]+\.yaml|[a-z]+/)`", TEXT))))
def test_each_file_that_is_named_exists(name):
    """Every file and folder that the text names is there."""
    assert any((CONFIG / folder / name).exists() for folder in (".", "prometheus"))


def test_each_file_is_named():
    """No configuration is left out of the text."""
    assert [path.name for path in CONFIG.glob("*.yaml") if f"`{path.name}`" not in TEXT] == []


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((\.\.[^)#]*)", TEXT))))
def test_links_lead_somewhere(link):
    """Every link into the repository leads to a file."""
    assert (CONFIG / link).is_file()
