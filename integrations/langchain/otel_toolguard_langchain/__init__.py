"""otel-toolguard for LangChain and LangGraph: ``create_agent(..., middleware=[..., ToolGuardMiddleware()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard_langchain._instrumentor import ToolGuardLangChainInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_langchain._middleware import LangChainStopped, ToolGuardMiddleware

__all__ = ["LangChainStopped", "ToolGuardLangChainInstrumentor", "ToolGuardMiddleware"]


def __getattr__(name: str) -> Any:
    """Loads the middleware on first use: this package must import where LangChain is absent."""
    if name in ("LangChainStopped", "ToolGuardMiddleware"):
        from otel_toolguard_langchain import _middleware  # noqa: PLC0415

        return getattr(_middleware, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
