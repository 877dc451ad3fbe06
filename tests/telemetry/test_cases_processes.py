"""A process that ends: unreachable collectors, short lives, workers that fork and are recycled."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
import json, os, sys, threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.telemetry import Telemetry

class Writing(SpanExporter):
    def export(self, spans):
        with open(sys.argv[1], "a") as file:
            for span in spans:
                file.write(json.dumps(dict(span.attributes)) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Writing(), schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
REPEAT = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}])

@guard_tool
def search(q):
    return q

def three(**more):
    with Session(policy=REPEAT, **more):
        for _ in range(3):
            search("a")
"""


def run(body, *arguments, **environment):
    """Runs a script to its end and returns its exit code and output; it hangs no longer than a minute."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(body), *arguments],
        capture_output=True, text=True, check=False, timeout=60, env=os.environ | environment,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def written(tmp_path):
    """Where a script's spans go; ``written.outcomes()`` reads them back."""

    class Written:
        path = str(tmp_path / "spans")

        def spans(self):
            file = Path(self.path)
            return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

        def tripped(self):
            return [span.get("toolguard.tripped", False) for span in self.spans()]

    return Written()


def test_the_trip_of_a_script_that_exits_at_once_is_exported(written):
    """Three calls, a trip and sys.exit(1): all three spans arrive, the tripping one included."""
    code, _, _ = run("three(); sys.exit(1)", written.path)
    assert (code, written.tripped()) == (1, [False, False, True])


@pytest.mark.parametrize(("flush", "arrived"), [("", []), ("flush_seconds=30.0", [False, False, True])])
def test_a_process_that_dies_without_python_s_exit(written, flush, arrived):
    """Under os._exit only what was flushed is left: with ``flush_seconds`` that is everything up to the trip."""
    code, _, _ = run(f"three(telemetry=Telemetry({flush})); os._exit(3)", written.path)
    assert (code, written.tripped()) == (3, arrived)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("last", "arrived"), [("", 0), ("telemetry.flush(30.0)", 4)])
def test_a_forked_worker_that_is_recycled(written, last, arrived):
    """A worker forked after the set-up tells of its calls if it flushes before it goes, which is the documented hook."""
    body = f"""
    telemetry = Telemetry()
    for _ in range(2):
        child = os.fork()
        if child == 0:
            with Session(telemetry=telemetry):
                search("a"), search("b")
            {last}
            os._exit(0)
        os.waitpid(child, 0)
    """
    code, _, said = run(body, written.path)
    assert (code, len(written.spans())) == (0, arrived), said


@pytest.fixture
def black_hole():
    """An address that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


EXPORTING = """
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
with Session(policy=Policy(plugins=[{"plugin": "call_ceiling", "run": 1000}]), telemetry=Telemetry(flush_seconds=0.2)):
    for number in range(1000):
        assert search(number) == number
    try:
        search("one more")
    except CircuitOpen as stopped:
        print(stopped.trip.rule, stopped.trip.observed)
"""


def test_an_exporter_that_is_never_answered(written, black_hole):
    """A thousand calls return, the limit holds, and with a short export timeout the process ends by itself."""
    code, printed, said = run(
        EXPORTING, written.path, OTEL_EXPORTER_OTLP_ENDPOINT=black_hole, OTEL_EXPORTER_OTLP_TIMEOUT="1"
    )
    assert (code, printed) == (0, "call_ceiling 1000\n"), said
    assert len(written.spans()) == 1001, "who is reachable gets everything"


def test_nobody_is_called_on_the_caller_s_thread(written):
    """With the batch processor no export runs on the thread of a call, tripping and refused calls included."""
    body = """
    class Noting(SpanExporter):
        threads = set()
        def export(self, spans):
            self.threads.add(threading.current_thread().name)
            return SpanExportResult.SUCCESS

    provider.add_span_processor(BatchSpanProcessor(Noting(), max_export_batch_size=8, max_queue_size=64))
    with Session(policy=Policy(plugins=[{"plugin": "call_ceiling", "run": 100}]), telemetry=Telemetry(flush_seconds=5)):
        for number in range(101):
            try:
                search(number)
            except CircuitOpen:
                pass
    print("MainThread" in Noting.threads, len(Noting.threads) > 0)
    """
    assert run(body, written.path)[1] == "False True\n"
