"""Graphs of a user's own: a model node, a tool node, and the way between them."""

from __future__ import annotations

import warnings
from typing import Any

from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from otel_toolguard_langchain import tool_node_wrappers

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of an old release, about itself
    from langgraph import prebuilt

ToolNode = prebuilt.ToolNode

__all__ = ["MODELS", "ToolNode", "asks_for_tools", "graph", "prebuilt", "tools_in"]


def langchain_model(model):
    """A node that calls a model of LangChain's."""

    def call(state):
        return {"messages": [model.invoke(state["messages"])]}

    async def call_async(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    return RunnableLambda(call, call_async)


def plain_model(model):
    """A node of which LangChain cannot know that it calls a model, such as one that uses a provider's own client."""
    return lambda state: {"messages": [model._generate(state["messages"]).generations[0].message]}


MODELS = {"a model of LangChain's": langchain_model, "a model of another kind": plain_model}


def asks_for_tools(state):
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


def tools_in(tools, *args, handle: Any = True, **more):
    """A tool node under guard."""
    return ToolNode(tools, handle_tool_errors=handle, **tool_node_wrappers(*args, **more))


def graph(model, node, *, kind=langchain_model, checkpointer=None):
    """The usual loop of model and tools."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", kind(model))
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", asks_for_tools)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=checkpointer)
