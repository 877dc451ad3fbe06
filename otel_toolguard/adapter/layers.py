"""One call that passes several guards on its way, such as those of a client, its session and a server: counted once.

The outermost guard counts. The others recognise the call by its tool and arguments or, where it reaches them in another
task, by a token that the request carries; they let it pass, and a decorator on the function behind it does, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter.answers import made_async
from otel_toolguard.callables import AnyOf
from otel_toolguard.place import here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator

    from otel_toolguard.adapter.answers import Answers
    from otel_toolguard.attempt import Attempt

_told: dict[str, Attempt] = {}  # by their tokens: calls that this process is making
_passing: set[tuple[int, Hashable]] = set()  # calls, by identity, and the layers that they are on their way through


async def once(
    layer: Hashable, name: str, arguments: Any, *, token: Any = None, admit: Callable[[], Attempt],
    answers: Callable[[Attempt], Answers], send: Callable[[Attempt], Awaitable[Any]],
) -> Any:  # fmt: skip
    """Makes a call through a layer, or answers why it was not made; what is counted further out is just made.

    Args:
        layer: Which guard it is; a call that comes through it again, while on its way through it, is another one.
        name: The tool's name at this layer, which an agent may know by a prefix.
        arguments: What the tool is asked with.
        token: What the request tells of the call, if it came with something.
        admit: Admits or refuses the call where nothing further out counts it.
        answers: Makes, of the call, what tells how it ended.
        send: Makes the call; given what counts it, here or further out.
    """
    outer = _counting(layer, name, arguments, token)
    if outer is not None:
        with _on_its_way(outer, layer):
            return await send(outer)
    attempt = admit()

    async def sent() -> Any:
        with _on_its_way(attempt, layer):
            return await send(attempt)

    return await made_async(attempt, answers(attempt), sent)


@contextmanager
def telling(token: str, attempt: Attempt) -> Iterator[None]:
    """Lets guards of this process know a call by the token that its request carries."""
    _told[token] = attempt
    try:
        yield
    finally:
        del _told[token]


def _counting(layer: Hashable, name: str, arguments: Any, token: Any) -> Attempt | None:
    found = _told.get(token) if isinstance(token, str) else None
    if found is None or not AnyOf(found.call.tool).covers(name):
        place = here.get()
        found = place.inside if place is not None else None
        if found is None or not AnyOf(found.call.tool).covers(name) or not _is_with(found.call.arguments, arguments):
            return None
    return None if (id(found), layer) in _passing else found


def _is_with(said: Any, arguments: Any) -> bool:
    given = arguments if isinstance(arguments, Mapping) else {}
    try:
        return isinstance(said, Mapping) and all(key in said and bool(said[key] == given[key]) for key in given)
    except Exception:  # values that refuse to be compared
        return False


@contextmanager
def _on_its_way(attempt: Attempt, layer: Hashable) -> Iterator[None]:
    """Notes that a call goes on through a layer, perhaps in another task than the one in which it is counted."""
    key, place = (id(attempt), layer), here.get()
    _passing.add(key)
    known = attempt.place is None or (place is not None and place.inside is attempt)
    entered = None if known else here.set(attempt)
    try:
        yield
    finally:
        _passing.discard(key)
        if entered is not None:
            with suppress(ValueError):  # a suspended call is closed from elsewhere: that context is none of ours
                here.reset(entered)
