"""From the rows of a trace to a picture of it: an SVG that needs no script, no font and no style sheet of others."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from pictures.rows import Row, rows, shortened

if TYPE_CHECKING:
    from pictures.rows import Span

WIDTH, LINE, TOP, BOTTOM = 900, 20, 62, 44
NAME, BARS, BARS_END, TIME, OUTCOME, CALL, NOTE, GUTTER = 14, 240, 442, 508, 520, 582, 622, 878
CHARACTER = 6.65  # of the widest usual monospaced font at this size
FONT = 'font-family="DejaVu Sans Mono, Menlo, Consolas, Liberation Mono, monospace" font-size="11"'
INK, GREY = "#24292f", "#57606a"
QUIET = f'fill="{GREY}"'
THINNEST = 2.0
TICKS = 4
MOST = 40
LINKS = 3  # of one span

COLOURS = {
    "agent": "#8d99ae", "model": "#7a6fd1", "ok": "#2a9d6f", "failed": "#d07f00", "refused": "#c8332b",
    "error": "#d07f00", "other": "#5b8def",
}  # fmt: skip
KINDS = {
    "agent": "agent", "model": "model call", "ok": "tool, ok", "failed": "tool, failed",
    "refused": "tool, refused: never ran", "error": "error", "other": "other",
}  # fmt: skip
ARROW = "→ link to the span that opened the circuit"
BACKGROUNDS = {"tripped": "#fde8e6", "would trip": "#fff3d6"}
WORDS = {"tripped": "TRIPPED", "would trip": "WOULD TRIP"}


def waterfall(title: str, spans: list[Span], most: int = MOST) -> str:
    """A picture of one trace.

    Args:
        title: What stands above it.
        spans: All spans of the trace.
        most: How many rows to draw.
    """
    all_rows = rows(spans)
    shown = shortened(all_rows, most)
    whole = max((row.start + row.length for row in all_rows), default=0.0)
    height = TOP + LINE * len(shown) + BOTTOM
    places = {row.span_id: TOP + LINE * n for n, row in enumerate(shown) if isinstance(row, Row)}
    size = f'width="{WIDTH}" height="{height}"'
    box = f'{size} viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" {FONT} fill="{INK}">',
        f"<title>{_safe(title)}</title>",
        f'<rect {size} fill="#ffffff"/>',
        _text(NAME, 22, title, 100, 'font-weight="bold" font-size="13"'),
        _text(NAME, 46, f"{len(all_rows)} spans, {_time(whole)}", 34, QUIET),
        *_scale(whole, height - 40),
    ]
    for n, row in enumerate(shown):
        y = TOP + LINE * n
        if isinstance(row, Row):
            parts += _drawn(row, y, whole, places)
        else:
            parts.append(_text(NAME + 14, y + 14, f"… {row} more {'span' if row == 1 else 'spans'} …", 34, QUIET))
    return "\n".join([*parts, *_links(shown, places), *_legend(shown, height - 14), "</svg>"]) + "\n"


def _drawn(row: Row, y: float, whole: float, places: dict[str, int]) -> list[str]:
    parts = []
    if row.mark:
        parts.append(f'<rect x="6" y="{y}" width="{WIDTH - 12}" height="{LINE}" fill="{BACKGROUNDS[row.mark]}"/>')
    indent = min(row.depth, 6) * 14
    wide = BARS_END - BARS
    x = BARS + wide * (row.start / whole if whole else 0)
    length = min(max(THINNEST, wide * (row.length / whole if whole else 0)), BARS_END + THINNEST - x)
    parts += [
        _text(NAME + indent, y + 14, row.name, int((BARS - NAME - indent) / CHARACTER) - 1),
        f'<rect x="{x:.1f}" y="{y + 4}" width="{length:.1f}" height="{LINE - 8}" rx="1" fill="{_colour(row)}"/>',
        _text(TIME, y + 14, _time(row.length), 9, 'text-anchor="end"'),
        _text(OUTCOME, y + 14, row.outcome, 9, f'fill="{_colour(row)}" font-weight="bold"'),
        _text(CALL, y + 14, row.call, 5, QUIET),
    ]
    note = f"{WORDS[row.mark]} {row.note}" if row.mark else row.note
    if elsewhere := [link for link in row.links if link not in places]:
        note += f" → {elsewhere[0][:8]}"
    weight = 'font-weight="bold"' if row.mark else ""
    return [*parts, _text(NOTE, y + 14, note, int((GUTTER - NOTE) / CHARACTER), weight)]


def _scale(whole: float, bottom: float) -> list[str]:
    parts = []
    step = _step(whole / TICKS) if whole else 0
    for n in range(int(whole / step) + 1 if step else 1):
        x = BARS + ((BARS_END - BARS) * n * step / whole if whole else 0)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 10}" x2="{x:.1f}" y2="{bottom}" stroke="#e3e7ec"/>')
        parts.append(_text(x, TOP - 16, _time(n * step) if n else "0", 9, f'text-anchor="middle" {QUIET}'))
    heads = (
        (TIME, "time", 'text-anchor="end"'),
        (OUTCOME, "outcome", ""),
        (CALL, "call", ""),
        (NOTE, "what the guard saw", ""),
    )
    return parts + [_text(x, TOP - 16, word, 20, f"{QUIET} {more}") for x, word, more in heads]


def _links(shown: list[Row | int], places: dict[str, int]) -> list[str]:
    """A line down the right edge from each span that points to another of these rows, with its head at the other."""
    parts = []
    targets: list[str] = []
    for row in shown:
        for target in row.links[:LINKS] if isinstance(row, Row) else ():
            if target not in places:
                continue
            if target not in targets:
                targets.append(target)
            x = GUTTER + 8 + 4 * (targets.index(target) % 3)
            start, end = places[row.span_id] + LINE / 2, places[target] + LINE / 2
            parts.append(f'<path d="M {GUTTER} {start} H {x} V {end} H {GUTTER + 4}" fill="none" stroke="{GREY}"/>')
            parts.append(f'<path d="M {GUTTER - 2} {end} l 6 -3.5 v 7 z" fill="{GREY}"/>')
    return parts


def _legend(shown: list[Row | int], y: float) -> list[str]:
    """The colours that are there, and the arrow if one is."""
    drawn = [row for row in shown if isinstance(row, Row)]
    parts = [f'<line x1="{NAME}" y1="{y - 20}" x2="{WIDTH - NAME}" y2="{y - 20}" stroke="#d0d7de"/>']
    x = NAME
    for kind in {_kind(row): None for row in drawn}:
        parts.append(f'<rect x="{x}" y="{y - 9}" width="11" height="11" rx="1" fill="{COLOURS[kind]}"/>')
        parts.append(_text(x + 17, y, KINDS[kind], 30, QUIET))
        x += 17 + int(len(KINDS[kind]) * CHARACTER) + 18
    if any(row.links for row in drawn):
        parts.append(_text(x + 6, y, ARROW, 50, QUIET))
    return parts


def _kind(row: Row) -> str:
    if row.outcome in KINDS:
        return row.outcome
    return {"invoke_agent": "agent", "chat": "model"}.get(row.operation, "other")


def _colour(row: Row) -> str:
    return COLOURS[_kind(row)]


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below."""
    power = 10.0 ** (len(f"{least:.0f}") - 1 if least >= 1 else -len(f"{1 / least:.0f}"))
    return next(power * factor for factor in (1, 2, 5, 10, 20, 50, 100) if power * factor >= least)


def _time(ms: float) -> str:
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.0f} ms" if ms >= 100 or ms == int(ms) else f"{ms:.2g} ms"


def _text(x: float, y: float, words: str, most: int, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{_safe(_cut(words, most))}</text>' if words else ""


def _safe(words: str) -> str:
    """Nothing that XML forbids or that turns the line around, and nothing that is markup."""
    return escape("".join(character if character.isprintable() else "·" for character in words))


def _cut(words: str, most: int) -> str:
    """As many characters as fit; wide ones count twice."""
    room = most
    for n, character in enumerate(words):
        room -= 2 if east_asian_width(character) in "WF" else 1
        if room < 0:
            return words[: max(0, n - 1)] + "…"
    return words
