"""Zero-code: every client and every server made from now on is guarded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter import Patches, ToolGuardInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from otel_toolguard.telemetry import Telemetry


class ToolGuardMCPInstrumentor(ToolGuardInstrumentor):
    """Found by ``opentelemetry-instrument`` as ``toolguard_mcp``."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Supported releases of the SDK."""
        return ("mcp >= 1.19, < 3",)

    def patch(self, patches: Patches, telemetry: Telemetry | None) -> None:
        """Replaces constructors of the SDK; imports it here, for the entry point must load without it."""
        import mcp  # noqa: PLC0415
        from mcp.server.lowlevel import Server  # noqa: PLC0415

        from otel_toolguard_mcp._client import guard_client  # noqa: PLC0415
        from otel_toolguard_mcp._server import guard_server  # noqa: PLC0415

        guards: dict[Any, Any] = {mcp.ClientSession: guard_client, Server: guard_server}
        if hasattr(mcp, "Client"):
            guards[mcp.Client] = guard_client
        for kind, guard in guards.items():
            made = _guarding(vars(kind)["__init__"], functools.partial(guard, telemetry=telemetry))
            patches.replace_attribute(kind, "__init__", made)


def _guarding(original: Any, guard: Callable[[Any], Any]) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        guard(self)

    return __init__
