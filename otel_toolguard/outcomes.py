"""What a tool's answer or exception means: the one place where an outcome is decided."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.core.call import Outcome
from otel_toolguard.core.canonical import fingerprints
from otel_toolguard.core.commands import command_text
from otel_toolguard.core.failures import EXIT_CODES, MESSAGE_LIMIT, TOOL_ERROR, is_transient
from otel_toolguard.core.shell import exit_one_is_an_answer
from otel_toolguard.errors import CircuitOpen
from otel_toolguard.telemetry.attributes import CIRCUIT_OPEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.core.call import Failure, OutcomeKind, ToolCall
    from otel_toolguard.core.canonical import Signer

# Exceptions by which a framework pauses or redirects a run; known by name, for the framework need not be installed.
CONTROL_FLOW = frozenset({
    "langgraph.errors.GraphBubbleUp",
    "pydantic_ai.exceptions.ApprovalRequired",
    "pydantic_ai.exceptions.CallDeferred",
})  # fmt: skip


class Ended(NamedTuple):
    """How a body ended, before anything is compared."""

    kind: OutcomeKind
    error_type: str | None = None
    message: str | None = None
    failure: Failure | None = None


OK = Ended("ok")


def of_exception(error: BaseException) -> Ended:
    """The outcome of a body that raised."""
    if isinstance(error, CircuitOpen):
        return Ended("failed", CIRCUIT_OPEN, _message(error), "permanent")
    if isinstance(error, asyncio.CancelledError):
        return _of_cancellation()
    if isinstance(error, GeneratorExit):
        return Ended("closed")
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return Ended("cancelled")
    names = [f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__]
    if not CONTROL_FLOW.isdisjoint(names):
        return Ended("interrupted")
    message = _message(error)
    name = names[0].removeprefix("builtins.")
    transient = any(is_transient(base.removeprefix("builtins."), message) for base in names[:-3]) or _may_pass(error)
    return Ended("failed", name, message, "transient" if transient else "permanent")


def of_result(call: ToolCall, result: Any) -> Ended:
    """The outcome of a body that returned; an exit code other than 0 is a failure unless it says no."""
    try:
        code = _exit_code(result)
        if not code or (code == 1 and exit_one_is_an_answer(command_text(call.arguments) or "")):
            return OK
    except Exception:  # results and arguments that refuse to be looked at say nothing about failure
        return OK
    return Ended("failed", TOOL_ERROR, f"exit code {code}", "permanent")


def failed_result(message: str) -> Ended:
    """The outcome of a result that its framework marks as an error."""
    text = message[:MESSAGE_LIMIT]
    return Ended("failed", TOOL_ERROR, text, "transient" if is_transient(None, text) else "permanent")


def outcome(
    ended: Ended, result: Any, seconds: float, signer: Signer, needs: frozenset[str],
    result_key: Callable[[Any], Any] | None = None,
) -> Outcome:  # fmt: skip
    """The record for the rules, with the fingerprints that they compare."""
    kind, error_type, _, failure = ended
    if kind not in ("ok", "failed"):
        return uncompared(ended, seconds)
    if not needs:
        return Outcome(kind, failure, error_type=error_type, ms=seconds * 1000)
    failed = kind == "failed"
    if failed and error_type != TOOL_ERROR:
        value = [error_type, ended.message]
    else:
        value = result_key(result) if result_key is not None else result
    exact, masked, numberless = fingerprints(signer, value, failed=failed, needs=needs)
    return Outcome(kind, failure, exact, masked, numberless, error_type, seconds * 1000)


def uncompared(ended: Ended, seconds: float) -> Outcome:
    """The record of a result that cannot be compared with another."""
    return Outcome(
        ended.kind, failure=ended.failure, exact=None, volatile=None, digits=None, error_type=ended.error_type,
        ms=seconds * 1000,
    )  # fmt: skip


def _of_cancellation() -> Ended:
    """A cancellation that nobody asked for comes from inside the tool, and is its failure."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is not None and not task.cancelling():
        return Ended("failed", "asyncio.CancelledError", "cancelled from inside the tool", "permanent")
    return Ended("cancelled")


def _may_pass(error: BaseException) -> bool:
    """Whether the exception carries the status of a server that may answer later: 429 or 5xx."""
    try:
        holders = (error, getattr(error, "response", None))
        found = [getattr(holder, name, None) for holder in holders for name in ("status_code", "status", "code")]
    except Exception:  # a property that raises
        return False
    return any(type(status) is int and (status == 429 or 500 <= status <= 599) for status in found)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_LIMIT]
    except Exception:
        return "(unreadable)"


def _exit_code(result: Any) -> int:
    if isinstance(result, (str, bytes, int, float, list)) or result is None:
        return 0
    if isinstance(result, dict):
        code = next((result[name] for name in EXIT_CODES if name in result), 0)
    else:
        code = getattr(result, "returncode", 0)
    return code if isinstance(code, int) and not isinstance(code, bool) else 0
