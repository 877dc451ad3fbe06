"""otel-toolguard for MCP: ``client = guard_client(client)``, ``server = guard_server(server)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_toolguard.adapter import lazily
from otel_toolguard_mcp._instrumentor import ToolGuardMCPInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_mcp._client import guard_client, raise_if_open
    from otel_toolguard_mcp._server import guard_server

__all__ = ["ToolGuardMCPInstrumentor", "guard_client", "guard_server", "raise_if_open"]

__getattr__ = lazily(__name__, {"guard_client": "_client", "raise_if_open": "_client", "guard_server": "_server"})
