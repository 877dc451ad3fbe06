"""``guard_tool``: puts the guard on a function, and leaves everything else about the function as it is."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import types
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, overload

import wrapt

from otel_toolguard.arguments import Binder
from otel_toolguard.attempt import Attempt, Guard, here, logger, unfelt
from otel_toolguard.errors import CircuitOpen, SessionMissing, SettingsError
from otel_toolguard.generators import Uncounted, settle_future, settle_later, through, through_async
from otel_toolguard.lookup import place_here
from otel_toolguard.session import unguarded
from otel_toolguard.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_toolguard.core.classify import Risk, ToolClass

    Function = wrapt.FunctionWrapper[Any, Any]
    BoundFunction = wrapt.BoundFunctionWrapper[Any, Any]
    Proxy = wrapt.ObjectProxy[Any]
else:  # generic from wrapt 2 on
    Function, BoundFunction, Proxy = wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper, wrapt.ObjectProxy

F = TypeVar("F", bound="Callable[..., Any]")


class BoundGuardedFunction(BoundFunction):
    """A guarded function taken from an instance or a class; copied and pickled like a bound method."""

    def __copy__(self) -> BoundGuardedFunction:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        receiver = self._self_instance
        if receiver is None or isinstance(receiver, type):
            return self
        return self._self_parent.__get__(copy.deepcopy(receiver, memo), self._self_owner)

    def __reduce__(self) -> tuple[Any, ...]:
        receiver = self._self_owner if self._self_instance is None else self._self_instance
        return getattr, (receiver, self.__wrapped__.__name__)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class GuardedFunction(Function):
    """A function with the guard on it; to inspection, type hints and schemas it is the function itself."""

    __bound_function_wrapper__ = BoundGuardedFunction

    def __init__(self, wrapped: Any, wrapper: Any, tool: Tool) -> None:
        super().__init__(wrapped, wrapper)
        self._self_tool = tool

    @property
    def guarded_tool(self) -> Tool:
        """What the decorator was told about the tool."""
        tool: Tool = self._self_tool
        return tool

    def __copy__(self) -> GuardedFunction:
        return self

    def __deepcopy__(self, memo: Any) -> GuardedFunction:
        # Frameworks deep-copy agents with their tools; the counters are the session's, so one wrapper serves all.
        return self

    def __reduce__(self) -> str:
        # By name, like a function; pickle itself makes sure that this object is what the name leads to.
        return str(getattr(self.__wrapped__, "__qualname__", type(self.__wrapped__).__qualname__))

    def __reduce_ex__(self, protocol: Any) -> str:
        return self.__reduce__()


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

    Args:
        function: A function or method; sync, async or a generator of either kind.
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
        The guarded function. A function that is guarded already is returned as it is.

    Raises:
        SettingsError: The object is no function, or an argument has no valid value.
        CircuitOpen: From the guarded function, before its body: this call is refused.
        SessionStopped: From the guarded function, before its body: the run has ended.
    """
    if name is not None and not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise SettingsError(f"name = {name!r:.60}; a tool's name is a text of visible characters, on one line")
    told = {
        "tool_class": tool_class, "risk": risk, "poll": poll, "ignore": ignore, "key": key, "result_key": result_key,
        "fold": fold,
    }  # fmt: skip
    _check_values(told)
    if function is None:
        return lambda target: _guarded(target, name, told)
    return _guarded(function, name, told)


def _guarded(function: Any, name: str | None, told: dict[str, Any]) -> Any:
    if _is_guarded(function):
        return function
    _check(function)
    tool = _tool(function, name, told)
    inner = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
    return GuardedFunction(function, _wrapper(inner, tool, Binder(inner)), tool)


