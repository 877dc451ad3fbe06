"""Zero-code: every run of every agent gets the capability, unless it has one already."""

from __future__ import annotations

import functools
from typing import Any

from otel_toolguard.adapter import Patches, ToolGuardInstrumentor


class ToolGuardPydanticAIInstrumentor(ToolGuardInstrumentor):
    """Found by ``opentelemetry-instrument`` as ``toolguard_pydantic_ai``."""

    def instrumentation_dependencies(self) -> tuple[str]:
        """Supported releases of Pydantic AI."""
        return ("pydantic-ai-slim >= 2.20, < 3",)

    def patch(self, patches: Patches, telemetry: Any) -> None:
        """Replaces ``Agent.iter``, which each way to run an agent goes through; so agents made earlier count too."""
        from pydantic_ai import Agent  # noqa: PLC0415  (the entry point must load without it)

        from otel_toolguard_pydantic_ai._capability import ToolGuard  # noqa: PLC0415

        kind: Any = Agent
        original, guard = vars(kind)["iter"], ToolGuard(telemetry=telemetry)

        @functools.wraps(original)
        def guarded(agent: Any, *args: Any, **kwargs: Any) -> Any:
            parts: list[Any] = []
            agent.root_capability.apply(parts.append)
            durable = any(type(part).__module__.startswith("pydantic_ai.durable_exec.") for part in parts)
            if not durable and not any(isinstance(part, ToolGuard) for part in parts):  # those take none for a run
                kwargs["capabilities"] = [*(kwargs.get("capabilities") or ()), guard]
            return original(agent, *args, **kwargs)

        patches.replace_attribute(kind, "iter", guarded)
