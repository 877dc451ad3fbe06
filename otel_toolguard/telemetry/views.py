"""Views that keep the metrics small, whatever tools, agents and errors turn up."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from otel_toolguard.telemetry import attributes as names

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.view import View

_OF_TOOL = (names.TOOL_NAME, names.TOOL_CLASS)
_KEPT = {
    names.DURATION: ((*_OF_TOOL, names.TOOL_TYPE, names.AGENT_NAME, names.ERROR_TYPE), names.DURATION_BUCKETS),
    names.REFUSED: ((*_OF_TOOL, names.RULE), None),
    names.TRIPS: ((names.RULE, names.MODE), None),
    names.RUN_CALLS: ((names.OUTCOME,), names.CALLS_BUCKETS),
    names.SESSION_CALLS: ((names.OUTCOME,), names.CALLS_BUCKETS),
    names.PEAK_REPEATS: ((), names.PEAK_BUCKETS),
    names.DISTINCT_RATIO: ((names.OUTCOME,), names.RATIO_BUCKETS),
}


def recommended_views(*, agents: bool = True, series: int = 2000) -> list[View]:
    """For ``MeterProvider(views=...)``: the attributes and buckets of each of our metrics, and no others.

    Args:
        agents: False to leave the agent's name out of the duration, where agents are named anew for each run.
        series: At most this many series of one metric; an SDK that cannot bound a view has its own limit.

    Raises:
        ImportError: opentelemetry-sdk is not installed.
    """
    from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View  # noqa: PLC0415

    bounded = "aggregation_cardinality_limit" in inspect.signature(View.__init__).parameters
    views = []
    for name, (kept, buckets) in _KEPT.items():
        more: dict[str, Any] = {"aggregation_cardinality_limit": series} if bounded else {}
        if buckets is not None:
            more["aggregation"] = ExplicitBucketHistogramAggregation(buckets)
        keys = {key for key in kept if agents or key != names.AGENT_NAME}
        views.append(View(instrument_name=name, meter_name=names.SCOPE_NAME, attribute_keys=keys, **more))
    return views
