"""The command ``mcp-proxy`` between real clients and real servers, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import mcp
import pytest
from mcp.client.stdio import stdio_client

from . import hosts as h

try:
    import fastmcp
    from fastmcp.client.transports import StdioTransport
except ImportError:  # not among the oldest releases that are tested
    fastmcp = None

HERE = Path(__file__)
COMMAND = (sys.executable, "-W", "ignore", "-c", "from otel_toolguard.cli import main; main()", "mcp-proxy")
LIMIT = 3
SDK = """
import sys
try:
    from mcp.server.mcpserver import Context, MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP as Server
server = Server("proxied")
"""
FASTMCP = """
import sys
from fastmcp import Context, FastMCP as Server
server = Server("proxied")
"""
TOOLS = """
bodies = [0]
@server.tool()
def search(q: str = "word") -> str:
    "Looks something up."
    bodies[0] += 1
    return f"nothing about {q}"
@server.tool()
def ran() -> str:
    "How often search ran."
    return str(bodies[0])
@server.tool()
def broken(n: int) -> str:
    "Fails."
    raise ValueError(f"no {n}")
@server.tool()
async def steps(ctx: Context) -> str:
    "Tells how far it is."
    for number in range(3):
        await ctx.report_progress(number + 1, 3)
    return "done"
"""
RUN = {
    "stdio": 'server.run("stdio")',
    "http": """
import logging, socket, uvicorn
logging.disable()
app = getattr(server, "streamable_http_app", None) or server.http_app
with socket.create_server(("127.0.0.1", 0)) as one:
    print(one.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app(), log_level="critical")).run([one])
""",
}
SERVERS = {"sdk": SDK} | ({"fastmcp": FASTMCP} if fastmcp is not None else {})


@pytest.fixture(params=list(SERVERS))
def program(request, tmp_path):
    """A server's program, but for how it is reached."""
    return SERVERS[request.param] + TOOLS


def environment(folder):
    """Settings by which three equal answers are a loop."""
    config = folder / "guard.toml"
    config.write_text(f'[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = {LIMIT}\n', encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
    return kept | {
        "TOOLGUARD_CONFIG": str(config),
        "FASTMCP_SHOW_SERVER_BANNER": "false",
        "FASTMCP_LOG_LEVEL": "CRITICAL",
    }


def saved(folder, program, way):
    """The program as a file."""
    path = folder / f"server_{way}.py"
    path.write_text(program + RUN[way], encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def at_address(folder, program):
    """The server on HTTP; its address."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", saved(folder, program, "http")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(folder),
    ) as process:  # fmt: skip
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


@contextlib.contextmanager
def proxy_options(folder, program, way):
    """What the proxy is told, so that it reaches the server in that way."""
    if way == "stdio":
        yield ["--", sys.executable, "-W", "ignore", saved(folder, program, "stdio")]
    else:
        with at_address(folder, program) as url:
            yield ["--url", url]


@contextlib.asynccontextmanager
async def client_of(options, folder, log, **more):
    """The SDK's client of the proxy."""
    of = mcp.StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options], env=environment(folder))
    async with stdio_client(of, errlog=log) as (read, write), mcp.ClientSession(read, write, **more) as session:
        await session.initialize()
        yield session


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_loop_of_the_sdks_client_is_stopped(way, program, tmp_path):
    """Refused calls are error results with the reason, never reach the server, and the connection lives on."""

    async def ask():
        with proxy_options(tmp_path, program, way) as options, (tmp_path / "log").open("w") as log:
            async with client_of(options, tmp_path, log) as session:
                tools = {tool.name for tool in (await session.list_tools()).tools}
                found = [await session.call_tool("search", {"q": "word"} if n % 2 else {}) for n in range(LIMIT + 2)]
                await session.send_ping()
                return tools, found

    tools, found = asyncio.run(ask())
    assert tools == {"search", "ran", "broken", "steps"}
    assert [h.failed(result) for result in found] == [False] * LIMIT + [True] * 2
    assert h.text(found[0]) == "nothing about word"
    body = json.loads(h.text(found[-1]))
    assert (body["error"], body["rule"], body["executed"]) == ("circuit_open", "repeat_guard", False)
    assert (getattr(found[-1], "structured_content", None) or found[-1].structuredContent) == body
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "otel-toolguard: " in said


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_progress_reaches_the_client(way, program, tmp_path):
    """Notifications of a running call arrive before its result."""
    told = []

    async def note(progress, total, message):
        told.append((progress, total))

    async def ask():
        with proxy_options(tmp_path, program, way) as options, (tmp_path / "log").open("w") as log:
            async with client_of(options, tmp_path, log) as session:
                return h.text(await session.call_tool("steps", {}, progress_callback=note))

    assert asyncio.run(ask()) == "done"
    if h.NEW or way == "stdio":  # older servers tell it on another stream, which nobody orders with the answer
        assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_what_a_server_says_is_what_a_direct_client_hears(way, program, tmp_path):
    """Listing, results and errors are the same objects with the proxy and without it."""

    async def heard(options):
        with (tmp_path / "log").open("w") as log:
            async with client_of(options, tmp_path, log) as session:
                answers = [await session.list_tools(), await session.call_tool("search", {"q": "x"})]
                answers += [await session.call_tool("broken", {"n": 1}), await session.call_tool("search", {"q": 7})]
                answers += [await session.list_resources(), await session.list_prompts()]
                return [answer.model_dump() for answer in answers]

    async def direct():
        path = saved(tmp_path, program, "stdio")
        of = mcp.StdioServerParameters(command=sys.executable, args=["-W", "ignore", path], env=environment(tmp_path))
        with (tmp_path / "log").open("w") as log:
            async with stdio_client(of, errlog=log) as (read, write), mcp.ClientSession(read, write) as session:
                await session.initialize()
                answers = [await session.list_tools(), await session.call_tool("search", {"q": "x"})]
                answers += [await session.call_tool("broken", {"n": 1}), await session.call_tool("search", {"q": 7})]
                answers += [await session.list_resources(), await session.list_prompts()]
                return [answer.model_dump() for answer in answers]

    with proxy_options(tmp_path, program, way) as options:
        assert asyncio.run(heard(options)) == asyncio.run(direct())


