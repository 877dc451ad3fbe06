"""Sends hostile values through all that looks at a value: `python tests/fuzz/run.py --values 1000000 --seed 1`.

Each value is made twice. It is an error if anything raises, or if the two have different signatures or fingerprints.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import gc
import random
import sys
import time
import traceback
import warnings

import hostile

from otel_toolguard import Policy
from otel_toolguard.core.canonical import Signer, canonical, fingerprints
from otel_toolguard.tool import Tool

SIGN = Signer(b"key")
NEEDS = frozenset({"exact", "volatile", "digits"})
QUERY, SHELL = Tool("query"), Tool("bash")
POLICY = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}, {"plugin": "stagnation", "limit": 12}])


def look(value, *, commands):
    """All that is made of a value, as an argument and as a result."""
    text, whole = canonical(value)
    call = QUERY.call({"q": value}, POLICY, SIGN)
    found = [SIGN.signature("query", text), whole, call.signature, call.shape, call.whole]
    found += fingerprints(SIGN, value, failed=not whole, needs=NEEDS)
    if commands:
        call = SHELL.call({"command": value, "cwd": value}, POLICY, SIGN)
        found += [call.signature, call.tool_class, call.whole]
    return found


class Report:
    """What a run has seen."""

    def __init__(self, *, commands):
        self.commands = commands
        self.values, self.exceptions, self.unequal = 0, 0, 0
        self.slowest = {}
        self.times = []
        self.wholes = collections.Counter()

    def add(self, seed, **shares):
        kind, value = hostile.make(seed, **shares)
        self.values += 1
        begin = time.perf_counter()
        try:
            found = look(value, commands=self.commands)
        except Exception:
            self.exceptions += 1
            print(f"seed {seed}, {kind}: raised\n{traceback.format_exc(limit=-4)}")
            return
        took = time.perf_counter() - begin
        self.times.append(took)
        self.wholes[found[1]] += 1
        if took > self.slowest.get(kind, (0, 0))[0]:
            self.slowest[kind] = took, seed
        del value
        if found != look(hostile.make(seed, **shares)[1], commands=self.commands):
            self.unequal += 1
            print(f"seed {seed}, {kind}: two equal values are told apart")

    def print(self, seconds):
        times = sorted(self.times)
        half, most = (times[min(len(times) - 1, int(len(times) * share))] * 1e6 for share in (0.5, 0.99))
        print(f"values {self.values}, exceptions {self.exceptions}, equal pairs told apart {self.unequal}")
        print(f"distinct kinds {len(self.slowest)}; marked {self.wholes[False]}, whole {self.wholes[True]}")
        print(
            f"p50 {half:.0f} us, p99 {most:.0f} us, over 50 ms {len(times) - bisect.bisect(times, 0.05)}; {seconds:.0f} s in all"
        )
        for took, seed, kind in sorted(((*found, kind) for kind, found in self.slowest.items()), reverse=True)[:12]:
            print(f"  slowest of its kind: {kind}: {took * 1e6:.0f} us (seed {seed})")

    @property
    def failed(self):
        return bool(self.exceptions or self.unequal)


def run(values, seed, *, commands=True, **shares):
    """A report on so many values."""
    report, draw = Report(commands=commands), random.Random(seed)
    warnings.simplefilter("ignore")  # of what was never awaited or is out of date
    for _ in range(values):
        report.add(draw.getrandbits(48), **shares)
        if report.values % 100_000 == 0:
            gc.collect()
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--plain", action="store_true", help="do not look at each value as a command and directory, too"
    )
    asked = parser.parse_args()
    started = time.perf_counter()
    told = run(asked.values, asked.seed, commands=not asked.plain)
    told.print(time.perf_counter() - started)
    sys.exit(told.failed)
