"""Reading OTLP as JSON: what Jaeger answers and what the Collector writes to a file."""

from __future__ import annotations

from typing import Any


def value_of(value: dict[str, Any]) -> Any:
    """A plain Python value: whole numbers, which OTLP's JSON writes as text, are numbers again."""
    ((kind, content),) = value.items() if value else (("none", None),)
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [value_of(one) for one in content.get("values", [])]
    if kind == "kvlistValue":
        return said(content.get("values", []))
    return content


def said(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {pair["key"]: value_of(pair["value"]) for pair in attributes}


def spans_of(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All spans, each with plain dictionaries ``said`` (its attributes) and ``resource``."""
    return [
        span | {"said": said(span.get("attributes", [])), "resource": _about(resource)}
        for resource in resources
        for scope in resource.get("scopeSpans", [])
        for span in scope["spans"]
    ]


def logs_of(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All log records, each with ``said``, ``resource`` and ``text`` (its body)."""
    return [
        log
        | {"said": said(log.get("attributes", [])), "resource": _about(resource), "text": value_of(log.get("body", {}))}
        for resource in resources
        for scope in resource.get("scopeLogs", [])
        for log in scope["logRecords"]
    ]


def _about(resource: dict[str, Any]) -> dict[str, Any]:
    return said(resource.get("resource", {}).get("attributes", []))
