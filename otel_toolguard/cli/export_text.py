"""A trapped case written down as a test: Python that a formatter leaves as it is and a linter has nothing to say to."""

from __future__ import annotations

import re
import textwrap
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]
WIDTH = 88  # what fits is left on one line by formatters of this width and of any greater one
WIDEST = 120  # a text that does not fit even here is written in parts
LAP_MOST = 32  # calls of a lap that is written once

_TEMPLATE = '''"""{head}"""

import json
{pytest}
from otel_toolguard import Policy
from otel_toolguard.cli.replay import Replay

PLUGINS = {plugins}
TOOLS = {tools}
{how}
KEYS = {keys}
{calls}
TRIP = {trip}

{mark}
def test_{rule}_still_trips(tmp_path):
    """{says}"""
    file = tmp_path / "case.jsonl"
    calls = [dict(zip(KEYS, call, strict=True)) for call in CALLS]
    rows = [{place} | call for i, call in enumerate(calls)]
    file.write_text("\\n".join(map(json.dumps, rows)), encoding="utf-8")
    bad = []
    policy = Policy(plugins=PLUGINS, tools=TOOLS, mode="enforce")
    replay = Replay(policy, lambda *line: bad.append(line))
    (found,) = replay.run([str(file)], lambda *_: None)
    assert not bad
    assert found.trip == TRIP
'''
_MARK = '\n@pytest.mark.filterwarnings("ignore::otel_toolguard.SettingsWarning")'


def python_of(
    rows: list[Row], plugins: list[Row], tools: Row, trip: Row, *, head: str, how: str, doubtful: bool
) -> str:
    """The text of the test.

    Args:
        rows: The calls, each as ``replay`` reads it, without session and number.
        plugins: The chain.
        tools: The settings of tools.
        trip: What ``replay`` says of the case.
        head: Where the case comes from, as one sentence.
        how: What is to be known of the calls, likewise.
        doubtful: Whether the policy warns of its settings, which a strict test run takes for errors.
    """
    keys = [*dict.fromkeys(key for row in rows for key in row)]
    table = [[row.get(key) for key in keys] for row in rows]
    period = "" if trip["period"] is None else f", period {trip['period']}"
    says = (
        f"The case trips {_plain(trip['rule'])} (scope {trip['scope']}{period}, limit {trip['limit']:g}) "
        f"at call {trip['index'] + 1} of {len(rows)}."
    )
    return _TEMPLATE.format(
        head=head, says=says, pytest="\nimport pytest\n" if doubtful else "", mark=_MARK if doubtful else "",
        rule=_plain(trip["rule"]), plugins=_listed(plugins), tools=literal(tools, 0, len("TOOLS = ")),
        how="\n".join(f"# {line}" for line in textwrap.wrap(how, WIDTH - 2)), keys=literal(keys, 0, len("KEYS = ")),
        calls=_calls(table), trip=literal(trip, 0, len("TRIP = ")),
        place='{"s": "case", "i": i}' if "t" in keys else '{"session": "case", "i": i}',
    )  # fmt: skip


def _plain(name: str) -> str:
    """The name as a part of an identifier."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def _calls(rows: list[list[Any]]) -> str:
    for period in range(1, min(LAP_MOST, len(rows) // 2) + 1):
        laps, rest = divmod(len(rows), period)
        if not rest and all(rows[at] == rows[at - period] for at in range(period, len(rows))):
            return f"LAP = {_listed(rows[:period])}\nCALLS = LAP * {laps}"
    return f"CALLS = {_listed(rows)}"


def _listed(rows: Sequence[Any]) -> str:
    if not rows:
        return "[]"
    return "[\n" + "".join(f"    {literal(row, 4, 4)},\n" for row in rows) + "]"


def literal(value: Any, indent: int = 0, column: int = 0) -> str:
    """A JSON value as Python, in ASCII.

    Args:
        value: The value.
        indent: Of the line that it stands on.
        column: Where on that line it begins.
    """
    flat = _flat(value)
    # Within the parentheses there is more room: what fits there a formatter would join again.
    if isinstance(value, str) and indent + 4 + len(flat) > WIDEST:
        return _in_parts(value, indent)
    if column + len(flat) + 1 <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    inner, lines = indent + 4, []
    if isinstance(value, dict):
        for key, item in value.items():
            head = " " * inner + _flat(key) + ": "
            lines.append(head + literal(item, inner, len(head)))
    else:
        lines = [" " * inner + literal(item, inner, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + "".join(f"{line},\n" for line in lines) + " " * indent + closing


def _in_parts(text: str, indent: int) -> str:
    """A text that no line holds, in parentheses, a line for each part."""
    room = WIDTH - indent - 4
    parts: list[str] = []
    while text:
        size = max(1, room - 2)
        while len(_quoted(text[:size])) > room and size > 1:
            size -= 1
        parts.append(" " * (indent + 4) + _quoted(text[:size]))
        text = text[size:]
    return "\n".join(["(", *parts, " " * indent + ")"])


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flat(key)}: {_flat(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flat, value)) + "]"
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _quoted(text: str) -> str:
    """The text in the quotes that need fewer escapes, double ones if both need as many."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    inner = ascii(text + "\"'")[1:-1]  # with both in it, ascii() takes single quotes and escapes those
    inner = inner.removesuffix("\"\\'")
    inner = re.sub(r"\\(.)", lambda found: "'" if found[1] == "'" else found[0], inner, flags=re.DOTALL)
    return quote + (inner.replace(quote, "\\" + quote)) + quote
