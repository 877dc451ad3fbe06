"""What each framework makes of a function: the tool object, and what it tells a model about it."""

from __future__ import annotations

import json
from typing import Any

from agents import FunctionTool, function_tool
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic_ai import Tool

try:  # from mcp 2 on
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.tools.base import Tool as McpTool
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.tools.base import Tool as McpTool

__all__ = ["MAKERS", "Context", "MCPServer", "McpTool", "StructuredTool", "said"]


def langchain(function):
    return StructuredTool.from_function(func=function)


def langchain_async(function):
    return StructuredTool.from_function(coroutine=function)


def openai_agents(function):
    return function_tool(function)


def openai_agents_loose(function):
    return function_tool(strict_mode=False)(function)


def pydantic_ai(function):
    return Tool(function)


def mcp(function):
    return McpTool.from_function(function)


MAKERS = {make.__name__: make for make in (langchain, openai_agents, openai_agents_loose, pydantic_ai, mcp)}


def said(tool: Any) -> str:
    """All that a model or a client is told about a tool, as text that keeps the order of keys."""
    if isinstance(tool, BaseTool):
        shown = tool.tool_call_schema
        parts = [convert_to_openai_tool(tool), tool.name, tool.description, shown.model_json_schema()]
    elif isinstance(tool, FunctionTool):
        parts = [tool.name, tool.description, tool.params_json_schema, tool.strict_json_schema]
    elif isinstance(tool, Tool):
        told = tool.tool_def
        parts = [told.name, told.description, told.parameters_json_schema, told.strict, told.return_schema]
        parts += [tool.takes_ctx, tool.function_schema.is_async]
    else:
        parts = [tool.name, tool.description, tool.parameters, tool.output_schema, tool.is_async, tool.context_kwarg]
    return json.dumps(parts)
