"""Costs of a guarded call as ratios to floors of the same run: ``python benchmarks/run.py [--json] [--rounds N]``.

It prints and never fails: a time is no test.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import warnings
from importlib import import_module
from time import perf_counter

import report
from measure import pin

OFF = {"TOOLGUARD_TELEMETRY": "off"}
# Name: (module, function, environment, rounds). Each is a child process of its own, for providers are process-wide.
CHILDREN: dict[str, tuple[str, str, dict[str, str], bool]] = {
    "plain floors": ("floors", "plain", {}, True),
    "guard only": ("guarded", "off", OFF, True),
    "no SDK": ("guarded", "no_sdk", {}, True),
    "recorded floors": ("floors", "recorded", {}, True),
    "recorded": ("guarded", "recorded", {}, True),
    "span and histogram": ("guarded", "measured", {}, True),
    "unsampled floors": ("floors", "unsampled", {}, True),
    "unsampled": ("guarded", "unsampled", {}, True),
    "peers: guards": ("peers", "guards", {}, True),
    "peers: tracers": ("peers", "tracers", {}, True),
    "peers: logfire": ("peers", "logfire", {}, True),
    "growth": ("growth", "growth", OFF, False),
    "memory": ("growth", "memory", OFF, False),
    "masking": ("growth", "masking", OFF, False),
    "replay": ("replaying", "replay", OFF, False),
    "hook": ("starting", "hook", {}, True),
}


def main() -> None:
    """Measures everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--rounds", type=int, default=2, help="processes for each telemetry setting; the least counts")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        _be_child(options.child)
        return
    start = perf_counter()
    machine = _machine(pin())
    figures, faults = _measure(max(1, options.rounds))
    found = report.lines(figures)
    machine["seconds"] = round(perf_counter() - start, 1)
    if options.json:
        print(json.dumps({"machine": machine, "rows": [line._asdict() for line in found], "faults": faults}, indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(report.text(found))
    for name, fault in faults.items():
        print(f"\nnot available: {name}: {fault}")


def _machine(where: str) -> dict[str, object]:
    return {"Python": platform.python_version(), "cores": os.cpu_count(), "pinned to": where}


def _measure(rounds: int) -> tuple[report.Figures, dict[str, str]]:
    """The least of each figure over all rounds, and what went wrong in which child.

    Rounds go through all settings in turn, so that a busy moment of the machine meets floors and cases alike.
    """
    figures: report.Figures = {}
    faults: dict[str, str] = {}
    for number in range(rounds):
        for name, (_, _, environment, again) in CHILDREN.items():
            if number and not again:
                continue
            found, fault = _child(name, environment)
            if fault:
                faults[name] = fault
            for key, value in found.items():
                figures[key] = min(value, figures.get(key, value))
    return figures, faults


def _child(name: str, environment: dict[str, str]) -> tuple[report.Figures, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TOOLGUARD_", "OTEL_"))}
    clean["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # one of the peers brings one, which would slow every start
    command = [sys.executable, __file__, "--child", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean | environment)
    if done.returncode:
        return {}, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), ""


def _be_child(name: str) -> None:
    warnings.simplefilter("ignore")
    module, function, _, _ = CHILDREN[name]
    print(json.dumps(getattr(import_module(module), function)()))


if __name__ == "__main__":
    main()
