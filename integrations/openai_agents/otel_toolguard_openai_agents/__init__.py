"""otel-toolguard for the OpenAI Agents SDK: ``agent = guard_agent(agent)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_toolguard.adapter import lazily
from otel_toolguard_openai_agents._instrumentor import ToolGuardOpenAIAgentsInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_openai_agents._guard import OpenAIAgentsStopped, guard_agent, guarded_hooks

__all__ = ["OpenAIAgentsStopped", "ToolGuardOpenAIAgentsInstrumentor", "guard_agent", "guarded_hooks"]

__getattr__ = lazily(__name__, dict.fromkeys(("OpenAIAgentsStopped", "guard_agent", "guarded_hooks"), "_guard"))
