"""The instruments; neither a signature nor a session id is ever one of their attributes."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics

from otel_toolguard._version import __version__
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.telemetry.values import ITEM_LIMIT, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider

    from otel_toolguard.telemetry.values import Labels

MODES: Final = ("enforce", "observe")
_OUTCOMES: Final = ({names.OUTCOME: names.COMPLETED}, {names.OUTCOME: names.STOPPED})
_PATIENCE: Final = 1.0  # seconds between two looks for a provider that was not there at first


class Metrics:
    """Duration of calls, refused calls, opened circuits; and how many calls and repeats a run had at its end."""

    __slots__ = (
        "_distinct", "_duration", "_look_again", "_peak_repeats", "_refused", "_rules", "_run_calls", "_session_calls",
        "_trips", "_waiting",
    )  # fmt: skip

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(names.SCOPE_NAME, __version__, provider, names.SCHEMA_URL)
        self._duration = meter.create_histogram(
            names.DURATION,
            unit="s",
            description="Duration of tool calls.",
            explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
        )
        self._refused = meter.create_counter(names.REFUSED, "{call}", "Tool calls that were not run.")
        self._trips = meter.create_counter(names.TRIPS, "{trip}", "Circuits that opened.")
        self._run_calls, self._session_calls, self._peak_repeats = (
            meter.create_histogram(name, "{call}", said, explicit_bucket_boundaries_advisory=buckets)
            for name, said, buckets in (
                (names.RUN_CALLS, "Calls of a run, when it ends.", names.CALLS_BUCKETS),
                (names.SESSION_CALLS, "Calls of a session so far, when a block of it ends.", names.CALLS_BUCKETS),
                (names.PEAK_REPEATS, "Most laps of one cycle in a run, when it ends.", names.PEAK_BUCKETS),
            )
        )
        self._distinct = meter.create_histogram(
            names.DISTINCT_RATIO,
            unit="1",
            description="Different calls of a run as a share of all, when it ends.",
            explicit_bucket_boundaries_advisory=names.RATIO_BUCKETS,
        )
        self._rules: tuple[str, ...] = ()
        self._waiting = provider is None  # what is added before there is a global provider is lost
        self._look_again = 0.0

    def prepare(self, rules: Iterable[str]) -> None:
        """Begin the trip counter at 0 for each rule: an increase from nothing to 1 is none to an alert."""
        fresh = tuple(dict.fromkeys(text(rule, ITEM_LIMIT) for rule in rules if rule not in self._rules))
        if fresh:
            self._rules += fresh
            self._begin(fresh)
            self._look_again = 0.0

    def duration(self, seconds: float, labels: Labels, error_type: str | None, context: Context | None) -> None:
        """Record how long a body took."""
        if self._waiting and self._rules and monotonic() >= self._look_again:
            self._look_for_provider()
        if 0.0 <= seconds < inf:  # the SDK logs a warning for any other number
            self._duration.record(seconds, labels.failure(error_type) if error_type else labels.duration, context)

    def refused(self, labels: Labels, rule: str) -> None:
        """Count a call that was not run."""
        self._refused.add(1, {**labels.refused, names.RULE: text(rule, ITEM_LIMIT)})

    def tripped(self, rule: str, mode: str, context: Context | None) -> None:
        """Count a circuit that opened, or would have."""
        if self._waiting:
            self._look_for_provider()
        self._trips.add(1, {names.RULE: text(rule, ITEM_LIMIT), names.MODE: mode}, context)

    def run_ended(self, calls: int, peak_repeats: int, tripped: bool, distinct: int) -> None:
        """Record what a run came to."""
        self._run_calls.record(calls, _OUTCOMES[tripped])
        if distinct:
            self._distinct.record(distinct / calls, _OUTCOMES[tripped])
        self._peak_repeats.record(peak_repeats)

    def session_ended(self, calls: int, tripped: bool) -> None:
        """Record what a session came to so far."""
        self._session_calls.record(calls, _OUTCOMES[tripped])

    def _look_for_provider(self) -> None:
        self._look_again = monotonic() + _PATIENCE
        # The API's own providers stand for none; whatever else is there will receive what we add.
        if not type(metrics.get_meter_provider()).__module__.startswith(metrics.__name__):
            self._waiting = False
            self._begin(self._rules)

    def _begin(self, rules: Iterable[str]) -> None:
        for rule in rules:
            for mode in MODES:
                self._trips.add(0, {names.RULE: rule, names.MODE: mode})
