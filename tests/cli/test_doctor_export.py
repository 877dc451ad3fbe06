"""What doctor says of export: real receivers in both protocols, and everything that can be in the way of them."""

from __future__ import annotations

from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

from ..e2e.otlp_receiver import GrpcReceiver, HttpReceiver  # noqa: TID252  (tests are no installed package)
from .doctored import PEM, SECRET, clean, dead, listening, otlp, page, report, web

SIGNALS = ("traces", "metrics", "logs")


@pytest.mark.parametrize("receiver", [HttpReceiver, GrpcReceiver], ids=["http", "grpc"])
def test_a_receiver_answers_for_every_signal(receiver, monkeypatch):
    """A real receiver of either protocol takes the empty export of all three signals, and keeps nothing of it."""
    with receiver() as received:
        clean(monkeypatch, **otlp(received.endpoint, received.protocol))
        told = report()["export"]
    assert {name: (told[name]["level"], told[name]["answer"]) for name in SIGNALS} == dict.fromkeys(
        SIGNALS, ("ok", "ok")
    )
    assert (received.spans, received.metrics, received.logs) == ([], {}, [])


@pytest.mark.parametrize(
    ("receiver", "wrong", "right"),
    [(HttpReceiver, "grpc", "http/protobuf"), (GrpcReceiver, "http/protobuf", "grpc")],
    ids=["grpc to the port of HTTP", "HTTP to the port of gRPC"],
)
def test_the_other_protocol_on_the_port_is_found(receiver, wrong, right, monkeypatch):
    """Where the port speaks the other protocol, that is said, with the very variable that sets it right."""
    with receiver() as received:
        clean(monkeypatch, **otlp(received.endpoint, wrong))
        told = report(code=1)["export"]["traces"]
    assert (told["level"], told["answer"], told["other_protocol"]) == ("fail", "other", "ok")
    assert f"set OTEL_EXPORTER_OTLP_PROTOCOL={right}" in told["advice"]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_dead_port_is_away(protocol, monkeypatch):
    """Nobody listening is told apart from every other fault, and fails."""
    clean(monkeypatch, **otlp(f"http://127.0.0.1:{dead()}", protocol))
    told = report(code=1)["export"]
    assert {told[name]["answer"] for name in SIGNALS} == {"away"}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_server_that_hangs_is_given_up(protocol, monkeypatch):
    """A server that takes the connection and never answers is silent: all six questions are asked at once and end."""
    with listening() as port:
        clean(monkeypatch, **otlp(f"http://127.0.0.1:{port}", protocol))
        told = report(code=1)["export"]
    assert {told[name]["answer"] for name in SIGNALS} == {"silent"}


@pytest.mark.parametrize(
    ("status", "kind", "level"),
    [
        (401, "denied", "fail"),
        (403, "denied", "fail"),
        (404, "no_path", "fail"),
        (405, "no_path", "fail"),
        (302, "moved", "fail"),
        (307, "moved", "fail"),
        (400, "empty", "warn"),
        (500, "odd", "fail"),
        (503, "busy", "warn"),
        (429, "busy", "warn"),
    ],
)
def test_what_an_http_status_means(status, kind, level, monkeypatch):
    """Refused credentials, a wrong path and a busy receiver are told apart by the status, which is shown."""
    with web(status, location="http://127.0.0.1:1/") as (port, _):
        clean(monkeypatch, OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none", **otlp(f"http://127.0.0.1:{port}"))
        told = report(code=int(level == "fail"))["export"]["traces"]
    assert (told["answer"], told["level"]) == (kind, level)
    assert f"HTTP {status}" in told["text"]
    assert told["advice"]


def test_a_web_page_is_no_receiver(monkeypatch):
    """A 200 with a web page is not taken for a receiver."""
    with web(content="text/html") as (port, _):
        clean(monkeypatch, **otlp(f"http://127.0.0.1:{port}"))
        assert report(code=1)["export"]["traces"]["answer"] == "odd"


def test_a_back_end_for_traces_alone(monkeypatch):
    """A metrics path that is not there is a warning with the variable that switches the signal off, no failure."""
    with web(404) as (nowhere, _), web() as (port, _):
        clean(
            monkeypatch, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{port}/v1/traces",
            **otlp(f"http://127.0.0.1:{nowhere}"),
        )  # fmt: skip
        told = report()["export"]
    assert (told["traces"]["level"], told["metrics"]["level"]) == ("ok", "warn")
    assert "OTEL_METRICS_EXPORTER=none" in told["metrics"]["advice"]


def test_an_own_address_needs_its_path(monkeypatch):
    """A traces endpoint is used as it is, which is said where the path of the signal is missing in it."""
    with web(404) as (port, _):
        clean(monkeypatch, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{port}",
              OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf")  # fmt: skip
        assert "end it in /v1/traces" in report(code=1)["export"]["traces"]["advice"]


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"])
def test_what_a_grpc_status_means(code, monkeypatch):
    """Over gRPC the status of the receiver is shown, and decides as it does over HTTP."""

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request, context):
            context.abort(getattr(grpc.StatusCode, code), "no")

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    clean(
        monkeypatch, OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none", **otlp(f"http://127.0.0.1:{port}", "grpc")
    )
    kind = {"UNIMPLEMENTED": "no_path", "RESOURCE_EXHAUSTED": "busy"}.get(code, "denied")
    told = report(code=int(kind != "busy"))["export"]["traces"]
    server.stop(grace=None).wait()
    assert told["answer"] == kind
    assert code in told["text"]


@pytest.fixture
def grpc_under_tls():
    content = PEM.read_bytes()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Taking(), server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(content, content)]))
    server.start()
    yield port
    server.stop(grace=None).wait()


