"""Where in a TOML file a setting stands, so that an error can say so: ``tomllib`` keeps no line numbers."""

from __future__ import annotations

import re


def line_of(text: str, *, plugin: int | None = None, tool: str | None = None, key: str | None = None) -> int:
    """The line (from 1) of a key of the ``plugin``-th ``[[tool_plugins]]`` table, of a tool's table, or at the top.

    Falls back to the table's own line, then to 1.
    """
    top = plugin is None and tool is None
    table, seen, found = top, -1, 1
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if top and key is not None and re.match(rf"\[\[?\s*['\"]?{re.escape(key)}['\"]?\s*[\].]", bare):
            return number
        if bare.startswith("["):
            if table and found > 1:
                return found
            table = False
            if re.match(r"\[\[\s*tool_plugins\s*\]\]", bare):
                seen += 1
                table = seen == plugin
            elif tool is not None and re.match(rf"\[\s*tools\s*\.\s*['\"]?{re.escape(tool)}['\"]?\s*\]", bare):
                table = True
            if table:
                found = number
        elif plugin is not None and re.match(r"tool_plugins\s*=", bare):
            found = number  # the tables written in line
        elif table and key is not None and re.match(rf"['\"]?{re.escape(key)}['\"]?\s*(=|\.)", bare):
            return number
    return found
