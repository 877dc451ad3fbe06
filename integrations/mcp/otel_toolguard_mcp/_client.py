"""Guards the tool calls of a client: ``Client`` or ``ClientSession``."""

from __future__ import annotations

import hashlib
import inspect
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opentelemetry.propagate import inject

import otel_toolguard.adapter as kit
from otel_toolguard import SettingsError
from otel_toolguard_mcp._mapping import CALL, HELD, ClientAnswers, Tools, call_id, said

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard import Policy, Trip
    from otel_toolguard.telemetry import Telemetry

C = TypeVar("C")
_SECRET = secrets.token_bytes(16)


class Held(NamedTuple):
    """What a guarded client keeps: whose it is, for copies of a client are connections of their own."""

    owner: int
    runs: kit.FrameworkRuns
    run: str
    tools: Tools

    def place(self) -> kit.Place:
        """Where its calls are made: in the open block, else in a session that baggage names, or one of its own."""
        return kit.here.get() or self.runs.place(self.run, kit.session_in_context()[0])


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
    known = _held_by(client)
    if known is not None and all(given is None for given in (policy, on_trip, telemetry)):
        return client
    runs = kit.FrameworkRuns(policy, on_trip, telemetry)
    if known is not None:  # other rules for the same run
        vars(client)[HELD] = known._replace(runs=runs)
    else:
        _hold(client, Held(id(client), runs, secrets.token_hex(8), Tools()))
    return client


def raise_if_open(client: Any) -> None:
    """The gate for a model boundary between the calls of a guarded client; MCP itself knows of no model.

    Raises:
        SessionStopped: The run was stopped: the next tool call would raise it.
    """
    held = _held_by(client)
    trip = kit.at_model(held.place()) if held is not None else None
    if trip is not None:
        raise kit.SessionStopped(trip)


def _held_by(client: Any) -> Any:
    """What a guarded client keeps, None for others."""
    held = getattr(client, "__dict__", {}).get(HELD)
    if held is not None and held.owner != id(client):  # it is a copy
        held = vars(client)[HELD] = Held(id(client), held.runs, secrets.token_hex(8), Tools())
    return held


def _hold(client: Any, held: Held) -> None:
    kind = type(client)
    method = (
        "call_tool_mcp" if hasattr(kind, "call_tool_mcp") else "call_tool"
    )  # what returns the protocol's own result
    methods: dict[str, Any] = {method: _call, "list_tools": _list, "__aexit__": _leave, "session": _session}
    try:
        vars(client)[HELD] = held
        kit.overlay(client, {name: function for name, function in methods.items() if hasattr(kind, name)})
    except TypeError as error:
        raise SettingsError(f"{kind.__qualname__} cannot be guarded: {error}") from error


async def _call(inner: Any, client: Any, name: Any, arguments: Any = None, *rest: Any, **more: Any) -> Any:
    """Makes a call, or answers why it was not made."""
    held, meta = _held_by(client), more.get("meta")

    async def send(attempt: kit.Attempt) -> Any:
        run_of = f"{attempt.guard.session_id} {attempt.run_id}".encode("utf-8", "replace")
        opaque = hashlib.blake2b(run_of, digest_size=8, key=_SECRET).hexdigest()
        told = {CALL: f"{opaque}.{secrets.token_hex(8)}"}
        with kit.telling(told[CALL], attempt):
            if "meta" in inspect.signature(inner).parameters and (meta is None or isinstance(meta, Mapping)):
                inject(told)  # the SDK does that too, but not in every release and on every transport
                more["meta"] = {**told, **(meta or {})}
            return await inner(name, arguments, *rest, **more)

    if not isinstance(name, str):
        return await inner(name, arguments, *rest, **more)
    tool = held.tools.of(name)
    return await kit.once(
        id(client), name, arguments, answers=ClientAnswers, send=send,
        admit=lambda: tool.attempt(held.place(), said(arguments), call_id=call_id(meta)),
    )  # fmt: skip


async def _list(inner: Any, client: Any, *args: Any, **kwargs: Any) -> Any:
    """Notes what the tools are like."""
    listing = await inner(*args, **kwargs)
    _held_by(client).tools.note(listing)
    return listing


def _session(session: Any, client: Any) -> Any:
    """The session behind a client is no way round the guard."""
    if _held_by(session) is None:
        _hold(session, _held_by(client)._replace(owner=id(session)))
    return session


async def _leave(inner: Any, _client: Any, kind: Any, error: Any, trace: Any) -> Any:
    """Takes a stop out of the group that the SDK makes of whatever leaves the block."""
    try:
        return await inner(kind, error, trace)
    except BaseExceptionGroup as group:
        if isinstance(error, kit.CircuitOpen) and group.split(kit.CircuitOpen)[1] is None:
            raise error from None
        raise
