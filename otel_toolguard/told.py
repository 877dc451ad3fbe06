"""What is said about a tool where it is guarded: checked, kept apart from what is not said, and said again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.core.classify import RISKS, TOOL_CLASSES
from otel_toolguard.errors import SettingsError
from otel_toolguard.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS = ("tool_class", "risk", "poll", "ignore", "key", "result_key", "fold")


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was really said, if it can be honoured.

    Raises:
        SettingsError: A value is not valid.
    """
    choices: tuple[str, ...]
    for word, choices in (("tool_class", TOOL_CLASSES), ("risk", RISKS)):
        value = given.get(word)
        if value is not None and value not in choices:
            raise SettingsError(f"unknown {word} {value!r}; valid are {', '.join(choices)}")
    poll = given.get("poll")
    if poll is not None and not isinstance(poll, bool) and not (isinstance(poll, int) and poll >= 1):
        raise SettingsError(f"poll = {poll!r}; valid are True, False and a whole number from 1")
    if isinstance(given.get("ignore"), str):
        raise SettingsError("ignore takes a list of argument names, not one text")
    if not isinstance(given.get("fold", False), bool):
        raise SettingsError(f"fold = {given['fold']!r}; valid are True and False")
    for word in ("key", "result_key"):
        if given.get(word) is not None and not callable(given[word]):
            raise SettingsError(f"{word} takes a function, not {type(given[word]).__name__}")
    return _said({**given, "ignore": frozenset(given.get("ignore", ()))})


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in given.items() if (value if word in _UNSAID_IF_FALSE else value is not None)}


_UNSAID_IF_FALSE = ("ignore", "fold")


def said_of(tool: Tool) -> dict[str, Any]:
    """What was said about a tool."""
    return _said({word: getattr(tool, word) for word in WORDS})


def told_again(tool: Tool, name: str | None, told: Mapping[str, Any]) -> Tool:
    """A tool about which more is said; what was said before holds where nothing is said now."""
    return Tool(name or tool.name, **{**said_of(tool), **told}, hints=tool.hints, kind=tool.kind)
