"""Pydantic AI's own instrumentation, in each version of its data."""

from __future__ import annotations

import asyncio

import pytest
from inside import Inside
from otel_toolguard_pydantic_ai import ToolGuard
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings


@pytest.fixture(params=[2, None], ids=["oldest data", "newest data"])
def run(request, providers, layers):
    more = {} if request.param is None else {"version": request.param}
    settings = InstrumentationSettings(tracer_provider=providers.tracing, **more)

    def run_agent(tool, words):
        waiting = list(words)

        def say(messages, info):
            part = ToolCallPart("search", {"q": waiting.pop(0)}) if waiting else TextPart("Done.")
            return ModelResponse(parts=[part])

        Agent.instrument_all(settings)
        try:
            given = tool.__wrapped__ if layers == "adapter" else tool
            capabilities = [] if layers == "decorator" else [ToolGuard()]
            asyncio.run(Agent(FunctionModel(say), tools=[given], capabilities=capabilities).run("go"))
        except Exception as error:
            return error
        finally:
            Agent.instrument_all(False)
        return None

    return run_agent


class TestInside(Inside):
    """The decorator, the capability or both inside their tool span."""
