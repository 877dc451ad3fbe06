"""otel-toolguard for the OpenAI Agents SDK: ``agent = guard_agent(agent)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard_openai_agents._instrumentor import ToolGuardOpenAIAgentsInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_openai_agents._guard import OpenAIAgentsStopped, guard_agent, guarded_hooks

__all__ = ["OpenAIAgentsStopped", "ToolGuardOpenAIAgentsInstrumentor", "guard_agent", "guarded_hooks"]


def __getattr__(name: str) -> Any:
    """Loads the guard on first use: this package must import where the SDK is absent."""
    if name in __all__:
        from otel_toolguard_openai_agents import _guard  # noqa: PLC0415

        return getattr(_guard, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
