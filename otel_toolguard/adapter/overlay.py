"""Other methods for one object, which stays the same object of the same kind."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def overlay(thing: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Gives an object other methods; its class, and other objects of that, stay as they are.

    Names, signatures and ``isinstance`` say what they said before. Copies of the object have these methods, too.

    Args:
        thing: The object.
        methods: By name: async functions, called with the object's own method, the object and the arguments; for a
            property a function that is called with the property's value and the object.

    Raises:
        TypeError: The object takes no other class.
    """
    kind: Any = type(thing)
    thing.__class__ = _with(kind, tuple(methods.items()))


@functools.cache
def _with(kind: Any, methods: tuple[tuple[str, Any], ...]) -> Any:
    looks = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(kind)(kind.__name__, (kind,), looks)
    for name, function in methods:
        setattr(made, name, _method(made, name, function))
    return made


def _method(made: Any, name: str, function: Any) -> Any:
    original = inspect.getattr_static(made, name)
    if isinstance(original, property):
        return property(lambda self: function(getattr(super(made, self), name), self))

    @functools.wraps(original)
    async def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await function(getattr(super(made, self), name), self, *args, **kwargs)

    return method
