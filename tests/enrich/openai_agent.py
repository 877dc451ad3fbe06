"""An agent of the OpenAI Agents SDK that asks for its tool once for each of some words."""

from __future__ import annotations

import asyncio
import json

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from otel_toolguard_openai_agents import guard_agent


class Scripted(Model):
    """Says what it was told to."""

    def __init__(self, words):
        self.words = list(words)

    async def get_response(self, *args, **kwargs):
        if self.words:
            word = self.words.pop(0)
            ask = json.dumps({"q": word})
            said = ResponseFunctionToolCall(type="function_call", call_id=f"call-{word}", name="search", arguments=ask)
        else:
            text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
            said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def run(tool, words, layers="decorator"):
    """Runs the agent; returns what it raised. The SDK answers a tool that raises with text."""
    agent = Agent("clerk", tools=[function_tool(tool.__wrapped__ if layers == "adapter" else tool)])
    agent.model = Scripted(words)
    agent = agent if layers == "decorator" else guard_agent(agent)
    try:
        asyncio.run(Runner.run(agent, "go"))
    except Exception as error:
        return error
    return None
