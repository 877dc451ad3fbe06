"""LangChain under OpenTelemetry's GenAI instrumentation."""

from __future__ import annotations

import langchain_agent
import pytest
from inside import Around, Inside
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor


@pytest.fixture(scope="module", autouse=True)
def instrumented(providers):
    LangChainInstrumentor().instrument(tracer_provider=providers.tracing)


@pytest.fixture
def run():
    return langchain_agent.run


@pytest.fixture
def run_around():
    return langchain_agent.run_around


class TestInside(Inside):
    """The decorator inside their tool span."""


class TestAround(Around):
    """The middleware around their tool span."""
