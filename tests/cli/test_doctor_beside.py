"""What doctor says of other instrumentations, packages and providers."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from otel_toolguard.cli import doctor_providers
from otel_toolguard.cli.doctor_beside import DISABLED, Other, beside_findings
from otel_toolguard.cli.doctor_providers import provider_findings

from .doctored import clean

OURS = Other("toolguard_langchain", "otel-toolguard-langchain")
GENAI = Other("langchain", "opentelemetry-instrumentation-genai-langchain")
INFERENCE = Other("langchain", "openinference-instrumentation-langchain")
LLMETRY = Other("langchain", "opentelemetry-instrumentation-langchain")
AGENTS = Other("openai_agents", "opentelemetry-instrumentation-openai-agents-v2")
WEB = Other("requests", "opentelemetry-instrumentation-requests")


def told(*others, **variables):
    return {finding.name: finding for finding in beside_findings(variables, list(others))}


@pytest.mark.parametrize(
    ("other", "family", "words"),
    [
        (GENAI, "OpenTelemetry GenAI", "it records the duration"),
        (INFERENCE, "OpenInference", "does not make its spans current"),
        (LLMETRY, "OpenLLMetry", "no second one"),
        (AGENTS, "OpenTelemetry GenAI", "no second one"),
    ],
)
def test_tool_spans_of_others_are_enriched(other, family, words):
    """Each family that traces tools is known by its distribution, with what becomes of its span."""
    found = told(other)[other.name]
    assert (found.level, found.data["family"]) == ("ok", family)
    assert words in found.text


def test_those_without_tools_are_one_line():
    """Instrumentations that open no spans for tools are listed together."""
    assert told(WEB, Other("flask", "opentelemetry-instrumentation-flask"))["others"].data["names"] == [
        "flask",
        "requests",
    ]


def test_two_others_on_one_framework_double():
    """Two that trace one framework are a warning; not if one is off, which their common name cannot do."""
    assert "uninstall" in told(GENAI, LLMETRY)["langchain"].advice
    assert told(GENAI, AGENTS)["langchain"].level == "ok"
    assert {finding.level for finding in told(GENAI, LLMETRY, **{DISABLED: "langchain"}).values()} == {"note"}


def test_what_is_disabled():
    """A guard that is disabled is a note, everything is by a star, and a name that is not installed is a warning."""
    assert told(OURS)["toolguard_langchain"].level == "ok"
    assert told(OURS, **{DISABLED: "toolguard_langchain , x"})["toolguard_langchain"].level == "note"
    assert told(OURS, **{DISABLED: "toolguard_langchain , x"})["disabled"].level == "warn"
    assert told(OURS, **{DISABLED: "*"})["toolguard_langchain"].level == "note"


@pytest.mark.parametrize(
    ("lacking", "protocols", "level", "words"),
    [
        ("opentelemetry-sdk", {}, "warn", "the SDK is not installed"),
        ("opentelemetry-sdk", {"traces": "grpc"}, "fail", "the SDK is not installed"),
        ("opentelemetry-exporter-otlp-proto-grpc", {"traces": "grpc"}, "fail", "proto-grpc is not installed"),
        ("opentelemetry-exporter-otlp-proto-grpc", {"traces": "http/protobuf"}, "ok", "API"),
    ],
)
def test_packages_that_are_missing(lacking, protocols, level, words, monkeypatch):
    """What is missing for the export that is asked for fails, with the line that installs it."""

    def version(name, really=doctor_providers.version):
        if name == lacking:
            raise PackageNotFoundError(name)
        return really(name)

    monkeypatch.setattr(doctor_providers, "version", version)
    found = provider_findings({}, protocols)[0]
    assert (found.level, bool(found.advice)) == (level, level != "ok")
    assert words in found.text
    assert level == "ok" or found.advice == 'pip install "otel-toolguard[otlp]"'


PROVIDERS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""


@pytest.mark.parametrize(("code", "level"), [("", "note"), (PROVIDERS, "warn")], ids=["none", "tracer alone"])
def test_providers_of_a_module(code, level, tmp_path, monkeypatch):
    """Providers that a module sets up when it is imported are seen, and what it forgets is said."""
    clean(monkeypatch)
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-c", "from otel_toolguard.cli import main; main()", "doctor", "app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    line = next(line for line in done.stdout.splitlines() if " providers " in line)
    assert line.split()[0] == level
