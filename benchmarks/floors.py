"""What calls cost without this library: the floors that its own cases are compared with."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import wrapt
from measure import alookup, least, least_async, lookup
from opentelemetry import trace
from providers import record

if TYPE_CHECKING:
    from collections.abc import Callable

ATTRIBUTES = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "lookup",
    "gen_ai.tool.type": "function",
    "example.text": "text",
    "example.number": 1,
    "example.truth": True,
}


def plain() -> dict[str, float]:
    """Wrappers that do nothing, and the tracing API with nothing behind it."""
    bare = least(lookup)
    return {
        "bare": bare,
        "bare_async": least_async(alookup),
        "wraps": least(_wrapped(lookup)) - bare,
        "wrapt": least(_through(lookup)) - bare,
        "api_span": least(_by_hand) - bare,
    }


def recorded() -> dict[str, float]:
    """A span that an SDK records, and the reference handler of the GenAI conventions with its span and metric."""
    record(metrics=True)
    bare = least(lookup)
    found = {"bare_span": least(_managed) - bare, "hand_span": least(_by_hand) - bare}
    handler = _reference_handler()
    if handler is not None:
        found["util_genai"] = least(handler) - bare
    return found


def unsampled() -> dict[str, float]:
    """A span that the sampler turned down."""
    record(sampled=False)
    bare = least(lookup)
    return {"unsampled_span": least(_managed) - bare, "unsampled_hand_span": least(_by_hand) - bare}


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


@wrapt.decorator
def _through(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    return wrapped(*args, **kwargs)


_tracer = trace.get_tracer("benchmarks")


def _managed(query: str) -> str:
    with _tracer.start_as_current_span("execute_tool lookup", attributes=ATTRIBUTES):
        return lookup(query=query)


def _by_hand(query: str) -> str:
    span = _tracer.start_span("execute_tool lookup", attributes=ATTRIBUTES)
    answer = lookup(query=query)
    span.end()
    return answer


def _reference_handler() -> Callable[..., Any] | None:
    try:
        from opentelemetry.util.genai.handler import get_telemetry_handler
    except ImportError:
        return None
    handler = get_telemetry_handler()

    def handled(query: str) -> str:
        with handler.tool("lookup"):
            return lookup(query=query)

    return handled
