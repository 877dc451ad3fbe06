"""What doctor says of an endpoint is what the real exporter comes to with the same variables."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.trace.export import SpanExportResult

from ..e2e.otlp_receiver import GrpcReceiver  # noqa: TID252  (tests are no installed package)
from .doctored import PEM, SECRET, clean, dead, otlp, page, report, web

E = "OTEL_EXPORTER_OTLP_"
ALONE = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none", f"{E}TIMEOUT": "1"}
NOWHERE = "/no/such/file"


def exported(kind):
    """Whether the real exporter comes up and exports."""
    try:
        exporter = kind()
    except Exception:
        return False
    try:
        return exporter.export([]) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()


BASIC = {"authorization": "Basic "}
HTTP_CASES = {  # address, variables, what the server demands, whether the export works
    "plain": ("http://127.0.0.1:{port}", {}, {}, True),
    "user and password": (f"http://user:{SECRET}@127.0.0.1:{{port}}", {}, BASIC, True),
    "no user and password": ("http://127.0.0.1:{port}", {}, BASIC, False),
    "a dead proxy for all": ("http://127.0.0.1:{port}", {"ALL_PROXY": "http://127.0.0.1:{dead}"}, {}, False),
    "the same in small letters": ("http://127.0.0.1:{port}", {"all_proxy": "http://127.0.0.1:{dead}"}, {}, False),
    "a dead proxy for HTTP": ("http://127.0.0.1:{port}", {"http_proxy": "http://127.0.0.1:{dead}"}, {}, False),
    "no proxy for a network": (
        "http://127.0.0.1:{port}", {"http_proxy": "http://127.0.0.1:{dead}", "no_proxy": "127.0.0.0/8"}, {}, True,
    ),
    "a proxy of SOCKS": ("http://127.0.0.1:{port}", {"ALL_PROXY": "socks5://127.0.0.1:{dead}"}, {}, False),
    "authorities without TLS": ("http://127.0.0.1:{port}", {f"{E}CERTIFICATE": NOWHERE}, {}, True),
    "a bundle without TLS": ("http://127.0.0.1:{port}", {"REQUESTS_CA_BUNDLE": NOWHERE}, {}, True),
    "gzip": ("http://127.0.0.1:{port}", {f"{E}COMPRESSION": "gzip"}, {"content-encoding": "gzip"}, True),
    "no gzip": ("http://127.0.0.1:{port}", {}, {"content-encoding": "gzip"}, False),
    "headers": ("http://127.0.0.1:{port}", {f"{E}HEADERS": "x-key=7"}, {"x-key": "7"}, True),
    "an own address": ("", {f"{E}TRACES_ENDPOINT": "http://127.0.0.1:{port}/v1/traces"}, {}, True),
    "an empty time": ("http://127.0.0.1:{port}", {f"{E}TIMEOUT": "", f"{E}COMPRESSION": ""}, {}, True),
    "nobody": ("http://127.0.0.1:{dead}", {}, {}, False),
}  # fmt: skip


@pytest.mark.parametrize("case", HTTP_CASES)
def test_over_http(case, monkeypatch):
    """Over HTTP doctor fails where the exporter fails, and is content where it exports."""
    place, variables, demands, works = HTTP_CASES[case]
    with web(demands=demands) as (port, _):
        free = dead()
        filled = {name: value.format(port=port, dead=free) for name, value in variables.items()}
        clean(monkeypatch, **(ALONE | otlp(place.format(port=port, dead=free)) | filled))
        assert exported(HttpSpans) is works
        told = report(code=int(not works))["export"]["traces"]
    assert told["level"] == ("ok" if works else "fail")
    assert SECRET not in str(told)


GRPC_CASES = {
    "plain": ("{place}", {}, True),
    "without a scheme": ("{bare}", {}, False),
    "without a scheme, insecure": ("{bare}", {f"{E}INSECURE": "true"}, True),
    "user and password": (f"http://user:{SECRET}@{{bare}}", {}, False),
    "an empty time": ("{place}", {f"{E}TIMEOUT": ""}, False),
    "an empty time of its own": ("{place}", {f"{E}TRACES_TIMEOUT": ""}, False),
    "an empty time behind its own": ("{place}", {f"{E}TRACES_TIMEOUT": "1", f"{E}TIMEOUT": ""}, True),
    "an empty compression": ("{place}", {f"{E}COMPRESSION": ""}, False),
    "gzip": ("{place}", {f"{E}COMPRESSION": "gzip"}, True),
    "no compression by name": ("{place}", {f"{E}COMPRESSION": "none"}, False),
    "an empty address": ("", {}, False),
    "authorities without TLS": ("{place}", {f"{E}CERTIFICATE": NOWHERE}, True),
    "a proxy for all": ("{place}", {"ALL_PROXY": "http://127.0.0.1:1"}, True),
}


@pytest.mark.parametrize("case", GRPC_CASES)
def test_over_grpc(case, monkeypatch):
    """Over gRPC doctor fails where the exporter does not come up or fails, and is content where it exports."""
    place, variables, works = GRPC_CASES[case]
    with GrpcReceiver() as received:
        bare = received.endpoint.removeprefix("http://")
        clean(monkeypatch, **(ALONE | otlp(place.format(place=received.endpoint, bare=bare), "grpc") | variables))
        assert exported(GrpcSpans) is works
        shown = page(code=int(not works))
    assert SECRET not in shown


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_too_little_time(protocol, monkeypatch):
    """A time in which nothing can be exported fails, and is what the endpoint is asked with."""
    with web() as (port, _):
        clean(monkeypatch, **(ALONE | otlp(f"http://127.0.0.1:{port}", protocol) | {f"{E}TIMEOUT": "0.00001"}))
        told = report(code=1)["export"]
    assert "too short" in told["value"]["text"]
    assert "timeout" not in told


@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_redirect_loses_what_is_sent(status, monkeypatch):
    """The exporter takes a redirect for success and does not follow it, so that doctor fails where nothing arrives."""
    with web() as (there, arrived), web(status, location=f"http://u:{SECRET}@127.0.0.1:{there}/v1/traces") as (port, _):
        clean(monkeypatch, **(ALONE | otlp(f"http://127.0.0.1:{port}")))
        assert exported(HttpSpans)
        told = report(code=1)["export"]["traces"]
    assert not arrived
    assert told["answer"] == "moved"
    assert SECRET not in told["text"]


def test_an_empty_export_may_be_refused_for_that_alone(monkeypatch):
    """A receiver that says 400 to an empty export is a warning, for a span may please it."""
    with web(400) as (port, _):
        clean(monkeypatch, **(ALONE | otlp(f"http://127.0.0.1:{port}")))
        told = report()["export"]["traces"]
    assert (told["level"], told["answer"]) == ("warn", "empty")


def test_a_bundle_of_requests_speaks_first(monkeypatch):
    """Over HTTP the bundle of ``requests`` is trusted in place of ours, which is said, and what comes of it, too."""
    with web(tls=True) as (port, _):
        clean(monkeypatch, **(ALONE | otlp(f"https://127.0.0.1:{port}")), CURL_CA_BUNDLE=str(PEM))
        monkeypatch.setenv(f"{E}CERTIFICATE", NOWHERE)
        assert exported(HttpSpans)
        told = report()["export"]
        assert (told["traces"]["level"], told["certificate"]["level"]) == ("ok", "warn")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", NOWHERE)
        assert not exported(HttpSpans)
        assert report(code=1)["export"]["traces"]["answer"] == "files"


@pytest.mark.parametrize("variable", ["CERTIFICATE", "CLIENT_CERTIFICATE"])
@pytest.mark.parametrize("content", ["no certificate at all", None], ids=["garbage", "nothing"])
def test_files_that_hold_no_certificate(content, variable, tmp_path, monkeypatch):
    """A file that is no certificate is not told to be trusted."""
    path = tmp_path / "x.pem"
    if content:
        path.write_text(content, encoding="utf-8")
    with web(tls=True) as (port, _):
        clean(monkeypatch, **(ALONE | otlp(f"https://127.0.0.1:{port}")), **{E + variable: str(path)})
        assert not exported(HttpSpans)
        told = report(code=1)["export"]
    assert told["tls file"]["level"] == "fail"
    assert "certificate" not in told


def test_files_of_tls_without_tls(monkeypatch):
    """To a plain address the files of TLS are a note, whatever is in them."""
    with web() as (port, _):
        clean(monkeypatch, **(ALONE | otlp(f"http://127.0.0.1:{port}")), **{f"{E}CERTIFICATE": NOWHERE})
        assert "not used" in report()["export"]["certificate"]["text"]


LONE = """
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
OTLPSpanExporter()
"""


def test_half_a_client_ends_a_process(monkeypatch):
    """A client's certificate without its key makes the gRPC library end the agent's process; doctor outlives it."""
    clean(monkeypatch, **(ALONE | otlp("https://127.0.0.1:1", "grpc")))
    monkeypatch.setenv(f"{E}CERTIFICATE", str(PEM))
    monkeypatch.setenv(f"{E}CLIENT_CERTIFICATE", str(PEM))
    assert subprocess.run([sys.executable, "-c", LONE], capture_output=True).returncode < 0
    told = report(code=1)["export"]["traces"]
    assert told["answer"] == "files"
    assert "ends the process" in told["text"]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_pipe_for_a_certificate(protocol, tmp_path, monkeypatch):
    """A pipe in place of a certificate is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    clean(monkeypatch, **(ALONE | otlp("https://127.0.0.1:1", protocol)), **{f"{E}CERTIFICATE": str(tmp_path / "pipe")})
    assert "no plain file" in report(code=1)["export"]["tls file"]["text"]
