"""A server over stdio, run as a program: ``guarded`` or not, with a repeat limit."""

from __future__ import annotations

import os
import sys

from opentelemetry.trace import format_trace_id, get_current_span
from otel_toolguard_mcp import guard_server

from otel_toolguard import Policy

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("over stdio", log_level="CRITICAL")
bodies = [0]


@server.tool()
def search(q: str = "word") -> str:
    """Looks something up."""
    bodies[0] += 1
    return f"nothing about {q}"


@server.tool()
def ran() -> str:
    """How often search ran."""
    return str(bodies[0])


@server.tool()
def trace() -> str:
    """The trace that this call belongs to."""
    return format_trace_id(get_current_span().get_span_context().trace_id)


@server.tool()
def die() -> str:
    """Ends the process in the middle of a call."""
    os._exit(1)


if sys.argv[1] == "guarded":
    plugins = [{"plugin": "repeat_guard", "limit": int(sys.argv[2])}]
    guard_server(server, Policy(plugins=plugins))
server.run("stdio")
