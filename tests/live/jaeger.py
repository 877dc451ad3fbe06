"""A real Jaeger v2 on loopback: found in the cache, else built from its Go module, and started on free ports."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

MODULE = "github.com/jaegertracing/jaeger"
VERSION = "v1.76.0"  # as a Go module; it is Jaeger 2.13
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "otel-toolguard"
BUILD_S, READY_S = 2400, 60


class CannotBuildError(Exception):
    """There is neither a binary nor a Go to build one; says what to do."""


def binary() -> Path:
    """The Jaeger binary of the pinned version, built if need be (minutes the first time)."""
    path = CACHE / f"jaeger-{VERSION}" / "jaeger"
    if not path.exists():
        go = shutil.which("go")
        if go is None:
            raise CannotBuildError(f"no Go to build Jaeger with: install Go, or put a Jaeger v2 binary at {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            env = os.environ | {"GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
            part = path.with_suffix(".part")
            for argv in (
                ["mod", "init", "jaegerbuild"],
                ["get", "-tool", f"{MODULE}/cmd/jaeger@{VERSION}"],
                ["build", "-trimpath", "-ldflags=-s -w", "-o", str(part), f"{MODULE}/cmd/jaeger"],
            ):
                subprocess.run([go, *argv], cwd=folder, env=env, check=True, timeout=BUILD_S)
            part.rename(path)
    print(f"jaeger {VERSION} {path} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return path


class Jaeger:
    """A started Jaeger with memory storage.

    Attributes:
        otlp_http: Endpoint for OTLP over HTTP; ``otlp_grpc`` for gRPC.
        ui: Address of its pages and API.
    """

    def __init__(self):
        program = binary()  # first, for there may be none, and then nothing must be left open
        names = ("http", "grpc", "ui", "ui_grpc", "health")
        ports = dict(zip(names, _free_ports(len(names)), strict=True))
        self.otlp_http = f"http://127.0.0.1:{ports['http']}"
        self.otlp_grpc = f"http://127.0.0.1:{ports['grpc']}"
        self.ui = f"http://127.0.0.1:{ports['ui']}"
        self._health = f"http://127.0.0.1:{ports['health']}/status"
        self._folder = tempfile.TemporaryDirectory()
        config = Path(self._folder.name) / "jaeger.json"  # JSON is YAML too
        config.write_text(json.dumps(_config(ports)), encoding="utf-8")
        self._log = (Path(self._folder.name) / "log").open("wb")
        self._process = subprocess.Popen(
            [program, "--config", str(config)],
            stdout=self._log, stderr=subprocess.STDOUT, env=os.environ | {"OTEL_TRACES_SAMPLER": "always_off"},
        )  # fmt: skip
        self._wait()

    def _wait(self):
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            if _get(self._health) is not None:
                return
            time.sleep(0.2)
        log = Path(self._log.name).read_text(encoding="utf-8", errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"Jaeger did not start:\n{log}")

    def trace(self, trace_id: str, *, spans: int) -> list[dict]:
        """The spans of a trace, once it has as many as expected."""
        found: list[dict] = []
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            answer = _get(f"{self.ui}/api/v3/traces/{trace_id}")
            resources = answer["result"]["resourceSpans"] if answer else []
            found = [span for resource in resources for scope in resource["scopeSpans"] for span in scope["spans"]]
            if len(found) >= spans:
                break
            time.sleep(0.2)
        return found

    def search(self, service: str, tags: dict[str, str]) -> set[str]:
        """Ids of the traces of a service with these attributes."""
        query = urllib.parse.urlencode({"service": service, "limit": 50, "tags": json.dumps(tags)})
        return {trace["traceID"] for trace in (_get(f"{self.ui}/api/traces?{query}") or {"data": []})["data"]}

    def stop(self):
        """Ends the process that was started here."""
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()


def _config(ports):
    def at(name):
        return {"endpoint": f"127.0.0.1:{ports[name]}"}

    return {
        "extensions": {
            "healthcheckv2": {"use_v2": True, "http": at("health")},
            "jaeger_storage": {"backends": {"main": {"memory": {"max_traces": 10_000}}}},
            "jaeger_query": {"storage": {"traces": "main"}, "http": at("ui"), "grpc": at("ui_grpc")},
        },
        "receivers": {"otlp": {"protocols": {"http": at("http"), "grpc": at("grpc")}}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "main"}},
        "service": {
            "extensions": ["healthcheckv2", "jaeger_storage", "jaeger_query"],
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except (OSError, urllib.error.URLError, json.JSONDecodeError):
        return None
