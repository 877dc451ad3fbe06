"""Settings written as TOML, for people to copy."""

from __future__ import annotations

import json
from typing import Any

Table = dict[str, Any]


def plain(number: float) -> int | float:
    """A whole number without its point."""
    return int(number) if number == int(number) else number


def toml_of(chain: list[Table], tools: Table, changed: Table | None = None) -> str:
    """The tables of a chain and of tools.

    Args:
        chain: Tables of rules.
        tools: Tables of tools, by glob.
        changed: Where the tables are only guessed at: the parameters that are meant; beside the others it says so.
    """
    lines: list[str] = []
    for table in chain:
        lines += ["", "[[tool_plugins]]"]
        for key, value in table.items():
            guessed = changed is not None and key not in changed and key != "plugin"
            lines.append(f"{key} = {value_of(value)}" + "  # keep yours" * guessed)
    for name, settings in tools.items():
        lines += ["", f"[tools.{value_of(name)}]", *(f"{key} = {value_of(value)}" for key, value in settings.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def value_of(value: Any) -> str:
    """One value."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{value_of(key)} = {value_of(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        value = plain(value)
    return json.dumps(value)
