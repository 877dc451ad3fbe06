"""Generators under guard: iterated as they are, and settled when they are exhausted or closed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.canonical import MASK_LIMIT, canonical

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from otel_toolguard.attempt import Attempt

    Begin = Callable[[], Attempt | None]


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
        return [self._items, self._count, self._rest.hexdigest(), answer]


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
    attempt = begin() or _Elsewhere()
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


class _Elsewhere:
    """Stands for the attempt of a call that an adapter counts: an async generator cannot delegate to another."""

    refused = None

    def enter(self) -> None:
        """Leave the adapter's call the current one."""

    def leave(self) -> None:
        """Likewise."""

    def returned(self, result: Any) -> None:
        """Leave it to the adapter."""

    def raised(self, error: BaseException) -> None:
        """Likewise."""
