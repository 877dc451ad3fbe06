"""Zero-code: every client and every server made from now on is guarded."""

from __future__ import annotations

import functools
from typing import Any

from otel_toolguard.adapter import Patches, ToolGuardInstrumentor


class ToolGuardMCPInstrumentor(ToolGuardInstrumentor):
    """Found by ``opentelemetry-instrument`` as ``toolguard_mcp``."""

    def instrumentation_dependencies(self) -> tuple[str]:
        """Supported releases of the SDK."""
        return ("mcp >= 1.19, < 3",)

    def patch(self, patches: Patches, telemetry: Any) -> None:
        """Replaces constructors of the SDK."""
        import mcp.server  # noqa: PLC0415  (the entry point must load without it)

        from otel_toolguard_mcp import guard_client, guard_server  # noqa: PLC0415

        homes: Any = ((mcp, guard_client, ("Client", "ClientSession")),
                      (mcp.server, guard_server, ("Server", "MCPServer", "FastMCP")))  # fmt: skip
        for home, guard, names in homes:
            for kind in (vars(home)[name] for name in names if name in vars(home)):
                patches.replace_attribute(kind, "__init__", _guarding(vars(kind)["__init__"], guard, telemetry))


def _guarding(original: Any, guard: Any, telemetry: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        guard(self, telemetry=telemetry)

    return __init__
