"""``assert_guarded``: looks whether the tools of an agent come to the guard, and names those that do not."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from otel_toolguard.callables import layers, name_of
from otel_toolguard.decorator import guard_within, is_guarded
from otel_toolguard.errors import SettingsError, ToolGuardError
from otel_toolguard.tool_objects import bodies, is_tool_object, kinds_of, looks_like_one, name_of_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Part = tuple[str, Any]

GUARDS = "toolguard_guards"  # True on whatever an adapter puts in the way of each tool call


def assert_guarded(agent_or_tools: Any) -> None:
    """Makes sure that every tool of an agent is guarded; for start-up, or for a test.

    A tool is guarded if ``@guard_tool`` is on its function, or on one that other decorators on it say they wrap; a
    tool object, if that holds for each function that its framework may call; every tool of an agent, if an adapter
    guards the agent.

    What it can see: functions; tool objects of LangChain, OpenAI Agents, Pydantic AI and MCP's Python SDK and those
    that an adapter made known; the ``ToolNode`` of graphs, also of graphs inside graphs; the tools, and the agents
    behind hand-offs and tools, of an OpenAI Agents agent; the toolsets of a Pydantic AI agent. What it cannot look
    into counts as not guarded: tools of MCP servers, tools that a provider runs, toolsets made while the agent runs.
    What it cannot know of at all: functions that are called in the nodes of a graph or in the bodies of tools, and
    tools that are added later.

    Args:
        agent_or_tools: An agent, a graph, a ``ToolNode``, one tool, or a collection of tools and functions.

    Raises:
        ToolGuardError: Some tools are not guarded; the text names each.
        SettingsError: It is nothing that can be looked into, or there is no tool in it, so that nothing is proved.
    """
    look = _Look()
    if isinstance(agent_or_tools, (list, tuple, set, frozenset, Mapping)):
        named = agent_or_tools.items() if isinstance(agent_or_tools, Mapping) else enumerate(agent_or_tools)
        for key, thing in named:
            look.at(f"[{key!r}]", thing)
    elif not look.at("", agent_or_tools):
        raise SettingsError(
            f"assert_guarded cannot look into {_kind(agent_or_tools)}; it takes a list of tools or functions, a "
            "LangGraph graph, or an agent of OpenAI Agents or Pydantic AI"
        )
    if look.unguarded:
        raise ToolGuardError(
            f"not guarded: {', '.join(look.unguarded)}. Put @guard_tool below the framework's own decorator, pass tool "
            "objects through guard_tool(...), or use the framework's adapter for the whole agent"
        )
    if not look.found:
        raise SettingsError(f"there is no tool in {_kind(agent_or_tools)}, so assert_guarded can prove nothing")


class _Look:
    """What was found on the way through an agent."""

    def __init__(self) -> None:
        self.found = 0
        self.unguarded: list[str] = []
        self._seen: dict[int, Any] = {}  # the objects are kept, so that an id stays theirs

    def at(self, where: str, thing: Any) -> bool:
        """Looks at a tool, an agent or a part of one; says whether it could look into it."""
        if id(thing) in self._seen:
            return True
        self._seen[id(thing)] = thing
        if _in_the_way(thing):
            self.found += 1
            return True
        if is_tool_object(thing):
            self._tool(name_of_tool(thing), all(map(_comes_to_a_guard, bodies(thing))))
            agent = getattr(thing, "_agent_instance", None)  # of an agent that is used as a tool
            return agent is None or self.at(f"agent {name_of_tool(agent)}", agent)
        parts_of = next((_INSIDES[kind] for kind in kinds_of(thing) if kind in _INSIDES), None)
        if parts_of is not None:
            for name, part in parts_of(thing):
                self.at(name, part)
            return True
        if callable(thing) and not isinstance(thing, type) and not looks_like_one(thing):
            self._tool(name_of(thing), _comes_to_a_guard(thing))
            return True
        if where:
            self._tool(f"{where} ({_kind(thing)}, which cannot be looked into)", False)
        return False

    def _tool(self, name: str, guarded: bool) -> None:
        self.found += 1
        if not guarded:
            self.unguarded.append(name)


def _kind(thing: Any) -> str:
    return next(kinds_of(thing))


def _comes_to_a_guard(function: Any) -> bool:
    if is_guarded(function) or guard_within(function) is not None:
        return True
    held = () if isinstance(function, FunctionType) else getattr(function, "__dict__", {}).values()  # what it calls
    return any(map(_in_the_way, (*layers(function), *held)))


def _in_the_way(thing: Any) -> bool:
    """Whether it is what an adapter puts in the way of each call."""
    try:
        return getattr(thing, GUARDS, None) is True
    except Exception:  # a hostile object
        return False


class _Guarded:
    """Stands for a tool that an adapter guards."""

    toolguard_guards = True


def _of_graph(graph: Any) -> Iterator[Part]:
    """The tools of tool nodes, and graphs among the nodes; the guard's middleware shows by hooks that are nodes."""
    runs = [run for node in graph.nodes.values() for run in getattr(node.bound, "steps", None) or [node.bound]]
    hooks = [getattr(getattr(run, word, None), "__self__", None) for run in runs for word in ("func", "afunc")]
    whole = any(_in_the_way(hook) for hook in hooks)
    for run in runs:
        kinds = set(kinds_of(run))
        if _TOOL_NODE in kinds:
            yield from ((name, _Guarded() if whole else tool) for name, tool in _of_tool_node(run))
        elif not kinds.isdisjoint(_GRAPHS):
            yield "graph", run


