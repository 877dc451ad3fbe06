"""otel-toolguard for the Claude Agent SDK: ``guard_options(options)`` and ``guarded_stream(query(...))``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_toolguard.adapter import lazily
from otel_toolguard_claude_agent_sdk._instrumentor import ToolGuardClaudeAgentSDKInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_claude_agent_sdk._guard import guard_options
    from otel_toolguard_claude_agent_sdk._stream import ClaudeAgentStopped, guarded_stream

__all__ = ["ClaudeAgentStopped", "ToolGuardClaudeAgentSDKInstrumentor", "guard_options", "guarded_stream"]

__getattr__ = lazily(
    __name__, {"ClaudeAgentStopped": "_stream", "guard_options": "_guard", "guarded_stream": "_stream"}
)
