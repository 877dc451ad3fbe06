"""What runs in a test: the client, the server, the proxy, and what is written down of the bytes between them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SERVER = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
PROXY = (sys.executable, "-c", "from otel_toolguard.cli import main; main()", "mcp-proxy")
PATIENCE = 90.0  # seconds that a client may take
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}


def everything(node, *mark):
    """The command of the server; what comes after is not looked at, and tells it from others."""
    return ("node", str(node / SERVER), "stdio", *map(str, mark))


def taped(path, command):
    """The command with each byte of its input and of its output written down, beside it."""
    sent, got = shlex.quote(f"{path}.in"), shlex.quote(f"{path}.out")
    return ("sh", "-c", f"tee {sent} | {shlex.join(command)} | tee {got}")


class Client:
    """The TypeScript client, at work on one scenario."""

    def __init__(self, node, scenario, **target):
        self.process = subprocess.Popen(
            ["node", str(HERE / "client.mjs"), scenario, json.dumps(target)],
            cwd=node, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def steps(self):
        """What its steps gave, by their names."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, err.decode()
        assert b"Traceback" not in err, err.decode()
        return {step.pop("name"): step for step in json.loads(out)}


def play(node, scenario, **target):
    """Plays a scenario alone; gives what its steps gave."""
    with Client(node, scenario, **target) as client:
        return client.steps()


@contextlib.contextmanager
def listening(command, words, **more):
    """Runs a program until what it says on standard error matches; yields what the group matched."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)
    try:
        said = []
        for line in process.stderr:
            said.append(line.decode())
            if found := re.search(words, said[-1]):
                yield found[1]
                break
        else:
            raise AssertionError("".join(said))
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=10)
        finally:
            process.kill()


@contextlib.contextmanager
def server_by_http(node, mark):
    """The server, listening on a free port of this machine; yields its address."""
    command = ("node", "--import", (HERE / "loopback.mjs").as_uri(), str(node / SERVER), "streamableHttp", str(mark))
    with listening(command, r"at port (\d+)", cwd=node, env=CLEAN | {"PORT": "0"}) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def proxy_by_http(url, env):
    """The proxy, listening before a server that does; yields its address."""
    return listening((*PROXY, "--url", url, "--listen", "127.0.0.1:0"), r"listening on (\S+)", env=CLEAN | env)


def left(*marks):
    """The processes of this machine that have such a mark in their command, after a while for them to end."""
    until = time.monotonic() + 30
    while True:
        shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        found = [line for line in shown.splitlines() if any(str(mark) in line for mark in marks)]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


RANDOM = [
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d+:\d\d:\d\d [AP]M"), "TIME"),
    (re.compile(r'"level":"\w+"(.{0,20})"data":"\w+[ -]level[ -]message'), r'"level":"ANY"\1"data":"ANY'),
]
STAMPED = re.compile(r'"blob":"(UmVzb3VyY2Ug[^"]*)"')  # the server's dynamic blobs, which tell the time


def steady(value):
    """A value as JSON, without what the server makes up anew each time."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    text = STAMPED.sub(lambda found: f'"blob":"{base64.b64decode(found[1]).decode()}"', text)
    for pattern, instead in RANDOM:
        text = pattern.sub(instead, text)
    return text
