"""Settings of single tools, found by glob on the tool's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from otel_toolguard.core.classify import Risk, ToolClass
from otel_toolguard.core.overrides import OFF, CircuitState, Overrides

POLLER_PATIENCE = 10  # times the repeat limit that a poller has
OFF_WORD = "off"


class ToolSettings(BaseModel):
    """What is known about a tool beyond its name; None leaves it to the name.

    Attributes:
        tool_class: Overrides the class (``class`` in TOML).
        risk: Overrides the risk.
        poll: True for a tool that is asked again and again by nature: it has 10 times the repeat limit; a number is
            that many times the limit. False for a tool that only sounds like one.
        ignore: Arguments that say nothing about what the call does (request ids, timestamps).
        key: The only arguments that are compared, as names or dotted paths (``query.id``); in code also a function of
            the arguments. Those in ``ignore`` are left out before.
        result_key: The only parts of a result that are compared, likewise; a text that is JSON is read. A result that
            has none of them is compared whole.
        fold: True to take texts for equal that differ in Unicode composition or outer blanks only.
        limits: Limits of the tool's own by rule, ``{repeat_guard = 20}``; "off" keeps a rule from judging its calls.
        transient: Words by which a failure that may pass is known, in the error's type or text, whatever their case,
            beside those that always are; True for every failure, False for none. In code also a function of error type
            (None for an error that was returned) and text.
        circuit: "forced_open" refuses every call of the tool; "observe" and "disabled" keep circuits of the tool and
            its signatures from refusing (the first says what would have been refused). "closed" is as usual.
        enabled: False to trace the tool's calls without judging them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)
    tool_class: ToolClass | None = Field(default=None, alias="class")
    risk: Risk | None = None
    poll: bool | Annotated[int, Field(ge=1)] | None = None
    ignore: tuple[str, ...] = Field(default=(), strict=False)
    key: tuple[str, ...] | Callable[[dict[str, Any]], Any] | None = None
    result_key: tuple[str, ...] | Callable[[Any], Any] | None = None
    fold: bool = False
    limits: dict[str, int | Literal["off"]] = {}
    transient: bool | tuple[str, ...] | Callable[[str | None, str], bool] | None = None
    circuit: CircuitState = "closed"
    enabled: bool = True

    @field_validator("key", "result_key", "transient", mode="before")
    @classmethod
    def _words(cls, said: Any, info: ValidationInfo) -> Any:
        """A single word stands for a list of one."""
        truth = info.field_name == "transient"
        words = (said,) if isinstance(said, str) else tuple(said) if isinstance(said, (list, tuple)) else None
        if words and all(isinstance(word, str) and word.strip() for word in words):
            return words
        if said is None or callable(said) or (truth and isinstance(said, bool)):
            return said
        also = "true, false, " if truth else ""
        raise ValueError(
            f"{info.field_name} = {said!r:.60}; valid are {also}a text, a list of texts, in code a function"
        )

    @field_validator("limits", mode="before")
    @classmethod
    def _numbers(cls, said: Any) -> Any:
        for rule, limit in said.items() if isinstance(said, dict) else ():
            if limit != OFF_WORD and (type(limit) is not int or limit < 1):
                raise ValueError(f'limits.{rule} = {limit!r:.60}; valid are whole numbers from 1, and "{OFF_WORD}"')
        return said

    def overrides(self, where: str) -> Overrides | None:
        """What the rules and circuits are told; None for nothing."""
        if not self.limits and self.circuit == "closed":
            return None
        limits = {rule: limit if isinstance(limit, int) else OFF for rule, limit in self.limits.items()}
        return Overrides(where, limits, self.circuit)
