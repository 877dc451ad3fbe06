"""Zero-code: nothing in the application knows of the guard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import mcp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otel_toolguard_mcp import ToolGuardMCPInstrumentor, guard_client, guard_server

from otel_toolguard import Session, SessionStopped

from . import hosts as h

HERE = Path(__file__).parent


def search(q: str = "word") -> str:
    """Looks something up."""
    return f"nothing about {q}"


def serving():
    """A server of one tool."""
    server = h.MCPServer("tools")
    server.add_tool(search)
    return server


@pytest.fixture
def spans():
    """The spans of an instrumented application, which gives the instrumentor a provider of its own."""
    exporter, provider, instrumentor = InMemorySpanExporter(), TracerProvider(), ToolGuardMCPInstrumentor()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider)
    yield exporter.get_finished_spans
    instrumentor.uninstrument()


@pytest.mark.parametrize("way", h.WAYS)
def test_instrumented_client_is_stopped(way, spans):
    """A client made after instrument() is guarded by the default rules, and its spans go to the given provider."""
    found = h.asked_in_turn(serving(), [("search", {})] * 9, way)
    assert [one is SessionStopped for one in found] == [False] * 6 + [True] * 3
    assert [span.name for span in spans() if span.name.startswith("execute_tool")] == ["execute_tool search"] * 9


@pytest.mark.parametrize("way", h.WAYS)
def test_all_at_once_is_once(way, spans):
    """Instrumented, guarded by hand on both ends and decorated, a call is one call and one span; one's own rules hold."""
    from otel_toolguard import guard_tool

    server = h.MCPServer("tools")
    server.add_tool(guard_tool(search))
    with Session(policy=h.repeat(3)) as session:
        found = h.asked_in_turn(
            guard_server(server, h.repeat(9)), [("search", {})] * 5, way, lambda one: guard_client(one, h.repeat(9))
        )
        assert session.report()["calls"] == 3
    assert [one is SessionStopped for one in found] == [False] * 3 + [True] * 2


def test_instrumented_server_is_guarded():
    """A server made after instrument() answers a bare client's loop by error results."""
    instrumentor = ToolGuardMCPInstrumentor()
    instrumentor.instrument()
    try:
        server = serving()
    finally:
        instrumentor.uninstrument()
    found = h.asked_in_turn(server, [("search", {})] * 9)
    assert [h.failed(one) for one in found] == [False] * 6 + [True] * 3


def test_uninstrument_restores_the_very_objects():
    """Constructors are put back object by object, also after two rounds."""
    kinds = [mcp.ClientSession, mcp.server.lowlevel.Server, h.MCPServer, *([mcp.Client] if h.NEW else [])]
    before = [vars(kind)["__init__"] for kind in kinds]
    for _ in range(2):
        instrumentor = ToolGuardMCPInstrumentor()
        instrumentor.instrument()
        assert all(vars(kind)["__init__"] is not was for kind, was in zip(kinds, before, strict=True))
        instrumentor.uninstrument()
        assert all(vars(kind)["__init__"] is was for kind, was in zip(kinds, before, strict=True))


def run_python(code, *, under=(), **environment):
    """Runs code, or a file with code, in a process of its own; returns its output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TOOLGUARD_", "PYTHONPATH"))}
    program = [str(code)] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
    done = subprocess.run([*under, sys.executable, *program], env=kept | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


APPLICATION = f"""
import asyncio, json, runpy
import otel_toolguard_mcp
otel_toolguard_mcp.raise_if_open = lambda client: None
host = runpy.run_path({str(HERE.parent / "examples" / "host.py")!r})
async def main():
    async with host["connected"]() as client:
        try:
            return await host["converse"](client, [])
        except Exception as error:
            return type(error).__name__
print("RESULT", json.dumps(asyncio.run(main())))
"""


def test_command_guards_an_unchanged_application():
    """opentelemetry-instrument alone guards the clients of a program, unless the adapter is disabled by its name."""
    program = [str(Path(sys.executable).parent / "opentelemetry-instrument")]
    settings = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}

    def result(**more):
        out = run_python(APPLICATION, under=program, **settings, **more)
        return json.loads(out.partition("RESULT ")[2]), out.count("searching")

    assert result() == ("SessionStopped", 6)
    assert result(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="toolguard_mcp") == ("50 turns, and no end", 50)


def test_import_without_the_sdk():
    """Where the SDK is absent the package imports all the same, for the entry point must load."""
    out = run_python(
        """
        import sys
        sys.modules["mcp"] = None
        import otel_toolguard_mcp as package
        print(package.ToolGuardMCPInstrumentor().instrumentation_dependencies())
        """
    )
    assert "mcp >= 1.19" in out


def test_example():
    """The example in examples/, run as a program, shows a loop without end, its stop, and a next run that goes on."""
    out = run_python(HERE.parent / "examples" / "host.py")
    assert "without the guard: 50 turns, and no end" in out
    assert "stopped: " in out
    assert "6 turns kept; the next run: done after 2 more" in out
    assert out.count("searching") == 50 + 6 + 1


@pytest.mark.parametrize("way", h.WAYS)
def test_restored_clients_and_servers_are_bare(way):
    """After uninstrument() new clients and servers are the SDK's own objects, of its own classes."""
    instrumentor = ToolGuardMCPInstrumentor()
    instrumentor.instrument()
    instrumentor.uninstrument()
    kinds = []

    def looked_at(client):
        kinds.append(type(client))
        return client

    found = h.asked_in_turn(serving(), [("search", {})] * 9, way, looked_at)
    assert not any(isinstance(one, type) or h.failed(one) for one in found)
    assert kinds == [mcp.ClientSession if way == "session" else mcp.Client]
