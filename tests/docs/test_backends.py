"""The page about back ends: what it says to set can be set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from opentelemetry.util.re import parse_env_headers

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
HEADERS = re.findall(r"^(?:.*`)?OTEL_EXPORTER_OTLP_HEADERS=([^`\n]+)", TEXT, flags=re.MULTILINE)
VARIABLES = set(re.findall(r"COLLECTOR_\w+", TEXT))
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)


def configured():
    """What the Collector is configured with for a hosted back end: exporters, and pipelines by name."""
    read = [
        yaml.safe_load((ROOT / "collector-config" / file).read_text(encoding="utf-8"))
        for file in ("collector.yaml", "collector-hosted.yaml")
    ]
    exporters = {name for config in read for name in config["exporters"]}
    return exporters, set(read[0]["service"]["pipelines"])


@pytest.mark.parametrize("headers", HEADERS)
def test_headers_are_encoded_as_the_specification_wants(headers):
    """Without the leniency of recent exporters each header is read, and a scheme is followed by a space."""
    read = parse_env_headers(headers)
    assert len(read) == headers.count(",") + 1
    assert re.fullmatch(r"(Basic|Bearer) \S+", read.get("authorization", "Basic x"))


def test_there_are_headers_for_each_scheme():
    """The page shows Basic, Bearer and headers of another kind."""
    said = " ".join(HEADERS)
    assert all(kind in said for kind in ("Basic%20", "Bearer%20", "x-scope-orgid", "x-langfuse-ingestion-version"))


@pytest.mark.parametrize("variable", sorted(VARIABLES))
def test_variables_of_the_collector_are_read_by_its_files(variable):
    """Each variable that the page names stands in one of the configurations."""
    assert any(
        f"env:{variable}" in file.read_text(encoding="utf-8") for file in (ROOT / "collector-config").glob("*.yaml")
    )


@pytest.mark.parametrize("block", BLOCKS)
def test_additions_name_what_the_collector_has(block):
    """The page's own additions to the Collector use exporters and pipelines of the files that they come after."""
    exporters, pipelines = configured()
    added = yaml.safe_load(block)
    assert set(added.get("exporters", {})) <= exporters
    for name, pipeline in added.get("service", {}).get("pipelines", {}).items():
        assert name in pipelines
        assert set(pipeline["exporters"]) <= exporters
