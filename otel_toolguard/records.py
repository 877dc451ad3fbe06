"""Pydantic models of what leaves the library; built on demand from the core's plain records."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from otel_toolguard.core.decision import LoopType, Scope


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class MemberModel(_Record):
    """One distinct call of a repeated cycle."""

    tool: str
    signature: str
    arguments: dict[str, str]


class InFlightModel(_Record):
    """A call that was running when the circuit opened."""

    tool: str
    signature: str
    tool_class: str
    risk: str


class TripModel(_Record):
    """Why a circuit opened; the fields are those of ``otel_toolguard.core.decision.Trip``."""

    id: str
    rule: str
    scope: Scope
    tool: str | None = None
    signature: str | None = None
    tool_class: str | None = None
    period: int | None = None
    limit: float | None = None
    observed: float | None = None
    members: list[MemberModel] = []
    in_flight: list[InFlightModel] = []
    session_id: str
    run_id: str | None = None
    agent: str | None = None
    retryable: bool = False
    retry_after_s: float | None = None
    loop_type: LoopType
    at_call: int
    why: str


class ReportModel(_Record):
    """What a session did; keys that other plugins report are kept as extra fields."""

    calls: int = 0
    retries: int = 0
    longest_fail_streak: int = 0
    tools: dict[str, dict[str, Any]] = {}
    classes: dict[str, int] = {}
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    in_flight: int = 0
    trips: list[TripModel] = []
