"""From a Python call to what the model said: bound to names, defaults applied, the host's own arguments left out."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

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

    __slots__ = ("_defaults", "_dropped", "_names", "_positional", "_signature", "_simple")

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # some builtins have none
            signature = None
        self._signature = signature
        parameters = list(signature.parameters.values()) if signature else []
        self._simple = signature is not None and all(
            parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            for parameter in parameters
        )
        self._dropped = frozenset(
            parameter.name for index, parameter in enumerate(parameters) if _is_injected(parameter, first=index == 0)
        )
        self._positional = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
        self._names = frozenset(parameter.name for parameter in parameters)
        self._defaults = {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.default is not inspect.Parameter.empty and parameter.name not in self._dropped
        }

    def bind(self, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name. Where the call does not fit the function, whatever was given, as it was given."""
        bound = self._quick(instance, args, kwargs) if self._simple else self._slow(instance, args, kwargs)
        for name in self._dropped:
            bound.pop(name, None)
        return bound

    def _quick(self, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = {**self._defaults, **kwargs}
        if args:
            names = self._positional
            if instance is not None and names and names[0] in _RECEIVERS:
                names = names[1:]  # a bound method: the receiver is not among the arguments
            if len(args) > len(names):
                return {"*": list(args), **kwargs}
            bound.update(zip(names, args, strict=False))
        return bound

    def _slow(self, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        signature = self._signature
        if signature is None:
            return {"*": list(args), **kwargs}
        given = args
        if instance is not None and self._positional and self._positional[0] in _RECEIVERS:
            given = (instance, *args)
        try:
            bound = signature.bind(*given, **kwargs)
        except TypeError:
            return {"*": list(args), **kwargs}
        bound.apply_defaults()
        flat: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            # What came in through **kwargs was said by name, like everything else.
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                flat |= {key: item for key, item in value.items() if key not in flat}
            else:
                flat[name] = value
        return flat


def _is_injected(parameter: inspect.Parameter, *, first: bool) -> bool:
    if first and parameter.name in _RECEIVERS:
        return True
    if parameter.annotation is inspect.Parameter.empty:
        return parameter.name in ("run_manager", "tool_call_id")
    annotation = parameter.annotation
    return _INJECTED.search(annotation if isinstance(annotation, str) else _spelled(annotation)) is not None


def _spelled(annotation: Any) -> str:
    plain = f"{annotation.__module__}.{annotation.__qualname__}" if isinstance(annotation, type) else ""
    try:
        return f"{plain} {annotation!r}"
    except Exception:
        return plain
