"""From what a rule found to the record of why a circuit opened."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from otel_toolguard.core.decision import InFlight, Trip

if TYPE_CHECKING:
    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.decision import Finding
    from otel_toolguard.core.state import RunState, SessionState


def trip_of(run: RunState, call: ToolCall | None, finding: Finding) -> Trip:
    """The trip that a finding about a call amounts to."""
    resets = len(run.session.audit)  # a reset sets the other counts back
    return Trip(
        id=_unique(run.session.id, run.id, finding.rule, run.number, run.refusals, len(run.circuits), resets),
        rule=finding.rule,
        scope=finding.scope,
        tool=call.tool if call else None,
        signature=call.signature if call else None,
        tool_class=call.tool_class if call else None,
        period=finding.period,
        limit=finding.limit,
        observed=finding.observed,
        members=finding.members,
        in_flight=_running(run.session),
        session_id=run.session.id,
        run_id=run.id,
        agent=call.agent if call else None,
        retryable=finding.retryable,
        retry_after_s=finding.retry_after_s,
        loop_type=finding.loop_type,
        at_call=run.calls,
        why=finding.why,
    )


def key_of(finding: Finding, call: ToolCall) -> str | None:
    """What a circuit of this finding is kept under; None for one that stops the run."""
    if finding.scope == "signature":
        return "signature:" + call.signature
    return "tool:" + call.tool if finding.scope == "tool" else None


def operator_trip(state: SessionState, reason: str) -> Trip:
    """The trip of a stop from outside."""
    last = state.runs.get(state.last_run or "")
    return Trip(
        id=_unique(state.id, len(state.audit)),
        rule="session.stop",
        scope="session",
        session_id=state.id,
        loop_type="stopped_by_operator",
        at_call=last.calls if last is not None else 0,
        in_flight=_running(state),
        why=f"An operator stopped the session: {reason}; session.reset(reason) would let it go on.",
    )


def _running(state: SessionState) -> tuple[InFlight, ...]:
    """Calls of all runs: a write left half done matters as much where a sibling's run is doing it."""
    return tuple(InFlight(*row) for run in state.runs.values() for row in run.flight.values())


def _unique(*parts: object) -> str:
    """An id drawn from what is unique anyway: the core has no source of chance."""
    seed = "\0".join(map(str, parts))
    return hashlib.blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
