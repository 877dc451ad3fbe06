"""The OpenAI Agents SDK under OpenInference."""

from __future__ import annotations

import agents
import openai_agent
import pytest
from inside import Inside
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor


@pytest.fixture(scope="module", autouse=True)
def instrumented(providers):
    agents.set_trace_processors([])  # the SDK's own sends traces to its maker
    OpenAIAgentsInstrumentor().instrument(tracer_provider=providers.tracing)


@pytest.fixture
def run():
    return openai_agent.run


class TestInside(Inside):
    """The decorator inside their tool span."""
