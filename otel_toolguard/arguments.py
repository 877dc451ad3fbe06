"""From a Python call to what the model said: bound to names, defaults applied, the host's own arguments left out."""

from __future__ import annotations

import functools
import inspect
import re
import types
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Types by which frameworks inject what the model did not say; their names, for the frameworks need not be installed.
_INJECTED = re.compile(
    r"\b(RunContext|RunContextWrapper|ToolContext|ToolRuntime|InjectedState|InjectedStore|InjectedToolCallId"
    r"|InjectedToolArg|RunnableConfig|CallbackManagerForToolRun|AsyncCallbackManagerForToolRun|ServerSession"
    r"|fastmcp[.\w]*Context|mcp[.\w]*Context)\b"
)
_RECEIVERS = ("self", "cls")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Binder:
    """Binds the calls of one function; worked out once, so that an all-keyword call needs no ``Signature.bind``.

    Args:
        function: The tool's body.
    """

    __slots__ = (
        "_bound", "_defaults", "_dropped", "_easy", "_first", "_given", "_positional", "_signature", "_simple",
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            signature: inspect.Signature | None = inspect.signature(function)
        except Exception:  # some builtins have none, and a hostile object anything
            signature = None
        self._signature = signature
        # A method that was taken from its instance has no receiver left in its signature.
        self._bound = _has(function, "__self__")
        is_method = _is_method(function)
        parameters = list(signature.parameters.values()) if signature else []
        self._simple = signature is not None and all(
            parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            for parameter in parameters
        )
        self._given = _given_by_name(function)
        hints = _hints(function)
        self._dropped = frozenset(
            parameter.name
            for index, parameter in enumerate(parameters)
            if _is_injected(parameter, hints.get(parameter.name))
            or (index == 0 and is_method and parameter.name in _RECEIVERS)
        )
        # The first parameter, where only what it is given can tell that a framework injects it.
        bare = [each.name for each in parameters[:1] if each.annotation is inspect.Parameter.empty]
        self._first = bare[0] if bare and bare[0] not in self._dropped else None
        self._positional = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
        self._defaults = {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.default is not inspect.Parameter.empty and parameter.name not in self._dropped
        }
        # Nothing has to be taken out again.
        self._easy = self._simple and self._first is None and not self._dropped and not self._given

    def bind(self, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name. Where the call does not fit the function, whatever was given, as it was given."""
        if self._easy and not args:
            return {**self._defaults, **kwargs}
        bound = self._quick(instance, args, kwargs) if self._simple else self._slow(instance, args, kwargs)
        for name in self._dropped:
            bound.pop(name, None)
        if self._first is not None:
            kind: Any = type(bound.get(self._first))
            if _is_context(kind):
                del bound[self._first]
        for name, value in self._given.items():  # said again or not, it is one call
            if name in bound and _alike(bound[name], value):
                del bound[name]
        return bound

    def _quick(self, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = {**self._defaults, **kwargs}
        if args:
            names = self._positional
            if instance is not None and not self._bound:
                names = names[1:]  # a bound method: the receiver is not among the arguments
            if len(args) > len(names):
                return {"*": list(args), **kwargs}
            bound.update(zip(names, args, strict=False))
        return bound

    def _slow(self, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        signature = self._signature
        if signature is None:
            return {"*": list(args), **kwargs}
        receiver = self._positional[0] if instance is not None and not self._bound and self._positional else None
        try:
            bound = signature.bind(*args, **kwargs) if receiver is None else signature.bind(instance, *args, **kwargs)
        except TypeError:
            return {"*": list(args), **kwargs}
        bound.apply_defaults()
        flat: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                # What came in through **kwargs was said by name, like everything else; two of one name stay two.
                flat |= {f"**{key}" if key in flat else key: item for key, item in value.items()}
            elif name != receiver:
                flat[name] = value
        return flat


def _given_by_name(function: Any) -> dict[str, Any]:
    """What a partial was given by name, which the host said and not the model."""
    given: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        given = {**function.keywords, **given}
        function = function.func
    return given


def _alike(said: Any, given: Any) -> bool:
    """Whether it is the same thing; only plain values are asked whether they are equal."""
    return said is given or (type(said) is type(given) and type(said) in _PLAIN and bool(said == given))


_PLAIN = (str, int, float, bool, bytes)


def _is_method(function: Any) -> bool:
    """Whether it is a function written in a class; elsewhere a parameter named self is one like others."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isfunction(function):
        return False
    owner = function.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>")


def _has(thing: Any, name: str) -> bool:
    try:
        return hasattr(thing, name)
    except Exception:
        return False


def _hints(function: Any) -> dict[str, Any]:
    """Annotations as the types that they stand for, without those whose names only a type checker knows."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # one of the names cannot be resolved, or it is a builtin or a hostile object
        pass
    known: dict[str, Any] = {}
    try:
        names = getattr(inspect.unwrap(function), "__globals__", {})
        written = dict(getattr(function, "__annotations__", {}))
    except Exception:
        return known
    for name, annotation in written.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            known |= get_type_hints(alone, globalns=names, include_extras=True)
        except Exception:
            pass
    return known


def _is_injected(parameter: inspect.Parameter, hint: Any) -> bool:
    if hint is not None and _INJECTED.search(_spelled(hint)) is not None:
        return True
    if parameter.annotation is inspect.Parameter.empty:
        return parameter.name in ("run_manager", "tool_call_id")
    annotation = parameter.annotation
    return _INJECTED.search(annotation if isinstance(annotation, str) else _spelled(annotation)) is not None


@functools.lru_cache(maxsize=1024)
def _is_context(kind: type) -> bool:
    """Whether it is one of the classes that frameworks inject, or below one."""
    return any(_INJECTED.search(f"{each.__module__}.{each.__qualname__}") for each in kind.__mro__)


def _spelled(annotation: Any) -> str:
    texts = []
    try:
        if isinstance(annotation, type):
            texts.append(f"{annotation.__module__}.{annotation.__qualname__}")
        texts.append(repr(annotation))
    except Exception:
        pass
    return " ".join(texts)
