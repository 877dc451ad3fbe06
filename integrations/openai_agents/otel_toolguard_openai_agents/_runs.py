"""Which run, of which session, a hook or a tool is called in; the SDK hands neither to them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from agents import get_current_trace

from otel_toolguard.adapter import Place, Recent, here

KEPT = 1024
NAMES = ("session_id", "conversation_id", "thread_id")
RUN = "_toolguard_run"  # on the run's usage, which hooks, tools, nested and resumed runs share, and deep copies keep
GUARD = "_toolguard_guard"  # there too: who judges where a stored run goes on with a call before any hook

_runs: Recent[str, SimpleNamespace] = Recent(KEPT)
_begun: Recent[str, SimpleNamespace] = Recent(KEPT)  # runs in each trace
_asked: Recent[str | None, str] = Recent(16 * KEPT)  # runs, by the ids of the calls that were asked for in them


def run_of(context: Any, *, starts: bool = False) -> SimpleNamespace:
    """What hooks have said of a context's run: its guard, its session's name, the calls of its last turn.

    A run of which nothing is known, though it does not start now, was stored and loaded again.
    """
    run_id, outer = vars(context.usage).get(RUN), here.get()
    if run_id is None:
        known = _asked.get(getattr(context, "tool_call_id", None))
        run_id = vars(context.usage)[RUN] = known or _begin(starts=starts)
    if outer is not None and outer.inside is not None and outer.run_id.partition("/")[0] == run_id:
        run_id = f"{outer.run_id}/{outer.inside.call.call_id}"  # an agent as a tool adds to its caller's usage
    return _runs.of(run_id, lambda: SimpleNamespace(id=run_id, guard=None, told=None, name=None, turn=0, calls=0))


def turned(run: SimpleNamespace, response: Any) -> None:
    """Notes what the model asked for."""
    calls = [each for each in response.output if str(getattr(each, "type", "")).endswith("_call")]
    run.turn += 1
    run.calls = len(calls)
    for call_id in [call.call_id for call in calls if hasattr(call, "call_id")]:  # else its provider makes it
        _asked.pop(call_id)
        _asked.of(call_id, lambda: run.id)


def place_of(context: Any, *, calls: bool = False) -> Place | None:
    """Where the calls of a run are made, None if nobody has said that it is guarded.

    Only a tool's context knows all that may name its session.
    """
    known = vars(context.usage)
    run = run_of(context) if RUN in known or GUARD in known else None
    if run is None:
        return None
    run.guard = run.guard or known.get(GUARD)
    if run.guard is None:
        return None
    nobody = here.get() is None
    name = run.name if run.name is not None else _name(context, run.told)
    run.name = name if calls else run.name
    place: Place = run.guard.runs.place(run.id, name or _trace_id())
    if nobody and not name:
        place.guard.conversation_id = None
    return place


def _name(context: Any, told: Any) -> str:
    """What the caller said, in the context object, the run's configuration, its trace, or to the runner."""
    given, config, trace = context.context, getattr(context, "run_config", None), get_current_trace()
    found = [_of(given, key) for key in NAMES] + [_of(config, "group_id"), _of(trace, "group_id"), told]
    return next((str(each) for each in found if isinstance(each, (str, int)) and each != ""), "")


def _of(given: Any, key: str) -> Any:
    try:
        return given.get(key) if isinstance(given, Mapping) else getattr(given, key, None)
    except Exception:  # an object of the user's, which may do anything
        return None


def _trace_id() -> str | None:
    trace = get_current_trace()
    return trace.trace_id if trace is not None and trace.trace_id != "no-op" else None


def _begin(*, starts: bool) -> str:
    """An id for a run; one that was stored goes on as the last run of its trace."""
    trace_id = _trace_id()
    if trace_id is None:
        return secrets.token_hex(8)
    begun = _begun.of(trace_id, lambda: SimpleNamespace(runs=0))
    begun.runs += 1 if starts or begun.runs == 0 else 0
    return f"{trace_id}.{begun.runs}"
