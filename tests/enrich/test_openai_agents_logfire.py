"""The OpenAI Agents SDK under Logfire."""

from __future__ import annotations

import functools

import agents
import logfire
import openai_agent
import pytest
from inside import Inside
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


@pytest.fixture(scope="module", autouse=True)
def instrumented(providers):
    agents.set_trace_processors([])
    processors = [SimpleSpanProcessor(providers.exporter)]
    ours = logfire.ScrubbingOptions(callback=keep_ours)
    given = {"send_to_logfire": False, "console": False, "local": True, "scrubbing": ours}
    logfire.configure(**given, additional_span_processors=processors).instrument_openai_agents()


def keep_ours(match):
    """Logfire blanks whatever is named after a session, ours too, unless it is told otherwise as the docs say."""
    return match.value if str(match.path[-1]).startswith("toolguard.") else None


@pytest.fixture
def run(layers):
    return functools.partial(openai_agent.run, layers=layers)


class TestInside(Inside):
    """The decorator, the adapter or both inside their tool span."""
