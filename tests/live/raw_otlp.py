"""OTLP as JSON with whatever a test wants where it wants it: links, scopes, maps in lists, which no SDK makes by itself."""

from __future__ import annotations

import json
import secrets
import time
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.collector import Collector

ANSWER_S = 30


def value(given: Any) -> dict[str, Any]:
    """A plain Python value as OTLP has it."""
    if isinstance(given, dict):
        return {"kvlistValue": {"values": attributes(given)}}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(one) for one in given]}}
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    return {"doubleValue": given} if isinstance(given, float) else {"stringValue": given}


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Attributes as OTLP has them."""
    return [{"key": name, "value": value(one)} for name, one in given.items()]


def span(name: str, said: dict[str, Any] | None = None, *, error: str = "", **more: Any) -> dict[str, Any]:
    """A span in a trace of its own; ``events`` are pairs of a name and attributes, ``links`` attributes."""
    now = time.time_ns()
    events = [{"name": each, "attributes": attributes(of)} for each, of in more.get("events", [])]
    links = [{"traceId": "ab" * 16, "spanId": "cd" * 8, "attributes": attributes(of)} for of in more.get("links", [])]
    return {
        "traceId": secrets.token_hex(16), "spanId": secrets.token_hex(8), "name": name, "kind": 1,
        "startTimeUnixNano": str(now), "endTimeUnixNano": str(now + 1_000_000), "attributes": attributes(said or {}),
        "events": events, "links": links, "status": {"code": 2, "message": error} if error else {},
    }  # fmt: skip


def log(body: Any, said: dict[str, Any] | None = None, *, event: str = "") -> dict[str, Any]:
    """A log record; ``event`` is its event name."""
    record = {"timeUnixNano": str(time.time_ns()), "body": value(body), "attributes": attributes(said or {})}
    return record | ({"eventName": event} if event else {})


def counter(name: str, said: dict[str, Any], total: int = 1) -> dict[str, Any]:
    """A counter of one series."""
    point = {"timeUnixNano": str(time.time_ns()), "asInt": str(total), "attributes": attributes(said)}
    return {"name": name, "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [point]}}


def send(
    to: Collector, resource: dict[str, Any], scope: dict[str, Any] | None = None, **signals: list[dict[str, Any]]
) -> None:
    """Sends ``spans``, ``logs`` and ``metrics`` of one resource and scope; ``service.name`` is on the resource."""
    about = {"attributes": attributes(resource)}
    inside = {"name": "raw", "attributes": attributes(scope or {})}
    for signal, path, outer, inner, records in (
        ("spans", "traces", "resourceSpans", "scopeSpans", "spans"),
        ("logs", "logs", "resourceLogs", "scopeLogs", "logRecords"),
        ("metrics", "metrics", "resourceMetrics", "scopeMetrics", "metrics"),
    ):
        if signal in signals:
            told = {outer: [{"resource": about, inner: [{"scope": inside, records: signals[signal]}]}]}
            request = urllib.request.Request(
                f"{to.otlp_http}/v1/{path}", json.dumps(told).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                assert answer.status == 200
