"""A session that may have led to a trip, rebuilt from the trip alone, so that other settings can be tried on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_toolguard.core.call import Failure
    from otel_toolguard.core.decision import Trip

STEPS_MOST = 50_000  # calls of a rebuilt session
RUN_CALLS = 100  # calls of one run where the ceiling is that of the session
TOOLS = 5  # tools over which the failures of a rebuilt session are spread, so that no streak of one tool ends it
REFUSED = "asked_again"  # the tool that the check of max_refusals lets be refused

Table = dict[str, Any]


class Step(NamedTuple):
    """One call of a rebuilt session."""

    tool: str
    signature: str
    answer: str = "same"
    failure: Failure | None = None
    tool_class: str | None = None  # None: by the tool's name
    run: str = "rebuilt"


class _Rebuilt:
    """A session that may have led to a trip; each method is named after its rule."""

    def __init__(self, trip: Trip, new: Table, count: float) -> None:
        self.trip, self.new, self.count = trip, new, int(count + 0.01)
        self.thirds = round((count - self.count) * 3)
        self.tool, self.signature = trip.tool or "tool", trip.signature or "tool:0"

    def repeat_guard(self) -> Iterator[Step]:
        """The members in order; where they are fewer than the period, the first comes again with other answers."""
        trip = self.trip
        failure: Failure | None = "permanent" if trip.loop_type == "error_storm" else None
        members = [(member.tool, member.signature) for member in trip.members]
        members = members or [(self.tool, f"tool:{n}") for n in range(trip.period or 1)]
        missing = max(0, (trip.period or 1) - len(members))
        for _ in range(self.count):
            for at, (tool, signature) in enumerate(members[:1] * missing + members):
                tool_class = trip.tool_class if tool == trip.tool else None
                yield Step(tool, signature, f"answer {at}" if missing else "same", failure, tool_class)

    def call_ceiling(self) -> Iterator[Step]:
        for n in range(self.count + 1):
            signature = self.signature if "signature" in self.new else f"{self.tool}:{n}"
            run = f"run {n // RUN_CALLS}" if "session" in self.new else "rebuilt"
            yield Step(self.tool, signature, f"new {n}", tool_class=self.trip.tool_class, run=run)

    def _failures(self) -> Iterator[tuple[int, Failure]]:
        for n in range(self.count + self.thirds):
            yield n, "permanent" if n < self.count else "transient"

    def failure_streak(self) -> Iterator[Step]:
        for n, failure in self._failures():
            yield Step(self.tool, f"tool:{n}", f"error {n}", failure, self.trip.tool_class)

    def signature_failures(self) -> Iterator[Step]:
        """Other work between, or other rules would have been first."""
        for n, failure in self._failures():
            yield Step(self.tool, self.signature, "same error", failure, self.trip.tool_class)
            yield Step("elsewhere", f"elsewhere:{n}", f"new {n}", tool_class="read")

    def max_refusals(self) -> Iterator[Step]:
        yield Step(REFUSED, f"{REFUSED}:0", tool_class="read")
        for n in range(self.count):
            if "total" in self.new:
                yield Step("elsewhere", f"elsewhere:{n}", f"new {n}", tool_class="read")
            yield Step(REFUSED, f"{REFUSED}:0", tool_class="read")

    def same_answer(self) -> Iterator[Step]:
        for n in range(self.count):
            yield Step(self.tool, f"tool:{n}", tool_class=self.trip.tool_class)

    def file_edits(self) -> Iterator[Step]:
        for n in range(self.count):
            yield Step(self.tool, f"{self.tool}:{n}", f"new {n}", tool_class="write")

    def deadline(self) -> Iterator[Step]:
        yield from [Step(self.tool, self.signature)] * 2

    def stagnation(self) -> Iterator[Step]:
        """Failures of several tools, each new, which add a half each."""
        for n in range(2 * self.count + self.thirds * 2 // 3):
            yield Step(f"tool {n % TOOLS}", f"tool {n % TOOLS}:{n}", f"error {n}", "permanent", "read")


_REBUILT = {
    "repeat_guard": "the same cycle for the observed laps",
    "call_ceiling": "as many admissions as were observed, and one more",
    "failure_streak": "as many failures of the tool in a row, with made-up arguments and errors",
    "signature_failures": "as many failures of that call, with other work between",
    "max_refusals": "as many refusals, brought about by a ceiling",
    "file_edits": "as many different edits of one file",
    "deadline": "two calls, with as much time between",
    "same_answer": "in part: as many different calls with one answer, all of them made up",
    "stagnation": "in part: the score alone, reached by failures, for what added to it is not on record",
}


def session(trip: Trip, new: Table) -> tuple[list[Step], str]:
    """Its calls, and what of it is known; no calls where it cannot be rebuilt, and why."""
    count = trip.observed if trip.observed is not None else trip.limit or 0
    if trip.rule not in _REBUILT:
        return [], "what it judged cannot be rebuilt from a trip"
    if trip.rule != "deadline" and count * (trip.period or 1) > STEPS_MOST:
        return [], f"a session of more than {STEPS_MOST} calls is not rebuilt"
    return list(getattr(_Rebuilt(trip, new, count), trip.rule)()), _REBUILT[trip.rule]
