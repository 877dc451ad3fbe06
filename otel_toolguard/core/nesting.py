"""What a run nested in a call of another session takes from the runs above it: their ceilings, and their stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.chain import Chain
    from otel_toolguard.core.decision import Circuit, Trip
    from otel_toolguard.core.state import SessionState


def draw(chain: Chain, state: SessionState, run_id: str, call: ToolCall, at: float) -> tuple[Trip | None, bool]:
    """Counts a call that is made in a nested run of another session, unless the run above allows no more.

    Returns:
        The trip of a run that was stopped, and whether it was stopped just now; (None, False) if the call was counted.
    """
    run = state.runs.get(run_id)
    if run is None:
        return None, False
    latched = state.stop or run.latch()
    if latched is not None:
        return latched.trip, False
    state.tick(at)
    ceiling = next((plugin for plugin in chain.plugins if plugin.name == "call_ceiling"), None)
    finding = ceiling.admit(None, run, call) if ceiling is not None and not chain.observe else None
    if finding is not None and finding.share >= 1 and finding.scope in ("run", "session"):
        circuit: Circuit = chain.open_circuit(run, call, finding, at)
        return circuit.trip, True
    state.calls += 1
    for counting in run.lineage():
        counting.count(call)
    return None, False


def give_back(state: SessionState, run_id: str, call: ToolCall) -> None:
    """Takes back what ``draw`` counted for a call that was refused further in; a reset between may have done so."""
    run = state.runs.get(run_id)
    if run is None:
        return
    state.calls = max(0, state.calls - 1)
    for counting in run.lineage():
        counting.calls = max(0, counting.calls - 1)
        for counts, key in ((counting.signatures, call.signature), (counting.tools, call.tool),
                            (counting.classes, call.tool_class)):  # fmt: skip
            if counts.get(key, 0) > 0:
                counts[key] -= 1
