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

        original, kind = sdk.query, sdk.ClaudeSDKClient

        @functools.wraps(original)
        def query(**given: Any) -> Any:
            given["options"] = guard_options(given.get("options"), telemetry=telemetry)
            return guarded_stream(original(**given))

        patches.replace(original, query)
        names = ("connect", "receive_messages", "receive_response")
        connect, *receive = [vars(kind)[name] for name in names]

        @functools.wraps(connect)
        async def connecting(client: Any, *args: Any, **kwargs: Any) -> Any:
            client.options = guard_options(client.options, telemetry=telemetry)
            return await connect(client, *args, **kwargs)

        ours = [connecting, *(functools.wraps(one)(lambda client, f=one: guarded_stream(f(client))) for one in receive)]
        for name, function in zip(names, ours, strict=True):
            patches.replace_attribute(kind, name, function)
