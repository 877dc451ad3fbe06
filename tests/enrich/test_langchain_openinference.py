"""LangChain under OpenInference."""

from __future__ import annotations

import functools

import langchain_agent
import pytest
from inside import Inside
from openinference.instrumentation.langchain import LangChainInstrumentor


@pytest.fixture(scope="module", autouse=True)
def instrumented(providers):
    LangChainInstrumentor().instrument(tracer_provider=providers.tracing)


@pytest.fixture
def run(layers):
    return functools.partial(langchain_agent.run, layers=layers)


@pytest.fixture
def refused_around(layers):
    return layers != "decorator"


class TestInside(Inside):
    """The decorator inside their tool span, the middleware around it, or both."""
