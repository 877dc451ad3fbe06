"""A LangChain agent that asks for its tool once for each of some words."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from otel_toolguard_langchain import ToolGuardMiddleware


class Scripted(BaseChatModel):
    """Says what it was told to."""

    words: list[Any]
    turn: int = 0

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.turn += 1
        if self.turn > len(self.words):
            message = AIMessage(content="Done.")
        else:
            ask = {"name": "search", "args": {"q": self.words[self.turn - 1]}, "id": f"call-{self.turn}"}
            message = AIMessage(content="", tool_calls=[ask])
        return ChatResult(generations=[ChatGeneration(message=message)])


def run(tool, words, layers="decorator"):
    """Runs the agent in a way that suits the tool; returns what it raised."""
    awaited = asyncio.iscoroutinefunction(getattr(tool, "__wrapped__", tool))
    tool = tool.__wrapped__ if layers == "adapter" else tool
    middleware = [] if layers == "decorator" else [ToolGuardMiddleware()]
    functions = (None, tool) if awaited else (tool, None)
    made = StructuredTool.from_function(*functions, name="search", description="Looks up.")
    agent = create_agent(Scripted(words=words), [made], middleware=middleware)
    given = {"messages": [("user", "go")]}
    try:
        if awaited:
            asyncio.run(agent.ainvoke(given))
        else:
            agent.invoke(given)
    except Exception as error:
        return error
    return None
