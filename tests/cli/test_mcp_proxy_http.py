"""The proxy before a scripted server that speaks streamable HTTP: the client on standard streams, or on HTTP too."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from otel_toolguard.cli.mcp_connections import Connections

from .mcp_proxied import REPEAT, refused

SESSION = "Mcp-Session-Id"


class _Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers.items()), body))
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            self._say(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}')
            return
        if "id" not in message or "method" not in message:
            self._say(202, b"")
            return
        given, name = message["id"], message["method"]
        name = message["params"]["name"] if name == "tools/call" else name
        result = (
            {"protocolVersion": "2025-06-18"} if name == "initialize" else {"content": [{"type": "text", "text": "x"}]}
        )
        answer = json.dumps({"jsonrpc": "2.0", "id": given, "result": result}).encode()
        if name == "stream":
            note = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}'
            self._stream(
                b": hello\r\n\r\n", b"id: 7\nevent: message\ndata: " + note + b"\n\n", b"data: " + answer + b"\r\n\r\n"
            )
        elif name == "broken":
            self._stream(b"data: {}\n\n")
        elif name == "resumed":
            self.server.later = answer
            self._stream(b"id: 41\nretry: 0\ndata: {}\n\n")
        elif name == "missing":
            self._say(404, b"no such page", "text/plain")
        elif name == "silent":
            self._say(202, b"")
        else:
            self._say(200, answer.replace(b", ", b",\n "))

    def do_GET(self):
        self.server.got.append((dict(self.headers.items()), b"GET"))
        if self.headers.get("Last-Event-ID") == "41":
            self._stream(b"data: " + self.server.later + b"\n\n")
        elif self.server.speaks:
            self.server.speaks = False
            self._stream(b'data: {"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}\n\n')
        else:
            self._say(405, b"")

    def do_DELETE(self):
        self.server.got.append((dict(self.headers.items()), b"DELETE"))
        self._say(200, b"")

    def _say(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if self.server.names:
            self.send_header(SESSION, "s-1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, *events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (*events, b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server; what it got is kept."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    made.daemon_threads = True
    made.got, made.speaks, made.names = [], False, True
    made.url = f"http://127.0.0.1:{made.server_address[1]}/mcp"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@contextlib.contextmanager
def proxied(folder, *options):
    """The proxy as a process."""
    config = folder / "guard.toml"
    config.write_text(REPEAT, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
    with subprocess.Popen(
        [sys.executable, "-c", "from otel_toolguard.cli import main; main()", "mcp-proxy", *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kept | {"TOOLGUARD_CONFIG": str(config)},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ask(process, method, given=1, **params):
    """Sends a request on standard input, returns the next line of output."""
    message = {"jsonrpc": "2.0", "method": method, **({} if given is None else {"id": given}), "params": params}
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    return None if given is None else json.loads(process.stdout.readline())


def ended(process):
    """Ends the client's side; the exit code and what was left."""
    out, err = process.communicate()
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out


def test_a_client_on_standard_streams(server, tmp_path):
    """Answers in one piece and as streams arrive a line each, a loop is stopped, and the session's name is kept."""
    with proxied(tmp_path, "--url", server.url, "--header", "X-Key: $HOME") as process:
        assert ask(process, "initialize")["result"]["protocolVersion"] == "2025-06-18"
        ask(process, "notifications/initialized", None)
        answers = [ask(process, "tools/call", number, name="search", arguments={}) for number in range(4)]
        assert [refused(answer) for answer in answers] == [False, False, False, True]
        assert ask(process, "ping", "after")["id"] == "after"
        assert ended(process) == (0, b"")
    headers, _ = server.got[-1]
    assert server.got[-1][1] == b"DELETE"
    assert headers[SESSION] == "s-1"
    assert headers["MCP-Protocol-Version"] == "2025-06-18"
    assert headers["X-Key"] == os.environ["HOME"]
    assert sum(b"tools/call" in body for _, body in server.got) == 3


