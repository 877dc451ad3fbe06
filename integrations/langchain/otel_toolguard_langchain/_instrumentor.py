"""Zero-code: every agent made by ``create_agent`` gets the middleware, every other ``ToolNode`` the wrappers."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter import Patches, ToolGuardInstrumentor

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_toolguard.telemetry import Telemetry


_by_middleware: ContextVar[bool] = ContextVar("otel_toolguard_langchain.by_middleware", default=False)


class ToolGuardLangChainInstrumentor(ToolGuardInstrumentor):
    """Found by ``opentelemetry-instrument`` as ``toolguard_langchain``."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Supported releases of LangChain."""
        return ("langchain >= 1.0, < 2",)

    def patch(self, patches: Patches, telemetry: Telemetry | None) -> None:
        """Replaces every binding of ``create_agent``, and how a ``ToolNode`` is made.

        They are imported here, for the entry point must load where they are absent.
        """
        from langchain.agents import create_agent  # noqa: PLC0415
        from langchain.agents.middleware import AgentMiddleware  # noqa: PLC0415
        from langgraph.prebuilt.tool_node import ToolNode  # noqa: PLC0415

        from otel_toolguard_langchain._graphs import guarding  # noqa: PLC0415
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
            token = _by_middleware.set(True)
            try:
                return create_agent(*args, **{**kwargs, "middleware": given})
            finally:
                _by_middleware.reset(token)

        patches.replace(create_agent, guarded)
        patches.replace_attribute(ToolNode, "__init__", guarding(ToolNode.__init__, telemetry, _by_middleware))
