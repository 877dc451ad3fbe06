"""What calls cost under guard."""

from __future__ import annotations

import itertools
import logging
import warnings
from typing import TYPE_CHECKING, Any

from measure import alookup, least, least_async, lookup
from providers import record

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool

if TYPE_CHECKING:
    from collections.abc import Callable

FAR = 10**9  # a ceiling that no run reaches
EXACT = [{"plugin": "repeat_guard", "limit": 25, "compare": "exact"}, {"plugin": "call_ceiling", "session": FAR}]
_numbers = itertools.count()


def balanced() -> Policy:
    """The default chain; its ceiling of 500 calls a run gives way to one out of reach."""
    chain = Policy.profile("balanced").to_dict()["tool_plugins"]
    far = {"plugin": "call_ceiling", "session": FAR}
    return Policy(plugins=[far if plugin["plugin"] == "call_ceiling" else plugin for plugin in chain])


def opener(policy: Policy) -> Callable[[], Session]:
    """Opens a session of its own each time."""
    return lambda: Session(f"benchmark-{next(_numbers)}", policy=policy)


def off() -> dict[str, float]:
    """Guard only: nothing is told to anybody."""
    bare, bare_async = least(lookup), least_async(alookup)
    guarded, guarded_async = guard_tool(lookup), guard_tool(alookup)
    exact, default = opener(Policy(plugins=EXACT)), opener(balanced())
    return {
        "exact": least(guarded, exact) - bare,
        "default": least(guarded, default) - bare,
        "exact_async": least_async(guarded_async, exact) - bare_async,
        "default_async": least_async(guarded_async, default) - bare_async,
        "no_session": _no_session(guarded) - bare,
        "refused": _refused(guarded) - bare,
    }


def no_sdk() -> dict[str, float]:
    """Telemetry on, nobody behind the API: the default chain."""
    return {"default_no_sdk": least(guard_tool(lookup), opener(balanced())) - least(lookup)}


def unsampled() -> dict[str, float]:
    """A span that the sampler turned down, no metric."""
    record(sampled=False)
    return {"exact_unsampled": least(guard_tool(lookup), opener(Policy(plugins=EXACT))) - least(lookup)}


def recorded() -> dict[str, float]:
    """A recorded span, no metric."""
    record()
    exact = opener(Policy(plugins=EXACT))
    return {
        "exact_span": least(guard_tool(lookup), exact) - least(lookup),
        "exact_span_async": least_async(guard_tool(alookup), exact) - least_async(alookup),
        "default_span": least(guard_tool(lookup), opener(balanced())) - least(lookup),
    }


def measured() -> dict[str, float]:
    """A recorded span and the duration histogram."""
    record(metrics=True)
    return {"exact_full": least(guard_tool(lookup), opener(Policy(plugins=EXACT))) - least(lookup)}


def _no_session(guarded: Any) -> float:
    """Outside any session a call is not limited; that this is warned of once is no part of the figure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return least(guarded)


def _refused(guarded: Any) -> float:
    """A call that is refused, the exception and its way to the caller included."""
    logging.getLogger("otel_toolguard").setLevel(logging.ERROR)

    def refused(query: str) -> None:
        try:
            guarded(query=query)
        except CircuitOpen:
            return

    return least(refused, opener(Policy(plugins=[{"plugin": "call_ceiling", "session": 1}])))
