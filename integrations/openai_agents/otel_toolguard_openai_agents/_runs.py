"""Which run, of which session, a hook or a tool is called in; the SDK hands neither to them."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from agents import get_current_trace

from otel_toolguard.attempt import Place, here

KEPT = 1024
NAMES = ("session_id", "conversation_id", "thread_id")
RUN = "_toolguard_run"  # on the run's usage, which hooks, tools, nested and resumed runs share, and deep copies keep

_lock = threading.Lock()
_runs: OrderedDict[str, SimpleNamespace] = OrderedDict()
_begun: OrderedDict[str, int] = OrderedDict()  # runs in each trace


def run_of(context: Any, *, starts: bool = False) -> SimpleNamespace:
    """What is known of a context's run: its guard, its session's name, the calls of its last turn.

    A run of which nothing is known, though it does not start now, was stored and loaded again.
    """
    run_id, outer = vars(context.usage).get(RUN), here.get()
    if run_id is None:
        run_id = vars(context.usage)[RUN] = _begin(starts=starts)
    if outer is not None and outer.inside is not None and outer.run_id.partition("/")[0] == run_id:
        run_id = f"{outer.run_id}/{outer.inside.call.call_id}"  # an agent as a tool adds to its caller's usage
    fresh = SimpleNamespace(id=run_id, guard=None, told=None, name=None, turn=0, calls=0)
    run: SimpleNamespace = kept(_runs, run_id, fresh)
    return run


def guard_of(context: Any, otherwise: Any) -> Any:
    """Who guards a context's run, as a hook has said; where none was called yet, whoever guards the tool."""
    if otherwise is not None and run_of(context).guard is None:
        run_of(context).guard = otherwise
    return run_of(context).guard if RUN in vars(context.usage) else None


def place_of(context: Any, *, calls: bool = False) -> Place:
    """Where the calls of a guarded run are made; only a tool's context knows all that may name its session."""
    run, nobody = run_of(context), here.get() is None
    name = run.name if run.name is not None else _name(context, run.told)
    run.name = name if calls else run.name
    place: Place = run.guard.runs.place(run.id, name or _trace_id())
    if nobody and not name:
        place.guard.conversation_id = None
    return place


def kept(known: OrderedDict[Any, Any], key: Any, new: Any) -> Any:
    """What is known under a key, the new value if nothing is; forgets what was not asked for longest."""
    with _lock:
        found = known.setdefault(key, new)
        known.move_to_end(key)
        while len(known) > KEPT:
            known.popitem(last=False)
    return found


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
    if kept(_begun, trace_id, 0) == 0 or starts:
        _begun[trace_id] += 1
    return f"{trace_id}.{_begun[trace_id]}"
