"""What goes into a decision: one intended call, and how it came out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from otel_toolguard.core.overrides import Overrides
from otel_toolguard.core.shapes import argument_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_toolguard.core.classify import Risk, ToolClass

OutcomeKind = Literal["ok", "failed", "refused", "cancelled", "interrupted", "closed", "unknown"]
OUTCOMES: tuple[OutcomeKind, ...] = ("ok", "failed", "refused", "cancelled", "interrupted", "closed", "unknown")
Failure = Literal["transient", "permanent"]


class ToolCall:
    """One intended call of one tool.

    Attributes:
        tool: The tool's name.
        signature: Tool and canonical arguments as ``{tool}:{16 hex}``; the working directory is part of it for
            shell-like tools.
        shape: The signature with every number in the arguments masked; used by ``stagnation`` only, "" if no rule asks.
        whole: False if the arguments were too large or too strange to be signed in full. Such a call never counts as a
            repeat.
        tool_class: read, write, exec, build, network, mcp, agent or other.
        risk: read_only, reversible or irreversible.
        neutral: True for thinking aloud and waiting: loop rules other than ``repeat_guard`` skip it.
        patience: How many times the repeat limit this tool has: 1 for most, 10 for a poller.
        poll: True for a tool that is asked again and again by nature.
        reached: False for a call that never reached a tool (unparsable arguments, unknown tool).
        call_id: The model's id of this call, None if unknown.
        batch: An id shared by the calls that the model asked for in one turn, None if unknown.
        siblings: How many calls that were, this one included; 0 if unknown.
        agent: The agent that asks, None if unknown.
        arguments: What the model said, by name; kept only while the call is alive, never part of the state.
        capture: True to let ``shapes`` show redacted previews of the values.
        overrides: What is set for the tool alone; None for nothing.
    """

    __slots__ = (
        "agent", "arguments", "batch", "call_id", "capture", "neutral", "overrides", "patience", "poll", "reached",
        "risk", "shape", "siblings", "signature", "tool", "tool_class", "whole",
    )  # fmt: skip

    def __init__(
        self,
        tool: str,
        signature: str,
        shape: str = "",
        whole: bool = True,
        tool_class: ToolClass = "other",
        risk: Risk = "reversible",
        neutral: bool = False,
        poll: bool = False,
        patience: int = 1,
        reached: bool = True,
        call_id: str | None = None,
        batch: str | None = None,
        siblings: int = 0,
        agent: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        capture: bool = False,
        overrides: Overrides | None = None,
    ) -> None:
        self.tool = tool
        self.signature = signature
        self.shape = shape
        self.whole = whole
        self.tool_class = tool_class
        self.risk = risk
        self.neutral = neutral
        self.poll = poll
        self.patience = patience
        self.reached = reached
        self.call_id = call_id
        self.batch = batch
        self.siblings = siblings
        self.agent = agent
        self.arguments = arguments
        self.capture = capture
        self.overrides = overrides

    def shapes(self) -> dict[str, str]:
        """Argument names with types and lengths, for people; with ``capture`` a redacted preview of each value."""
        return argument_shapes(self.arguments, capture=self.capture)

    def to_plain(self) -> list[Any]:
        """The call as JSON values, without its arguments."""
        own = self.overrides
        return [*(getattr(self, name) for name in _PLAIN_CALL), None if own is None else own.to_plain()]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> ToolCall:
        """The call that ``to_plain`` described."""
        tool, signature, *rest, own = plain
        overrides = None if own is None else Overrides(*own)
        return cls(tool, signature, overrides=overrides, **dict(zip(_PLAIN_CALL[2:], rest, strict=True)))


_PLAIN_CALL = (
    "tool", "signature", "shape", "whole", "tool_class", "risk", "neutral", "poll", "patience", "reached", "call_id",
    "batch", "siblings", "agent",
)  # fmt: skip


class Outcome:
    """How one call came out.

    Attributes:
        kind: ok, failed, cancelled, interrupted, closed, unknown. (``refused`` never comes with an outcome record: the
            call had no body.)
        failure: transient or permanent when ``kind`` is failed, else None.
        exact: Fingerprint of the result as it is, None if it was too large to be compared.
        volatile: The same with clocks, durations, ids and other passing tokens masked.
        digits: The same with every number masked; "" if no rule asks.
        error_type: Qualified name of the exception's class, "tool_error" for an error returned as a value, else None.
        ms: How long the body took, in milliseconds; None if unknown.
        twin: Set by the chain: how much alike an earlier call of the same batch was (``batch.SAME_CALL`` …), 0 for
            not at all.
        echo: Set by the chain: another failure of the same batch has been judged already.
        late: Set by the chain: the call was admitted before its circuit closed last.
    """

    __slots__ = ("digits", "echo", "error_type", "exact", "failure", "kind", "late", "ms", "twin", "volatile")

    def __init__(
        self,
        kind: OutcomeKind,
        failure: Failure | None = None,
        exact: str | None = "",
        volatile: str | None = "",
        digits: str | None = "",
        error_type: str | None = None,
        ms: float | None = None,
    ) -> None:
        self.kind: OutcomeKind = kind
        self.failure: Failure | None = failure
        self.exact = exact
        self.volatile = volatile
        self.digits = digits
        self.error_type = error_type
        self.ms = ms
        self.twin = 0
        self.echo = False
        self.late = False

    @property
    def failed(self) -> bool:
        """Whether the call failed; an unknown outcome did not."""
        return self.kind == "failed"

    @property
    def weight(self) -> float:
        """What this failure counts where failures are counted: a third if it may pass by itself."""
        return 1 / 3 if self.failure == "transient" else 1.0

    def to_plain(self) -> list[Any]:
        """The outcome as JSON values."""
        return [self.kind, self.failure, self.exact, self.volatile, self.digits, self.error_type, self.ms]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Outcome:
        """The outcome that ``to_plain`` described."""
        kind, failure, exact, volatile, digits, error_type, ms = plain
        return cls(kind, failure=failure, exact=exact, volatile=volatile, digits=digits, error_type=error_type, ms=ms)
