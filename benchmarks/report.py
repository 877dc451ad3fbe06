"""The rows of the table: which figure, against which floor, within which budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Figures = dict[str, float]


class Row(NamedTuple):
    """One line of the table.

    ``value`` and ``floor`` are worked out from the figures; their quotient is compared with ``budget``. Without a
    floor the value itself is compared with it; without a budget there is nothing to keep.
    """

    name: str
    value: Callable[[Mapping[str, float]], float]
    floor: tuple[str, Callable[[Mapping[str, float]], float]] | None = None
    budget: float | None = None
    unit: str = "us"
    at_least: bool = False


class Line(NamedTuple):
    """A row with its numbers, as it is printed; None where something was not measured."""

    group: str
    case: str
    value: float | None
    unit: str
    floor: str | None
    ratio: float | None
    budget: float | None
    verdict: str


def _of(key: str) -> Callable[[Mapping[str, float]], float]:
    return lambda figures: figures[key]


_WRAPT = ("wrapt", _of("wrapt"))
_BARE_SPAN = ("bare span", _of("bare_span"))
_UTIL_GENAI = ("util-genai", _of("util_genai"))
_PASS = ("python -c pass", _of("start_pass"))
_UNSAMPLED = ("unsampled span", _of("unsampled_span"))

TABLE: dict[str, tuple[Row, ...]] = {
    "floors": (
        Row("bare function", _of("bare")),
        Row("functools.wraps closure", _of("wraps"), _WRAPT),
        Row("wrapt pass-through", _of("wrapt"), _WRAPT),
        Row("API only: start_span and end", _of("api_span"), _WRAPT),
        Row("start_as_current_span, 6 attributes, recorded", _of("bare_span"), _BARE_SPAN),
        Row("start_span and end, 6 attributes, recorded", _of("hand_span"), _BARE_SPAN),
        Row("start_as_current_span, unsampled", _of("unsampled_span"), _UNSAMPLED),
        Row("start_span and end, unsampled", _of("unsampled_hand_span"), _UNSAMPLED),
        Row("opentelemetry-util-genai tool handler", _of("util_genai"), _BARE_SPAN),
    ),
    "guard only": (
        Row("exact repeat_guard and ceiling", _of("exact"), _WRAPT, 5.0),
        Row("default chain", _of("default"), _WRAPT, 9.0),
        Row("exact repeat_guard and ceiling, async", _of("exact_async"), _WRAPT),
        Row("default chain, async", _of("default_async"), _WRAPT),
        Row("no session", _of("no_session"), _WRAPT),
        Row("refused call", _of("refused"), _WRAPT),
    ),
    "guard and telemetry": (
        Row("no SDK, default chain", _of("default_no_sdk"), _WRAPT),
        Row("no SDK, in addition to the guard", lambda f: f["default_no_sdk"] - f["default"], _WRAPT, 1.5),
        Row("unsampled span, exact guard", _of("exact_unsampled"), _UNSAMPLED),
        Row("unsampled span, without the guard", lambda f: f["exact_unsampled"] - f["exact"], _UNSAMPLED, 1.6),
        Row("recorded span, exact guard", _of("exact_span"), _BARE_SPAN, 1.35),
        Row("recorded span, exact guard, async", _of("exact_span_async"), _BARE_SPAN),
        Row("recorded span, default chain", _of("default_span"), _BARE_SPAN),
        Row("span and histogram, exact guard", _of("exact_full"), _BARE_SPAN, 2.0),
        Row("span and histogram, exact guard", _of("exact_full"), _UTIL_GENAI, 1.0),
    ),
    "peers": (
        Row("circuitbreaker (counts failures)", _of("peer_circuitbreaker"), _WRAPT),
        Row("pybreaker (counts failures)", _of("peer_pybreaker"), _WRAPT),
        Row("runbound (loop guard, no span)", _of("peer_runbound"), _WRAPT),
        Row("openinference decorator (span, arguments)", _of("peer_openinference"), _BARE_SPAN),
        Row("logfire decorator (span, arguments)", _of("peer_logfire"), _BARE_SPAN),
    ),
    "texts": (
        Row("masking, 1 kB of log text, per kB", _of("mask_1"), budget=80.0),
        Row("masking, 16 kB of log text, per kB", _of("mask_16"), budget=80.0),
    ),
    "growth": (
        Row("call 100,000, default chain", _of("late"), ("calls 10 to 1,000", _of("early")), 1.1),
        Row("memory per signature, 100,000 of them", _of("memory"), budget=200.0, unit="B"),
        Row("memory per signature, the first 4,000", _of("memory_first"), unit="B"),
    ),
    "replay": (
        Row("parsing only, calls with text", _of("parse_texts")),
        Row("replay, calls with text", _of("replay_texts"), ("parsing", _of("parse_texts")), 0.2, at_least=True),
        Row("parsing only, calls as hashes", _of("parse_hashes")),
        Row("replay, calls as hashes", _of("replay_hashes"), ("parsing", _of("parse_hashes")), 0.2, at_least=True),
        Row("start-up of the command", lambda f: f["replay_start_up"] * 1000, unit="ms"),
    ),
    "hook": (
        Row("python -c pass", _of("start_pass"), unit="ms"),
        Row("a new prompt", _of("start_prompt"), _PASS, unit="ms"),
        Row("before a tool", _of("start_pre"), _PASS, unit="ms"),
        Row("after a tool", _of("start_post"), _PASS, unit="ms"),
        Row("before a tool, over python -c pass", lambda f: f["start_pre"] - f["start_pass"], budget=150.0, unit="ms"),
        Row("after a tool, over python -c pass", lambda f: f["start_post"] - f["start_pass"], budget=150.0, unit="ms"),
    ),
}  # fmt: skip


def lines(figures: Mapping[str, float]) -> list[Line]:
    """The table of one run."""
    return [_line(group, row, figures) for group, rows in TABLE.items() for row in rows]


def _line(group: str, row: Row, figures: Mapping[str, float]) -> Line:
    name = row.floor[0] if row.floor else None
    try:
        value = row.value(figures)
        ratio = value / row.floor[1](figures) if row.floor else None
    except KeyError:
        return Line(group, row.name, None, row.unit, name, None, row.budget, "not available")
    if ratio is not None and row.at_least:  # a speed, not a time
        ratio = 1 / ratio
    return Line(group, row.name, value, row.unit, name, ratio, row.budget, _verdict(row, value, ratio))


def _verdict(row: Row, value: float, ratio: float | None) -> str:
    if row.budget is None:
        return ""
    kept = value if ratio is None else ratio
    return "ok" if (kept >= row.budget if row.at_least else kept <= row.budget) else "over"


def text(found: list[Line]) -> str:
    """The table for people."""
    rows = [f"{'':47}{'value':>12}  {'ratio':>6}  {'to':<18}{'budget':>9}"]
    group = ""
    for line in found:
        if line.group != group:
            group = line.group
            rows += ["", group]
        rows.append(_row(line))
    return "\n".join(rows)


def _row(line: Line) -> str:
    value = "-" if line.value is None else f"{line.value:.2f} {line.unit}"
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    return f"  {line.case:45}{value:>12}  {ratio:>6}  {line.floor or '':<18}{_budget(line):>9}  {line.verdict}".rstrip()


def _budget(line: Line) -> str:
    if line.budget is None:
        return ""
    if line.ratio is None and line.floor is None:
        return f"{line.budget:g} {line.unit}"
    return f"{'>= ' if line.group == 'replay' else ''}{line.budget:g}"
