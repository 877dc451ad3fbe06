"""Runs a program within one span, as an application does that answers a request by an agent."""

import runpy
import sys
from pathlib import Path

from opentelemetry import trace

sys.path[0] = str(Path(sys.argv[1]).parent)  # as if it were run by itself
with trace.get_tracer("application").start_as_current_span("answer"):
    runpy.run_path(sys.argv[1], run_name="__main__")
