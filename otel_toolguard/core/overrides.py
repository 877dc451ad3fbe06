"""What the settings say about the calls of one tool alone: other limits, rules that do not judge it, its circuit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

CircuitState = Literal["closed", "forced_open", "observe", "disabled"]
CIRCUIT_STATES: tuple[CircuitState, ...] = ("closed", "forced_open", "observe", "disabled")
OFF = 0  # as a limit: the rule does not judge the tool


class Overrides:
    """What differs from the chain for the calls of one tool.

    Attributes:
        where: The glob under which it is set, so that a trip can name the place.
        limits: Limits by rule, in the rule's own unit; 0 where the rule does not judge the tool.
        circuit: closed, forced_open, observe or disabled: what becomes of the circuits of the tool and its signatures.
    """

    __slots__ = ("circuit", "limits", "where")

    def __init__(self, where: str, limits: Mapping[str, int], circuit: CircuitState = "closed") -> None:
        self.where = where
        self.limits = limits
        self.circuit: CircuitState = circuit

    def setting(self, rule: str, limit: int) -> str:
        """How a limit of the tool's own is written."""
        return f'[tools."{self.where}"] limits = {{{rule} = {limit}}}'

    def to_plain(self) -> list[Any]:
        """The overrides as JSON values."""
        return [self.where, dict(self.limits), self.circuit]


def limit_of(overrides: Overrides | None, rule: str, otherwise: int) -> int:
    """The limit that holds for a call: its tool's own, else the rule's."""
    return otherwise if overrides is None else overrides.limits.get(rule, otherwise)


def setting_of(overrides: Overrides | None, rule: str, limit: int) -> str:
    """How the limit that held for a call is written, for the sentence of a trip."""
    if overrides is not None and rule in overrides.limits:
        return overrides.setting(rule, limit)
    return f"{rule} limit = {limit}"
