"""The proxy's own telemetry: spans by OTLP where the standard variables say so, and the trace carried to the server."""

from __future__ import annotations

import http.server
import json
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .mcp_proxied import proxies

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class _Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    """A place that takes OTLP."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    server.got = {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxied(tmp_path):
    """Makes proxies."""
    with proxies(tmp_path) as make:
        yield make


def exporting(collector):
    """The standard variables."""
    address = f"http://127.0.0.1:{collector.server_address[1]}"
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


def spans(collector):
    """The exported spans."""
    requests = map(ExportTraceServiceRequest.FromString, collector.got.get("/v1/traces", []))
    scopes = [scope for request in requests for resource in request.resource_spans for scope in resource.scope_spans]
    return [span for scope in scopes for span in scope.spans]


@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}, {"traceparent": PARENT, "progressToken": 1}])
def test_each_call_is_a_span_and_the_server_goes_on_from_it(meta, collector, proxied):
    """A call's span is a child of the client's, the server's request names it, and a refused call has one too."""
    proxy = proxied(env=exporting(collector))
    for _ in range(4):
        proxy.call("search", {"q": "w"}, **({"_meta": meta} if meta else {}))
    code, _, err = proxy.end()
    assert (code, b"failed" in err.lower()) == (0, False)
    found = spans(collector)
    assert [span.name for span in found] == ["execute_tool search"] * 4
    carried = [json.loads(line)["params"]["_meta"] for line in proxy.seen().splitlines()]
    ids = [each["traceparent"].split("-")[1:3] for each in carried]
    assert ids == [[span.trace_id.hex(), span.span_id.hex()] for span in found[:3]]
    assert [set(each) for each in carried] == [{"traceparent", *meta}] * 3
    if "traceparent" in meta:
        assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in found} == {tuple(PARENT.split("-")[1:3])}
    said = {each.key: each.value for each in found[3].attributes}
    assert said["toolguard.outcome"].string_value == "refused"
    assert set(collector.got) == {"/v1/traces", "/v1/metrics", "/v1/logs"}


def test_the_bytes_stay_where_nothing_is_to_be_carried(collector, proxied):
    """With --no-trace, and where there are no spans, a call reaches the server as it was sent, its own trace included."""
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "x", "_meta": {"traceparent": PARENT}},
    }
    for options, env in ((["--no-trace"], exporting(collector)), ([], {}), ([], {"TOOLGUARD_TELEMETRY": "off"})):
        proxy = proxied(*options, env=env)
        proxy.ask(call)
        assert proxy.end()[0] == 0
    assert proxy.seen() == (json.dumps(call) + "\n").encode() * 3
    assert len(spans(collector)) == 1


def test_a_collector_that_is_not_there_is_not_felt(proxied):
    """With a dead endpoint calls pass, the exit code is the server's, and standard output holds the protocol only."""
    proxy = proxied(server=("lame",), env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    assert proxy.call("search")["id"] == 1
    proxy.process.stdin.close()
    assert proxy.process.stdout.read() == b""
    assert proxy.process.wait() == 3
