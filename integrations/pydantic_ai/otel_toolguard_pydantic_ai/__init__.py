"""otel-toolguard for Pydantic AI: ``Agent(..., capabilities=[ToolGuard()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_toolguard.adapter import lazily
from otel_toolguard_pydantic_ai._instrumentor import ToolGuardPydanticAIInstrumentor

if TYPE_CHECKING:
    from otel_toolguard_pydantic_ai._capability import PydanticAIStopped, ToolGuard

__all__ = ["PydanticAIStopped", "ToolGuard", "ToolGuardPydanticAIInstrumentor"]

__getattr__ = lazily(__name__, {"PydanticAIStopped": "_capability", "ToolGuard": "_capability"})
