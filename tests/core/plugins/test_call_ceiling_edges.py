"""A raised ceiling to the letter: what is listed, what is closed, and what is left as it was."""

from typing import Any

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.state import SessionState


def test_what_is_raised_is_listed() -> None:
    """With the value before, the end, and the reason; a second time with the value that held then."""
    rule, state = CallCeiling(run=2, session=9), SessionState("s")
    rule.raise_to(state, "run", 4, "release day", until=60.0, at=10.0)
    rule.raise_to(state, "run", 5, "still", until=90.0, at=20.0)
    action = {"action": "raise_ceiling", "name": "run"}
    assert state.audit == [
        {**action, "value": 4, "was": 2, "expires_at": 60.0, "reason": "release day"},
        {**action, "value": 5, "was": 4, "expires_at": 90.0, "reason": "still"},
    ]
    assert (state.raised, state.now) == ([["run", 4, 60.0], ["run", 5, 90.0]], 20.0)


def test_raising_one_ceiling_leaves_the_others() -> None:
    """Each of the others holds at what is set."""
    limits: dict[str, Any] = {"run": 3, "session": 3, "tools": {"a": 3}, "classes": {"read": 3}, "signature": 3}
    for name in ("run", "session", "tools.a", "classes.read", "signature"):
        for other, limit in limits.items():
            settings: dict[str, Any] = {"run": 99, other: limit}
            rule, state = CallCeiling(**settings), SessionState("s")
            state.raised = [[name, 50, 9.0]]
            chain, ran = Chain([rule]), 0
            call = ToolCall("a", "a:1", tool_class="read")
            while ran < 20 and not isinstance(chain.admit(state, "r", call), Refuse):
                ran += 1
            assert ran == (20 if name.partition(".")[0] == other else 3), (name, other)


def test_raising_closes_no_circuit_of_another_rule() -> None:
    """Nor one of a tool that the ceiling is not about."""
    rule = CallCeiling(tools={"a*": 0, "b": 0}, signature=9)
    chain, state = Chain([rule, SignatureFailures(1)]), SessionState("s")
    call = ToolCall("c", "c:1")
    permit: Any = chain.admit(state, "r", call)
    chain.settle(state, "r", permit.number, call, Outcome("failed"))
    for tool in ("a1", "b"):
        chain.admit(state, "r", ToolCall(tool, f"{tool}:1"))
    assert list(state.runs["r"].circuits) == ["signature:c:1", "tool:a1", "tool:b"]
    rule.raise_to(state, "tools.a*", 4, "why", until=9.0, at=0.0)
    assert list(state.runs["r"].circuits) == ["signature:c:1", "tool:b"]
    rule.raise_to(state, "signature", 10, "why", until=9.0, at=0.0)
    assert list(state.runs["r"].circuits) == ["signature:c:1", "tool:b"]
