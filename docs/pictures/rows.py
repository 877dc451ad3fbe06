"""From the spans of a trace to the rows of a picture: children below their parents, what matters kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Span = dict[str, Any]  # OTLP's JSON, with its attributes as a plain dictionary at "said"

HASH_SHOWN = 4  # hex digits: enough to see which calls are equal


@dataclass(frozen=True)
class Row:
    """One span, ready to be drawn.

    Attributes:
        span_id: What links of other rows point to.
        name: The span's own.
        depth: How many of its ancestors are in the trace.
        start: Milliseconds since the first span began.
        length: Milliseconds, never negative.
        outcome: The guard's word for it; "error" for other spans that say so, else empty.
        operation: ``gen_ai.operation.name``, or empty.
        call: The first digits of the signature's digest, or empty.
        mark: "tripped", "would trip" or empty.
        note: What the last column says.
        links: Ids of the spans that it points to.
    """

    span_id: str
    name: str
    depth: int = 0
    start: float = 0.0
    length: float = 0.0
    outcome: str = ""
    operation: str = ""
    call: str = ""
    mark: str = ""
    note: str = ""
    links: tuple[str, ...] = ()

    @property
    def matters(self) -> bool:
        """Whether it must be seen even where rows are left out."""
        return bool(self.mark) or self.outcome in ("refused", "failed", "error")


def rows(spans: list[Span]) -> list[Row]:
    """One row for each span; one whose parent is not in the trace stands at the left, as the root does."""
    in_order = sorted(spans, key=lambda span: (_time(span, "start"), -_time(span, "end")))
    ids = {span["spanId"] for span in in_order}
    children: dict[str, list[Span]] = {}
    for span in in_order:
        parent = span.get("parentSpanId") or ""
        children.setdefault(parent if parent in ids else "", []).append(span)
    first = _time(in_order[0], "start") if in_order else 0
    found: list[Row] = []
    seen: set[str] = set()
    # The last pass is for spans that are their own ancestors: nothing leads to them.
    waiting = [(span, 0) for span in [*reversed(in_order), *reversed(children.get("", []))]]
    while waiting:
        span, depth = waiting.pop()
        if span["spanId"] not in seen:
            seen.add(span["spanId"])
            found.append(_row(span, depth, first))
            waiting += [(child, depth + 1) for child in reversed(children.get(span["spanId"], []))]
    return found


def shortened(all_rows: list[Row], most: int) -> list[Row | int]:
    """At most so many rows, those that matter first, then those nearest to an end; a number where some are left out."""
    last = len(all_rows) - 1
    by_worth = sorted(range(len(all_rows)), key=lambda n: (n > 0, not all_rows[n].matters, min(n, last - n)))
    kept = sorted(by_worth[:most])
    shown: list[Row | int] = []
    before = -1
    for n in [*kept, len(all_rows)]:
        if n - before > 1:
            shown.append(n - before - 1)
        if n <= last:
            shown.append(all_rows[n])
        before = n
    return shown


def _row(span: Span, depth: int, first: int) -> Row:
    said = span.get("said", {})
    failed = span.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR")
    start = _time(span, "start")
    return Row(
        span_id=span["spanId"],
        name=str(span.get("name", "")),
        depth=depth,
        start=(start - first) / 1e6,
        length=max(0, _time(span, "end") - start) / 1e6,
        outcome=str(said.get("toolguard.outcome", "error" if failed else "")),
        operation=str(said.get("gen_ai.operation.name", "")),
        call=str(said.get("toolguard.signature", "")).rpartition(":")[2][:HASH_SHOWN],
        mark=next((name for name in ("tripped", "would trip") if said.get("toolguard." + name.replace(" ", "_"))), ""),
        note=_note(said),
        links=tuple(str(link.get("spanId", "")) for link in span.get("links", [])),
    )


def _note(said: dict[str, Any]) -> str:
    if "toolguard.rule" in said:
        counts = [_number(said[key]) for key in ("toolguard.observed", "toolguard.limit") if key in said]
        return f"{said['toolguard.rule']} {' of '.join(counts)}"
    parts = [str(said["toolguard.failure"])] if "toolguard.failure" in said else []
    if "toolguard.repeat.count" in said:
        parts.append(f"lap {said['toolguard.repeat.count']} of a {said.get('toolguard.repeat.length')}-cycle")
    return ", ".join(parts)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _time(span: Span, which: str) -> int:
    return int(span.get(f"{which}TimeUnixNano") or 0)
