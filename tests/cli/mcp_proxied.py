"""A scripted server, and a client that writes the bytes it wants to, with the proxy between them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

SERVER = r"""
import json, os, signal, sys
log = open(sys.argv[1], "ab", buffering=0)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
out = sys.stdout.buffer
def say(data):
    out.write(data + b"\n")
    out.flush()
def result(given, value):
    say(json.dumps({"jsonrpc": "2.0", "id": given, "result": value}).encode())
sys.stderr.write("server's own words\n")
sys.stderr.flush()
for line in sys.stdin.buffer:
    log.write(line)
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        say(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}')
        continue
    for each in message if isinstance(message, list) else [message]:
        if not isinstance(each, dict) or "id" not in each or "method" not in each:
            continue
        given, params = each["id"], each.get("params")
        params = params if isinstance(params, dict) else {}
        name = params.get("name") if each["method"] == "tools/call" else each["method"]
        said = params.get("arguments") or {}
        if name == "die":
            os._exit(7)
        elif name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "raw":
            out.write(bytes.fromhex(said["hex"]))
            out.flush()
        elif name == "fail":
            result(given, {"content": [{"type": "text", "text": "no such thing"}], "isError": True})
        elif name == "error":
            fault = {"code": -32001, "message": "no such thing"}
            say(json.dumps({"jsonrpc": "2.0", "id": given, "error": fault}).encode())
        elif name == "tools/list":
            schema = {"type": "object", "properties": {"q": {"type": "string", "default": "word"}}}
            shaped = {"name": "shaped", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}
            result(given, {"tools": [{"name": "search", "inputSchema": schema}, shaped]})
        elif name != "silent":
            result(given, {"content": [{"type": "text", "text": "nothing about it"}]})
if "lame" in sys.argv:
    os._exit(3)
while "deaf" in sys.argv:
    signal.pause()
"""
# As from a terminal: whatever is started in the background of a shell has SIGINT ignored, its children too.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from otel_toolguard.cli import main; main()"
)
REPEAT = '[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\n'


class Proxied:
    """A client that writes and reads the bytes it wants to."""

    def __init__(self, folder, *options, settings=REPEAT, server=(), env=()):
        config = folder / "guard.toml"
        config.write_text(settings, encoding="utf-8")
        self.log = folder / "server.log"
        self.log.touch()
        (folder / "server.py").write_text(SERVER, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "mcp-proxy", *options, "--",
             sys.executable, str(folder / "server.py"), str(self.log), *server],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=kept | {"TOOLGUARD_CONFIG": str(config)} | dict(env),
        )  # fmt: skip

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self):
        return self.process.stdout.readline()

    def ask(self, message):
        """Sends a message as it is, returns the next one that comes."""
        self.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        return json.loads(self.read())

    def call(self, name, arguments=None, number=1, **more):
        return self.ask({"jsonrpc": "2.0", "id": number, "method": "tools/call",
                         "params": {"name": name, "arguments": arguments or {}, **more}})  # fmt: skip

    def seen(self):
        """The bytes that reached the server."""
        return self.log.read_bytes()

    def end(self):
        """Ends the client's side; returns the exit code, what was left of the answers, and the standard error."""
        out, err = self.process.communicate()
        assert b"Traceback" not in err, err.decode()
        return self.process.returncode, out, err


@contextlib.contextmanager
def proxies(folder):
    """Makes proxies, and sees to it that none is left."""
    made = []

    def make(*options, **more):
        made.append(Proxied(folder, *options, **more))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.process.kill()
            each.process.wait()
            for stream in (each.process.stdin, each.process.stdout, each.process.stderr):
                with contextlib.suppress(OSError):
                    stream.close()


def refused(answer):
    """Whether it is an error result."""
    return "result" in answer and answer["result"].get("isError") is True
