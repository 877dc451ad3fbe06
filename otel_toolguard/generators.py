"""Generators and awaitables under guard: used as they are, and settled when they are at their end."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.canonical import canonical
from otel_toolguard.core.masks import MASK_LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from otel_toolguard.attempt import Attempt
    from otel_toolguard.core.decision import Refuse
    from otel_toolguard.errors import CircuitOpen

    Begin = Callable[[], "Attempt | Uncounted | None"]


_UNMASKED = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")  # a digest in hex would be masked as an id


class _Heard:
    """What a generator said, in bounded memory: the first 16 KiB as they are, the rest as a digest."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._room = MASK_LIMIT
        self._rest = hashlib.blake2b(digest_size=16)
        self._count = 0
        self._whole = True

    def add(self, item: Any) -> None:
        text, whole = canonical(item)
        self._whole = self._whole and whole
        self._count += 1
        self._room -= len(text)
        if self._room >= 0:
            self._items.append(item)
        else:
            self._rest.update(text.encode("utf-8", "surrogatepass") + b"\0")

    def said(self, answer: Any = None) -> list[Any]:
        if not self._whole:  # nor may it be compared, be the rest equal or not
            return [self._items, self._count, object()]
        return [self._items, self._count, self._rest.hexdigest().translate(_UNMASKED), answer]


class Uncounted:
    """Stands for the attempt of a call that somebody else counts, or that the guard failed to look at."""

    refused: Refuse | None = None
    nudges: tuple[str, ...] = ()

    def error(self) -> CircuitOpen:
        """Never asked for: the call is not refused."""
        raise RuntimeError("the call was not refused")

    def enter(self) -> None:
        """Leaves the call around it the current one."""

    leave = enter

    def returned(self, result: Any) -> None:
        """Settles nothing."""

    def raised(self, error: BaseException) -> None:
        """Settles nothing."""

    def put_off(self, later: Any) -> None:
        """Settles nothing."""


def through(begin: Begin, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Yields what the generator yields and hands on what is sent, thrown and closed.

    The call begins with the first step. It is current while the generator's own code runs, never across a yield.

    Args:
        begin: Admits the call; None where an adapter counts it already.
        generator: Fresh, as the tool's body made it.
    """
    attempt = begin()
    if attempt is None:
        return (yield from generator)
    if attempt.refused is not None:
        raise attempt.error()
    heard = _Heard()
    resume, said = generator.send, None
    try:
        while True:
            attempt.enter()
            try:
                item = resume(said)
            finally:
                attempt.leave()
            heard.add(item)
            try:
                said, resume = (yield item), generator.send
            except GeneratorExit:
                attempt.enter()
                try:
                    generator.close()
                finally:
                    attempt.leave()
                raise
            except BaseException as error:
                said, resume = error, generator.throw
            item = None  # not kept while the next one is made
    except StopIteration as stop:
        attempt.returned(heard.said(stop.value))
        return stop.value
    except BaseException as error:
        attempt.raised(error)
        raise


async def through_async(begin: Begin, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """The same for an async generator."""
    attempt = begin() or Uncounted()
    if attempt.refused is not None:
        raise attempt.error()
    heard = _Heard()
    resume: Any = generator.asend
    said: Any = None
    try:
        while True:
            attempt.enter()
            try:
                item = await resume(said)
            finally:
                attempt.leave()
            heard.add(item)
            try:
                said, resume = (yield item), generator.asend
            except GeneratorExit:
                attempt.enter()
                try:
                    await generator.aclose()
                finally:
                    attempt.leave()
                raise
            except BaseException as error:
                said, resume = error, generator.athrow
            item = None
    except StopAsyncIteration:
        attempt.returned(heard.said())
    except BaseException as error:
        attempt.raised(error)
        raise


async def settle_later(attempt: Attempt | Uncounted, result: Awaitable[Any]) -> Any:
    """For a sync function that returned an awaitable: the call is over when that is."""
    attempt.enter()
    try:
        answer = await result
    except BaseException as error:
        attempt.leave()
        attempt.raised(error)
        raise
    attempt.leave()
    attempt.returned(answer)
    return answer


def settle_future(attempt: Attempt | Uncounted, future: Any) -> None:
    """For a sync function that returned a future or task: called when that is done."""
    if future.cancelled():
        attempt.raised(asyncio.CancelledError())
        return
    # Not exception(): asking counts as having retrieved it, and silences asyncio about one that nobody did.
    error = getattr(future, "_exception", None)
    if error is not None:
        attempt.raised(error)
    else:
        attempt.returned(future.result())
