"""The standard variables are read as the real exporters read them, and hostile values are told, not felt."""

from __future__ import annotations

import os

import pytest
from opentelemetry.exporter.otlp.proto.grpc import exporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._configuration import _get_exporter_names

from otel_toolguard.cli.doctor_finding import shown_url
from otel_toolguard.cli.doctor_variables import export_of

from .doctored import SECRET, clean, page

E = "OTEL_EXPORTER_OTLP_"
PLACES = [
    {},
    {f"{E}ENDPOINT": "http://collector:9999"},
    {f"{E}ENDPOINT": "http://collector:9999/"},
    {f"{E}ENDPOINT": "https://collector/otlp"},
    {f"{E}ENDPOINT": "https://collector:4317"},
    {f"{E}ENDPOINT": "collector:4317"},
    {f"{E}ENDPOINT": "collector:4317", f"{E}INSECURE": "true"},
    {f"{E}ENDPOINT": "http://collector:4317", f"{E}INSECURE": "False"},
    {f"{E}ENDPOINT": "https://collector:4317", f"{E}INSECURE": "true"},
    {f"{E}ENDPOINT": "http://general:1", f"{E}TRACES_ENDPOINT": "http://traces:2/take/it"},
    {f"{E}TRACES_ENDPOINT": "http://traces:2", f"{E}TRACES_INSECURE": "false"},
]


@pytest.mark.parametrize("variables", PLACES)
@pytest.mark.parametrize(
    ("signal", "http", "rpc"), [("traces", HttpSpans, GrpcSpans), ("metrics", HttpMetrics, GrpcMetrics)]
)
def test_places_are_those_of_the_exporters(signal, http, rpc, variables, monkeypatch):
    """Address, and TLS or not, are what the real exporters of both protocols make of the same variables."""
    clean(monkeypatch, **variables)
    assert export_of(signal, os.environ, "http/protobuf").endpoint == http()._endpoint
    opened = []
    for kind in ("insecure_channel", "secure_channel"):
        really = getattr(exporter, kind)
        monkeypatch.setattr(
            exporter, kind, lambda target, *given, kind=kind, really=really, **more:
            opened.append((target, kind)) or really(target, *given, **more),
        )  # fmt: skip
    rpc().shutdown()
    read = export_of(signal, os.environ, "grpc")
    assert opened == [(read.target, "secure_channel" if read.secure else "insecure_channel")]


HEADERS = ["a=1,B=2", "authorization=Bearer%20x", " a = 1 , b=2=3", "a", "=1", "a b=1,c=2", "api-key=x y", ""]


@pytest.mark.parametrize("text", HEADERS)
def test_headers_are_those_of_the_exporters(text, monkeypatch):
    """Header names and values are what the real exporter sends."""
    clean(monkeypatch, **{f"{E}HEADERS": text})
    real = GrpcSpans()
    assert tuple(export_of("traces", os.environ).headers.items()) == tuple(
        (name, value) for name, value in real._headers if name != "user-agent"
    )
    real.shutdown()


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_TRACES_EXPORTER": "otlp", f"{E}PROTOCOL": "http/protobuf"},
        {"OTEL_TRACES_EXPORTER": "otlp", f"{E}PROTOCOL": "grpc", f"{E}TRACES_PROTOCOL": "http/protobuf"},
        {"OTEL_TRACES_EXPORTER": "otlp_proto_http"},
        {"OTEL_TRACES_EXPORTER": "console, otlp_proto_grpc", f"{E}PROTOCOL": "http/protobuf"},
    ],
)
def test_protocols_are_those_of_the_sdk(variables, monkeypatch):
    """The protocol is that of the exporter which the SDK's own configuration would choose."""
    clean(monkeypatch, **variables)
    chosen = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}[export_of("traces", os.environ).protocol]
    assert chosen in _get_exporter_names("traces")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TIMEOUT", "soon", "no number of seconds"),
        ("TIMEOUT", "-1", "no number of seconds"),
        ("TIMEOUT", "nan", "no number of seconds"),
        ("TIMEOUT", "10000", "not as milliseconds"),
        ("PROTOCOL", "http/json", "no protocol"),
        ("COMPRESSION", "brotli", "not known"),
        ("HEADERS", "novalue", "without the form name=value: 1"),
    ],
)
def test_values_that_cannot_be_honoured(name, value, words, monkeypatch):
    """A value that the exporters refuse or misread is named with its variable."""
    clean(monkeypatch, **{E + name: value})
    (wrong,) = export_of("traces", os.environ).wrong
    assert wrong.variable == E + name
    assert words in wrong.text


@pytest.mark.parametrize(
    "endpoint",
    ["http://[bad", "http://h:99999", "http://h:port", "://", "\x1b[2J", "http://é:1", "h" * 5000, "ftp://x", "a b"],
)
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf", "\x07"])
def test_hostile_addresses(endpoint, protocol, monkeypatch):
    """Whatever stands in the variables, doctor ends with 1 and a page that steers no terminal."""
    clean(
        monkeypatch,
        **{f"{E}ENDPOINT": endpoint, f"{E}PROTOCOL": protocol, f"{E}METRICS_ENDPOINT": "http://127.0.0.1:1"},
    )
    text = page(code=1)
    assert all(character.isprintable() for line in text.split("\n") for character in line)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:1/v1/traces", "http://h:1/v1/traces"),
        (f"https://user:{SECRET}@h/p?key={SECRET}#{SECRET}", "https://***@h/p?***"),
        (f"user:{SECRET}@h:4317", "***@h:4317"),
        (f"http://u:{SECRET}@[bad", "http://***@[bad"),
        ("h:4317", "h:4317"),
    ],
)
def test_addresses_are_shown_without_secrets(url, shown):
    """User, password, query and fragment of an address are never shown."""
    assert shown_url(url) == shown
