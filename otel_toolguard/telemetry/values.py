"""What the records say, as attribute values: typed exactly, at most 4 KiB each, always valid UTF-8.

The bound is ours so that the SDK has nothing to cut: it logs a warning for each value that it truncates.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from otel_toolguard.core.failures import TOOL_ERROR
from otel_toolguard.telemetry import attributes as names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
# Series are kept for good, and an SDK lumps what is beyond 2,000 of a metric together: names that somebody makes up as
# he goes must not push out the others.
TOOL_SERIES: Final = 256
ERROR_SERIES: Final = 1024


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

    __slots__ = ("_failures", "_placed", "_series", "duration", "enriched", "refused", "silent", "span_name", "start")

    def __init__(self, call: ToolCall, tool_type: str, series: Series) -> None:
        tool, tool_class = text(call.tool), text(call.tool_class, ITEM_LIMIT)
        of_tool: Values = {names.TOOL_NAME: tool, names.TOOL_TYPE: text(tool_type, ITEM_LIMIT)}
        if call.agent is not None:
            of_tool[names.AGENT_NAME] = text(call.agent, ITEM_LIMIT)
        self.span_name = text(f"{names.EXECUTE_TOOL} {tool}")
        self.enriched: Values = {names.TOOL_CLASS: tool_class}
        self.start: Values = {names.OPERATION: names.EXECUTE_TOOL, **of_tool, **self.enriched}
        # A model may invent any number of tools; on metrics they are one.
        self.duration: Values = {**of_tool, **self.enriched}
        if not call.reached:
            self.duration[names.TOOL_NAME] = names.UNKNOWN_TOOL
        if not series.has_room(tuple(self.duration.values())):
            self.duration[names.TOOL_NAME] = names.OTHER_TOOL
            self.duration.pop(names.AGENT_NAME, None)
        self.refused: Values = {names.TOOL_NAME: self.duration[names.TOOL_NAME], **self.enriched}
        self._series = series
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
            told = error_type if self._series.has_room_for(self.duration, error_type) else names.OTHER_ERROR
            known = {**self.duration, names.ERROR_TYPE: told}
            if len(self._failures) < _REMEMBERED:
                self._failures[error_type] = known
        return known


class Series:
    """Which tools and which of their errors have series of their own; the first ones do."""

    __slots__ = ("_errors", "_tools")

    def __init__(self) -> None:
        self._tools: set[Any] = set()
        self._errors: set[Any] = set()

    def has_room(self, tool: Any) -> bool:
        """Whether this combination of tool, type, agent and class is told on metrics as it is."""
        return _enter(self._tools, tool, TOOL_SERIES)

    def has_room_for(self, tool: Values, error_type: str) -> bool:
        """Whether this error of a tool is."""
        return _enter(self._errors, (*tool.values(), error_type), ERROR_SERIES)


def _enter(known: set[Any], key: Any, most: int) -> bool:
    if key not in known:
        if len(known) >= most:
            return False
        known.add(key)
    return True


class LabelCache:
    """Labels by tool, class, agent and type; starts anew when a stream of invented names has filled it."""

    __slots__ = ("_known", "_series")

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str | None, str, bool], Labels] = {}
        self._series = Series()

    def of(self, call: ToolCall, tool_type: str) -> Labels:
        """The labels of this call's tool."""
        key = (call.tool, call.tool_class, call.agent, tool_type, call.reached)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[key] = Labels(call, tool_type, self._series)
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
        return text(outcome.error_type or TOOL_ERROR)
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


def shares(permit: Permit | None, settled: Settled | None) -> dict[str, float]:
    """How much of its limit each rule that warns has used up: the most, where one warns twice."""
    found: dict[str, float] = {}
    for said in (permit, settled):
        for rule, share in zip_longest(getattr(said, "warned", ()), getattr(said, "shares", ()), fillvalue=0.5):
            found[str(rule)] = max(float(share), found.get(str(rule), 0.0))
    return found


def verdict(trip: Trip) -> Values:
    """Which rule closed what, at which limit: on the span that tripped and on each that was refused."""
    values: Values = {names.RULE: text(trip.rule, ITEM_LIMIT), names.SCOPE: text(trip.scope, ITEM_LIMIT)}
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
    values: Values = {
        names.RULE: text(trip.rule, ITEM_LIMIT),
        names.MODE: mode,
        names.SESSION_ID: text(trip.session_id),
    }
    _measure(values, trip)
    _name(values, trip.tool, trip.tool_class, trip.signature)
    if trip.members:
        values[names.CYCLE] = cycle(trip)
    return values


def warning(call: ToolCall, rule: str, share: float, mode: str, session_id: str | None, run_id: str | None) -> Values:
    """Attributes of the event that says that a rule has used up half of its limit, or three quarters."""
    values: Values = {names.RULE: text(rule, ITEM_LIMIT), names.SHARE: share, names.MODE: mode}
    _name(values, call.tool, call.tool_class, call.signature)
    return place(values, session_id, run_id)


def ending(session_id: str, tripped: bool, report: Mapping[str, Any]) -> Values:
    """Attributes of the event that says what a session did."""
    values: Values = {
        names.SESSION_ID: text(session_id),
        names.OUTCOME: names.STOPPED if tripped else names.COMPLETED,
    }
    for name, key in (
        (names.ENDED_CALLS, "calls"),
        (names.ENDED_FAILED, "failed"),
        (names.ENDED_REFUSED, "refused"),
        (names.ENDED_STREAK, "longest_fail_streak"),
    ):
        values[name] = int(report.get(key, 0))
    for tool_class, calls in list(report.get("classes", {}).items())[:ITEMS]:
        values[names.ENDED_CLASS + text(str(tool_class), _TAIL)] = int(calls)
    return values


def _name(values: Values, tool: str | None, tool_class: str | None, signature: str | None) -> None:
    if tool is not None:
        values[names.TOOL_NAME] = text(tool)
    if tool_class is not None:
        values[names.TOOL_CLASS] = text(tool_class, ITEM_LIMIT)
    if signature is not None:
        values[names.SIGNATURE] = text(signature)


def _measure(values: Values, trip: Trip) -> None:
    if trip.limit is not None:
        values[names.LIMIT] = float(trip.limit)
    if trip.observed is not None:
        values[names.OBSERVED] = float(trip.observed)
