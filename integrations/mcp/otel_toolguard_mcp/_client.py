"""Guards the tool calls of a client: ``Client`` or ``ClientSession``."""

from __future__ import annotations

import functools
import hashlib
import inspect
import secrets
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opentelemetry.propagate import inject

from otel_toolguard.adapter import CircuitOpen, FrameworkRuns, SessionStopped, at_model
from otel_toolguard.attempt import here
from otel_toolguard.errors import SettingsError
from otel_toolguard.telemetry.context import session_in_context
from otel_toolguard_mcp._calls import CALL, counting, passing, run, telling
from otel_toolguard_mcp._mapping import Catalogue, call_id, refusal, said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_toolguard import Policy, Trip
    from otel_toolguard.adapter import Attempt, Place
    from otel_toolguard.telemetry import Telemetry

C = TypeVar("C")
HELD = "_toolguard"
_SECRET = secrets.token_bytes(16)


class Held(NamedTuple):
    """What a guarded client keeps: whose it is, for copies of a client are connections of their own."""

    owner: int
    runs: FrameworkRuns
    run: str
    catalogue: Catalogue

    def place(self) -> Place:
        """Where its calls are made: in the open block, else in a session that baggage names, or one of its own."""
        return here.get() or self.runs.place(self.run, session_in_context()[0])


def guard_client(
    client: C, policy: Policy | None = None, *, on_trip: Callable[[Trip], Any] | None = None,
    telemetry: Telemetry | None = None,
) -> C:  # fmt: skip
    """Guards every tool call of a client: a refusal is an ``is_error`` result, a stop raises from ``call_tool``.

    Args:
        client: A ``Client`` or ``ClientSession``, connected or not; it is changed and stays the same object.
        policy: The rules outside any open ``Session``, where W3C baggage may name one and else the connection is a
            session of its own. None takes environment, file and default profile.
        on_trip: Called with the ``Trip`` of each circuit that opens in that session.
        telemetry: Where its spans go; None is the process's OpenTelemetry providers.

    Raises:
        SettingsError: It is no client, or one that cannot be changed.
    """
    if not inspect.iscoroutinefunction(getattr(type(client), "call_tool", None)):
        raise SettingsError(f"guard_client takes a Client or ClientSession, not {type(client).__name__}")
    held = _held_by(client) if HELD in vars(client) else None
    if held is not None and all(given is None for given in (policy, on_trip, telemetry)):
        return client
    runs = FrameworkRuns(policy, on_trip, telemetry)
    if held is not None:  # other rules for the same run
        return _hold(client, held._replace(runs=runs))
    return _hold(client, Held(id(client), runs, secrets.token_hex(8), Catalogue()))


def raise_if_open(client: Any) -> None:
    """The gate for a model boundary between the calls of a guarded client; MCP itself knows of no model.

    Raises:
        SessionStopped: The run was stopped: the next tool call would raise it.
    """
    trip = at_model(_held_by(client).place()) if HELD in vars(client) else None
    if trip is not None:
        raise SessionStopped(trip)


def _held_by(client: Any) -> Held:
    """What a guarded client keeps; a copy of a client is a connection of its own."""
    held: Held = vars(client)[HELD]
    if held.owner != id(client):
        held = vars(client)[HELD] = Held(id(client), held.runs, secrets.token_hex(8), Catalogue())
    return held


async def _through(
    held: Held, layer: Any, inner: Any, name: Any, arguments: Any = None, *rest: Any, **more: Any
) -> Any:
    """Makes a call, or answers why it was not made; ``inner`` makes it without the guard."""
    if not isinstance(name, str):
        return await inner(name, arguments, *rest, **more)
    outer = counting(name, arguments, layer)
    if outer is not None:
        with passing(outer, layer), _telling(outer, inner, more):
            return await inner(name, arguments, *rest, **more)
    attempt = held.catalogue.tool(name).attempt(held.place(), said(arguments), call_id=call_id(more.get("meta")))
    if attempt.refused is not None:
        error = attempt.error()
        if isinstance(error, SessionStopped):
            raise error
        return refusal(error)

    async def send() -> Any:
        with _telling(attempt, inner, more):
            return await inner(name, arguments, *rest, **more)

    return await run(attempt, layer, send)


@contextmanager
def _telling(attempt: Attempt, inner: Any, more: dict[str, Any]) -> Iterator[None]:
    """Tells the server which run and call it is, and of which trace; what the caller says himself is left alone."""
    meta = more.get("meta")
    known = _takes_meta(getattr(inner, "__func__", inner)) and (meta is None or isinstance(meta, Mapping))
    run_of = f"{attempt.guard.session_id} {attempt.run_id}".encode("utf-8", "replace")
    opaque = hashlib.blake2b(run_of, digest_size=8, key=_SECRET).hexdigest()
    told = f"{opaque}.{secrets.token_hex(8)}"
    if known:
        more["meta"] = {CALL: told}
        inject(more["meta"])  # the SDK does that too, but not in every release and on every transport
        more["meta"].update(meta or {})
    with telling(told, attempt):
        yield


def _method_of(kind: type) -> str:
    """The method of a client's class that returns the protocol's own result."""
    return "call_tool_mcp" if hasattr(kind, "call_tool_mcp") else "call_tool"


def _hold(client: C, held: Held) -> C:
    kind: Any = type(client)
    try:
        vars(client)[HELD] = held
        if not hasattr(kind, "__toolguard__"):
            client.__class__ = _guarded(kind)
    except TypeError as error:
        raise SettingsError(f"{kind.__qualname__} cannot be guarded: {error}") from error
    return client


@functools.cache
def _guarded(kind: Any) -> Any:
    """A subclass whose calls are guarded, named like the class itself."""
    method = _method_of(kind)

    @functools.wraps(getattr(kind, method))
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        inner = getattr(super(made, self), method)
        return await _through(_held_by(self), (id(self), made), inner, *args, **kwargs)

    @functools.wraps(kind.list_tools)
    async def list_tools(self: Any, *args: Any, **kwargs: Any) -> Any:
        listing = await super(made, self).list_tools(*args, **kwargs)
        _held_by(self).catalogue.note(listing)
        return listing

    def session(self: Any) -> Any:
        inner, held = super(made, self).session, _held_by(self)
        return inner if vars(inner).get(HELD) else _hold(inner, held._replace(owner=id(inner)))

    async def __aexit__(self: Any, kind: Any, error: Any, trace: Any) -> Any:  # noqa: N807
        try:
            return await super(made, self).__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:  # made by the SDK of whatever leaves the block
            if isinstance(error, CircuitOpen) and group.split(CircuitOpen)[1] is None:
                raise error from None
            raise

    body = {method: call, "list_tools": list_tools, "__toolguard__": True, "__doc__": kind.__doc__}
    if hasattr(kind, "__aexit__"):
        body["__aexit__"] = __aexit__
    if isinstance(getattr(kind, "session", None), property):
        body["session"] = property(session)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made = type(kind)(kind.__name__, (kind,), {**body, **names})
    return made


@functools.cache
def _takes_meta(function: Any) -> bool:
    return "meta" in inspect.signature(function).parameters