def _is_guarded(function: Any) -> bool:
    """Whether calls of it come to a guarded function anyway, bound or with some arguments given."""
    while isinstance(function, (functools.partial, staticmethod, classmethod)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return isinstance(function, (GuardedFunction, BoundGuardedFunction))


def _check(function: Any) -> None:
    if inspect.isroutine(function) or isinstance(function, (functools.partial, staticmethod, classmethod)):
        return
    if isinstance(function, type):
        raise SettingsError(f"guard_tool takes a function, not the class {function.__qualname__}; guard its methods")
    if _is_tool_object(function):
        kind = f"{type(function).__module__}.{type(function).__qualname__}"
        raise SettingsError(
            f"guard_tool takes a function; {kind} is a tool object, whose framework would go round the guard. Put "
            "@guard_tool below the framework's own decorator, or use the framework's adapter"
        )
    if not callable(function):
        raise SettingsError(f"guard_tool takes a function, not {type(function).__name__}")


def _is_tool_object(function: Any) -> bool:
    """Frameworks call these objects' inner functions, never the object itself."""
    own = getattr(function, "__dict__", {})
    return any(name in own or hasattr(type(function), name) for name in _MARKS)


_MARKS = ("args_schema", "on_invoke_tool", "function_schema")


def _tool(function: Any, name: str | None, told: dict[str, Any]) -> Tool:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return Tool(name or getattr(inner, "__name__", None) or type(inner).__name__, **told)


def _check_values(told: dict[str, Any]) -> None:
    from otel_toolguard.core.classify import RISKS, TOOL_CLASSES  # noqa: PLC0415

    choices: tuple[str, ...]
    for word, choices in (("tool_class", TOOL_CLASSES), ("risk", RISKS)):
        value = told.get(word)
        if value is not None and value not in choices:
            raise SettingsError(f"unknown {word} {value!r}; valid are {', '.join(choices)}")
    poll = told.get("poll")
    if poll is not None and not isinstance(poll, bool) and not (isinstance(poll, int) and poll >= 1):
        raise SettingsError(f"poll = {poll!r}; valid are True, False and a whole number from 1")
    if isinstance(told.get("ignore"), str):
        raise SettingsError("ignore takes a list of argument names, not one text")
    if not isinstance(told.get("fold", False), bool):
        raise SettingsError(f"fold = {told['fold']!r}; valid are True and False")
    for word in ("key", "result_key"):
        if told.get(word) is not None and not callable(told[word]):
            raise SettingsError(f"{word} takes a function, not {type(told[word]).__name__}")


def _wrapper(function: Any, tool: Tool, binder: Binder) -> Callable[..., Any]:
    """The wrapper of the function's kind; wrapt hands it the function, its receiver and the arguments."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    kinds = (
        (inspect.iscoroutinefunction, _run_async),
        (inspect.isasyncgenfunction, _generate_async),
        (inspect.isgeneratorfunction, _generate),
    )
    run = next((run for is_kind, run in kinds if is_kind(inner)), _run)
    return functools.partial(run, tool, binder)


def _run(tool: Tool, binder: Binder, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    attempt = _attempt(tool, binder, wrapped, instance, args, kwargs)
    if attempt is None:
        return _seen(wrapped(*args, **kwargs))
    if attempt.refused is not None:
        raise attempt.error()
    attempt.enter()
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        attempt.leave()
        attempt.raised(error)
        raise
    attempt.leave()
    # By the type alone: a lazy object may do anything when it is asked for its class.
    if hasattr(type(result), "__await__") or type(result) is types.GeneratorType:
        return _later(attempt, result)
    attempt.returned(result)
    return result


def _attempt(
    tool: Tool, binder: Binder, wrapped: Any, instance: Any, args: Any, kwargs: Any
) -> Attempt | Uncounted | None:
    """The admitted or refused call; None where an adapter counts this very call already."""
    try:
        place = place_here()
        inside = place.inside if place is not None else None
        if inside is not None and inside.body is not None and _same(inside.body, wrapped):
            inside.executions += 1
            return None
        guard = place.guard if place is not None else _outside(tool)
        return Attempt(guard, place, tool, binder.bind(instance, args, kwargs))
    except (CircuitOpen, SessionMissing):
        raise
    except Exception as fault:  # settings that cannot be read, for example
        unfelt("look at a call", fault)
        return Uncounted()


def _seen(result: Any) -> Any:
    """Shows the adapter that counts this call what its body really returned."""
    place = here.get()
    if place is not None and place.inside is not None:
        place.inside.seen = (result,)
    return result


def _same(body: Any, wrapped: Any) -> bool:
    body = getattr(body, "__wrapped__", body)
    return body is wrapped or getattr(body, "__func__", body) is getattr(wrapped, "__func__", wrapped)


_warned: set[str] = set()


def _outside(tool: Tool) -> Guard:
    """Outside any session a call is traced but not limited, and that is said once per tool."""
    guard = unguarded()
    if guard.policy.mode == "off":
        return guard
    if guard.policy.strict:
        raise SessionMissing(
            f"{tool.name} was called outside any session, and strict forbids that: open one with "
            'Session("conversation id")'
        )
    if tool.name not in _warned:
        _warned.add(tool.name)
        text = (
            f"{tool.name} is called outside any session and is not limited. Open one around the run: "
            "with otel_toolguard.Session(conversation_id): ... (in a thread of your own: session.bind(function))"
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        except Exception:  # warnings are errors here; a guard must not be the cause of one
            logger.warning(text)
    return guard


async def _run_async(tool: Tool, binder: Binder, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    attempt = _attempt(tool, binder, wrapped, instance, args, kwargs)
    if attempt is None:
        return _seen(await wrapped(*args, **kwargs))
    if attempt.refused is not None:
        raise attempt.error()
    attempt.enter()
    try:
        result = await wrapped(*args, **kwargs)
    except BaseException as error:
        attempt.leave()
        attempt.raised(error)
        raise
    attempt.leave()
    attempt.returned(result)
    return result


def _later(attempt: Attempt | Uncounted, result: Any) -> Any:
    """What the caller gets instead of an awaitable: one that settles the call, of the same kind."""
    if asyncio.isfuture(result):  # it goes on by itself, and has more to offer than to be awaited
        result.add_done_callback(functools.partial(settle_future, attempt))
        return result
    if not inspect.isawaitable(result):  # a generator
        attempt.returned(result)
        return result
    later: Any
    if inspect.iscoroutine(result):
        later = settle_later(attempt, result)
        later.__qualname__ = result.__qualname__  # by which Python complains of one that is never awaited
    else:
        later = _Later(result, attempt)
    attempt.put_off(later)
    return later


class _Later(Proxy):
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


def _generate(tool: Tool, binder: Binder, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return through(*_begun(tool, binder, wrapped, instance, args, kwargs))


def _generate_async(tool: Tool, binder: Binder, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return through_async(*_begun(tool, binder, wrapped, instance, args, kwargs))


def _begun(tool: Tool, binder: Binder, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """What admits the call later, and the generator, of which nothing has run yet."""
    begin = functools.partial(_attempt, tool, binder, wrapped, instance, args, kwargs)
    try:
        return begin, wrapped(*args, **kwargs)
    except BaseException as error:  # a call that does not fit fails now, and is counted like any other
        attempt = begin()
        if attempt is not None and attempt.refused is not None:
            raise attempt.error() from error
        if attempt is not None:
            attempt.raised(error)
        raise
