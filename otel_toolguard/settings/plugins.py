"""The settings of each plugin: its parameters, their bounds, and how the plugin is built from them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from otel_toolguard.core.classify import ToolClass
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.classify import Classify
from otel_toolguard.core.plugins.cost import Cost
from otel_toolguard.core.plugins.deadline import Deadline
from otel_toolguard.core.plugins.depth import Depth
from otel_toolguard.core.plugins.distinct_ratio import DistinctRatio
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.file_edits import FileEdits
from otel_toolguard.core.plugins.max_in_flight import MaxInFlight
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.plugins.stagnation import Stagnation
from otel_toolguard.core.plugins.tool_stats import ToolStats

Count = Annotated[int, Field(ge=1)]
Laps = Annotated[int, Field(ge=2)]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Reach = Literal["run", "session"]
OnLimit = Literal["stop", "nudge"]


class PluginSettings(BaseModel):
    """Base: strict types, no unknown parameter, never changed after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    rule: ClassVar[type]

    def build(self) -> Any:
        """The plugin with these settings."""
        return self.rule(**{name: getattr(self, name) for name in type(self).model_fields})


class ClassifySettings(PluginSettings):
    """No parameters."""

    rule = Classify


class RepeatGuardSettings(PluginSettings):
    """Laps of one cycle; at least 2, because a first call repeats nothing."""

    rule = RepeatGuard
    limit: Laps
    max_period: Annotated[int, Field(ge=1, le=32)] = 3
    compare: Literal["volatile", "exact", "call"] = "volatile"
    limits: dict[int, Laps] = {}
    failed_limit: Laps | None = None
    failed_nudge: Laps | None = None
    same_error: bool = True
    on_limit: OnLimit = "stop"

    @field_validator("limits", mode="before")
    @classmethod
    def _periods(cls, limits: Any) -> Any:
        """TOML has no integer keys."""
        if not isinstance(limits, dict):
            return limits
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: value for key, value in limits.items()}

    @model_validator(mode="after")
    def _known_periods(self) -> RepeatGuardSettings:
        beyond = [period for period in self.limits if not 1 <= period <= self.max_period]
        if beyond:
            raise ValueError(f"limits has period {beyond[0]}, valid are 1 to max_period = {self.max_period}")
        return self


class StagnationSettings(PluginSettings):
    """Points; a float, because a failure may count a half or a third."""

    rule = Stagnation
    limit: Annotated[float, Field(ge=1, allow_inf_nan=False)]


class SameAnswerSettings(PluginSettings):
    """Different calls with one answer."""

    rule = SameAnswer
    limit: Laps


class FailureStreakSettings(PluginSettings):
    """Failures of one tool in a row."""

    rule = FailureStreak
    limit: Count
    across_tools: bool = False
    on_limit: OnLimit = "stop"


class CallCeilingSettings(PluginSettings):
    """Calls that may start; None or absent is no ceiling."""

    rule = CallCeiling
    run: Count | None = None
    session: Count | None = None
    tools: dict[str, Count] = {}
    classes: dict[ToolClass, Count] = {}
    signature: Count | None = None

    @model_validator(mode="after")
    def _some_ceiling(self) -> CallCeilingSettings:
        if self == type(self).model_construct():
            raise ValueError("call_ceiling needs at least one of run, session, tools, classes, signature")
        return self


class MaxRefusalsSettings(PluginSettings):
    """Refusals in a row, and in all."""

    rule = MaxRefusals
    limit: Count
    total: Count | None = None


class SignatureFailuresSettings(PluginSettings):
    """Failures of one signature; ``cooldown`` in seconds, None for no second try."""

    rule = SignatureFailures
    limit: Count
    count: Literal["consecutive", "cumulative"] = "consecutive"
    same_error: bool = True
    clear_on_write: bool = True
    cooldown: Amount | None = None


class FileEditsSettings(PluginSettings):
    """Edits of one file in a run."""

    rule = FileEdits
    limit: Count
    on_limit: OnLimit = "stop"


class DistinctRatioSettings(PluginSettings):
    """Calls looked at, and how few different ones among them are a warning."""

    rule = DistinctRatio
    window: Annotated[int, Field(ge=2, le=256)] = 5
    distinct: Count = 2

    @model_validator(mode="after")
    def _says_something(self) -> DistinctRatioSettings:
        if self.distinct >= self.window:
            raise ValueError(f"distinct must be less than window = {self.window}, or every call is a warning")
        return self


class DeadlineSettings(PluginSettings):
    """Seconds on the session's clock, from the first guarded call."""

    rule = Deadline
    seconds: Amount
    scope: Reach = "run"


class CostSettings(PluginSettings):
    """What may be spent, in the unit that ``session.report_cost`` is given."""

    rule = Cost
    limit: Amount
    scope: Reach = "run"


class DepthSettings(PluginSettings):
    """Runs inside calls of runs; 1 allows no nested run any tool."""

    rule = Depth
    limit: Count
    scope: Reach = "run"


class MaxInFlightSettings(PluginSettings):
    """Calls at the same time."""

    rule = MaxInFlight
    limit: Count
    scope: Reach = "run"


class ToolStatsSettings(PluginSettings):
    """No parameters."""

    rule = ToolStats


PLUGINS: dict[str, type[PluginSettings]] = {
    "call_ceiling": CallCeilingSettings,
    "classify": ClassifySettings,
    "cost": CostSettings,
    "deadline": DeadlineSettings,
    "depth": DepthSettings,
    "distinct_ratio": DistinctRatioSettings,
    "failure_streak": FailureStreakSettings,
    "file_edits": FileEditsSettings,
    "max_in_flight": MaxInFlightSettings,
    "max_refusals": MaxRefusalsSettings,
    "repeat_guard": RepeatGuardSettings,
    "same_answer": SameAnswerSettings,
    "signature_failures": SignatureFailuresSettings,
    "stagnation": StagnationSettings,
    "tool_stats": ToolStatsSettings,
}
