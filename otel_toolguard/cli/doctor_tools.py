"""The tools in a module: which of them come to a guard, and which policies its code makes."""

from __future__ import annotations

import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_toolguard.decorator import guard_within
from otel_toolguard.inspection import _INSIDES, _comes_to_a_guard, _in_the_way, _leaves, _Look
from otel_toolguard.session import Session
from otel_toolguard.settings import Policy
from otel_toolguard.tool_objects import bodies, is_tool_object, kinds_of, looks_like_one, name_of_tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_SERVERS = ("mcp.server.fastmcp.server.FastMCP", "mcp.server.mcpserver.server.MCPServer")
_BY_HANDLER = "claude_agent_sdk.SdkMcpTool"
_PYDANTIC_AGENT = "pydantic_ai.agent.Agent"
_AGENTS = {"langgraph.pregel.main.Pregel", "langgraph.pregel.Pregel", "agents.agent.Agent", _PYDANTIC_AGENT}
_MARK = "_toolguard"  # on servers that an adapter guards
_DEPTH = 3  # of lists in lists
_WIDTH = 1_000  # parts of one list that are looked at
_MOST = 10_000  # objects that are looked at in all
_PLAIN = (int, float, complex, bool, str, bytes, type(None))  # data, of which a module may hold any amount


class ModuleTools(_Look):
    """What was found in modules; each is a table without values, which keeps the order.

    Attributes:
        guarded: Names of tools that come to a guard, by which settings know them.
        bare: Names of tools of which nothing shows that they do.
        functions: Public functions of the modules that nothing guards; perhaps tools, perhaps not.
        open_agents: Agents of which tools come to no guard, with those, though a tool of that name does elsewhere.
        veiled: What cannot be looked into, so that there may be more tools.
        policies: Policies that the code makes, by the name they have there.
        kinds: Qualified names of the classes of the tool objects.
        left: How many more objects may be looked at.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guarded: dict[str, None] = {}
        self.bare: dict[str, None] = {}
        self.functions: dict[str, None] = {}
        self.open_agents: dict[str, list[str]] = {}
        self.veiled: dict[str, None] = {}
        self.policies: dict[str, Policy] = {}
        self.kinds: set[str] = set()
        self.left = _MOST

    def module(self, module: ModuleType) -> None:
        """Looks at all that the module has at its top."""
        for name, value in list(vars(module).items()):
            if not name.startswith("__"):
                where = f"{module.__name__}.{name}"
                if self.left <= 0:
                    self.veiled[f"all from {where} on"] = None
                    break
                try:
                    self._value(where, value, module.__name__, _DEPTH)
                except Exception:  # whatever an object of somebody's does when it is looked at
                    self.veiled[where] = None
        for name in self.names():
            self.functions.pop(name, None)
        for where, names in list(self.open_agents.items()):
            if not any(name in self.guarded for name in names):  # told as tools without a guard already
                del self.open_agents[where]

    def names(self) -> list[str]:
        """Names of all tools, guarded or not."""
        return [*self.guarded, *self.bare]

    def _value(self, where: str, value: Any, home: str, depth: int) -> None:
        self.left -= 1
        if isinstance(value, Policy):
            self.policies[where] = value
        elif isinstance(value, Session):
            self.policies[where] = value.policy
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            for part in self._parts(where, value) if depth else ():
                self._value(where, part, home, depth - 1)
        elif inspect.isclass(value):
            if value.__module__ == home:
                self._methods(value)
        elif _is_of_tools(value):
            self.at(where, value)
            self._agent(where, value)
        elif inspect.isfunction(value) and value.__module__ == home and not value.__name__.startswith("_"):
            self.functions[value.__name__] = None

    def _parts(self, where: str, several: Any) -> Iterator[Any]:
        """What may be tools in a list or table, as far as there is room; a list of functions is no sign of tools."""
        parts = iter(several.values() if isinstance(several, dict) else several)
        for part in islice(parts, _WIDTH):
            if type(part) not in _PLAIN and not inspect.isfunction(part):
                if self.left <= 0:
                    self.veiled[f"the rest of {where}"] = None
                    return
                yield part
        if type(next(parts, None)) not in _PLAIN:
            self.veiled[f"the rest of {where}"] = None

    def _agent(self, where: str, thing: Any) -> None:
        """An agent is looked at by itself, too: what guards a tool in another does not guard it in this one."""
        if not _AGENTS.isdisjoint(kinds_of(thing)):
            alone = _Look()
            alone.at("", thing)
            if alone.unguarded:
                self.open_agents[where] = alone.unguarded

    def _methods(self, kind: type) -> None:
        for value in vars(kind).values():
            guard = guard_within(value)
            if guard is not None:
                self._named(guard.guarded_tool.name, True)

    def at(self, where: str, thing: Any) -> bool:
        """Looks at a tool, an agent or a part of one, and notes names; says whether it could look into it."""
        if id(thing) in self._seen:
            return True
        kinds = set(kinds_of(thing))
        self.kinds |= kinds
        if _in_the_way(thing):
            self._named(where.removeprefix("tool "), True)
        elif is_tool_object(thing):
            for name in _guards_inside(thing):
                self._named(name, True)
        else:
            told = _told(thing, kinds)
            if told is not None:
                self._seen[id(thing)] = thing
                for name, guarded in told:
                    self._named(name, guarded)
                return True
        return super().at(where, thing)

    def _tool(self, name: str, guarded: bool) -> None:
        super()._tool(name, guarded)
        if " " in name:
            self.veiled[name] = None
        else:
            self._named(name, guarded)

    def _named(self, name: str, guarded: bool) -> None:
        if name and guarded:
            self.bare.pop(name, None)
            self.guarded[name] = None
        elif name and name not in self.guarded:
            self.bare[name] = None


def _is_of_tools(value: Any) -> bool:
    known = not set(kinds_of(value)).isdisjoint({*_INSIDES, *_SERVERS, _BY_HANDLER})
    return known or is_tool_object(value) or looks_like_one(value) or guard_within(value) is not None


def _told(thing: Any, kinds: set[str]) -> list[tuple[str, bool]] | None:
    """Names of tools, and whether they are guarded, of what needs a look of its own; None for all else."""
    if _BY_HANDLER in kinds:
        return [(name_of_tool(thing), guard_within(thing.handler) is not None)]
    if not kinds.isdisjoint(_SERVERS):
        return list(_of_server(thing))
    if _PYDANTIC_AGENT in kinds and any(map(_in_the_way, _leaves(thing._root_capability))):  # noqa: SLF001
        return [(name, True) for name in _names_in(thing.toolsets)]
    if looks_like_one(thing) and kinds.isdisjoint(_INSIDES):
        return [(name_of_tool(thing), False)]
    guard = guard_within(thing)
    return None if guard is None else [(guard.guarded_tool.name, True)]


def _of_server(server: Any) -> Iterator[tuple[str, bool]]:
    low = getattr(server, "_lowlevel_server", None) or getattr(server, "_mcp_server", None)
    whole = getattr(low, _MARK, None) is not None
    for name, tool in vars(server._tool_manager)["_tools"].items():  # noqa: SLF001
        inside = list(_guards_inside(tool))
        yield name, whole or bool(inside)
        yield from ((other, True) for other in inside)


def _guards_inside(tool: Any) -> Iterator[str]:
    """By which names guards inside a tool object know the tool: an adapter's by the object's own, a decorator's not."""
    for body in bodies(tool):
        guard = guard_within(body)
        if guard is not None:
            yield guard.guarded_tool.name
        elif _comes_to_a_guard(body):
            yield name_of_tool(tool)


def _names_in(toolsets: Any) -> Iterator[str]:
    """Names of the tools of an agent that is guarded as a whole."""
    for toolset in toolsets:
        inside = next((_INSIDES[kind] for kind in kinds_of(toolset) if kind in _INSIDES), None)
        for name, part in inside(toolset) if inside else ():
            if is_tool_object(part):
                yield name
            else:
                yield from _names_in([part])
