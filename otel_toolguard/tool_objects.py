"""Tool objects of frameworks: which function each of them will call, known by the names of their classes alone.

No framework is imported here. A framework calls the function inside its tool object and never the object itself, so a
guard around the object would be gone round; what is guarded, or bound to a session, is that function, on a copy.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from otel_toolguard.errors import CircuitOpen, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Wrap = Callable[..., Any]
    Rewrap = Callable[[Any, Wrap], Any]

# Frameworks call the inner functions of objects that bear one of these, whether or not their class is known here.
MARKS = ("args_schema", "on_invoke_tool", "function_schema")
_BIND_INVOKER = "__agents_bind_function_tool__"  # by which copies of an OpenAI Agents tool get an invoker of their own

_kinds: dict[str, Rewrap] = {}


def register_tool_object(base: str, rewrap: Rewrap) -> None:
    """Makes tool objects of a class, and of its subclasses, known to ``guard_tool`` and ``Session.bind``.

    Args:
        base: The qualified name of the class, such as ``"package.module.Tool"``; it need not be importable.
        rewrap: Called with a tool object and ``wrap``. It returns a copy of the object in which every function that
            the framework may call is ``wrap(function)``, and leaves the object itself alone. ``wrap`` takes three
            more arguments, by name, all optional: ``binder``, whose ``bind(instance, args, kwargs)`` makes of a call
            what the model said (arguments by name, or the raw text); ``refusal``, which makes of the ``CircuitOpen``
            of a call that is not run the answer to it, instead of raising; ``attributes``, which the wrapped function
            bears besides those of the function.
    """
    _kinds[base] = rewrap


def kinds_of(thing: Any) -> Iterator[str]:
    """Qualified names of its class and of those above."""
    for kind in type(thing).__mro__:
        yield f"{kind.__module__}.{kind.__qualname__}"


def is_tool_object(thing: Any) -> bool:
    """Whether it is a tool object of a known class."""
    return any(name in _kinds for name in kinds_of(thing))


def known_kinds() -> list[str]:
    """The classes of tool objects that are known."""
    return sorted(_kinds)


def looks_like_one(thing: Any) -> bool:
    """Whether it has what only tool objects have, though its class is not known."""
    own = getattr(thing, "__dict__", {})
    return any(name in own or hasattr(type(thing), name) for name in MARKS)


def rewrapped(tool: Any, wrap: Wrap) -> Any:
    """A copy of a tool object in which each function that its framework may call is wrapped.

    Raises:
        SettingsError: The object cannot be copied, or has no function.
    """
    rewrap = next(_kinds[name] for name in kinds_of(tool) if name in _kinds)
    wrapped = []

    def noting(function: Any, **more: Any) -> Any:
        wrapped.append(function)
        return wrap(function, **more)

    kind = f"{type(tool).__module__}.{type(tool).__qualname__}"
    try:
        copied = rewrap(tool, noting)
    except Exception as error:
        raise SettingsError(f"{kind} cannot be copied ({error}); put @guard_tool on the function inside it") from error
    if not wrapped:
        raise SettingsError(f"{kind} {name_of_tool(tool)!r} has no function that could be guarded")
    return copied


def bodies(tool: Any) -> list[Any]:
    """The functions that the framework may call for a tool object."""
    found: list[Any] = []

    def note(function: Any, **_more: Any) -> Any:
        found.append(function)
        return function

    rewrapped(tool, note)
    return found


def name_of_tool(tool: Any) -> str:
    """The name by which the model knows it."""
    name = getattr(tool, "name", None)
    return name if isinstance(name, str) and name else type(tool).__name__


def _copied(thing: Any, **changes: Any) -> Any:
    """A shallow copy with other values in some attributes, past whatever would validate or freeze them."""
    copied = copy.copy(thing)
    vars(copied).update(changes)
    return copied


def _langchain(tool: Any, wrap: Wrap) -> Any:
    """``func`` and ``coroutine``, or the methods by which a class implements the tool itself."""
    fields, methods = {}, {}
    for field, method in (("func", "_run"), ("coroutine", "_arun")):
        home = next((kind for kind in type(tool).__mro__ if method in vars(kind)), None)
        function = getattr(tool, field, None)
        if home is not None and not home.__module__.startswith("langchain_core.tools."):
            methods[method] = wrap(vars(home)[method])
        elif function is not None:
            fields[field] = wrap(function)
    copied = _copied(tool, **fields)
    if methods:
        kind: Any = type(tool)
        own = type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
        for method, function in {"__doc__": kind.__doc__, **methods}.items():
            type.__setattr__(own, method, function)  # past pydantic, which would take them for fields
        object.__setattr__(copied, "__class__", own)
    return copied


def _openai_agents(tool: Any, wrap: Wrap) -> Any:
    """``on_invoke_tool``, inside which the tool's own errors have become texts already.

    A refusal is answered with a text, as the framework does with errors; a stop is raised, for the framework would go
    on with a text.
    """
    copied = copy.copy(tool)
    binder = _JsonArguments(tool.params_json_schema)

    def wrapped(invoke: Any) -> Any:
        bind = getattr(invoke, _BIND_INVOKER, None)
        attributes = {_BIND_INVOKER: lambda other: wrapped(bind(other))} if callable(bind) else {}
        return wrap(invoke, binder=binder, refusal=CircuitOpen.to_tool_message, attributes=attributes)

    vars(copied)["on_invoke_tool"] = wrapped(copied.on_invoke_tool)
    return copied


class _JsonArguments:
    """Arguments of functions that get a context and the model's JSON text."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        parts = schema.get("properties", {})
        self._defaults = {name: part["default"] for name, part in parts.items() if "default" in part}

    def bind(self, _instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        text = [*args, *kwargs.values()][-1]
        try:
            said = json.loads(text) if text else {}
        except ValueError:
            return text
        return {**self._defaults, **said} if isinstance(said, dict) else text


def _pydantic_ai(tool: Any, wrap: Wrap) -> Any:
    """``function``, which the tool's ``function_schema`` keeps too and calls."""
    schema, function = tool.function_schema, wrap(tool.function)
    called = function if schema.function is tool.function else wrap(schema.function)
    return _copied(tool, function=function, function_schema=_copied(schema, function=called))


def _mcp(tool: Any, wrap: Wrap) -> Any:
    """``fn``, of a tool that is handed to a server when that is made."""
    return _copied(tool, fn=wrap(tool.fn))


register_tool_object("langchain_core.tools.base.BaseTool", _langchain)
register_tool_object("agents.tool.FunctionTool", _openai_agents)
register_tool_object("pydantic_ai.tools.Tool", _pydantic_ai)
register_tool_object("mcp.server.fastmcp.tools.base.Tool", _mcp)
register_tool_object("mcp.server.mcpserver.tools.base.Tool", _mcp)