class _Taking(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_tls_that_signed_itself(protocol, grpc_under_tls, monkeypatch):
    """A certificate that signed itself is not trusted, until the variable for it names its file."""
    with web(tls=True) as (http_under_tls, _):
        port = grpc_under_tls if protocol == "grpc" else http_under_tls
        clean(
            monkeypatch,
            OTEL_METRICS_EXPORTER="none",
            OTEL_LOGS_EXPORTER="none",
            **otlp(f"https://127.0.0.1:{port}", protocol),
        )
        told = report(code=1)["export"]["traces"]
        assert told["answer"] == "untrusted"
        assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in told["advice"]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(PEM))
        assert report()["export"]["traces"]["answer"] == "ok"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_tls_to_a_plain_port(protocol, monkeypatch):
    """TLS that is spoken to a plain port is told as such; to gRPC it is what an address without a scheme means."""
    with HttpReceiver() as http, GrpcReceiver() as rpc:
        received = rpc if protocol == "grpc" else http
        place = received.endpoint.removeprefix("http://")
        clean(monkeypatch, **otlp(place if protocol == "grpc" else f"https://{place}", protocol))
        told = report(code=1)["export"]["traces"]
    assert told["answer"] == "tls"
    assert "write http://" in told["advice"]


def test_a_certificate_that_is_not_there(monkeypatch, tmp_path):
    """A file of TLS settings that cannot be read is named, and fails."""
    clean(monkeypatch, OTEL_EXPORTER_OTLP_CERTIFICATE=str(tmp_path / "none.pem"), **otlp("https://127.0.0.1:1"))
    told = report(code=1)["export"]
    assert (told["traces"]["level"], told["tls file"]["level"]) == ("fail", "fail")
    assert "none.pem" in told["tls file"]["text"]


def test_headers_are_sent_and_never_shown(monkeypatch):
    """Headers reach the receiver as the exporter sends them; of their values nothing is printed, nor of a broken one."""
    with web() as (port, seen):
        headers = f"Authorization=Bearer%20{SECRET},x-tenant=7,{SECRET}"
        clean(
            monkeypatch,
            OTEL_EXPORTER_OTLP_HEADERS=headers,
            **otlp(f"http://user:{SECRET}@127.0.0.1:{port}/?k={SECRET}"),
        )
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{port}/v1/traces")
        shown = page(code=1) + page("--json", code=1)
    assert SECRET not in shown
    assert "authorization, x-tenant" in shown
    assert any(each.get("authorization") == f"Bearer {SECRET}" and each.get("x-tenant") == "7" for each in seen)


def test_signals_that_go_elsewhere_are_not_asked(monkeypatch):
    """A signal that is switched off, or goes to another exporter, is no fault whatever the endpoint."""
    clean(monkeypatch, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none",
          **otlp(f"http://127.0.0.1:{dead()}"))  # fmt: skip
    told = report()["export"]
    assert [told[name]["level"] for name in SIGNALS] == ["note"] * 3


def test_nothing_asked_for_is_no_fault(monkeypatch):
    """Where no variable asks for an export, a default place without anybody is a note, and the exit code is 0."""
    clean(monkeypatch)
    monkeypatch.setattr(
        "otel_toolguard.cli.doctor_variables.DEFAULTS",
        dict.fromkeys(("grpc", "http/protobuf"), f"http://127.0.0.1:{dead()}"),
    )
    assert {report()["export"][name]["level"] for name in SIGNALS} == {"note"}


@pytest.mark.parametrize(
    ("name", "value", "level", "words"),
    [
        ("OTEL_SDK_DISABLED", " True", "warn", "nothing is traced"),
        ("TOOLGUARD_TELEMETRY", "off", "warn", "tell nothing"),
        ("OTEL_TRACES_SAMPLER", "always_off", "warn", "no trace begins"),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "fail", "no rate"),
        ("OTEL_TRACES_SAMPLER", "always_on", "ok", "always_on"),
        ("OTEL_TRACES_SAMPLER", "my_own", "note", "none of the SDK's own"),
    ],
)
def test_switches(name, value, level, words, monkeypatch):
    """What makes spans few or none is said, whether or not an endpoint answers."""
    clean(monkeypatch, **{name: value})
    told = report(code=int(level == "fail"))["export"].values()
    assert any(each["level"] == level and words in each["text"] for each in told), told


@pytest.mark.parametrize(
    ("rate", "level"), [("0.1", "note"), ("1", "ok"), ("2", "fail"), ("nan", "fail"), ("a", "fail")]
)
def test_the_rate_of_a_sampler(rate, level, monkeypatch):
    """A rate below 1 is a note with what it costs, one that is no rate fails."""
    clean(monkeypatch, OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG=rate)
    assert report(code=int(level == "fail"))["export"]["sampler"]["level"] == level
