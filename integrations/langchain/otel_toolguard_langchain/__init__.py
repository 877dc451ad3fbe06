"""otel-toolguard for LangChain and LangGraph: ``create_agent(..., middleware=[..., ToolGuardMiddleware()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_toolguard.adapter import lazily
from otel_toolguard_langchain._instrumentor import ToolGuardLangChainInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_langchain._callbacks import ToolGuardCallbackHandler
    from otel_toolguard_langchain._graphs import tool_node_wrappers
    from otel_toolguard_langchain._mapping import LangChainStopped
    from otel_toolguard_langchain._middleware import ToolGuardMiddleware

__all__ = [
    "LangChainStopped", "ToolGuardCallbackHandler", "ToolGuardLangChainInstrumentor", "ToolGuardMiddleware",
    "tool_node_wrappers",
]  # fmt: skip

__getattr__ = lazily(__name__, {
    "LangChainStopped": "_mapping", "ToolGuardCallbackHandler": "_callbacks", "ToolGuardMiddleware": "_middleware",
    "tool_node_wrappers": "_graphs",
})  # fmt: skip
