"""What stands behind a callable: the layers that other decorators put around a function, and its name."""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAYERS = 32  # looked through on one function; a proxy may claim to wrap itself
AGAIN = "__toolguard_bind_again__"


class Again:
    """The mark of what ``Session.bind`` made; other decorators copy it to their own functions, hence ``function``.

    Args:
        function: What bears the mark.
        bind: Binds another function to the same place.
    """

    __slots__ = ("bind", "function")

    def __init__(self, function: Any, bind: Callable[[Any], Any]) -> None:
        self.function = function
        self.bind = bind


def beneath(function: Any) -> Any:
    """What a call of it certainly comes to: without given arguments, receiver and binding to a session; else None."""
    # By the type alone: a proxy has the class of what it stands for.
    kind = type(function)
    if issubclass(kind, functools.partial):
        return function.func
    if issubclass(kind, (staticmethod, classmethod, types.MethodType)):
        return function.__func__
    return function.__wrapped__ if is_bound(function) else None


def is_bound(function: Any) -> bool:
    """Whether ``Session.bind`` made it."""
    mark = function.__dict__.get(AGAIN) if type(function) is types.FunctionType else None
    return mark is not None and mark.function is function


def layers(function: Any) -> Iterator[Any]:
    """The function itself and, from the outside in, what it says that it wraps."""
    for _ in range(LAYERS):
        yield function
        inner = beneath(function)
        inner = wrapped_by(function) if inner is None else inner
        if inner is None:
            return
        function = inner


def wrapped_by(function: Any) -> Any:
    """What a decorator wraps; None if it does not say."""
    try:
        return getattr(function, "__wrapped__", None)
    except Exception:  # a hostile object
        return None


def innermost(function: Any) -> Any:
    """The function that all decorators around it come to."""
    for _ in range(LAYERS):
        inner = wrapped_by(function)
        if inner is None:
            return function
        function = inner
    return function


def same(body: Any, function: Any) -> bool:
    """Whether both are one function, whatever instance either was taken from; of several bodies, one of them."""
    if type(body) is tuple:
        return any(same(each, function) for each in body)
    body = getattr(body, "__wrapped__", body)
    return body is function or getattr(body, "__func__", body) is getattr(function, "__func__", function)


def given_to(function: Any) -> Any:
    """The function to which a partial gives arguments, however often; else the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def called_by(function: Any) -> Any:
    """What decides of which kind a call is: the function itself, or the method that makes an object callable."""
    inner = given_to(function)
    return inner if inspect.isroutine(inner) else type(inner).__call__


def name_of(function: Any) -> str:
    """What a tool is called if nobody says so: partials like their function, objects like their class."""
    inner = given_to(function)
    return getattr(inner, "__name__", None) or type(inner).__name__


def is_generator_function(function: Any) -> bool:
    """Whether calls of it return a generator of either kind, by how it is written."""
    inner = called_by(function)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def without_given(partial: Any) -> inspect.Signature:
    """The signature that is left: what was given by name, a key perhaps, is for no schema to show as a default."""
    try:
        signature = inspect.signature(partial, eval_str=True)
    except NameError:
        signature = inspect.signature(partial)
    left = [parameter for name, parameter in signature.parameters.items() if name not in partial.keywords]
    return signature.replace(parameters=left)


def hints_of(function: Any) -> dict[str, Any]:
    """The type hints, resolved where the function was written; as they stand there if that fails."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # names that exist for type checkers only
        return dict(getattr(function, "__annotations__", {}))


class AnyOf(str):
    """In place of a call's body: whatever function bears the decorator for the tool of that name.

    For an adapter that knows no more than the name, perhaps with what an agent put in front of it.
    """

    __slots__ = ()

    def covers(self, name: str) -> bool:
        """Whether it is that name, or ends in it behind a mark such as the underscores of ``server__search``."""
        return self == name or bool(name and self.endswith(name) and not self[-len(name) - 1].isalnum())
