"""Asks an endpoint in both protocols, with a real but empty OTLP export, and waits for an answer some seconds only."""

from __future__ import annotations

import os
import threading
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.doctor_answer import Answer, of_code, of_fault, of_status
from otel_toolguard.cli.doctor_finding import one_line, shown_url
from otel_toolguard.cli.doctor_tls import is_endless

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from otel_toolguard.cli.doctor_variables import Export

SECONDS = 3.0
PACKAGES = {"grpc": "opentelemetry-exporter-otlp-proto-grpc", "http/protobuf": "opentelemetry-exporter-otlp-proto-http"}
_MODULES = {"grpc": "opentelemetry.exporter.otlp.proto.grpc", "http/protobuf": "opentelemetry.exporter.otlp.proto.http"}
_EXPORTERS = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_SERVICES = {"traces": "trace.v1.TraceService", "metrics": "metrics.v1.MetricsService", "logs": "logs.v1.LogsService"}


def ask_all(questions: Mapping[Hashable, Callable[[], Answer]]) -> dict[Hashable, Answer]:
    """Asks all at once; who has not answered in time, perhaps as a name is still being looked up, is silent."""
    answers: dict[Hashable, Answer] = {}

    def ask(key: Hashable, question: Callable[[], Answer]) -> None:
        try:
            answers[key] = question()
        except Exception as fault:  # whatever an address can do to the libraries that are asked
            answers[key] = Answer("odd", f"cannot be asked: {type(fault).__name__}")

    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    until = time.monotonic() + SECONDS + 1
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = Answer("silent", f"no answer within {SECONDS:g} s")
    return {key: answers.get(key, late) for key in questions}


def ask(export: Export) -> Answer:
    """Asks in the protocol of the export, with its exporter; without it nobody can know what it would do."""
    package = PACKAGES[export.protocol]
    if not _there(_MODULES[export.protocol]):
        return Answer("unasked", f"cannot be asked without {package}")
    if export.under_tls and any(path and is_endless(path) for path in (export.certificate, *export.client)):
        return Answer("files", "a file of its TLS settings is no plain file")
    return ask_grpc(export) if export.protocol == "grpc" else ask_http(export)


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def _exporter(export: Export, **more: Any) -> Any:
    """The exporter that the SDK would make; it reads the variables itself, and raises what it raises."""
    module, name = _EXPORTERS[export.signal]
    kind = getattr(import_module(f"{_MODULES[export.protocol]}.{module}"), name)
    return kind(endpoint=export.endpoint, **more)


def _refused(fault: Exception) -> Answer:
    return Answer("refused", f"the exporter does not come up ({type(fault).__name__}: {one_line(fault, 160)})")


def _seconds(export: Export) -> float:
    return min(export.timeout, SECONDS)


# ------------------------------------------------------------------------------------------------ HTTP


class _Enough(BaseException):
    """Ends an export after its first request: exporters catch what is an ``Exception``, and try again."""


def ask_http(export: Export) -> Answer:
    """Has the exporter itself post an export of nothing, and overhears its session."""
    if not export.endpoint.lower().startswith(("http://", "https://")):
        return Answer("odd", "the address has no http:// or https://")
    requests: Any = import_module("requests")

    class Overheard(requests.Session):  # type: ignore[misc]
        """Notes what came back, and which authorities were trusted: variables of ``requests`` speak before ours."""

        heard: Any = None
        trusts: Any = None

        def request(self, *given: Any, **more: Any) -> Any:
            try:
                self.heard = super().request(*given, **more)
            except Exception as fault:
                self.heard = fault
            raise _Enough

        def merge_environment_settings(self, *given: Any, **more: Any) -> Any:
            settings = super().merge_environment_settings(*given, **more)
            self.trusts = settings.get("verify")
            return settings

    session = Overheard()
    try:
        exporter = _exporter(export, session=session, timeout=_seconds(export))
    except Exception as fault:
        return _refused(fault)
    try:
        exporter.export(_nothing(export.signal))
    except _Enough:
        pass
    finally:
        session.close()
    heard = session.heard
    if heard is None:
        return Answer("odd", "the exporter sends nothing")
    answer = of_fault(heard, _seconds(export)) if isinstance(heard, Exception) else _of_response(heard)
    return answer._replace(trusts=session.trusts if isinstance(session.trusts, str) else None)


def _nothing(signal: str) -> Any:
    return import_module("opentelemetry.sdk.metrics.export").MetricsData([]) if signal == "metrics" else []


def _of_response(response: Any) -> Answer:
    content = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return of_status(response.status_code, content, shown_url(response.headers.get("location", "")))


# ------------------------------------------------------------------------------------------------ gRPC


def ask_grpc(export: Export) -> Answer:
    """Calls ``Export`` with nothing, over a channel like the exporter's own, once the exporter has come up."""
    if not all(value.isascii() and value.isprintable() for value in export.headers.values()):
        return Answer("odd", "a header has a value that gRPC cannot send")
    files = _files(export)
    if (files[1] is None) is not (files[2] is None):
        return Answer(
            "files", "only one of the client's certificate and key is there: the gRPC library ends the process"
        )
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its library would print each failed handshake
    try:
        _exporter(export).shutdown()
    except Exception as fault:
        return _refused(fault)
    grpc: Any = import_module("grpc")
    channel = _channel(grpc, export)
    call = channel.unary_unary(f"/opentelemetry.proto.collector.{_SERVICES[export.signal]}/Export")
    try:
        call(b"", timeout=_seconds(export), metadata=tuple(export.headers.items()))
    except grpc.RpcError as error:
        return of_code(error.code().name, str(error.details() or ""), _seconds(export))
    finally:
        channel.close()
    return Answer("ok", "answers")


def _channel(grpc: Any, export: Export) -> Any:
    packed = grpc.Compression.Gzip if export.compression == "gzip" else grpc.Compression.NoCompression
    if not export.secure:
        return grpc.insecure_channel(export.target, compression=packed)
    return grpc.secure_channel(export.target, grpc.ssl_channel_credentials(*_files(export)), compression=packed)


def _files(export: Export) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Authorities, key and certificate, as far as the exporter reads them."""
    certificate, key = export.client if export.secure else (None, None)
    return _content(export.certificate if export.secure else None), _content(key), _content(certificate)


def _content(path: str | None) -> bytes | None:
    """What is in a file; None if it is not there, for the exporter goes on without it."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except FileNotFoundError:
        return None