@contextlib.contextmanager
def listening(folder, url):
    """The proxy with HTTP on both sides; its address."""
    with subprocess.Popen(
        [*COMMAND, "--url", url, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True, env=environment(folder)
    ) as process:
        try:
            yield re.search(r"http://\S+", process.stderr.readline())[0]
        finally:
            process.kill()


MODES = ["legacy", "auto"]


@pytest.mark.skipif(not h.NEW, reason="releases before 2 have no such client")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["stdio", "http", "http on both sides"])
def test_the_new_client_with_and_without_a_handshake(mode, way, program, tmp_path):
    """With the protocol that has sessions and with the one that has none, a loop is stopped and other calls pass."""

    async def search(client):
        found = [await client.call_tool("search", {}) for _ in range(LIMIT + 2)]
        return [h.failed(result) for result in found], [await client.list_tools()]

    async def ask():
        with contextlib.ExitStack() as stack:
            if way == "http on both sides":
                url = stack.enter_context(at_address(tmp_path, program))
                of = stack.enter_context(listening(tmp_path, url))
            else:
                options = stack.enter_context(proxy_options(tmp_path, program, way))
                of = mcp.StdioServerParameters(
                    command=COMMAND[0], args=[*COMMAND[1:], *options], env=environment(tmp_path)
                )
            async with mcp.Client(of, mode=mode) as client:
                return await search(client)

    failed, (listing,) = asyncio.run(ask())
    assert failed == [False] * LIMIT + [True] * 2
    assert len(listing.tools) == 4


@pytest.mark.skipif(fastmcp is None, reason="the package fastmcp is not there")
@pytest.mark.parametrize("way", ["stdio", "http", "http on both sides"])
def test_the_client_of_fastmcp(way, program, tmp_path):
    """A refusal is what that client makes of an error result: an exception, or the result itself if that is wanted."""

    async def ask():
        with contextlib.ExitStack() as stack:
            if way == "http on both sides":
                of = stack.enter_context(listening(tmp_path, stack.enter_context(at_address(tmp_path, program))))
            else:
                options = stack.enter_context(proxy_options(tmp_path, program, way))
                of = StdioTransport(COMMAND[0], [*COMMAND[1:], *options], env=environment(tmp_path), keep_alive=False)
            async with fastmcp.Client(of) as client:
                for _ in range(LIMIT):
                    assert (await client.call_tool("search", {})).content[0].text == "nothing about word"
                with pytest.raises(fastmcp.exceptions.ToolError, match="circuit_open"):
                    await client.call_tool("search", {})
                return await client.call_tool("search", {}, raise_on_error=False)

    result = asyncio.run(ask())
    assert result.structured_content["rule"] == "repeat_guard"


def test_a_client_that_leaves_takes_the_server_with_it(tmp_path):
    """When the client is done, proxy and server have ended, by themselves and within the client's own patience."""
    mark = tmp_path / "pids"
    program = SDK + TOOLS + f"import os, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\n"

    async def ask():
        with proxy_options(tmp_path, program, "stdio") as options, (tmp_path / "log").open("w") as log:
            async with client_of(options, tmp_path, log) as session:
                await session.call_tool("search", {})

    asyncio.run(ask())
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    assert "Traceback" not in (tmp_path / "log").read_text()
