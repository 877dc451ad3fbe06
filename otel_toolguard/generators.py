"""Generators under guard: iterated as they are, and settled when they are exhausted or closed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.canonical import MASK_LIMIT, canonical

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from otel_toolguard.attempt import Attempt


class _Heard:
    """What a generator said, in bounded memory: the first 16 KiB as they are, the rest as a digest."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._room = MASK_LIMIT
        self._rest = hashlib.blake2b(digest_size=16)
        self._count = 0

    def add(self, item: Any) -> None:
        text = canonical(item).text
        self._count += 1
        self._room -= len(text)
        if self._room >= 0:
            self._items.append(item)
        else:
            self._rest.update(text.encode("utf-8", "surrogatepass") + b"\0")

    def said(self, answer: Any = None) -> list[Any]:
        return [self._items, self._count, self._rest.hexdigest(), answer]


def through(attempt: Attempt, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Yields what the generator yields and hands on what is sent, thrown and closed.

    The call is current while the generator's own code runs, never across a yield.
    """
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
                generator.close()
                raise
            except BaseException as error:
                said, resume = error, generator.throw
    except StopIteration as stop:
        attempt.returned(heard.said(stop.value))
        return stop.value
    except BaseException as error:
        attempt.raised(error)
        raise


async def through_async(attempt: Attempt, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """The same for an async generator."""
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
                await generator.aclose()
                raise
            except BaseException as error:
                said, resume = error, generator.athrow
    except StopAsyncIteration:
        attempt.returned(heard.said())
    except BaseException as error:
        attempt.raised(error)
        raise
