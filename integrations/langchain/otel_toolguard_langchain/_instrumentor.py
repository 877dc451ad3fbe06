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
        """Replaces every binding of ``create_agent``."""
        # Here, not at the top: the entry point must load where LangChain is absent.
        from langchain.agents import create_agent  # noqa: PLC0415

        from otel_toolguard_langchain._middleware import ToolGuardMiddleware  # noqa: PLC0415

        @functools.wraps(create_agent)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            middleware = list(kwargs.get("middleware") or ())
            if not any(isinstance(one, ToolGuardMiddleware) for one in middleware):
                # Last is innermost: every real execution is seen, a retry middleware's included.
                kwargs["middleware"] = [*middleware, ToolGuardMiddleware(telemetry=telemetry)]
            return create_agent(*args, **kwargs)

        patches.replace(create_agent, guarded)
