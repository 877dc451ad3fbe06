"""``otel-toolguard mcp-proxy``: guards any MCP server for any client, without touching either."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from otel_toolguard.cli.mcp_export import exporting
from otel_toolguard.cli.mcp_gate import Gate
from otel_toolguard.cli.mcp_judge import Judge
from otel_toolguard.errors import SettingsError
from otel_toolguard.session import Session, default_policy, default_telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_toolguard.telemetry import Telemetry

_NEITHER = "mcp-proxy guards a server: name its command after --, or its address with --url"
_BOTH = "mcp-proxy guards one server: give a command or --url, not both"
_NOT_LISTENING = "--listen passes on to an address: it needs --url"


def mcp_proxy(
    command: Sequence[str], *, url: str | None = None, listen: str | None = None, session: str | None = None,
    headers: Sequence[str] = (), carry: bool = True, structured: bool = True, pause: float | None = None,
) -> int:  # fmt: skip
    """Runs the proxy; returns the server's exit code where the server is a command.

    Args:
        command: The server's command and its arguments.
        url: The server's address instead.
        listen: Where clients connect by HTTP; None for one client on the standard streams.
        session: The name of the session of all connections; None for one of its own per connection.
        headers: "Name: value" for the server at ``url``; variables of the environment are filled in.
        carry: Whether trace context is put into requests.
        structured: Whether a refusal has its body also as structured content.
        pause: Seconds without a call after which the next one begins a new run.

    Raises:
        SettingsError: What was asked for cannot be done.
    """
    if bool(command) == (url is not None):
        raise SettingsError(_BOTH if command else _NEITHER)
    if listen is not None and url is None:
        raise SettingsError(_NOT_LISTENING)
    sent = _parsed(headers)
    _log_to_stderr()
    policy = default_policy()
    of_process = default_telemetry(policy.mode)
    run = _stdio(command) if url is None else _http(url, sent) if listen is None else None
    telemetry: Telemetry | None = None
    finish: Callable[[], object] = lambda: None  # noqa: E731
    if of_process is not None:
        telemetry, finish = exporting(of_process, policy.mode)

    def judge() -> Judge:
        return Judge(Session(session, policy=policy, telemetry=telemetry), pause=pause, structured=structured)

    try:
        if run is not None:
            return _one(run, judge(), carry)
        from otel_toolguard.cli.mcp_connections import Connections
        from otel_toolguard.cli.mcp_listen import serve
        from otel_toolguard.cli.mcp_upstream import Upstream

        connections = Connections(judge, carry=carry, named=session is not None)
        return serve(listen or "", Upstream(url or ""), connections, sent)
    finally:
        finish()


def _stdio(command: Sequence[str]) -> Callable[[Gate], int]:
    """Starts the server, so that it gets ready while we do."""
    from otel_toolguard.cli.mcp_stdio import Server, StdioProxy

    server = Server(command)
    return lambda gate: StdioProxy(server, gate).run()


def _http(url: str, headers: Mapping[str, str]) -> Callable[[Gate], int]:
    from otel_toolguard.cli.mcp_http import HttpProxy
    from otel_toolguard.cli.mcp_upstream import Upstream

    upstream = Upstream(url)
    return lambda gate: HttpProxy(upstream, gate, headers).run()


def _one(run: Callable[[Gate], int], judge: Judge, carry: bool) -> int:
    """Runs the proxy of one connection, and ends its run."""
    gate = Gate(judge, carry=carry)
    try:
        return run(gate)
    finally:
        gate.close()
        judge.close()


def leave(code: int) -> NoReturn:
    """Exits at once: threads that wait for a client or a server must not be waited for."""
    sys.stderr.flush()
    os._exit(code)


def _parsed(headers: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in headers:
        name, colon, value = each.partition(":")
        value = os.path.expandvars(value.strip())
        if not colon or not name.strip().isascii() or not value.isprintable():
            raise SettingsError('--header: one looks like "Authorization: Bearer $TOKEN"')  # its value may be a secret
        found[name.strip()] = value
    return found


def _log_to_stderr() -> None:
    """Standard output is the protocol's; what is said goes beside it, once."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="otel-toolguard: %(message)s")
