"""``repeat_guard``: the same cycle of one, two or three calls with the same results, round after round.

After Crucible's rule of that name, with three differences: it judges calls, not events; a cycle has at most
``max_period`` calls; and results are compared without their passing tokens unless ``compare="exact"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from otel_toolguard.core.batch import SAME_ANSWER, SAME_CALL, SAME_RESULT
from otel_toolguard.core.decision import Finding, Member
from otel_toolguard.core.overrides import Overrides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState

Compare = Literal["volatile", "exact", "call"]
_TWIN = {"call": SAME_CALL, "volatile": SAME_ANSWER, "exact": SAME_RESULT}


class RepeatGuard:
    """Counts laps: with keys k1, k2, … the last n calls are periodic in p while each key equals the one p before it.

    ``same[p]`` counts those equalities in a row. p * L periodic keys hold exactly p * (L - 1) of them, so the rule
    costs O(max_period) a call whatever the limit.

    Args:
        limit: Full laps that may run; lap ``limit`` itself completes.
        max_period: Longest cycle looked for, in calls.
        compare: What must be equal beside tool and arguments: the result without passing tokens ("volatile"; the
            result of writes is left out), the result to the letter ("exact"), or nothing ("call").
        limits: Laps for single periods, in place of ``limit``.
        failed_limit: Laps for cycles in which every call failed, in place of the others; None for no difference.
        failed_nudge: Laps of such cycles after which the model is told, once; counting goes on. None for never.
        same_error: False to take failures of one call, one right after the other, for equal whatever they say.
        on_limit: "stop" ends the run; "nudge" has the model told, and the laps are counted afresh.
    """

    name = "repeat_guard"
    advice = "The same calls keep coming round with nothing new: do something else, or report what is missing."

    def __init__(
        self,
        limit: int,
        *,
        max_period: int = 3,
        compare: Compare = "volatile",
        limits: Mapping[int, int] | None = None,
        failed_limit: int | None = None,
        failed_nudge: int | None = None,
        same_error: bool = True,
        on_limit: Literal["stop", "nudge"] = "stop",
    ) -> None:
        self.limit = limit
        self.max_period = max_period
        self.compare: Compare = compare
        self.failed_limit = failed_limit
        self.failed_nudge = failed_nudge
        self.same_error = same_error
        self.on_limit = on_limit
        self.needs = () if compare == "call" else (compare,)
        self._own = dict(limits or {})
        self._limits = [self._own.get(p, limit) for p in range(1, max_period + 1)]
        self._twin = _TWIN[compare]

    def start(self) -> dict[str, Any]:
        """``last`` holds [key, patience, failed, member, own] of the newest calls, newest first; ``peak`` most laps."""
        return {"last": [], "same": [0] * self.max_period, "peak": [0, 0]}

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """A finding with the period and the laps so far once a cycle has come round twice."""
        if outcome.twin >= self._twin:
            return None
        key = self._key(call, outcome)
        last, same = mine["last"], mine["same"]
        period, repeated = 0, False
        if not self.same_error and outcome.failed and last and last[0][2]:
            before = last[0][0]
            if key is not None and before is not None and before.startswith(f"{call.signature}|"):
                last[0][0] = key
        p = 0
        for before in last[: len(same)]:
            # An unsigned call (no key) equals nothing, itself included.
            if before[0] == key and key is not None:
                repeated = True
                same[p] = equal = same[p] + 1
                p += 1
                if not period and equal >= p:
                    period = p
            else:
                same[p] = 0
                p += 1
        # A cycle is described by its last lap, and in a last lap every call equals an earlier one.
        member = [call.tool, call.signature, call.shapes()] if repeated else None
        own = None if call.overrides is None else self._own_of(call.overrides)
        failed = outcome.kind == "failed"
        if failed and repeated and self.compare == "call":  # elsewhere a success and a failure are never equal
            failed = next(row[2] for row in last if row[0] == key)
        last.insert(0, [key, None if call.neutral else call.patience, failed, member, own])
        if len(last) > self.max_period:
            del last[self.max_period :]
        return self._finding(mine, period) if period else None

    def _finding(self, mine: dict[str, Any], shortest: int) -> Finding:
        last, same = mine["last"], mine["same"]
        best, best_share, best_laps, best_limit = shortest, 0.0, 0, 1
        for p in range(shortest, min(len(last), len(same), self.max_period) + 1):
            if same[p - 1] < p:
                continue
            laps = same[p - 1] // p + 1  # full laps only: half a lap more is no lap
            if any(p % d == 0 and same[d - 1] >= p * laps - d for d in range(1, p)):
                continue  # laps of a shorter cycle, which has a limit of its own
            limit = self._limit(last[:p], p)
            share = laps / limit
            if share > best_share:
                best, best_share, best_laps, best_limit = p, share, laps, limit
            if share >= 1:
                break
        if best_laps > mine["peak"][1]:
            mine["peak"] = [best, best_laps]
        if best_share < 1:
            told = self.failed_nudge is not None and self._tells(last[:best], best, same[best - 1])
            return Finding(
                self.name, best_share, period=best, observed=best_laps, nudge=_TELL.format(best_laps) if told else ""
            )
        if self.on_limit == "nudge":
            mine["last"], mine["same"] = [], [0] * self.max_period
            return Finding(
                self.name, best_share, period=best, observed=best_laps, nudge=_TELL.format(best_laps),
            )  # fmt: skip
        return self._trip(last[:best], best, best_laps, best_limit)

    def _tells(self, members: list[list[Any]], period: int, equalities: int) -> bool:
        """Whether this very call completes the lap after which the model is told that nothing works."""
        laps = (self.failed_nudge or 0) * self._patience(members)
        return equalities == period * (laps - 1) and _all_failed(members)

    def _own_of(self, overrides: Overrides) -> list[Any] | None:
        """[limit, glob] of a tool with a limit of its own."""
        limit = overrides.limits.get(self.name)
        return None if limit is None else [limit, overrides.where]

    def _limit(self, members: list[list[Any]], period: int) -> int:
        """The laps that a cycle has: the fewest that one of its calls has."""
        limit = self._limits[period - 1]
        if self.failed_limit is not None and _all_failed(members):
            limit = self.failed_limit
        limit *= self._patience(members)
        own = _least_own(members)
        if own is None:
            return limit
        least: int = own[0]
        return least if all(row[4] is not None or row[1] is None for row in members) else min(least, limit)

    def _patience(self, members: list[list[Any]]) -> int:
        if self.compare == "exact":
            return 1
        # One member that is no poller arms the cycle; waiting between two looks at a job does not.
        return min((row[1] for row in members if row[1] is not None), default=1)

    def _setting(self, members: list[list[Any]], period: int, limit: int) -> str:
        """The smallest change of settings that one lap more would have needed."""
        own = _least_own(members)
        if own is not None and own[0] == limit:
            return Overrides(own[1], {}).setting(self.name, limit + 1)
        patience = self._patience(members)
        more = limit // patience + 1
        times = f" (times {patience} for a poller)" if patience > 1 else ""
        if self.failed_limit is not None and _all_failed(members):
            return f"{self.name} failed_limit = {more}{times}"
        setting = f"limits = {{{period} = {more}}}" if period in self._own else f"limit = {more}"
        return f"{self.name} {setting}{times}"

    def _trip(self, newest_first: list[list[Any]], period: int, laps: int, limit: int) -> Finding:
        lap = [row[3] for row in reversed(newest_first) if row[3]]
        members = tuple({signature: Member(tool, signature, said) for tool, signature, said in lap}.values())
        failed = _all_failed(newest_first)
        names = ", ".join(dict.fromkeys(member.tool for member in members))
        what = f"the same call of {names}" if period == 1 else f"the same {period} calls ({names})"
        same = {"volatile": "the same results", "exact": "exactly the same results", "call": "the same arguments"}
        return Finding(
            self.name,
            laps / limit,
            limit=limit,
            observed=laps,
            loop_type="error_storm" if failed else "exact_repeat" if period == 1 else "oscillation",
            period=period,
            members=members,
            why=f"{what[0].upper()}{what[1:]} came round {laps} times in a row with {same[self.compare]}; "
            f"{self._setting(newest_first, period, limit)} would have allowed it.",
        )

    def _key(self, call: ToolCall, outcome: Outcome) -> str | None:
        if not call.whole:
            return None
        if self.compare == "call":
            return call.signature
        answer = outcome.exact if self.compare == "exact" else "" if call.tool_class == "write" else outcome.volatile
        return None if answer is None else f"{call.signature}|{answer}|{outcome.kind}"

    def report(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The most laps that any cycle made."""
        period, laps = max((mine["peak"] for mine in states), key=lambda peak: peak[1], default=(0, 0))
        return {"longest_repeat": {"period": period, "laps": laps}}


_TELL = (
    "The same calls have come round {} times in a row and brought nothing new: do something else, or report what is "
    "missing."
)


def _all_failed(members: list[list[Any]]) -> bool:
    return all(row[2] for row in members)


def _least_own(members: list[list[Any]]) -> list[Any] | None:
    """The smallest limit that a call of the cycle has for itself, and where it is set."""
    return min((row[4] for row in members if row[4] is not None), key=_first, default=None)


def _first(own: list[Any]) -> int:
    limit: int = own[0]
    return limit
