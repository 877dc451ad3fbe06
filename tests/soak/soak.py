"""Many admissions at once, over threads, tasks and nested runs: ``python tests/soak/soak.py --calls 1000000``.

Counts what the guard let through by a counter of its own, and says whether the ceiling was met to the call, every body
has one ended span, nobody is left in flight, and whether what is remembered stays within its bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import threading
import time

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool
from otel_toolguard.core.state import RUNS_KEPT, SIGNATURES_KEPT, SessionState
from otel_toolguard.telemetry import Telemetry

THREADS, TASKS, WAVES = 16, 64, 10


class Ended(SpanProcessor):
    """Counts ended spans by outcome; appending is atomic, adding is not."""

    def __init__(self):
        self.outcomes = {"ok": [], "refused": []}

    def on_end(self, span):
        self.outcomes[span.attributes["toolguard.outcome"]].append(None)


class Soak:
    """One session with a ceiling of ``calls``, asked for a little more."""

    def __init__(self, calls):
        self.calls = calls
        self.distinct = min(5000, calls // 200)  # more would still fill what is remembered at half time
        self.ended = Ended()
        provider = TracerProvider()
        provider.add_span_processor(self.ended)
        self.store = MemoryStore()
        self.session = Session(
            "soak",
            policy=Policy(plugins=[{"plugin": "call_ceiling", "session": calls}, {"plugin": "tool_stats"}]),
            store=self.store,
            telemetry=Telemetry(tracer_provider=provider),
        )
        self.bodies, self.refused = [], []
        self.look = guard_tool(name="look")(self._look)
        self.delegate = guard_tool(name="delegate")(self._delegate)
        self.look_async = guard_tool(name="look_async")(self._look_async)
        self.half = None
        self._numbers = itertools.count()

    def _look(self, n):
        self.bodies.append(None)
        return n

    async def _look_async(self, n):
        self.bodies.append(None)
        await asyncio.sleep(0)
        return n

    def _delegate(self, times):
        self.bodies.append(None)
        with self.session:  # a run nested in this call
            self._ask(self.look, times)

    def _ask(self, tool, times):
        for _ in range(times):
            try:
                tool(next(self._numbers) % self.distinct)
            except CircuitOpen:
                self.refused.append(None)
                return

    def _thread(self, share):
        with self.session:
            for n in itertools.count():
                if self.session.trip is not None or n >= share:
                    return
                try:
                    self.delegate(times=3) if n % 50 == 0 else self.look(next(self._numbers) % self.distinct)
                except CircuitOpen:
                    self.refused.append(None)
                    return

    async def _tasks(self, share):
        async def one():
            for _ in range(share // TASKS):
                try:
                    await self.look_async(next(self._numbers) % self.distinct)
                except CircuitOpen:
                    self.refused.append(None)
                    return

        with self.session:
            await asyncio.gather(*(one() for _ in range(TASKS)))

    def run(self):
        """Wave after wave, with a look at what is remembered at half time, until the ceiling refuses everybody."""
        wave = 0
        while not self.refused:
            wave += 1
            self._wave(self.calls // WAVES)
            if wave == WAVES // 2:
                self.half = self.remembered()
        return self

    def _wave(self, calls):
        share = calls // (THREADS + 4)
        threads = [threading.Thread(target=self._thread, args=(share,)) for _ in range(THREADS)]
        threads.append(threading.Thread(target=lambda: asyncio.run(self._tasks(4 * share))))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def remembered(self):
        """Runs of the session, the longest table of any of them, sessions in the store, entries of the handle's own set."""
        plain = self.session.guard.transact(SessionState.to_plain)
        runs = [run for _, run in plain["runs"]]
        return (
            len(runs),
            max(map(_longest, [*runs, plain["rules"]])),
            len(self.store._entries),
            len(self.session.guard.quiet),
        )

    def faults(self):
        """What is not as it must be."""
        end, bodies = self.remembered(), len(self.bodies)
        found = {
            f"{bodies} bodies, the ceiling is {self.calls}": bodies != self.calls,
            f"{len(self.ended.outcomes['ok'])} ended spans of bodies": len(self.ended.outcomes["ok"]) != bodies,
            f"{self.session.report()['in_flight']} in flight": self.session.report()["in_flight"] != 0,
            f"counted {self.session.report()['calls']}": self.session.report()["calls"] < bodies,
            f"{end[0]} runs remembered": end[0] > RUNS_KEPT + 2 * THREADS,
            f"a table of {end[1]} entries": end[1] > min(SIGNATURES_KEPT, 2 * self.distinct + 2),
            f"remembered {self.half} at half time and {end} at the end": end[2:] != (1, 0) or self.half[2:] != (1, 0),
            "nobody was refused": not self.refused,
        }
        return [text for text, wrong in found.items() if wrong]


def _longest(value):
    """Entries of the longest table or list inside."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max([len(inner), *map(_longest, inner)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    calls = parser.parse_args().calls
    start = time.monotonic()
    soak = Soak(calls).run()
    faults = soak.faults()
    print(f"{len(soak.bodies)} bodies of {calls} allowed, {len(soak.refused)} askers refused, "
          f"{len(soak.ended.outcomes['ok'])} spans ended, remembered {soak.half} at half time and {soak.remembered()} at "
          f"the end, {time.monotonic() - start:.0f} s")  # fmt: skip
    print("\n".join(faults) or "as it must be")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
