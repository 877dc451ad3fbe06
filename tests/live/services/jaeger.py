"""A real Jaeger v2 with collector-config/jaeger.yaml, and its API."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

from services import binaries
from services.otlp import spans_of
from services.places import CONFIG, WAIT_S, addresses, json_of, until
from services.process import Service


class Jaeger(Service):
    """Jaeger with memory storage: a restart forgets all traces.

    Attributes:
        otlp_grpc: Endpoint for OTLP over gRPC, as ``http://host:port``; ``otlp_http`` for HTTP.
        grpc_address: The same as ``host:port``, as a Collector wants it.
        ui: Address of its pages and API.
    """

    def __init__(self, *, max_traces: int = 100_000) -> None:
        at = addresses("JAEGER_OTLP_GRPC", "JAEGER_OTLP_HTTP", "JAEGER_UI", "JAEGER_UI_GRPC", "JAEGER_HEALTH")
        super().__init__(
            binaries.jaeger(),
            ["--config", str(CONFIG / "jaeger.yaml")],
            env=at | {"JAEGER_MAX_TRACES": str(max_traces)},
            health=f"http://{at['JAEGER_HEALTH']}/status",
        )
        self.grpc_address = at["JAEGER_OTLP_GRPC"]
        self.otlp_grpc = f"http://{self.grpc_address}"
        self.otlp_http = f"http://{at['JAEGER_OTLP_HTTP']}"
        self.ui = f"http://{at['JAEGER_UI']}"

    def endpoint(self, protocol: str) -> str:
        """For ``OTEL_EXPORTER_OTLP_ENDPOINT``; ``protocol`` as in ``OTEL_EXPORTER_OTLP_PROTOCOL``."""
        return self.otlp_grpc if protocol == "grpc" else self.otlp_http

    def trace(self, trace_id: str, *, spans: int = 1, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """The spans of a trace, once it has as many as expected or time is over; see ``otlp.spans_of``."""

        def look() -> list[dict[str, Any]]:
            answer = json_of(f"{self.ui}/api/v3/traces/{trace_id}")
            return spans_of(answer["result"]["resourceSpans"]) if answer else []

        return until(look, enough=lambda found: len(found) >= spans, wait_s=wait_s)

    def search(self, service: str, tags: dict[str, str] | None = None, *, limit: int = 100) -> set[str]:
        """Ids of the traces of a service that have a span with all these attributes, as of now."""
        asked = {"service": service, "limit": limit} | ({"tags": json.dumps(tags)} if tags else {})
        answer = json_of(f"{self.ui}/api/traces?{urllib.parse.urlencode(asked)}")
        return {trace["traceID"] for trace in (answer or {}).get("data") or []}

    def services(self) -> set[str]:
        """Names of the services that sent traces."""
        return set((json_of(f"{self.ui}/api/v3/services") or {}).get("services") or [])
