"""What a call costs under other people's breakers, guards and tracing decorators, as their documentation shows them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from measure import least, lookup
from providers import record

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 10**9  # of whatever they count, so that nothing is stopped


def guards() -> dict[str, float]:
    """Breakers and loop guards, without telemetry."""
    logging.disable(logging.CRITICAL)
    return _measured({"peer_pybreaker": _pybreaker, "peer_circuitbreaker": _circuitbreaker, "peer_runbound": _runbound})


def tracers() -> dict[str, float]:
    """Decorators that make a span of a call, recorded by an SDK whose exporter drops it."""
    record()
    return _measured({"peer_openinference": _openinference})


def logfire() -> dict[str, float]:
    """Logfire's decorator; it brings a provider of its own."""
    return _measured({"peer_logfire": _logfire})


def _measured(makers: dict[str, Callable[[], Callable[..., Any]]]) -> dict[str, float]:
    bare, found = least(lookup), {}
    for name, maker in makers.items():
        try:
            call = maker()
        except ImportError:
            continue
        found[name] = least(call) - bare
    return found


def _pybreaker() -> Callable[..., Any]:
    import pybreaker

    guarded: Callable[..., Any] = pybreaker.CircuitBreaker(fail_max=5)(lookup)
    return guarded


def _circuitbreaker() -> Callable[..., Any]:
    from circuitbreaker import circuit

    guarded: Callable[..., Any] = circuit(lookup)
    return guarded


def _runbound() -> Callable[..., Any]:
    import runbound

    runbound.init(budget_usd=MANY, max_steps=MANY, on_anomaly="raise")
    guarded: Callable[..., Any] = runbound.tool(lookup)
    return guarded


def _openinference() -> Callable[..., Any]:
    from openinference.instrumentation import OITracer, TraceConfig
    from opentelemetry import trace

    tracer = OITracer(trace.get_tracer("benchmarks"), TraceConfig())
    guarded: Callable[..., Any] = tracer.tool(lookup)
    return guarded


def _logfire() -> Callable[..., Any]:
    import logfire
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Drop(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[BatchSpanProcessor(Drop())])
    guarded: Callable[..., Any] = logfire.instrument("execute_tool lookup")(lookup)
    return guarded
