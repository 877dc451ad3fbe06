"""Which series and labels a PromQL expression speaks of; no parser, but enough for expressions without oddities."""

from __future__ import annotations

import re

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"\{([^{}]*)\}")
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_RANGE = re.compile(r"\[[^\[\]]*\]|\boffset\s+\S+")
_WORD = re.compile(r"(?<![\w.:$])([a-zA-Z_:][\w:]*)(\s*\()?")
_KEYWORDS = {"and", "bool", "by", "group_left", "group_right", "ignoring", "on", "or", "unless", "without"}


def names(expression: str) -> tuple[set[str], set[str]]:
    """The series and the labels of an expression."""
    text = _TEXT.sub('""', expression)
    labels = {label for inner in _SELECTOR.findall(text) for label in _MATCHER.findall(inner)}
    text = _SELECTOR.sub("", text)
    labels |= {label.strip() for inner in _LABELS.findall(text) for label in inner.split(",") if label.strip()}
    text = _RANGE.sub("", _LABELS.sub("", text))
    words = _WORD.findall(text)
    return {word for word, is_call in words if not is_call and word not in _KEYWORDS}, labels
