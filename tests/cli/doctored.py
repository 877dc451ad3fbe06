"""What the tests of ``otel-toolguard doctor`` share: the command in a clean environment, and endpoints that misbehave."""

from __future__ import annotations

import json
import os
import shlex
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from typer.testing import CliRunner

from otel_toolguard.cli.app import app

PEM = Path(__file__).with_name("doctor_localhost.pem")  # a key, and the certificate for localhost that it signed itself
SECRET = "hush-4711"


def clean(monkeypatch, **variables):
    """Nothing is set but these."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "TOOLGUARD_", "GRPC_")) or name.lower().endswith(("_proxy", "_ca_bundle")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def page(*arguments, code=0):
    """What the command prints."""
    done = CliRunner().invoke(app, ["doctor", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def report(*arguments, code=0):
    """The sections of the JSON: findings by name, the last of each."""
    answer = json.loads(page(*arguments, "--json", code=code))
    assert answer["ok"] == (code == 0)
    return {title: {each["name"]: each for each in findings} for title, findings in answer["sections"].items()}


def otlp(endpoint, protocol="http/protobuf"):
    """The variables that name an endpoint."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


@contextmanager
def web(status=200, *, content="application/x-protobuf", tls=False, location=None, demands=None):
    """An HTTP server that answers every POST alike, 401 without the headers it demands; gives port and headers seen."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            got = {name.lower(): value for name, value in self.headers.items()}
            seen.append(got)
            fit = all(got.get(name, "").startswith(value) for name, value in (demands or {}).items())
            self.send_response(status if fit else 401)
            self.send_header("content-type", content)
            self.send_header("content-length", "0")
            if location:
                self.send_header("location", location)
            self.end_headers()

        def log_message(self, *_args):
            """Keeps the test's output clean."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            """A client that gives up is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PEM)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, seen
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def listening():
    """A port on which somebody listens and never says a word."""
    with socket.socket() as ear:
        ear.bind(("127.0.0.1", 0))
        ear.listen(64)
        yield ear.getsockname()[1]


def dead():
    """A port on which nobody listens."""
    with socket.socket() as ear:
        ear.bind(("127.0.0.1", 0))
        return ear.getsockname()[1]


def command(*arguments, shell="", **variables):
    """Runs the command as a process of its own, in a clean environment, perhaps with redirections of the shell's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
    words = [sys.executable, "-c", "from otel_toolguard.cli import main; main()", "doctor", *arguments]
    return subprocess.run(
        ["bash", "-c", f"exec {shlex.join(words)} {shell}"], env=environment | variables, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
