"""Who would take what is told: the providers of this process, those that zero-code would set, what is not installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.doctor_finding import Finding, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OTLP = 'pip install "otel-toolguard[otlp]"'
_EXPORTERS = {
    "grpc": "opentelemetry-exporter-otlp-proto-grpc",
    "http/protobuf": "opentelemetry-exporter-otlp-proto-http",
}
_DISTRO = "opentelemetry-distro"


def zero_code_exports(environment: Mapping[str, str]) -> bool:
    """Whether ``opentelemetry-instrument`` exports by OTLP without being told to: the usual distribution does."""
    return installed(_DISTRO) is not None and environment.get("OTEL_PYTHON_DISTRO", "distro") == "distro"


def installed(distribution: str) -> str | None:
    """Its version; None if it is not there."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def provider_findings(environment: Mapping[str, str], protocols: Mapping[str, str]) -> list[Finding]:
    """What is there to take spans, measurements and events.

    Args:
        environment: The variables.
        protocols: By signal the protocol in which it is to be exported.
    """
    return [*_packages(protocols), *_of_process(), _zero_code(environment)]


def _packages(protocols: Mapping[str, str]) -> Iterator[Finding]:
    api, sdk = installed("opentelemetry-api"), installed("opentelemetry-sdk")
    data = {"api": api, "sdk": sdk, "exporters": {name: installed(name) for name in _EXPORTERS.values()}}
    if sdk is None:
        text = (
            "the SDK is not installed: nothing can be exported, and a trip is one WARNING of the logger otel_toolguard"
        )
        yield Finding("fail" if protocols else "warn", "packages", text, OTLP, data)
        return
    lacking = sorted({name for p in protocols.values() if (name := _EXPORTERS.get(p)) and installed(name) is None})
    if lacking:
        yield Finding("fail", "packages", f"{', '.join(lacking)} is not installed", OTLP, data)
    else:
        yield Finding("ok", "packages", f"API {api}, SDK {sdk}", "", data)


def _of_process() -> Iterator[Finding]:
    from opentelemetry import metrics, trace
    from opentelemetry._logs import get_logger_provider

    ask: dict[str, Callable[[], Any]] = {
        "tracer": trace.get_tracer_provider, "meter": metrics.get_meter_provider, "logger": get_logger_provider,
    }  # fmt: skip
    kinds = {name: _kind(get) for name, get in ask.items()}
    data = {"providers": kinds}
    if all(kind.startswith("no-op") for kind in kinds.values()):
        text = (
            "none is set in this process: it has the API's, which do nothing, until the program or zero-code sets some"
        )
        yield Finding(
            "note", "providers", text, "name the MODULE that sets them, or run this under zero-code, to see them", data
        )
        return
    text = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    lacking = any(kind.startswith("no-op") for kind in kinds.values())
    advice = "set the missing ones as well: measurements and the trip event need them" if lacking else ""
    yield Finding("warn" if lacking else "ok", "providers", text, advice, data)


def _kind(get: Callable[[], Any]) -> str:
    """Whose provider it is, in words."""
    try:
        kind = type(get())
    except Exception as fault:  # a provider that a variable names and that cannot be loaded
        return f"cannot be loaded ({type(fault).__name__})"
    if kind.__module__.startswith("opentelemetry.sdk."):
        return "of the SDK"
    if "Proxy" in kind.__name__ or kind.__name__.startswith("NoOp"):
        return "no-op"
    return one_line(f"{kind.__module__}.{kind.__qualname__}", 80)


def _zero_code(environment: Mapping[str, str]) -> Finding:
    name = "zero-code"
    if installed("opentelemetry-instrumentation") is None:
        text = "opentelemetry-instrument is not installed; guards in code do not need it"
        return Finding("note", name, text, "", {"configurator": None})
    wanted = environment.get("OTEL_PYTHON_CONFIGURATOR")
    found = [each for each in entry_points(group="opentelemetry_configurator") if wanted in (None, each.name)]
    chosen = found[0].dist.name if found and found[0].dist else None
    data = {"configurator": chosen}
    if chosen is None:
        text = (
            "opentelemetry-instrument would put the guards in place and set no provider: no configurator is installed"
        )
        return Finding("note", name, text, f"pip install {_DISTRO}, or set the providers in code", data)
    text = f"opentelemetry-instrument would set the SDK's providers ({one_line(chosen, 60)})"
    if zero_code_exports(environment):
        text += "; it exports all three signals by OTLP unless OTEL_*_EXPORTER says otherwise"
    return Finding("ok", name, text, "", data)
