"""Functions bound to a place: each call runs there, in whatever thread or task it is made."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import types
from typing import Any

from otel_toolguard.callables import AGAIN, Again, innermost, is_bound, same
from otel_toolguard.errors import SettingsError
from otel_toolguard.place import here
from otel_toolguard.tool_objects import is_tool_object, known_kinds, looks_like_one, rewrapped


def bound(captured: contextvars.Context, function: Any) -> Any:
    """The function, or a copy of the tool object, each call of which runs in the context that was captured.

    Raises:
        SettingsError: It is neither a function nor a known tool object.
    """
    bodies: list[Any] = []  # functions of one tool, one of which may call another
    bind = functools.partial(_bound, captured, bodies)
    return rewrapped(function, bind) if is_tool_object(function) else bind(function)


def _bound(
    captured: contextvars.Context, bodies: list[Any], function: Any, *, attributes: Any = None, **_of_guards: Any
) -> Any:  # fmt: skip
    target = function.__wrapped__ if is_bound(function) else function  # bound again: the last one holds
    if not callable(target) or looks_like_one(target):
        kinds = ", ".join(known_kinds())
        raise SettingsError(f"bind takes a function or a tool object ({kinds}), not {type(target).__name__}")
    body = innermost(target)
    if all(each is not body for each in bodies):
        bodies.append(body)

    def made() -> contextvars.Context:
        """A copy, for one thread at a time can enter a context; the caller's where that counts this very call."""
        at = here.get()
        inside = at.inside if at is not None else None
        counted = inside is not None and inside.body is not None and any(same(inside.body, each) for each in bodies)
        return contextvars.copy_context() if counted else captured.copy()

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(made(), target(*args, **kwargs))

    def run(*args: Any, **kwargs: Any) -> Any:
        context = made()
        result = context.run(target, *args, **kwargs)
        if type(result) is types.GeneratorType:
            return _stepped(context, result)
        if type(result) is types.AsyncGeneratorType:
            return _stepped_async(context, result)
        return _awaited(context, result) if type(result) is types.CoroutineType else result

    one: Any = functools.update_wrapper(run_async if inspect.iscoroutinefunction(target) else run, target)
    vars(one).update(attributes or {})
    vars(one)[AGAIN] = Again(one, functools.partial(_bound, captured, bodies))
    return one


async def _awaited(context: contextvars.Context, coroutine: Any) -> Any:
    return await asyncio.get_running_loop().create_task(coroutine, context=context)


def _stepped(context: contextvars.Context, generator: Any) -> Any:
    """A generator each step of which runs in the context."""
    resume, said = generator.send, None
    while True:
        try:
            item = context.run(resume, said)
        except StopIteration as stop:
            return stop.value
        try:
            said, resume = (yield item), generator.send
        except GeneratorExit:
            context.run(generator.close)
            raise
        except BaseException as error:
            said, resume = error, generator.throw


async def _stepped_async(context: contextvars.Context, generator: Any) -> Any:
    """The same for an async generator."""
    step = generator.asend(None)
    while True:
        try:
            item = await _awaited(context, _whole(step))
        except StopAsyncIteration:
            return
        try:
            step = generator.asend((yield item))
        except GeneratorExit:
            await _awaited(context, _whole(generator.aclose()))
            raise
        except BaseException as error:
            step = generator.athrow(error)


async def _whole(step: Any) -> Any:
    """A task takes coroutines only."""
    return await step
