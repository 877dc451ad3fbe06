"""Zero-code: every ``query`` and every client gets guarded options and a guarded stream."""

from __future__ import annotations

import functools
from typing import Any

from otel_toolguard.adapter import Patches, ToolGuardInstrumentor


class ToolGuardClaudeAgentSDKInstrumentor(ToolGuardInstrumentor):
    """Found by ``opentelemetry-instrument`` as ``toolguard_claude_agent_sdk``."""

    def instrumentation_dependencies(self) -> tuple[str]:
        """Supported releases of the SDK."""
        return ("claude-agent-sdk >= 0.2.189, < 0.3",)

    def patch(self, patches: Patches, telemetry: Any) -> None:
        """Replaces ``query`` and the client's ways to connect and to receive."""
        import claude_agent_sdk as sdk  # noqa: PLC0415  (the entry point must load without it)

        from otel_toolguard_claude_agent_sdk import guard_options, guarded_stream  # noqa: PLC0415

        original, client = sdk.query, vars(sdk.ClaudeSDKClient)
        connect, *receive = (client[name] for name in ("connect", "receive_messages", "receive_response"))

        @functools.wraps(original)
        def query(**given: Any) -> Any:
            return guarded_stream(
                original(**given | {"options": guard_options(given.get("options"), telemetry=telemetry)})
            )

        @functools.wraps(connect)
        async def connecting(self: Any, *args: Any, **kwargs: Any) -> None:
            self.options = guard_options(self.options, telemetry=telemetry)
            await connect(self, *args, **kwargs)

        patches.replace(original, query)
        patches.replace_attribute(sdk.ClaudeSDKClient, "connect", connecting)
        for one in receive:
            guarded = functools.wraps(one)(lambda self, receives=one: guarded_stream(receives(self)))
            patches.replace_attribute(sdk.ClaudeSDKClient, one.__name__, guarded)
