"""The files of collector-config/ by the word of the real programs that read them."""

from __future__ import annotations

import re
import subprocess

import pytest
from services import binaries
from services.places import CONFIG

NEEDED = {
    "COLLECTOR_TOKEN": "t",
    "COLLECTOR_AUTHORIZATION": "Bearer t",
    "COLLECTOR_HOSTED": "https://localhost",
    "COLLECTOR_HOSTED_AUTHORIZATION": "Basic t",
}
ADDITIONS = ["collector-tls-in.yaml", "collector-tls-out.yaml", "collector-hosted.yaml"]
READ = [
    ("collector", ["collector.yaml"]),
    ("collector", ["collector-core.yaml"]),
    *(("collector", ["collector.yaml", addition]) for addition in ADDITIONS),
    ("collector", ["collector.yaml", *ADDITIONS]),
    ("jaeger", ["jaeger.yaml"]),
]
CONTRIB = "github.com/open-telemetry/opentelemetry-collector-contrib"
CORE = "go.opentelemetry.io/collector"
# What the core distribution takes from the contrib repository; its maintainers add no more, but all that is in CORE.
CORE_TAKES = {
    *("exporter/fileexporter", "exporter/kafkaexporter", "exporter/prometheusexporter"),
    *("exporter/prometheusremotewriteexporter", "exporter/zipkinexporter"),
    *("extension/healthcheckextension", "extension/pprofextension"),
    *("processor/attributesprocessor", "processor/filterprocessor", "processor/probabilisticsamplerprocessor"),
    *("processor/resourceprocessor", "processor/spanprocessor"),
    *("receiver/hostmetricsreceiver", "receiver/jaegerreceiver", "receiver/kafkareceiver"),
    *("receiver/prometheusreceiver", "receiver/zipkinreceiver"),
}
COMPONENT = re.compile(r"- name: (\S+)\s+module: (\S+) (\S+)")
KINDS = ("extensions", "receivers", "processors", "connectors", "exporters")


@pytest.fixture(scope="module")
def program(had):
    """The path of a program by its name."""
    with had():
        return {"collector": binaries.collector().path, "jaeger": binaries.jaeger().path}


@pytest.mark.parametrize(
    ("name", "files"), READ, ids=lambda given: "+".join(given) if isinstance(given, list) else None
)
def test_the_real_program_finds_the_files_valid(program, name, files):
    """Each configuration, and each one with its additions, passes the program's own check."""
    argv = [program[name], "validate", *(part for file in files for part in ("--config", CONFIG / file))]
    done = subprocess.run(argv, env=NEEDED, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_small_file_has_only_parts_of_the_core_distribution(program):
    """Every part that collector-core.yaml names is in the core distribution of the Collector."""
    modules = {name: module for name, module, _version in built(program)}
    foreign = [module for name in named("collector-core.yaml") if not in_core(module := modules[name])]
    assert foreign == []


def test_the_manifest_lists_the_parts_in_use_and_no_others(program):
    """builder.yaml builds each part that one of the Collector's files names, and nothing besides the providers."""
    used = {name for file in ("collector.yaml", "collector-core.yaml", *ADDITIONS) for name in named(file)}
    assert {name for name, module, _version in built(program) if "/confmap/" not in module} == used


def test_the_manifest_is_of_one_release():
    """Each module in builder.yaml is at the release that the tests name, or at the stable one that goes with it."""
    versions = set(re.findall(r"gomod: \S+ (\S+)", binaries.MANIFEST.read_text(encoding="utf-8")))
    assert versions == {binaries.COLLECTOR_VERSION, "v1.67.0"}


def built(program):
    """Type, module and version of each part of the built Collector."""
    done = subprocess.run([program["collector"], "components"], capture_output=True, text=True, check=True, timeout=60)
    return COMPONENT.findall(done.stdout)


def named(file):
    """The types of the parts that a configuration has, whatever it calls them."""
    parts, kind = set(), None
    for line in (CONFIG / file).read_text(encoding="utf-8").splitlines():
        if section := re.fullmatch(r"(\w+):.*", line):
            kind = section[1]
        elif kind in KINDS and (part := re.match(r"  (\w+)(/\w+)?:", line)):
            parts.add(part[1])
    return parts


def in_core(module):
    return module.startswith(CORE + "/") or module.removeprefix(CONTRIB + "/") in CORE_TAKES
