"""Runs the adapters' examples as their users would, and finds again what they told."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.places import ROOT, until
from services.stack import RUN_S, telemetry

if TYPE_CHECKING:
    from services.collector import Collector
    from services.jaeger import Jaeger

WITHIN = str(Path(__file__).with_name("within.py"))
LIVE = ROOT / ".venv-live"  # packages beside an adapter's environment, whose own tests are to run without them
INTERNAL, SERVER, CLIENT = 1, 2, 3  # kinds of span in OTLP
MOST_TRACES = 500


@dataclass(frozen=True)
class Example:
    """A program in ``integrations/{folder}/examples``: an agent without the guard, then the same agent with it.

    Attributes:
        tool: What it calls for ever, of this class; ``later`` times more in a run after the stopped one.
        names_calls: Whether its model's ids of calls come to the guard.
    """

    folder: str
    file: str = "agent.py"
    tool: str = "search"
    tool_class: str = "read"
    later: int = 0
    names_calls: bool = True

    def __str__(self) -> str:
        return f"{self.folder}-{self.file.removesuffix('.py')}"

    @property
    def environment(self) -> Path:
        """The environment that has the framework's newest release and the adapter."""
        return ROOT / ".venv-adapters" / f"latest-{self.folder}"

    @property
    def missing(self) -> list[str]:
        """Names of environments that it needs and that are not there."""
        return [each.name for each in (self.environment, LIVE) if not (each / ".ready").exists()]

    def run(self, way: str, collector: Collector, *within: str, **settings: str) -> Run:
        """Runs it unchanged, by ``opentelemetry-instrument`` in its environment; ``within`` a program if named."""
        service = f"{self} {way}"
        env = telemetry(collector, service=service, PYTHONPATH=str(LIVE), **settings)
        env["PATH"] = f"{self.environment / 'bin'}{os.pathsep}{env['PATH']}"  # as in an activated environment
        path = str(ROOT / "integrations" / self.folder / "examples" / self.file)
        began = time.monotonic()
        done = subprocess.run(
            ["opentelemetry-instrument", "python", *within, path],
            env=env, capture_output=True, text=True, timeout=RUN_S,
        )  # fmt: skip
        print(f"{service}: {time.monotonic() - began:.1f} s")
        return Run(service, done)


@dataclass(frozen=True)
class Run:
    """A program that has ended, and the name of the service under which it told everything."""

    service: str
    done: subprocess.CompletedProcess[str]

    def spans(self, jaeger: Jaeger, collector: Collector, *, guarded: int) -> list[dict[str, Any]]:
        """All its spans by their beginning, once Jaeger has as many as the Collector and so many of the guard's."""

        def look() -> list[dict[str, Any]]:
            ids = jaeger.search(self.service, limit=MOST_TRACES)
            return [span for trace_id in ids for span in jaeger.trace(trace_id)]

        def whole(spans: list[dict[str, Any]]) -> bool:
            counted = sum(one.value for one in collector.metrics("traces_span_metrics_calls_total", job=self.service))
            return len(spans) == counted and len(of_the_guard(spans)) >= guarded

        found = until(look, enough=whole)
        assert whole(found), (len(found), len(of_the_guard(found)), self.done.stderr)
        return sorted(found, key=lambda span: int(span["startTimeUnixNano"]))


def of_the_guard(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those on which the guard said anything."""
    return [span for span in spans if any(name.startswith("toolguard.") for name in span["said"])]


def tripping(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that opened a circuit."""
    return [span for span in spans if span["said"].get("toolguard.tripped")]


def calls_by_run(spans: list[dict[str, Any]]) -> dict[str, list[int]]:
    """For each run the numbers that its admitted calls were given, in their order."""
    found: dict[str, list[int]] = {}
    for span in spans:
        if span["said"]["toolguard.outcome"] != "refused":
            found.setdefault(span["said"]["toolguard.run.id"], []).append(span["said"]["toolguard.run.calls"])
    return found
