"""The base of the instrumentors that ``opentelemetry-instrument`` finds, and the lazy face of their packages."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_toolguard.adapter.patches import Patches
from otel_toolguard.session import default_telemetry
from otel_toolguard.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """``__getattr__`` of an adapter's package, which must import where the framework is absent.

    Args:
        package: The package's name.
        homes: For each name that needs the framework the module that has it.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807  (of the package, whose attribute it becomes)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return __getattr__


class ToolGuardInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Base of the zero-code instrumentors; never instantiated itself, for the kit keeps one instance per class."""

    def __init__(self) -> None:
        if not hasattr(self, "_patches"):
            self._patches = Patches()

    @abstractmethod
    def instrumentation_dependencies(self) -> Collection[str]:
        """The framework's supported versions, as in a requirements file."""

    @abstractmethod
    def patch(self, patches: Patches, telemetry: Telemetry | None) -> None:
        """Replaces what has to be replaced; ``telemetry`` is for the sessions that the adapter opens itself."""

    def _instrument(self, **kwargs: Any) -> None:
        providers = [kwargs.get(name) for name in ("tracer_provider", "meter_provider", "logger_provider")]
        own = None
        if any(provider is not None for provider in providers) and default_telemetry("enforce") is not None:
            own = Telemetry(tracer_provider=providers[0], meter_provider=providers[1], logger_provider=providers[2])
        self.patch(self._patches, own)

    def _uninstrument(self, **_kwargs: Any) -> None:
        self._patches.restore()
