"""What happens around the body of a guarded function, for each of the five kinds of function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
import warnings
from typing import TYPE_CHECKING, Any

from otel_toolguard.attempt import Attempt
from otel_toolguard.callables import AnyOf, called_by, same
from otel_toolguard.errors import CircuitOpen, SessionMissing, SessionStopped
from otel_toolguard.generators import Uncounted, settle_future, settle_later, through, through_async
from otel_toolguard.guard import Guard, logger, unfelt
from otel_toolguard.lookup import place_here
from otel_toolguard.place import here
from otel_toolguard.session import unguarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.tool import Tool


class Calls:
    """The calls of one guarded function.

    Args:
        tool: What they are calls of.
        binder: Makes of a call what the model said.
        later: Makes, of an awaitable that is no coroutine and what settles the call, an awaitable that does settle it.
        inside: Functions whose guarded run inside such a call is this call itself and not another one.
        others: Other functions of the same tool, one of which may call another.
        refusal: What is answered instead of raising where a call is refused; a stop is raised all the same.
    """

    __slots__ = ("binder", "inside", "later", "others", "refusal", "tool")

    def __init__(
        self, tool: Tool, binder: Any, later: Callable[[Any, Attempt | Uncounted], Any], *,
        inside: tuple[Any, ...] = (), others: tuple[Any, ...] = (),
        refusal: Callable[[CircuitOpen], Any] | None = None,
    ) -> None:  # fmt: skip
        self.tool = tool
        self.binder = binder
        self.later = later
        self.inside = inside
        self.others = others
        self.refusal = refusal

    def wrapper(self, function: Any) -> Callable[..., Any]:
        """The wrapper of the function's kind; wrapt hands it the function, its receiver and the arguments."""
        inner = called_by(function)
        kinds = (
            (inspect.iscoroutinefunction, self.run_async),
            (inspect.isasyncgenfunction, self.generate_async),
            (inspect.isgeneratorfunction, self.generate),
        )
        return next((run for is_kind, run in kinds if is_kind(inner)), self.run)

    def run(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        """A call of a plain function, which may yet return an awaitable."""
        attempt = self._attempt(wrapped, instance, args, kwargs)
        if attempt is None:
            return _seen(wrapped(*args, **kwargs))
        if attempt.refused is not None:
            return self._refused(attempt)
        attempt.enter()
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            attempt.leave()
            attempt.raised(error)
            raise
        attempt.leave()
        if _is_later(type(result)):
            return self._put_off(attempt, result)
        attempt.returned(result)
        return result

    async def run_async(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        """A call of a coroutine function, from when it is awaited."""
        attempt = self._attempt(wrapped, instance, args, kwargs)
        if attempt is None:
            return _seen(await wrapped(*args, **kwargs))
        if attempt.refused is not None:
            return self._refused(attempt)
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

    def generate(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        """A call of a generator function, from its first iteration."""
        return through(*self._begun(wrapped, instance, args, kwargs))

    def generate_async(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        """The same for an async generator function."""
        return through_async(*self._begun(wrapped, instance, args, kwargs))

    def _begun(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        """What admits the call later, and the generator, of which nothing has run yet."""
        begin = functools.partial(self._attempt, wrapped, instance, args, kwargs)
        try:
            return begin, wrapped(*args, **kwargs)
        except BaseException as error:  # a call that does not fit fails now, and is counted like any other
            attempt = begin()
            if attempt is not None and attempt.refused is not None:
                raise attempt.error() from error
            if attempt is not None:
                attempt.raised(error)
            raise

    def _attempt(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Attempt | Uncounted | None:
        """The admitted or refused call; None where somebody further out counts this very call already."""
        try:
            place = here.get()
            if place is None:
                place = place_here()
            inside = place.inside if place is not None else None
            if inside is not None and inside.body is not None and self._is_mine(inside.body, wrapped):
                inside.executions += 1
                return None
            guard = place.guard if place is not None else outside(self.tool)
            attempt = Attempt(guard, place, self.tool, self.binder.bind(instance, args, kwargs))
        except (CircuitOpen, SessionMissing):
            raise
        except Exception as fault:  # settings that cannot be read, for example
            unfelt("look at a call", fault)
            return Uncounted()
        if self.inside:
            attempt.body = self.inside
        return attempt

    def _is_mine(self, body: Any, wrapped: Any) -> bool:
        if type(body) is AnyOf:
            return body.covers(self.tool.name)
        return same(body, wrapped) or (self.others != () and any(same(body, other) for other in self.others))

    def _refused(self, attempt: Attempt | Uncounted) -> Any:
        error = attempt.error()
        if self.refusal is None or isinstance(error, SessionStopped):
            raise error
        return self.refusal(error)

    def _put_off(self, attempt: Attempt | Uncounted, result: Any) -> Any:
        """What the caller gets instead of an awaitable: one that settles the call, of the same kind."""
        if asyncio.isfuture(result):  # it goes on by itself, and has more to offer than to be awaited
            result.add_done_callback(functools.partial(settle_future, attempt))
            return result
        if not inspect.isawaitable(result):  # a generator
            attempt.returned(result)
            return result
        settling: Any
        if inspect.iscoroutine(result):
            settling = settle_later(attempt, result)
            settling.__qualname__ = result.__qualname__  # by which Python complains of one that is never awaited
        else:
            settling = self.later(result, attempt)
        attempt.put_off(settling)
        return settling


def _is_later(kind: Any) -> bool:
    """Whether results of a type are still to come; by the type alone, for a lazy object may do anything when asked."""
    if type(kind) is type and kind in _NEVER_LATER:
        return False
    try:
        return kind is types.GeneratorType or hasattr(kind, "__await__")
    except Exception:  # so may its metaclass
        return False


_NEVER_LATER = frozenset({str, int, float, bool, type(None), dict, list, tuple, bytes})  # the common results


def _seen(result: Any) -> Any:
    """Shows the guard that counts this call what its body really returned."""
    place = here.get()
    if place is not None and place.inside is not None:
        place.inside.seen = (result,)
    return result


warned: set[str] = set()  # tools of which it was said that they are called outside any session


def outside(tool: Tool) -> Guard:
    """Outside any session a call is traced but not limited, and that is said once per tool."""
    guard = unguarded()
    if guard.policy.mode == "off":
        return guard
    if guard.policy.strict:
        raise SessionMissing(
            f"{tool.name} was called outside any session, and strict forbids that: open one with "
            'Session("conversation id")'
        )
    if tool.name not in warned:
        warned.add(tool.name)
        text = (
            f"{tool.name} is called outside any session and is not limited. Open one around the run: "
            "with otel_toolguard.Session(conversation_id): ... (in a thread of your own: session.bind(function))"
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        except Exception:  # warnings are errors here; a guard must not be the cause of one
            logger.warning(text)
    return guard