def _of_tool_node(node: Any) -> Iterator[Part]:
    wrappers = [getattr(node, word, None) for word in ("_wrap_tool_call", "_awrap_tool_call")]
    whole = any(_in_the_way(wrapper) for wrapper in wrappers)
    yield from ((name, _Guarded() if whole else tool) for name, tool in node.tools_by_name.items())


def _of_openai_agent(agent: Any) -> Iterator[Part]:
    yield from ((f"tool {name_of_tool(tool)}", tool) for tool in agent.tools)
    yield from ((f"MCP server {name_of_tool(server)}", server) for server in agent.mcp_servers)
    yield from (("hand-off", each) for each in agent.handoffs)


def _of_openai_handoff(handoff: Any) -> Iterator[Part]:
    refer = getattr(handoff, "_agent_ref", None)
    yield f"hand-off to {handoff.agent_name}", refer() if refer is not None else None


def _of_pydantic_agent(agent: Any) -> Iterator[Part]:
    if any(map(_in_the_way, _leaves(getattr(agent, "_root_capability", None)))):
        yield "", _Guarded()
        return
    yield from (("toolset", toolset) for toolset in agent.toolsets)


def _leaves(capability: Any) -> Iterator[Any]:
    """A capability and those it consists of."""
    yield capability
    for part in getattr(capability, "capabilities", None) or ():
        yield from _leaves(part)


_GRAPHS = ("langgraph.pregel.main.Pregel", "langgraph.pregel.Pregel")
_TOOL_NODE = "langgraph.prebuilt.tool_node.ToolNode"
_INSIDES: dict[str, Callable[[Any], Iterable[Part]]] = {
    **dict.fromkeys(_GRAPHS, _of_graph),
    _TOOL_NODE: _of_tool_node,
    "agents.agent.Agent": _of_openai_agent,
    "agents.handoffs.Handoff": _of_openai_handoff,
    "pydantic_ai.agent.Agent": _of_pydantic_agent,
    "pydantic_ai.toolsets.function.FunctionToolset": lambda toolset: toolset.tools.items(),
    "pydantic_ai.toolsets.combined.CombinedToolset": lambda toolset: (("toolset", part) for part in toolset.toolsets),
    "pydantic_ai.toolsets.wrapper.WrapperToolset": lambda toolset: [("toolset", toolset.wrapped)],
}
