"""``signature_failures``: one call that fails the same way again and again. Refuses that call; the run goes on.

After the circuit breaker of the ops-engineering skill, which counts every failure of a signature for good; that is
``count="cumulative", same_error=False, clear_on_write=False``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from otel_toolguard.core.batch import SAME_ANSWER
from otel_toolguard.core.decision import Finding, next_whole, share_of
from otel_toolguard.core.overrides import limit_of, setting_of

if TYPE_CHECKING:
    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState

SIGNATURES_KEPT = 512


class SignatureFailures:
    """Counts failures per signature.

    Args:
        limit: Failures after which the signature is refused.
        count: "consecutive": a success of the signature starts afresh; "cumulative": nothing does.
        same_error: True to count only failures whose masked error is that of the one before.
        clear_on_write: True to start all counts afresh when a write succeeds: trying again after an edit is no repeat.
        cooldown: Seconds after which one call of the signature is tried again; None for never.
    """

    name = "signature_failures"
    advice = "This very call keeps failing the same way: change it or leave it out, and report what is in the way."

    def __init__(
        self,
        limit: int,
        *,
        count: Literal["consecutive", "cumulative"] = "consecutive",
        same_error: bool = True,
        clear_on_write: bool = True,
        cooldown: float | None = None,
    ) -> None:
        self.limit = limit
        self.count = count
        self.same_error = same_error
        self.clear_on_write = clear_on_write
        self.cooldown = cooldown
        self.needs = (*(("volatile",) if same_error else ()), *(("class",) if clear_on_write else ()))

    def start(self) -> dict[str, Any]:
        """[failures, masked error of the newest] by signature."""
        return {}

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """A finding once half the limit is used."""
        if call.neutral or not call.reached or not call.whole or outcome.late or outcome.twin >= SAME_ANSWER:
            return None
        if outcome.kind == "ok":
            if self.clear_on_write and call.tool_class == "write":
                mine.clear()
            elif self.count == "consecutive":
                mine.pop(call.signature, None)
        if outcome.kind != "failed" or outcome.echo:
            return None
        failures, error = mine.get(call.signature) or (0, None)
        if self.same_error and error != outcome.volatile:
            failures = 0
        failures += outcome.weight
        if call.signature not in mine and len(mine) >= SIGNATURES_KEPT:
            del mine[next(iter(mine))]
        mine[call.signature] = [failures, outcome.volatile]
        limit = limit_of(call.overrides, self.name, self.limit)
        share = share_of(limit, failures)
        if share < 0.5:
            return None
        same = " with the same error" if self.same_error else ""
        row = " in a row" if self.count == "consecutive" else ""
        row += " (transient failures count a third)" if outcome.failure == "transient" else ""
        return Finding(
            self.name, share, scope="signature", limit=limit, observed=round(failures, 2),
            loop_type="error_storm", retryable=self.cooldown is not None, retry_after_s=self.cooldown,
            why=f"This very call of {call.tool} failed {failures:.4g} times{row}{same}; "
            f"{setting_of(call.overrides, self.name, next_whole(failures))} would have allowed it.",
        )  # fmt: skip
