"""otel-toolguard for Pydantic AI: ``Agent(..., capabilities=[ToolGuard()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard_pydantic_ai._instrumentor import ToolGuardPydanticAIInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_pydantic_ai._capability import PydanticAIStopped, ToolGuard

__all__ = ["PydanticAIStopped", "ToolGuard", "ToolGuardPydanticAIInstrumentor"]


def __getattr__(name: str) -> Any:
    """Loads the capability on first use: this package must import where Pydantic AI is absent."""
    if name in ("PydanticAIStopped", "ToolGuard"):
        from otel_toolguard_pydantic_ai import _capability  # noqa: PLC0415

        return getattr(_capability, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
