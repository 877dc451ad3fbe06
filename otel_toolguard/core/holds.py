"""Circuits that somebody holds in one state: forced open, only observed, disabled, or closed again.

The settings may hold the circuits of a tool; by hand those of a tool or of one signature are held for one session, for
good or for a while. What is said by hand goes before the settings, a signature before its tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.decision import Scope
    from otel_toolguard.core.overrides import CircuitState
    from otel_toolguard.core.state import RunState, SessionState

RULE = "forced_open"


def held(session: SessionState, call: ToolCall, at: float) -> CircuitState:
    """The state in which the circuits of a call are held; "closed" where nobody holds them."""
    for key in ("signature:" + call.signature, "tool:" + call.tool):
        entry = session.held.get(key)
        if entry is not None and (entry[2] is None or at < entry[2]):
            state: CircuitState = entry[0]
            return state
    return "closed" if call.overrides is None else call.overrides.circuit


def hold(session: SessionState, key: str, state: CircuitState, reason: str, until: float | None) -> None:
    """Holds the circuit of a key, ``tool:NAME`` or ``signature:SIGNATURE``, from now on, and lists that.

    Whatever was open under the key is closed: a circuit that is forced open speaks for itself.
    """
    session.held[key] = [state, reason, until]
    for run in session.runs.values():
        for each in (key, "forced:" + key):
            run.circuits.pop(each, None)
    session.audit.append(
        {"action": "set_circuit", "circuit": key, "state": state, "expires_at": until, "reason": reason}
    )


def forced(run: RunState, call: ToolCall, at: float) -> tuple[str, Finding]:
    """What the circuit that somebody forced open is kept under in the run, and why it refuses a call."""
    scope: Scope = "signature"
    entry = run.session.held.get("signature:" + call.signature)
    if entry is None or entry[0] != RULE:
        scope, entry = "tool", run.session.held.get("tool:" + call.tool)
    what = "This very call" if scope == "signature" else f"Tool {call.tool}"
    seconds = None
    if entry is not None and entry[0] == RULE:
        seconds = None if entry[2] is None else round(entry[2] - at, 3)
        why = f'{what} is forced open: {entry[1]}; session.set_circuit("closed", ...) would have allowed it.'
    else:
        where = call.overrides.where if call.overrides is not None else call.tool
        why = f'{what} is forced open by the settings; [tools."{where}"] circuit = "closed" would have allowed it.'
    return f"forced:{scope}:{call.signature if scope == 'signature' else call.tool}", Finding(
        RULE, scope=scope, loop_type="stopped_by_operator", why=why, retryable=seconds is not None,
        retry_after_s=seconds,
    )  # fmt: skip
