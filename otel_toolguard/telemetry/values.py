"""What the records say, as attribute values: typed exactly, at most 4 KiB each, always valid UTF-8.

The bound is ours so that the SDK has nothing to cut: it logs a warning for each value that it truncates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_toolguard.telemetry import attributes as names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.util.types import AttributeValue

    from otel_toolguard.core.call import Outcome, OutcomeKind, ToolCall
    from otel_toolguard.core.decision import Permit, Refuse, Settled, Trip
    from otel_toolguard.telemetry.spans import Live

    Values = dict[str, AttributeValue]

VALUE_LIMIT: Final = 4096  # bytes of one value
ITEM_LIMIT: Final = 512  # bytes of one item of a list
ITEMS: Final = 16  # items of a list; with the number of our attributes this keeps a span below 64 KiB
_TAIL: Final = 64  # bytes kept from the end of a cut text: a signature's hash, the setting a sentence ends with
_REMEMBERED: Final = 512  # tools, and error types of one tool, whose prebuilt attributes are kept


def text(value: str, limit: int = VALUE_LIMIT) -> str:
    """The value as an exact ``str`` of at most ``limit`` bytes of UTF-8; a cut shows as "…" before the last bytes."""
    if value.__class__ is not str:
        value = str.__str__(value) if isinstance(value, str) else str(value)
    if len(value) <= limit and value.isascii() and "\0" not in value:
        return value
    if len(value) > 2 * limit:  # never encode a megabyte to keep four kilobytes
        value = value[:limit] + value[-limit:]
    # Through UTF-16: pairs of surrogates become the character they mean, lone ones a replacement character.
    value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")
    data = value.encode()
    if len(data) <= limit:
        return value
    head, tail = data[: limit - _TAIL - 3], data[-_TAIL:]
    return head.decode(errors="ignore") + "…" + tail.decode(errors="ignore")


def items(values: Iterable[str]) -> list[str]:
    """Distinct texts in order, few and short enough for one attribute."""
    return [text(value, ITEM_LIMIT) for value in list(dict.fromkeys(values))[:ITEMS]]


def cycle(trip: Trip) -> list[str]:
    """The signatures of a cycle in order; a call that is in it twice is there twice."""
    return [text(member.signature, ITEM_LIMIT) for member in trip.members[:ITEMS]]


class Labels:
    """The attributes that all calls of one tool by one agent share, built once.

    Attributes:
        span_name: ``execute_tool {tool}``.
        start: Of an own span, wherever the call belongs.
        enriched: Of another instrumentation's span: ours only.
        duration: Of the duration histogram, for calls that did not fail.
        refused: Of the refusal counter, without the rule.
        silent: The live span of every call that has none, made when first needed.
    """

    __slots__ = ("_failures", "_placed", "duration", "enriched", "refused", "silent", "span_name", "start")

    def __init__(self, tool: str, tool_class: str, agent: str | None, tool_type: str, reached: bool = True) -> None:
        tool, tool_class = text(tool), text(tool_class)
        of_tool: Values = {names.TOOL_NAME: tool, names.TOOL_TYPE: text(tool_type)}
        if agent is not None:
            of_tool[names.AGENT_NAME] = text(agent)
        self.span_name = text(f"{names.EXECUTE_TOOL} {tool}")
        self.enriched: Values = {names.TOOL_CLASS: tool_class}
        self.start: Values = {names.OPERATION: names.EXECUTE_TOOL, **of_tool, **self.enriched}
        # A model may invent any number of tools; on metrics, whose series are kept for good, they are one.
        metric_tool = {names.TOOL_NAME: tool if reached else names.UNKNOWN_TOOL}
        self.duration: Values = {**of_tool, **self.enriched, **metric_tool}
        self.refused: Values = {**metric_tool, **self.enriched}
        self.silent: Live | None = None
        self._failures: dict[str, Values] = {}
        self._placed: tuple[str | None, str | None, Values] = (None, None, self.start)

    def placed(self, session_id: str | None, run_id: str | None) -> Values:
        """``start`` with where the call belongs; not to be changed: the next call of the same run gets it too."""
        session, run, values = self._placed
        if session != session_id or run != run_id:
            values = place(self.start, session_id, run_id)
            self._placed = (session_id, run_id, values)
        return values

    def failure(self, error_type: str) -> Values:
        """``duration`` for calls that failed in this way."""
        known = self._failures.get(error_type)
        if known is None:
            known = {**self.duration, names.ERROR_TYPE: error_type}
            if len(self._failures) < _REMEMBERED:
                self._failures[error_type] = known
        return known


class LabelCache:
    """Labels by tool, class, agent and type; starts anew when a stream of invented names has filled it."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str | None, str, bool], Labels] = {}

    def of(self, call: ToolCall, tool_type: str) -> Labels:
        """The labels of this call's tool."""
        key = (call.tool, call.tool_class, call.agent, tool_type, call.reached)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[key] = Labels(*key)
        return known


