"""otel-toolguard for the Claude Agent SDK: ``guard_options(options)`` and ``guarded_stream(query(...))``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard_claude_agent_sdk._instrumentor import ToolGuardClaudeAgentSDKInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_claude_agent_sdk._guard import guard_options
    from otel_toolguard_claude_agent_sdk._stream import ClaudeAgentStopped, guarded_stream

__all__ = ["ClaudeAgentStopped", "ToolGuardClaudeAgentSDKInstrumentor", "guard_options", "guarded_stream"]


def __getattr__(name: str) -> Any:
    """Loads the guard on first use: this package must import where the SDK is absent."""
    if name in __all__:
        from otel_toolguard_claude_agent_sdk import _guard, _stream  # noqa: PLC0415

        return getattr(_guard if name == "guard_options" else _stream, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
