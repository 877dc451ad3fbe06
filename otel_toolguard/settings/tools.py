"""Settings of single tools, found by glob on the tool's name."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from otel_toolguard.core.classify import Risk, ToolClass

POLLER_PATIENCE = 10  # times the repeat limit that a poller has


class ToolSettings(BaseModel):
    """What is known about a tool beyond its name; None leaves it to the name.

    Attributes:
        tool_class: Overrides the class (``class`` in TOML).
        risk: Overrides the risk.
        poll: True for a tool that is asked again and again by nature: it has 10 times the repeat limit; a number is
            that many times the limit. False for a tool that only sounds like one.
        ignore: Arguments that say nothing about what the call does (request ids, timestamps).
        enabled: False to trace the tool's calls without judging them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)
    tool_class: ToolClass | None = Field(default=None, alias="class")
    risk: Risk | None = None
    poll: bool | Annotated[int, Field(ge=1)] | None = None
    ignore: tuple[str, ...] = Field(default=(), strict=False)
    enabled: bool = True
