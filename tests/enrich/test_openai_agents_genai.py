"""The OpenAI Agents SDK under OpenTelemetry's GenAI instrumentation."""

from __future__ import annotations

import functools

import agents
import openai_agent
import pytest
from inside import Inside
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor


@pytest.fixture(scope="module", autouse=True)
def instrumented(providers):
    agents.set_trace_processors([])  # the SDK's own sends traces to its maker
    OpenAIAgentsInstrumentor().instrument(tracer_provider=providers.tracing)


@pytest.fixture
def run(layers):
    return functools.partial(openai_agent.run, layers=layers)


class TestInside(Inside):
    """The decorator, the adapter or both inside their tool span."""
