"""A trace as a tree of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan


def tree(spans: Sequence[ReadableSpan], trace_id: str) -> str:
    """The spans of one trace, children below their parents, in order of their start."""
    mine = sorted(
        (span for span in spans if f"{span.context.trace_id:032x}" == trace_id), key=lambda span: span.start_time or 0
    )
    ids = {span.context.span_id for span in mine}
    children: dict[int | None, list[ReadableSpan]] = {}
    for span in mine:
        parent = span.parent.span_id if span.parent is not None and span.parent.span_id in ids else None
        children.setdefault(parent, []).append(span)
    lines: list[str] = []

    def write(span: ReadableSpan, lead: str, branch: str, below: str) -> None:
        lines.append(lead + branch + _line(span))
        under = children.get(span.context.span_id, [])
        for n, child in enumerate(under, 1):
            last = n == len(under)
            write(child, lead + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    for root in children.get(None, []):
        write(root, "", "", "")
    return "\n".join(lines)


_SHOWN = ("toolguard.outcome", "toolguard.tool.class", "toolguard.signature")


def _line(span: ReadableSpan) -> str:
    attributes = span.attributes or {}
    ms = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    known = [str(attributes[key]) for key in _SHOWN if key in attributes]
    parts = [span.name, f"{ms:.1f} ms", *known]
    if "toolguard.repeat.count" in attributes:
        laps, length = attributes["toolguard.repeat.count"], attributes["toolguard.repeat.length"]
        parts.append(f"lap {laps!s} of a {length!s}-cycle")
    if "toolguard.tripped" in attributes:
        parts.append(f"TRIPPED {attributes.get('toolguard.rule')!s}")
    elif span.links:
        parts.append(f"link to {span.links[0].context.span_id:016x}")
    return "  ".join(parts)
