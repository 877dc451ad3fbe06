"""The document names what is emitted, and its example runs."""

import re
from pathlib import Path

import pytest

from otel_toolguard.telemetry import attributes

TEXT = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
NAMES = {
    name: value
    for name, value in vars(attributes).items()
    if name.isupper() and isinstance(value, str) and re.match(r"(toolguard|gen_ai|error)\.|OTEL_|_OTHER|\(", value)
}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented(name):
    """Each attribute, metric and event of ours, and each stand-in for a name, is in docs/telemetry.md."""
    assert f"`{NAMES[name]}" in TEXT or f"{NAMES[name]}`" in TEXT


def test_every_documented_name_is_emitted():
    """The document names no attribute, metric or event of ours that the code does not spell."""
    said = set(re.findall(r"\btoolguard\.[a-z_.]+[a-z_]", TEXT.replace("toolguard.report.classes.{class}", "")))
    assert said <= set(NAMES.values())


def test_the_example_runs():
    """The Python block of the document runs as it stands."""
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    exec(compile(block, "docs/telemetry.md", "exec"), {})
