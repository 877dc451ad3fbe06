"""What a session did so far, put together from its rules and its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.core.state import SIGNATURES_KEPT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_toolguard.core.state import SessionState

# What a report has in any case, so that readers need not know whether ``tool_stats`` is in the chain.
_NO_STATS: dict[str, Any] = {"calls": 0, "retries": 0, "longest_fail_streak": 0, "tools": {}, "classes": {}}


def report(plugins: Sequence[Any], state: SessionState) -> dict[str, Any]:
    """The parts of all plugins that report, put together, and every trip that the session remembers."""
    whole: dict[str, Any] = dict(_NO_STATS) | {"calls": state.calls}
    for plugin in plugins:
        if hasattr(plugin, "report"):
            holders = [state.rules] if getattr(plugin, "lasting", False) else [r.rules for r in state.runs.values()]
            whole |= plugin.report([rules[plugin.name] for rules in holders if plugin.name in rules])
    circuits = [circuit for run in state.runs.values() for circuit in run.all_circuits()]
    circuits += [state.stop] if state.stop is not None else []
    trips = {circuit.trip.id: circuit.trip for circuit in circuits}  # a stop is latched in each run of its tree
    nudges: dict[str, int] = {}
    for rule, times in (item for run in state.runs.values() for item in run.nudges.items()):
        nudges[rule] = nudges.get(rule, 0) + times
    return whole | {
        "refused": sum(run.refusals for run in state.runs.values()),
        "nudges": nudges,
        "in_flight": state.in_flight,
        "trips": [trip.to_dict() for trip in trips.values()],
    }


class RunEnd(NamedTuple):
    """What a run came to, and its session so far: calls, the most laps of one cycle, whether it was stopped.

    ``distinct`` is how many different calls the run made, 0 if there were too many to remember.
    """

    calls: int
    peak_repeats: int
    tripped: bool
    session_calls: int
    session_tripped: bool
    distinct: int = 0


def end_run(plugins: Sequence[Any], state: SessionState, run_id: str) -> RunEnd | None:
    """Marks a run as ended; None if it was marked before."""
    session_tripped = state.stop is not None or any(run.stop is not None for run in state.runs.values())
    run = state.runs.get(run_id)
    if run is None:  # one that made no call of its own
        return RunEnd(0, 0, False, state.calls, session_tripped)
    if run.ended:
        return None
    run.ended = True
    peak = 0
    for plugin in plugins:
        if plugin.name in run.rules and hasattr(plugin, "report"):
            peak = max(peak, plugin.report([run.rules[plugin.name]]).get("longest_repeat", {}).get("laps", 0))
    tripped = run.latch() is not None or state.stop is not None
    distinct = run.distinct if run.calls <= SIGNATURES_KEPT else 0
    return RunEnd(run.calls, peak, tripped, state.calls, session_tripped, distinct)
