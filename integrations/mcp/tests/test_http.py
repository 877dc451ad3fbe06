"""Client and server over streamable HTTP on the loopback interface, with sessions of the transport and without."""

from __future__ import annotations

import asyncio
import gc
import secrets
import warnings
from contextlib import asynccontextmanager

import mcp
import pytest
import uvicorn
from otel_toolguard_mcp import guard_client, guard_server

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.calls import warned
from otel_toolguard.testing import capture_spans

from . import hosts as h

try:
    from mcp.client.streamable_http import streamable_http_client as transport
except ImportError:  # older releases of 1.x
    from mcp.client.streamable_http import streamablehttp_client as transport

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _swept():
    """Early releases leave streams open, of which Python would complain in some later test."""
    yield
    gc.collect()


def serving(**more):
    """A server of one tool, and what has run."""
    ran = []

    def search(q: str = "word") -> str:
        """Looks something up."""
        ran.append(q)
        return f"nothing about {q}"

    server = h.MCPServer("tools", **more)
    server.add_tool(search)
    return server, ran


@asynccontextmanager
async def served(server, *, sessionless=False):
    """The address of a server that listens on a free port of this machine."""
    if h.NEW:
        app = server.streamable_http_app(stateless_http=sessionless)
    else:
        server.settings.stateless_http = sessionless
        app = server.streamable_http_app()
    listener = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", ws="none"))
    task = asyncio.create_task(listener.serve())
    while not listener.started:
        assert not task.done()
        await asyncio.sleep(0.001)
    yield f"http://127.0.0.1:{listener.servers[0].sockets[0].getsockname()[1]}/mcp"
    listener.should_exit = True
    await task


@asynccontextmanager
async def connected(url, way, guard=lambda client: client):
    """A client of what is at an address."""
    if way != "session":
        async with guard(mcp.Client(url, mode="legacy" if way == "legacy client" else "auto")) as client:
            yield client
        return
    async with transport(url) as (read, write, *_), mcp.ClientSession(read, write) as session:
        await session.initialize()
        yield guard(session)


async def calls(client, number, **more):
    """Of calls of the tool with ever other arguments whether each was refused, by whichever side."""
    found = []
    for n in range(number):
        try:
            found.append("circuit_open" in h.text(await client.call_tool("search", {"q": str(n)}, **more)))
        except CircuitOpen:
            found.append(True)
    return found


@pytest.mark.parametrize("way", h.WAYS)
def test_client_is_stopped(way):
    """A guarded client stops before the server is asked, and the server's side is in the trace of the client's call."""

    async def ask():
        server, ran = serving()
        with capture_spans() as captured, Session(policy=h.ceiling(3)):
            async with served(guard_server(server)) as url, connected(url, way, guard_client) as client:
                found = await calls(client, 5)
        return found, len(ran), len(captured.spans("search"))

    assert asyncio.run(ask()) == ([False] * 3 + [True] * 2, 3, 5)


@pytest.mark.parametrize("way", [way for way in h.WAYS if way != "client"])
def test_transports_session_is_a_connection(way):
    """Where the transport has sessions each client has limits of its own, over all its requests."""

    async def ask():
        server, ran = serving()
        async with served(guard_server(server, h.ceiling(2))) as url:
            found = []
            for _ in range(2):
                async with connected(url, way) as client:
                    found.append(await calls(client, 3))
        return found, len(ran)

    assert asyncio.run(ask()) == ([[False, False, True]] * 2, 4)


KEYS = {
    "an entry of the metadata": {"app/conversation": "{}"},
    "baggage": {"baggage": "session.id={}"},
    "a guarded client's run": {"otel-toolguard/call": "{}.1"},
    "the caller's trace": {"traceparent": "00-{}-00f067aa0ba902b7-01"},
}


@pytest.mark.parametrize("named", KEYS)
@pytest.mark.parametrize("way", h.WAYS)
def test_sessionless_requests_are_counted_together(way, named):
    """Without sessions of the transport, calls of several connections that name the same thing share a ceiling."""

    async def ask():
        server, ran = serving()
        guard_server(server, h.ceiling(3), meta_key="app/conversation")
        async with served(server, sessionless=True) as url:
            found = []
            for name in (secrets.token_hex(16), secrets.token_hex(16)):
                meta = {key: value.format(name) for key, value in KEYS[named].items()}
                for number in (2, 2):
                    async with connected(url, way) as client:
                        found.append(await calls(client, number, meta=meta))
        return found, len(ran)

    assert asyncio.run(ask()) == ([[False, False], [False, True]] * 2, 6)


@pytest.mark.parametrize("way", h.WAYS)
def test_sessionless_requests_that_nobody_can_place(way):
    """Where nothing names what a call belongs to it is traced, not limited, and that is said once."""

    async def ask():
        server, ran = serving()
        at = served(guard_server(server, h.ceiling(1)), sessionless=True)
        async with at as url, connected(url, way) as client:
            return await calls(client, 3), len(ran)

    warned.discard("search")
    with capture_spans() as captured, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert asyncio.run(ask()) == ([False] * 3, 3)
    assert captured.outcomes() == ["ok"] * 3
    assert "search" in warned


@pytest.mark.skipif(not h.NEW, reason="tokens of 1.x may have no subject")
@pytest.mark.parametrize("sessionless", [False, True])
def test_subject_of_a_token_is_a_session(sessionless):
    """Authenticated calls of one subject share a ceiling over connections, whatever they say; others have their own."""
    import httpx2
    from mcp.server.auth.provider import AccessToken
    from mcp.server.auth.settings import AuthSettings

    class Verifier:
        async def verify_token(self, token):
            return AccessToken(token=token, client_id=application, scopes=[], subject=token)

    application = secrets.token_hex(4)

    async def ask():
        own = "http://127.0.0.1"
        auth = AuthSettings(issuer_url=own, resource_server_url=own, validate_token_resource=False)
        server, ran = serving(token_verifier=Verifier(), auth=auth)
        guard_server(server, h.ceiling(session=3))
        found = []
        async with served(server, sessionless=sessionless) as url:
            for subject in ("ann", "ann", "bob"):
                header = {"Authorization": f"Bearer {subject}"}
                async with (
                    httpx2.AsyncClient(headers=header) as http,
                    mcp.Client(transport(url, http_client=http)) as one,
                ):
                    meta = {"baggage": f"session.id={secrets.token_hex(4)}"}
                    found.append(await calls(one, 2, meta=meta))
        return found, len(ran)

    assert asyncio.run(ask()) == ([[False, False], [False, True], [False, False]], 5)
