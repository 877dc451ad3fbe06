"""Zero-code: every agent made by ``create_agent`` gets the middleware, unless it has one already."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter import Patches, ToolGuardInstrumentor

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_toolguard.telemetry import Telemetry


class ToolGuardLangChainInstrumentor(ToolGuardInstrumentor):
    """Found by ``opentelemetry-instrument`` as ``toolguard_langchain``."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Supported releases of LangChain."""
        return ("langchain >= 1.0, < 2",)

    def patch(self, patches: Patches, telemetry: Telemetry | None) -> None:
        """Replaces every binding of ``create_agent``; imports it here, for the entry point must load without it."""
        from langchain.agents import create_agent  # noqa: PLC0415
        from langchain.agents.middleware import AgentMiddleware  # noqa: PLC0415

        from otel_toolguard_langchain._middleware import ToolGuardMiddleware  # noqa: PLC0415

        def wraps(one: Any) -> bool:
            mine = (type(one).wrap_tool_call, type(one).awrap_tool_call)
            return mine != (AgentMiddleware.wrap_tool_call, AgentMiddleware.awrap_tool_call)

        @functools.wraps(create_agent)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            given = list(kwargs.get("middleware") or ())
            if not any(isinstance(one, ToolGuardMiddleware) for one in given):
                at = max((place for place, one in enumerate(given, 1) if wraps(one)), default=0)
                given.insert(at, ToolGuardMiddleware(telemetry=telemetry))
            return create_agent(*args, **{**kwargs, "middleware": given})

        patches.replace(create_agent, guarded)
