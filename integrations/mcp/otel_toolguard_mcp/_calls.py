"""One ``tools/call`` on either side: counted once, however many guards it passes on its way.

A client, its session, an in-process server and the function behind it may all be guarded, and so may the agent's tool
that makes the call. The outermost guard counts; the others recognise the call by its name and arguments, or by what
the ``_meta`` of the request tells, and pass it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter import Attempt, stop_in
from otel_toolguard.attempt import here
from otel_toolguard_mcp._mapping import advised, is_failed, refusal, settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from otel_toolguard.core.call import ToolCall

CALL = "otel-toolguard/call"  # in ``_meta``: "{run}.{call}", which say nothing but which run and call they are

live: dict[str, tuple[Attempt, frozenset[Any]]] = {}  # by that entry: calls that clients of this process are making
raised: ContextVar[list[BaseException] | None] = ContextVar("otel_toolguard_mcp.raised", default=None)
_passed: ContextVar[tuple[Attempt | None, frozenset[Any]]] = ContextVar(
    "otel_toolguard_mcp.passed", default=(None, frozenset())
)


def counting(name: str, arguments: Any, layer: Any, meta: Mapping[str, Any] | None = None) -> Attempt | None:
    """What counts this very call already, unless it came through this layer before: then this is one within it."""
    token = meta.get(CALL) if meta is not None else None
    told, layers = live.get(token, (None, frozenset())) if isinstance(token, str) else (None, frozenset())
    if told is not None and is_of(told.call, name):
        return None if layer in layers else told
    place = here.get()
    outer = place.inside if place is not None else None
    if outer is None or not is_of(outer.call, name) or not _is_with(outer.call, arguments):
        return None
    at, layers = _passed.get()
    return None if at is outer and layer in layers else outer


@contextmanager
def telling(told: str, attempt: Attempt) -> Iterator[None]:
    """Lets servers of this process know a call by what its request tells them."""
    live[told] = (attempt, _passed.get()[1])
    try:
        yield
    finally:
        del live[told]


@contextmanager
def passing(attempt: Attempt, layer: Any, token: Any = None) -> Iterator[None]:
    """Notes that a call goes on through a layer, perhaps in another task than the one in which it is counted."""
    at, layers = live[token] if isinstance(token, str) and token in live else _passed.get()
    passed = _passed.set((attempt, layers | {layer} if at is attempt else frozenset({layer})))
    place = here.get()
    entered = None if place is not None and place.inside is attempt else here.set(attempt)
    try:
        yield
    finally:
        with suppress(ValueError):  # a suspended call is closed from elsewhere: that context is none of ours
            _passed.reset(passed)
            if entered is not None:
                here.reset(entered)


async def run(attempt: Attempt, layer: Any, send: Callable[[], Awaitable[Any]]) -> Any:
    """Makes an admitted call."""
    attempt.enter()
    told: list[BaseException] = []  # what a server's tool raised, where its answer keeps that from the client
    try:
        with passing(attempt, layer), _hearing(told):
            answer = await send()
    except BaseException as error:
        attempt.leave()
        attempt.raised(stop_in(error) or error)
        raise
    attempt.leave()
    cause = (told[-1].__cause__ or told[-1]) if told and is_failed(answer) else None
    if cause is None:
        settle(attempt, answer)
        return advised(answer, attempt.nudges)
    attempt.raised(cause)
    opened = stop_in(cause)
    return advised(answer, attempt.nudges) if opened is None else refusal(opened)


def is_of(call: ToolCall, name: str) -> bool:
    """Whether it is a call of the tool of that name, which an agent may know by a prefix."""
    tool = call.tool
    return tool == name or bool(name and tool.endswith(name) and not tool[-len(name) - 1].isalnum())


def _is_with(call: ToolCall, arguments: Any) -> bool:
    said, given = call.arguments, arguments if isinstance(arguments, Mapping) else {}
    try:
        return isinstance(said, Mapping) and all(key in said and bool(said[key] == given[key]) for key in given)
    except Exception:  # values that refuse to be compared
        return False


@contextmanager
def _hearing(told: list[BaseException]) -> Iterator[None]:
    token = raised.set(told)
    try:
        yield
    finally:
        with suppress(ValueError):
            raised.reset(token)
