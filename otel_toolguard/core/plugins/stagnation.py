"""``stagnation``: work that no longer brings anything new.

A call never made before that works is progress and sets the score to 0; a failure adds a half or 1; the n-th repeat
since the last progress adds n, at most 3. Found on recorded sessions; form and weights are in the design, section 7.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.batch import SAME_ANSWER
from otel_toolguard.core.decision import Finding, next_whole, share_of

if TYPE_CHECKING:
    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState

SEEN_KEPT = 512
ERRORS_KEPT = 256
COUNTS_KEPT = 256
TOP = 3  # what one repeat adds at most
KNOWN, NEW = 1.0, 0.5  # what a failure adds


class Stagnation:
    """Scores each result; the run stops at ``limit`` points.

    What is remembered is bounded, and forgetting makes a call new again: a full memory errs towards not stopping.
    """

    name = "stagnation"
    advice = "Repeats and failures bring nothing new: change the approach, or report what is missing."
    needs = ("volatile", "digits", "class")

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def start(self) -> dict[str, Any]:
        """The score, what it is made of, and the bounded memories, oldest entry first."""
        return {"score": 0.0, "parts": {}, "seen": {}, "errors": {}, "count": {}}

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """A finding once half the limit is used."""
        kind = outcome.kind
        if call.neutral or call.poll or outcome.twin >= SAME_ANSWER or kind in ("cancelled", "closed"):
            return None
        answer = outcome.volatile
        if answer is None or not call.whole:  # too large to compare: something new, as far as anyone can tell
            _progress(mine)
            return None
        write = call.tool_class == "write"
        seen, count, errors = mine["seen"], mine["count"], mine["errors"]
        signature, failed = call.signature, kind == "failed"
        key = f"{signature}|{'' if write else answer}|{'True' if failed else 'False'}"
        numbers_differ = f"{signature}#{outcome.digits}"
        variant = f"{call.shape}~{answer}"
        if failed:
            self._failure(mine, call, outcome, key)
            _add(errors, f"{call.tool}|{answer}", ERRORS_KEPT)
        elif key in seen:
            _score(mine, "repeats", min(count.get(key, 0), TOP))
        elif numbers_differ in seen or (not write and variant in seen):
            _score(mine, "only numbers new", NEW)
        else:
            _progress(mine)
        _add(count, key, COUNTS_KEPT, count.get(key, 0) + 1)
        _see(seen, (key, signature, numbers_differ, variant))
        score = mine["score"]
        if not score:
            return None
        share = share_of(self.limit, score)
        return self._finding(mine, share) if share >= 0.5 else None

    def _failure(self, mine: dict[str, Any], call: ToolCall, outcome: Outcome, key: str) -> None:
        n = mine["count"].get(key, 0)
        known_error = f"{call.tool}|{outcome.volatile}" in mine["errors"]
        add = (KNOWN if call.tool_class == "write" else min(n, TOP)) if n else (KNOWN if known_error else NEW)
        if not outcome.echo:
            what = "failures repeated" if n else "known errors" if known_error else "new failures"
            _score(mine, what, add * outcome.weight)
        if outcome.failure == "transient" and call.signature not in mine["seen"] and not known_error:
            mine["count"].clear()  # a click that was reported as a timeout but did open the page

    def _finding(self, mine: dict[str, Any], share: float) -> Finding | None:
        score = mine["score"]
        parts = ", ".join(f"{what} {round(points, 2):g}" for what, points in mine["parts"].items())
        return Finding(
            self.name, share, limit=self.limit, observed=round(score, 2), loop_type="stagnation",
            why=f"Repeats and failures since the last progress scored {score:.1f} of {self.limit:g} allowed ({parts}); "
            f"stagnation limit = {next_whole(score)} would have allowed it.",
        )  # fmt: skip


def _score(mine: dict[str, Any], what: str, points: float) -> None:
    if points:
        mine["score"] += points
        mine["parts"][what] = mine["parts"].get(what, 0.0) + points


def _progress(mine: dict[str, Any]) -> None:
    mine["score"] = 0.0
    if mine["parts"]:
        mine["parts"] = {}
    mine["count"].clear()


def _see(seen: dict[str, int], known: tuple[str, ...]) -> None:
    """Adds these; where none of them is known, which is the common case, as many of the oldest go at once."""
    over = len(seen) + len(known) - SEEN_KEPT
    if over <= 0 or not seen.keys().isdisjoint(known):
        for each in known:
            _add(seen, each, SEEN_KEPT)
        return
    for oldest in list(islice(seen, over)):
        del seen[oldest]
    for each in known:
        seen[each] = 1


def _add(memory: dict[str, Any], key: str, most: int, value: int = 1) -> None:
    if key not in memory and len(memory) >= most:
        del memory[next(iter(memory))]
    memory[key] = value
