"""otel-toolguard for MCP: ``client = guard_client(client)``, ``server = guard_server(server)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard_mcp._instrumentor import ToolGuardMCPInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_mcp._client import guard_client, raise_if_open
    from otel_toolguard_mcp._server import guard_server

__all__ = ["ToolGuardMCPInstrumentor", "guard_client", "guard_server", "raise_if_open"]


def __getattr__(name: str) -> Any:
    """Loads the guards on first use: this package must import where MCP is absent."""
    if name in ("guard_client", "raise_if_open"):
        from otel_toolguard_mcp import _client as home  # noqa: PLC0415
    elif name == "guard_server":
        from otel_toolguard_mcp import _server as home  # type: ignore[no-redef]  # noqa: PLC0415
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(home, name)
