"""``guard_tool``: puts the guard on a function, and leaves everything else about the function as it is."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeVar, overload

import wrapt

from otel_toolguard.arguments import Binder
from otel_toolguard.callables import (
    AGAIN,
    beneath,
    called_by,
    given_to,
    hints_of,
    innermost,
    is_bound,
    is_generator_function,
    layers,
    name_of,
    without_given,
)
from otel_toolguard.calls import Calls
from otel_toolguard.errors import SettingsError
from otel_toolguard.generators import settle_later
from otel_toolguard.told import checked, said_of, told_again
from otel_toolguard.tool import Tool
from otel_toolguard.tool_objects import bodies, is_tool_object, known_kinds, looks_like_one, name_of_tool, rewrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_toolguard.attempt import Attempt
    from otel_toolguard.core.classify import Risk, ToolClass
    from otel_toolguard.errors import CircuitOpen
    from otel_toolguard.generators import Uncounted

    Function = wrapt.FunctionWrapper[Any, Any]
    BoundFunction = wrapt.BoundFunctionWrapper[Any, Any]
    Proxy = wrapt.ObjectProxy[Any]
else:  # generic from wrapt 2 on
    Function, BoundFunction, Proxy = wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper, wrapt.ObjectProxy

F = TypeVar("F", bound="Callable[..., Any]")


class BoundGuardedFunction(BoundFunction):
    """A guarded function taken from an instance or a class; copied and pickled like a bound method."""

    @property
    def guarded_tool(self) -> Tool:
        """What the decorator was told about the tool."""
        tool: Tool = self._self_parent.guarded_tool
        return tool

    def __copy__(self) -> BoundGuardedFunction:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        receiver = self._self_instance
        if receiver is None or isinstance(receiver, type):
            return self
        return self._self_parent.__get__(copy.deepcopy(receiver, memo), type(receiver))

    def __reduce__(self) -> tuple[Any, ...]:
        receiver = self._self_instance
        if receiver is None:
            receiver = getattr(self, "_self_owner", None) or self._self_home()  # wrapt before 1.17 keeps no owner
        return getattr, (receiver, self.__wrapped__.__name__)

    def _self_home(self) -> Any:
        """The class in which the function was written."""
        found: Any = sys.modules[self.__wrapped__.__module__]
        for name in self.__wrapped__.__qualname__.split(".")[:-1]:
            found = getattr(found, name)
        return found

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class GuardedFunction(Function):
    """A function with the guard on it; to inspection, type hints and schemas it is the function itself."""

    __bound_function_wrapper__ = BoundGuardedFunction

    def __init__(self, wrapped: Any, calls: Calls) -> None:
        inner = wrapped.__func__ if isinstance(wrapped, (staticmethod, classmethod)) else wrapped
        super().__init__(wrapped, calls.wrapper(inner))
        self._self_calls = calls

    @property
    def guarded_tool(self) -> Tool:
        """What the decorator was told about the tool."""
        tool: Tool = self._self_calls.tool
        return tool

    def shares_its_calls_with(self, others: Iterable[GuardedFunction]) -> None:
        """Makes it part of a tool of several functions, one of which may call another."""
        functions = tuple(innermost(one) for one in others if one is not self)
        self._self_calls.others += functions
        self._self_calls.inside += functions

    def __set_name__(self, owner: type, name: str) -> None:
        """A method that overrides a guarded one and calls it makes one call of the tool, not two."""
        above = [guard_within(vars(kind).get(name)) for kind in owner.__mro__[1:]]
        mine = [one for one in above if one is not None and one.guarded_tool.name == self.guarded_tool.name]
        self._self_calls.inside += tuple(map(innermost, mine))
        super().__set_name__(owner, name)  # type: ignore[misc]

    def __copy__(self) -> GuardedFunction:
        return self

    def __deepcopy__(self, memo: Any) -> GuardedFunction:
        # Frameworks deep-copy agents with their tools; the counters are the session's, so one wrapper serves all.
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        # By name, like a function; pickle itself makes sure that this object is what the name leads to.
        return str(getattr(self.__wrapped__, "__qualname__", type(self.__wrapped__).__qualname__))

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        return self.__reduce__()


class GuardedObject(GuardedFunction):
    """A partial or a callable object with the guard on it; it has the name that it lacks by itself."""

    def __init__(self, wrapped: Any, calls: Calls) -> None:
        super().__init__(wrapped, calls)
        inner = given_to(wrapped)
        self._self_shown = inner if inner is not wrapped else None
        # Whoever asks an object whether it is async asks its ``__call__``.
        guarded = super().__call__
        self._self_called = Function(wrapped.__call__, lambda _called, _, args, kwargs: guarded(*args, **kwargs))

    def __reduce__(self) -> str | tuple[Any, ...]:
        # No name leads to it: what arrives is the object with the guard put on again.
        tool = self.guarded_tool
        return _guarded, (self.__wrapped__, tool.name, said_of(tool))

    def __getattr__(self, name: str) -> Any:
        if name == "__qualname__":  # a class cannot have a property of that name
            return getattr(self._self_shown, name, self.__name__)
        if name == "__annotations__":  # evaluated, for nothing leads from here to where their names are known
            return hints_of(called_by(self.__wrapped__))
        if name == "__signature__" and getattr(self.__wrapped__, "keywords", None) and self._self_shown is not None:
            return without_given(self.__wrapped__)
        return super().__getattr__(name)

    __call__ = property(lambda self: self._self_called)
    __name__ = property(lambda self: getattr(self._self_shown, "__name__", self.guarded_tool.name))
    __doc__ = property(lambda self: (self.__wrapped__ if self._self_shown is None else self._self_shown).__doc__)


class Later(Proxy):
    """An awaitable that is no coroutine and may have more to offer, such as ``async with``."""

    def __init__(self, result: Any, attempt: Attempt | Uncounted) -> None:
        super().__init__(result)
        self._self_attempt: Attempt | Uncounted | None = attempt

    def __await__(self) -> Any:
        return self._self_settling(self.__wrapped__).__await__()

    async def __aenter__(self) -> Any:
        return await self._self_settling(self.__wrapped__.__aenter__())

    async def __aexit__(self, *error: object) -> Any:
        return await self.__wrapped__.__aexit__(*error)

    def _self_settling(self, awaitable: Any) -> Any:
        attempt, self._self_attempt = self._self_attempt, None
        return awaitable if attempt is None else settle_later(attempt, awaitable)


@overload
def guard_tool(function: F, /) -> F: ...
@overload
def guard_tool(
    *,
    name: str | None = None,
    tool_class: ToolClass | None = None,
    risk: Risk | None = None,
    poll: bool | int | None = None,
    ignore: Iterable[str] = (),
    key: Callable[[dict[str, Any]], Any] | None = None,
    result_key: Callable[[Any], Any] | None = None,
    fold: bool = False,
) -> Callable[[F], F]: ...
def guard_tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    tool_class: ToolClass | None = None,
    risk: Risk | None = None,
    poll: bool | int | None = None,
    ignore: Iterable[str] = (),
    key: Callable[[dict[str, Any]], Any] | None = None,
    result_key: Callable[[Any], Any] | None = None,
    fold: bool = False,
) -> Any:
    """Guards a tool function: each call is one span, and is counted, judged and, past a limit, refused.

    Use it bare (``@guard_tool``) or with arguments, below a framework's own decorator (``@tool`` above
    ``@guard_tool``). Name, signature, hints, docstring and kind of the function stay as they are.

    A tool object of LangChain, OpenAI Agents, Pydantic AI or MCP's Python SDK, or one that an adapter made known, is
    copied, with the guard on the function inside the copy; the object itself stays as it is, and unguarded.

    Args:
        function: A function or method (sync, async or a generator of either kind), or a tool object.
        name: The tool's name, None for the function's.
        tool_class: Overrides the class that the name suggests.
        risk: Overrides the risk: read_only, reversible or irreversible.
        poll: True for a tool that is asked again and again by nature (10 times the repeat limit), a number for that
            many times, False for one that only sounds like it, None to go by the name.
        ignore: Arguments that say nothing about what the call does.
        key: Turns the arguments, a dict, into what is compared instead.
        result_key: Turns the result into what is compared instead.
        fold: True to take texts in the arguments for equal that differ in Unicode composition or outer blanks only.

    Returns:
        The guarded function, or the copy of the tool object. What is guarded already is returned as it is, unless
        something is said about it here: then the function inside is guarded anew, and what was said before holds
        where this says nothing.

    Raises:
        SettingsError: The object is neither a function nor a known tool object, or an argument has no valid value.
        CircuitOpen: From the guarded function, before its body: this call is refused.
        SessionStopped: From the guarded function, before its body: the run has ended.
    """
    if name is not None and not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise SettingsError(f"name = {name!r:.60}; a tool's name is a text of visible characters, on one line")
    given = {
        "tool_class": tool_class, "risk": risk, "poll": poll, "ignore": ignore, "key": key, "result_key": result_key,
        "fold": fold,
    }  # fmt: skip
    told = checked(given)
    if function is None:
        return lambda target: _guarded(target, name, told)
    return _guarded(function, name, told)


def _guarded(function: Any, name: str | None, told: Mapping[str, Any]) -> Any:
    if is_tool_object(function):
        return _guarded_object(function, name, told)
    if name is None and not told and (is_guarded(function) or _hands_on_a_generator(function)):
        return function
    if is_bound(function):  # the guard belongs inside, where the session is
        return vars(function)[AGAIN].bind(_guarded(function.__wrapped__, name, told))
    if guards(function):
        return _guard(function.__wrapped__, told_again(function.guarded_tool, name, told))
    _check(function)
    within = guard_within(function)
    if within is None:
        return _guard(function, Tool(name or name_of(function), **told))
    return _guard(function, told_again(within.guarded_tool, name, told))


def _guarded_object(thing: Any, name: str | None, told: Mapping[str, Any]) -> Any:
    """A copy of a tool object with guarded functions inside; they are one tool, and one may call the other."""
    if name is None and not told and all(map(is_guarded, bodies(thing))):
        return thing
    made: list[GuardedFunction] = []

    def wrap(body: Any, **more: Any) -> Any:
        if name is None and not told and is_guarded(body):
            return body
        if is_bound(body):
            again = vars(body)[AGAIN].bind(wrap(body.__wrapped__, **more))
            vars(again).update(more.get("attributes") or {})
            return again
        within, known_as = guard_within(body), name or name_of_tool(thing)
        told_now = Tool(known_as, **told) if within is None else told_again(within.guarded_tool, known_as, told)
        made.append(_guard(body.__wrapped__ if guards(body) else body, told_now, **more))
        return made[-1]

    copied = rewrapped(thing, wrap)
    for one in made:
        one.shares_its_calls_with(made)
    return copied


def _guard(
    function: Any, tool: Tool, *, binder: Any = None, refusal: Callable[[CircuitOpen], Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> GuardedFunction:  # fmt: skip
    descriptor = isinstance(function, (staticmethod, classmethod))
    inner = function.__func__ if descriptor else function
    within = guard_within(function)
    inside = () if within is None else (innermost(within),)
    calls = Calls(tool, binder or Binder(inner), Later, inside=inside, refusal=refusal)
    kind: Any = GuardedFunction if descriptor or inspect.isroutine(function) else GuardedObject
    if attributes:
        kind = type(kind.__name__, (kind,), {key: staticmethod(value) for key, value in attributes.items()})
    guarded: GuardedFunction = kind(function, calls)
    return guarded


def guards(function: Any) -> bool:
    """Whether it is a guarded function itself, taken from an instance or not."""
    return issubclass(type(function), (GuardedFunction, BoundGuardedFunction))


def guard_within(function: Any) -> Any:
    """The outermost guard on it, whatever other decorators stand around that; None if there is none."""
    for layer in layers(function):
        for one in (layer, inspect.getattr_static(type(layer), "__call__", None)):
            if guards(one):
                return one
    return None


def is_guarded(function: Any) -> bool:
    """Whether calls of it come to a guarded function in any case: given arguments, a receiver or a session."""
    while not guards(function):
        inner = beneath(function)
        if inner is None:
            return guards(inspect.getattr_static(type(function), "__call__", None))
        function = inner
    return True


def _hands_on_a_generator(function: Any) -> bool:
    """Whether it returns the generator of a guarded function: that is counted when it is iterated, after the call."""
    within = guard_within(function)
    return within is not None and is_generator_function(innermost(within)) and not is_generator_function(function)


def _check(function: Any) -> None:
    if inspect.isroutine(function) or isinstance(function, (functools.partial, staticmethod, classmethod)):
        return
    if isinstance(function, type):
        raise SettingsError(f"guard_tool takes a function, not the class {function.__qualname__}; guard its methods")
    if callable(function) and not looks_like_one(function):
        return
    accepted = f"guard_tool takes a function or a tool object ({', '.join(known_kinds())})"
    kind = f"{type(function).__module__}.{type(function).__qualname__}"
    if looks_like_one(function):
        raise SettingsError(
            f"{accepted}; {kind} is a tool object of another kind, whose framework would go round the guard. Put "
            "@guard_tool below the framework's own decorator, or use the framework's adapter"
        )
    raise SettingsError(f"{accepted}, not {kind}")
