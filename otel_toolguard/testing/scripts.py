"""What a scripted model says, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Ask = tuple[str, Mapping[str, Any]]  # a tool and its arguments
Turn = Sequence[Ask] | str | None  # the calls of one turn; or the last answer, DONE where there is nothing to say
Script = Sequence[Turn] | Callable[[int], Turn]  # the turns in order, or what turn 1, 2, 3, ... says

DONE = "Done."


def turn_of(script: Script, number: int) -> Turn:
    """What a script says in a turn, counted from 1; None behind its end."""
    if callable(script):
        return script(number)
    return script[number - 1] if number <= len(script) else None


def for_ever(tool: str, arguments: Mapping[str, Any] | None = None, *, batch: int = 1) -> Callable[[int], Turn]:
    """The script of a model that never learns: the same call in every turn.

    Args:
        tool: The tool it asks for.
        arguments: Their values by name; None for none.
        batch: Equal calls in one turn.
    """
    return lambda _turn: [(tool, dict(arguments or {}))] * batch


def in_turn(*asks: Ask) -> Callable[[int], Turn]:
    """The script of a model that goes round in circles: these calls, one a turn, over and over."""
    return lambda turn: [asks[(turn - 1) % len(asks)]]


def always_new(tool: str, argument: str = "q", *, batch: int = 1) -> Callable[[int], Turn]:
    """The script of a model that only ceilings end: calls of one tool, none of them made before.

    Args:
        tool: The tool it asks for.
        argument: The name under which each call gets another text.
        batch: Calls in one turn.
    """
    return lambda turn: [(tool, {argument: f"{turn}.{n}"}) for n in range(batch)]
