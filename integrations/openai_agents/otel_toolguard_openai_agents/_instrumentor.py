"""Zero-code: every run is guarded, also in programs that know nothing of the guard."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter import FrameworkRuns, Patches, ToolGuardInstrumentor

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_toolguard.telemetry import Telemetry


class ToolGuardOpenAIAgentsInstrumentor(ToolGuardInstrumentor):
    """Found by ``opentelemetry-instrument`` as ``toolguard_openai_agents``."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Supported releases of the SDK."""
        return ("openai-agents >= 0.12.0, < 1",)

    def patch(self, patches: Patches, telemetry: Telemetry | None) -> None:
        """Gives every run guarded hooks, and every agent guarded tools; no agent is copied."""
        from agents import AgentBase  # noqa: PLC0415
        from agents.lifecycle import RunHooksBase  # noqa: PLC0415
        from agents.run import AgentRunner  # noqa: PLC0415

        from otel_toolguard_openai_agents import _guard  # noqa: PLC0415

        guard, made = _guard.Guard(FrameworkRuns(telemetry=telemetry), alone=False), _guard.GuardedRunHooks

        def running(original: Any) -> Any:
            @functools.wraps(original)
            def run(*args: Any, **kwargs: Any) -> Any:
                hooks, told = kwargs.get("hooks"), getattr(kwargs.get("session"), "session_id", None)
                told = getattr(kwargs.get("run_config"), "group_id", None) or told or kwargs.get("conversation_id")
                users = hooks is None or (isinstance(hooks, RunHooksBase) and not isinstance(hooks, made))
                if users and self.is_instrumented_by_opentelemetry:  # this may still be beneath what others put there
                    kwargs["hooks"] = made(guard, hooks, told)
                return original(*args, **kwargs)

            return run

        tools = _guard.with_guarded_tools(AgentBase.get_all_tools, guard)
        patches.replace_attribute(AgentBase, "get_all_tools", tools)
        for name in ("run", "run_streamed"):
            patches.replace_attribute(AgentRunner, name, running(getattr(AgentRunner, name)))
