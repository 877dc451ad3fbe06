"""An OTLP receiver on loopback: real protobuf over HTTP and gRPC, kept in memory."""

from __future__ import annotations

import gzip
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Received:
    """What arrived: spans as protobuf messages, metric names, log records."""

    def __init__(self):
        self.spans = []
        self.metrics = {}
        self.logs = []
        self._lock = threading.Lock()

    def take_traces(self, request):
        with self._lock:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans

    def take_metrics(self, request):
        with self._lock:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def take_logs(self, request):
        with self._lock:
            for resource in request.resource_logs:
                for scope in resource.scope_logs:
                    self.logs += scope.log_records


class HttpReceiver(Received):
    """Takes ``/v1/traces``, ``/v1/metrics`` and ``/v1/logs``."""

    protocol = "http/protobuf"

    def __enter__(self):
        received = self
        kinds = {
            "/v1/traces": (trace_service_pb2.ExportTraceServiceRequest, self.take_traces),
            "/v1/metrics": (metrics_service_pb2.ExportMetricsServiceRequest, self.take_metrics),
            "/v1/logs": (logs_service_pb2.ExportLogsServiceRequest, self.take_logs),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                kind, take = kinds[self.path]
                request = kind()
                request.ParseFromString(body)
                take(request)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_args):
                """Keeps the test's output clean."""

        received.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=received.server.serve_forever, daemon=True).start()
        received.endpoint = f"http://127.0.0.1:{received.server.server_port}"
        return received

    def __exit__(self, *_exc):
        self.server.shutdown()
        self.server.server_close()


class GrpcReceiver(Received):
    """Takes the three collector services."""

    protocol = "grpc"

    def __enter__(self):
        received = self

        class Traces(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request, _context):
                received.take_traces(request)
                return trace_service_pb2.ExportTraceServiceResponse()

        class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
            def Export(self, request, _context):
                received.take_metrics(request)
                return metrics_service_pb2.ExportMetricsServiceResponse()

        class Logs(logs_service_pb2_grpc.LogsServiceServicer):
            def Export(self, request, _context):
                received.take_logs(request)
                return logs_service_pb2.ExportLogsServiceResponse()

        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), self.server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), self.server)
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(Logs(), self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_exc):
        self.server.stop(grace=None).wait()


def attributes(thing):
    """The attributes of a span or log record as Python values."""
    return {pair.key: value(pair.value) for pair in thing.attributes}


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    return getattr(any_value, kind) if kind else None