def test_streams_of_one_answer(server, tmp_path):
    """What comes before the answer on its stream arrives before it; a stream is taken up where it broke."""
    with proxied(tmp_path, "--url", server.url) as process:
        assert ask(process, "tools/call", 1, name="stream")["method"] == "notifications/progress"
        assert json.loads(process.stdout.readline())["id"] == 1
        assert ask(process, "resumed", 2) == {}
        assert json.loads(process.stdout.readline())["id"] == 2
        assert ended(process) == (0, b"")


@pytest.mark.parametrize(("method", "words"), [("missing", "404"), ("silent", "202"), ("broken", "answered nothing")])
def test_a_server_that_does_not_answer(method, words, server, tmp_path):
    """A request whose answer cannot come any more gets an error under its id."""
    with proxied(tmp_path, "--url", server.url) as process:
        answer = ask(process, method, "x")
        answer = json.loads(process.stdout.readline()) if answer == {} else answer
        assert answer["id"] == "x"
        assert words in answer["error"]["message"]
        assert ended(process) == (0, b"")


def test_what_the_server_says_by_itself(server, tmp_path):
    """A request of the server's own reaches the client, and the client's answer reaches the server to the byte."""
    server.speaks = True
    answer = b'{"id":1, "jsonrpc":"2.0","result":{"role":"assistant"}}'
    with proxied(tmp_path, "--url", server.url) as process:
        ask(process, "initialize")
        ask(process, "notifications/initialized", None)
        assert json.loads(process.stdout.readline())["method"] == "sampling/createMessage"
        process.stdin.write(answer + b"\n")
        assert ended(process) == (0, b"")
    assert answer in [body for _, body in server.got]


def test_nobody_at_the_address(tmp_path):
    """Without a server each request is answered with an error."""
    with proxied(tmp_path, "--url", "http://127.0.0.1:9/mcp") as process:
        assert "cannot be reached" in ask(process, "ping")["error"]["message"]
        assert ended(process) == (0, b"")


@contextlib.contextmanager
def listening(folder, *options, at="127.0.0.1"):
    """The proxy on HTTP, and where it listens."""
    with proxied(folder, *options, "--listen", f"{at}:0") as process:
        said = process.stderr.readline().decode()
        yield process, int(said.rpartition(":")[2].partition("/")[0])


def post(port, body, headers=(), method="POST", path="/mcp", at="127.0.0.1"):
    """One request; its status, headers and body."""
    connection = http.client.HTTPConnection(at, port)
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} | dict(headers)
    connection.request(method, path, body, sent)
    response = connection.getresponse()
    found = response.status, response.headers, response.read()
    connection.close()
    return found