def place(values: Values, session_id: str | None, run_id: str | None) -> Values:
    """A copy of ``values`` with where the call belongs."""
    values = values.copy()
    if session_id is not None:
        values[names.SESSION_ID] = text(session_id)
    if run_id is not None:
        values[names.RUN_ID] = text(run_id)
    return values


def told(
    call: ToolCall, outcome: OutcomeKind, counts: Permit | Refuse | None, *, own: bool, in_session: bool
) -> Values:
    """Which call it was, how it ended, and the counts.

    The model's id of the call stands on own spans only: on others it is the host's to tell. Without a session there is
    nothing that run and session counts could speak of.
    """
    values: Values = {names.OUTCOME: outcome, names.SIGNATURE: text(call.signature)}
    if own and call.call_id is not None:
        values[names.CALL_ID] = text(call.call_id)
    if counts is not None:
        values[names.SIGNATURE_CALLS] = counts.signature_calls
        if in_session:
            values[names.RUN_CALLS] = counts.run_calls
            values[names.SESSION_CALLS] = counts.session_calls
    return values


def error_type(outcome: Outcome) -> str | None:
    """The one value of error.type, on the span and the metric; None for a call that neither failed nor was refused."""
    if outcome.kind == "failed":
        return text(outcome.error_type or names.TOOL_ERROR)
    return names.CIRCUIT_OPEN if outcome.kind == "refused" else None


def judged(values: Values, outcome: Outcome, permit: Permit | None, settled: Settled | None) -> None:
    """Add what the classifier and the rules said of a call that ran."""
    if outcome.failure is not None and outcome.kind == "failed":
        values[names.FAILURE] = outcome.failure
    warned = permit.warned if permit is not None else ()
    if settled is not None:
        if settled.repeat_count >= 2:
            values[names.REPEAT_LENGTH] = settled.repeat_length
            values[names.REPEAT_COUNT] = settled.repeat_count
        if settled.warned:
            warned += settled.warned
    if warned:
        values[names.WARNED] = items(warned)


def verdict(trip: Trip) -> Values:
    """Which rule closed what, at which limit: on the span that tripped and on each that was refused."""
    values: Values = {names.RULE: text(trip.rule), names.SCOPE: text(trip.scope)}
    _measure(values, trip)
    return values


def opening(trip: Trip, mode: str, *, observed_only: bool) -> Values:
    """All that the tripping span tells."""
    values = verdict(trip)
    values[names.WOULD_TRIP if observed_only else names.TRIPPED] = True
    values[names.MODE] = mode
    if trip.members:
        values[names.CYCLE] = cycle(trip)
    return values


def announcement(trip: Trip, mode: str) -> Values:
    """Attributes of the event."""
    values: Values = {names.RULE: text(trip.rule), names.MODE: mode, names.SESSION_ID: text(trip.session_id)}
    _measure(values, trip)
    for name, value in (
        (names.TOOL_NAME, trip.tool),
        (names.TOOL_CLASS, trip.tool_class),
        (names.SIGNATURE, trip.signature),
    ):
        if value is not None:
            values[name] = text(value)
    if trip.members:
        values[names.CYCLE] = cycle(trip)
    return values


def _measure(values: Values, trip: Trip) -> None:
    if trip.limit is not None:
        values[names.LIMIT] = float(trip.limit)
    if trip.observed is not None:
        values[names.OBSERVED] = float(trip.observed)