def calling(name, given=1):
    return json.dumps(
        {"jsonrpc": "2.0", "id": given, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    ).encode()


def test_http_on_both_sides(server, tmp_path):
    """Requests and answers pass to the byte with their headers; of each connection of a client its loop is stopped."""
    with listening(tmp_path, "--url", server.url) as (process, port):
        begun = post(port, b'{"jsonrpc":"2.0","id":0,  "method":"initialize"}', {"X-Mine": "1"})
        assert begun[1][SESSION] == "s-1"
        assert server.got[-1][0]["X-Mine"] == "1"
        assert server.got[-1][1] == b'{"jsonrpc":"2.0","id":0,  "method":"initialize"}'
        for name in ("s-1", "s-2"):
            answers = [post(port, calling("search"), {SESSION: name}) for _ in range(4)]
            assert [(status, refused(json.loads(body))) for status, _, body in answers] == [(200, False)] * 3 + [
                (200, True)
            ]
            assert answers[0][2] == post(server.server_address[1], calling("search"))[2]
        direct = post(server.server_address[1], calling("stream", 5))
        assert post(port, calling("stream", 5), {SESSION: "s-3"})[2] == direct[2]
        assert post(port, None, {SESSION: "s-1"}, "DELETE")[0] == 200
        assert not refused(json.loads(post(port, calling("search"), {SESSION: "s-1"})[2]))
        assert post(port, None, {SESSION: "s-1", "Accept": "text/event-stream"}, "GET")[0] == 405
        assert post(port, b"no json", {SESSION: "s-1"})[0] == 400
        process.terminate()
        assert ended(process)[0] == 143


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_listened_on(server, tmp_path):
    """In brackets an address of IPv6 is one to listen on, and one of this machine."""
    with listening(tmp_path, "--url", server.url, at="[::1]") as (_, port):
        assert post(port, calling("search"), at="::1")[0] == 200
        assert post(port, calling("search"), {"Host": "evil.example"}, at="::1")[0] == 403


def test_first_requests_at_once_have_one_judge():
    """However many requests under a new name come at once, one judge has the connection, and the others are closed."""
    made, ready = [], threading.Barrier(8)

    class Judge:
        open = True

        def close(self):
            self.open = False

    def judge():
        made.append(one := Judge())
        ready.wait()
        return one

    connections, found = Connections(judge, carry=False, named=True), []
    threads = [threading.Thread(target=lambda: found.append(connections.of("s-1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert [each.open for each in made].count(True) == 1


def test_clients_without_a_name_share_a_session_and_it_is_said(server, tmp_path):
    """Where no connection has a name the loop is stopped all the same, and one line says whom that concerns."""
    server.names = False
    with listening(tmp_path, "--url", server.url) as (process, port):
        answers = [post(port, calling("search")) for _ in range(5)]
        assert [refused(json.loads(body)) for _, _, body in answers] == [False] * 3 + [True] * 2
        process.terminate()
        _, err = process.communicate()
    assert err.decode().count("share one session") == 1


def test_a_page_in_a_browser_cannot_come_in_by_another_name(server, tmp_path):
    """Listening on this machine only, the proxy serves requests that name this machine only."""
    with listening(tmp_path, "--url", server.url) as (_, port):
        assert post(port, calling("search"), {"Host": "evil.example"})[0] == 403
        assert post(port, calling("search"), {"Host": f"localhost:{port}"})[0] == 200
    assert len(server.got) == 1


def test_of_a_batch_over_http_the_rest_passes(server, tmp_path):
    """What is refused in an array is answered in the array of the answers."""
    with listening(tmp_path, "--url", server.url) as (_, port):
        for _ in range(3):
            post(port, calling("search"), {SESSION: "s-1"})
        both = b"[" + calling("search", 1) + b"," + calling("search", 2) + b"]"
        answers = json.loads(post(port, both, {SESSION: "s-1"})[2])
        assert [(each["id"], refused(each)) for each in answers] == [(1, True), (2, True)]


def test_nobody_behind_the_listener(tmp_path):
    """Without a server a request is answered with an error under its id."""
    with listening(tmp_path, "--url", "http://127.0.0.1:9/mcp") as (_, port):
        status, _, body = post(port, calling("search", "x"))
        assert (status, json.loads(body)["id"]) == (502, "x")


def test_hostile_bodies_do_not_end_the_listener(server, tmp_path):
    """Nonsense in a request ends at most that connection."""
    with listening(tmp_path, "--url", server.url) as (process, port):
        for headers, body in (
            ({"Content-Length": "x"}, b""),
            ({"Transfer-Encoding": "chunked"}, b"zz\r\n"),
            ({}, b"\xff["),
        ):
            with contextlib.suppress(http.client.HTTPException, OSError):
                post(port, body, headers)
        assert post(port, b"[" * 100_000)[0] == 400
        assert not refused(json.loads(post(port, calling("search"))[2]))
        process.terminate()
        assert ended(process)[0] == 143


HALVES = {
    "short": b"Content-Length: 500\r\n\r\n" + calling("search"),
    "negative": b"Content-Length: -5\r\n\r\n",
    "signed": b"Content-Length: +5\r\n\r\n[1,2]",
    "no number": b"Content-Length: five\r\n\r\n",
    "bad chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "longer than memory": b"Content-Length: 1000000000000000000000000000000\r\n\r\n" + calling("search"),
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n[1]",
    "number too long": b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "chunk longer than memory": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n" + calling("search"),
    "chunk longer than said": b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + calling("search") + b"\r\n0\r\n\r\n",
    "short chunk": b"Transfer-Encoding: chunked\r\n\r\nff\r\n" + calling("search"),
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_half_a_request_is_answered_and_not_passed_on(half, server, tmp_path):
    """A body that is not as long as it is said to be is a bad request, and the server hears nothing of it."""
    with listening(tmp_path, "--url", server.url) as (_, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + half)
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 400 ")
    assert server.got == []
