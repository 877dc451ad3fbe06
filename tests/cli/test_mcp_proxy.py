"""The proxy between a client that writes bytes and a scripted server, both over standard streams."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from .mcp_proxied import REPEAT, proxies, refused

BODY = {"error", "executed", "tool", "rule", "scope", "why", "retryable", "retry_after_s", "instead"}


@pytest.fixture
def proxied(tmp_path):
    """Makes proxies."""
    with proxies(tmp_path) as make:
        yield make


PASSED = [
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}\n',
    b'{ "method" : "tools/call", "params":{"arguments":{"q":"\\u00e9\xc3\xa9"},"name":"search"},"id":"x\\n","jsonrpc":"2.0"}\r\n',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1e400}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77,"reason":"no"}}\n',
    b'{"jsonrpc":"2.0","id":3,"result":{"role":"assistant","content":{"type":"text","text":"sampled"},"model":"m"}}\n',
    b'{"jsonrpc":"2.0","id":"e","result":{"action":"accept","content":{}}}\n',
    b'{"jsonrpc":"2.0","id":4,"error":{"code":-1,"message":"declined"}}\n',
    b'{"jsonrpc":"2.0","id":9,"method":"no/such/method","params":[1,2.50,{"a":1,"a":2}]}\n',
    b'[{"jsonrpc":"2.0","id":10,"method":"ping"} , {"jsonrpc":"2.0","method":"notifications/x"}]\n',
    b"\n",
    b"not json at all\n",
    b'{"jsonrpc":"2.0","id":11,"method":"tools/call","params":{"name":"search","arguments":{},"_meta":{"progressToken":0}}}',
]


def test_every_message_from_the_client_passes_to_the_byte(proxied):
    """Requests, answers, notifications, batches, what is no JSON, and a last line without an end reach the server."""
    proxy = proxied()
    sent = b"".join(PASSED)
    out, err = proxy.process.communicate(sent)
    assert proxy.seen() == sent
    assert proxy.process.returncode == 0
    assert len(out.splitlines()) == 7  # initialize, two calls, the unknown method, ping, and two lines that are no JSON
    assert b"server's own words" in err


FROM_SERVER = [
    b'{ "jsonrpc":"2.0", "id":1,"result" : {"content":[{"type":"text","text":"\\u00e9"}] , "n": 1.50e1}}\n',
    b'{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{"maxTokens":1}}\n',
    b'{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}\r\n',
    b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\xff\xfe"}}\n',
    b'[{"jsonrpc":"2.0","id":1,"result":{"content":[]}}]\n',
    b"\n",
    b"a server that prints\n",
    b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 20000 + b"]" * 20000 + b"}\n",
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"' + b"x" * 3_000_000 + b'"}]}}\n',
    b'{"jsonrpc":"2.0","id":[{}],"result":null}\n',
]


@pytest.mark.parametrize("frame", FROM_SERVER, ids=lambda frame: repr(frame[:40]))
def test_every_message_from_the_server_passes_to_the_byte(frame, proxied):
    """Answers, requests, notifications, batches and noise reach the client while a call is under way."""
    proxy = proxied()
    proxy.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                            "params": {"name": "raw", "arguments": {"hex": frame.hex()}}}).encode() + b"\n")  # fmt: skip
    assert proxy.process.stdout.read(len(frame)) == frame
    assert proxy.call("search", number=2)["id"] == 2
    assert proxy.end()[0] == 0


IDS = [b"1", b'"one"', b"2.0", b"1e3", b"null", b"true", b"-9007199254740993123", b'{"a": [1]}', b'"\\ud800"', b"[]"]


@pytest.mark.parametrize("given", IDS, ids=repr)
def test_a_loop_is_answered_with_the_reason_under_the_id_it_came_with(given, proxied):
    """After three equal answers the server is not asked again: an ordinary error result says why, to the letter's id."""
    proxy = proxied()
    call = b'{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"search","arguments":{"q":"w"}}}\n' % given
    for _ in range(3):
        assert not refused(proxy.ask(call))
    for _ in range(2):
        proxy.write(call)
        line = proxy.read()
        assert line.startswith(b'{"jsonrpc":"2.0","id":%s,"result":' % given)
        result = json.loads(line)["result"]
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        assert result["isError"] is True
        assert set(result["structuredContent"]) == BODY
        assert result["structuredContent"]["rule"] == "repeat_guard"
    assert proxy.seen() == call * 3
    code, out, err = proxy.end()
    assert (code, out) == (0, b"")
    assert b"otel-toolguard: " in err


def test_the_structured_part_can_be_left_out(proxied):
    """With --text-only a refusal has its body as text only, for clients that hold it against the tool's schema."""
    proxy = proxied("--text-only")
    result = [proxy.call("search") for _ in range(4)][-1]["result"]
    assert set(result) == {"content", "isError"}
    assert set(json.loads(result["content"][0]["text"])) == BODY
    assert proxy.end()[0] == 0


def test_where_results_have_a_schema_a_refusal_has_its_body_as_text_only(proxied):
    """Once a listing told that a tool's results have a schema, its refusals have no content that could break it."""
    proxy = proxied()
    before = [proxy.call("shaped") for _ in range(4)][-1]["result"]
    listed = proxy.ask({"jsonrpc": "2.0", "id": 0, "method": "tools/list"})["result"]["tools"]
    assert ["outputSchema" in tool for tool in listed] == [False, True]
    after = proxy.call("shaped")["result"]
    other = [proxy.call("search") for _ in range(4)][-1]["result"]
    assert set(before) == set(other) == {"content", "isError", "structuredContent"}
    assert set(after) == {"content", "isError"}
    assert json.loads(after["content"][0]["text"])["tool"] == "shaped"
    assert proxy.end()[0] == 0


def initialized(proxy, name):
    proxy.ask({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"clientInfo": {"name": name}}})
    return proxy.call("shaped")["result"]


def test_a_client_of_the_python_sdk_gets_the_structured_part_always(proxied):
    """Who says in the handshake or in a call that it is one, and so holds no error against a schema, gets all of it."""
    proxy = proxied()
    for _ in range(3):
        proxy.call("shaped")
    proxy.ask({"jsonrpc": "2.0", "id": 0, "method": "tools/list"})
    said = {"io.modelcontextprotocol/clientInfo": {"name": "mcp"}}
    kept = [initialized(proxy, name) for name in ("mcp", "fastmcp", "other", ["mcp"])]
    kept.append(proxy.call("shaped", _meta=said)["result"])
    assert ["structuredContent" in result for result in kept] == [True, True, False, False, True]
    assert proxy.end()[0] == 0


def test_a_call_that_asks_for_a_task_is_refused_by_an_error(proxied):
    """Who asked for a task would read no result: the reason is the message of a JSON-RPC error."""
    proxy = proxied()
    answers = [proxy.call("search", task={"ttl": 1000}) for _ in range(4)]
    assert ["error" in answer for answer in answers] == [False, False, False, True]
    assert set(json.loads(answers[3]["error"]["message"])) == BODY
    assert proxy.end()[0] == 0


CEILINGS = [("run = 2", "run"), ("session = 2", "session"), ("tools = {search = 2}", "tool")]


@pytest.mark.parametrize(("ceiling", "scope"), CEILINGS)
def test_refusals_and_stops_are_answers_alike(ceiling, scope, proxied):
    """Exactly as many calls reach the server as the ceiling says; whatever stops the next one, it is answered."""
    proxy = proxied(settings=f'[[tool_plugins]]\nplugin = "call_ceiling"\n{ceiling}\n')
    answers = [proxy.call("search", {"q": str(number)}, number) for number in range(5)]
    assert [refused(answer) for answer in answers] == [False, False, True, True, True]
    assert {answer["result"]["structuredContent"]["scope"] for answer in answers[2:]} == {scope}
    assert proxy.seen().count(b"\n") == 2
    assert proxy.ask({"jsonrpc": "2.0", "id": 9, "method": "ping"})["id"] == 9
    assert proxy.end()[0] == 0


STREAK = '[[tool_plugins]]\nplugin = "failure_streak"\nlimit = 3\n'


@pytest.mark.parametrize("tool", ["fail", "error"])
def test_errors_in_results_and_in_place_of_them_are_failures(tool, proxied):
    """A result marked as an error counts as a failed call, and so does a JSON-RPC error."""
    proxy = proxied(settings=STREAK)
    answers = [proxy.call(tool, {"n": number}, number) for number in range(4)]
    assert "structuredContent" not in answers[2].get("result", {})
    assert answers[3]["result"]["structuredContent"]["rule"] == "failure_streak"
    assert proxy.end()[0] == 0


def test_a_cancelled_call_is_no_failure_and_no_place_is_held(proxied):
    """Calls that the client cancels are neither failures nor in flight any more."""
    proxy = proxied(settings=STREAK + '[[tool_plugins]]\nplugin = "max_in_flight"\nlimit = 1\n')
    for number in range(6):
        call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "silent"}}
        gone = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
        proxy.write(json.dumps(call).encode() + b"\n" + json.dumps(gone).encode() + b"\n")
    assert not refused(proxy.call("silent-not", number=7))
    assert proxy.end()[0] == 0
    assert proxy.seen().count(b"silent") == 7


def test_what_a_schema_fills_in_is_the_same_call(proxied):
    """A default that the tools' listing tells and the same value said are one call to the rules."""
    proxy = proxied()
    proxy.ask({"jsonrpc": "2.0", "id": 0, "method": "tools/list"})
    said = [{}, {"q": "word"}, {}, {"q": "word"}]
    assert [refused(proxy.call("search", each)) for each in said] == [False, False, False, True]
    assert proxy.end()[0] == 0


@pytest.mark.parametrize(("tool", "code"), [("die", 7), ("kill", 128 + signal.SIGKILL)])
def test_what_a_server_leaves_unanswered_when_it_ends_is_answered(tool, code, proxied):
    """Every request still open gets an error under its id, and the proxy ends with the server's exit code."""
    proxy = proxied()
    for number, name in ((1, "silent"), ("b", "silent"), (3, tool)):
        call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name}}
        proxy.write(json.dumps(call).encode() + b"\n")
    answers = [json.loads(proxy.read()) for _ in range(3)]
    assert [answer["id"] for answer in answers] == [1, "b", 3]
    assert all("ended" in answer["error"]["message"] for answer in answers)
    assert proxy.read() == b""
    assert proxy.end()[0] == code


def test_half_a_line_from_a_dying_server_does_not_spoil_the_next(proxied):
    """An error of the proxy's own stands on a line of its own."""
    proxy = proxied()
    half = b'{"jsonrpc":"2.0","id":1,"res'
    proxy.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                            "params": {"name": "raw", "arguments": {"hex": half.hex()}}}).encode() + b"\n")  # fmt: skip
    proxy.write(b'{"jsonrpc":"2.0","id":2,"method":"die"}\n')
    lines = [proxy.read() for _ in range(3)]
    assert lines[0] == half + b"\n"
    assert [json.loads(line)["id"] for line in lines[1:]] == [1, 2]
    assert proxy.end()[0] == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("server", [(), ("deaf",)])
def test_a_signal_ends_the_server_too(number, server, proxied):
    """A signal to the proxy reaches the server; one that does not heed it is killed; no call is left unanswered."""
    proxy = proxied(server=server)
    assert proxy.call("search")["id"] == 1
    proxy.write(b'{"jsonrpc":"2.0","id":2,"method":"silent"}\n')
    assert proxy.ask({"jsonrpc": "2.0", "id": 3, "method": "ping"})["id"] == 3
    proxy.process.send_signal(number)
    rest = json.loads(proxy.read())
    assert (rest["id"], "error" in rest) == (2, True)
    deaf = bool(server) and number == signal.SIGTERM
    # Python's own answer to an interrupt is to end with status 1 or by that signal.
    assert proxy.process.wait() in ({128 + signal.SIGKILL} if deaf else {128 + number, 1})


def test_the_end_of_the_clients_input_ends_the_server(proxied):
    """The server sees the end of its input and ends by itself; its exit code is that of the proxy."""
    proxy = proxied(server=("lame",))
    proxy.call("search")
    assert proxy.end()[0] == 3


def test_a_pause_begins_a_new_run_if_that_is_wanted(proxied):
    """With --new-run-after a stop lasts until the client pauses that long; without it, as long as the connection."""
    proxy = proxied("--new-run-after", "0")
    assert [refused(proxy.call("search")) for _ in range(8)] == [False] * 8
    assert proxy.end()[0] == 0


def test_switched_off_and_observing_nothing_is_refused(proxied):
    """Under TOOLGUARD_MODE=off and observe every call reaches the server."""
    for mode in ("off", "observe"):
        proxy = proxied(env={"TOOLGUARD_MODE": mode})
        assert [refused(proxy.call("search")) for _ in range(6)] == [False] * 6
        assert proxy.end()[0] == 0


def test_advice_stands_beside_the_result(proxied):
    """Where the rules shall warn the model, the answer of the server gets one more text, and nothing else changes."""
    proxy = proxied(settings='on_warn = "nudge"\n' + REPEAT.replace("3", "4"))
    texts = [[part["text"] for part in proxy.call("search")["result"]["content"]] for _ in range(4)]
    assert {each[0] for each in texts} == {"nothing about it"}
    assert max(map(len, texts)) == 2
    assert proxy.end()[0] == 0


USAGE = [
    ([], "name its command"),
    (["--url", "http://127.0.0.1:1/mcp", "--", "x"], "not both"),
    (["--listen", "127.0.0.1:0", "--", "x"], "needs --url"),
    (["--url", "ftp://x"], "an address looks like"),
    (["--url", "http://127.0.0.1:1/", "--listen", "nowhere:x"], "an address looks like"),
    (["--url", "http://127.0.0.1:1/", "--header", "secret"], "one looks like"),
    (["--", "/no/such/program"], "cannot be started"),
]


@pytest.mark.parametrize(("options", "sentence"), USAGE)
def test_what_cannot_be_done_is_said_in_a_sentence(options, sentence):
    """Usage that makes no sense ends with 2, one sentence on standard error, and nothing on standard output."""
    code = "from otel_toolguard.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "mcp-proxy", *options], input=b"", capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert sentence in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_ceilings_outlive_a_proxy_that_is_killed(tmp_path, proxied):
    """With a store on disk and a named session a killed and restarted proxy goes on counting where the other was."""
    settings = '[[tool_plugins]]\nplugin = "call_ceiling"\nsession = 4\n'
    env = {"TOOLGUARD_STORE": f"sqlite:///{tmp_path / 'store.db'}"}
    first = proxied("--session", "job", settings=settings, env=env)
    assert [refused(first.call("search", {"n": number})) for number in range(2)] == [False] * 2
    first.write(b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"silent"}}\n')
    first.ask({"jsonrpc": "2.0", "id": 10, "method": "ping"})
    first.process.kill()
    first.process.wait()
    second = proxied("--session", "job", settings=settings, env=env)
    assert [refused(second.call("search", {"n": number})) for number in range(2, 5)] == [False, True, True]
    assert second.end()[0] == 0
    other = proxied("--session", "another", settings=settings, env=env)
    assert not refused(other.call("search"))
    assert other.end()[0] == 0


def test_of_ten_calls_at_once_as_many_run_as_the_ceiling_says(proxied):
    """Places are reserved before anything runs: five calls reach the server, and all ten are answered."""
    proxy = proxied(settings='[[tool_plugins]]\nplugin = "call_ceiling"\nrun = 5\n')
    calls = [
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "tools/call",
            "params": {"name": "search", "arguments": {"n": number}},
        }
        for number in range(10)
    ]
    proxy.write(b"".join(json.dumps(call).encode() + b"\n" for call in calls))
    answers = [json.loads(proxy.read()) for _ in calls]
    assert sorted(answer["id"] for answer in answers) == list(range(10))
    assert sum(map(refused, answers)) == 5
    assert proxy.end()[0] == 0
    assert proxy.seen().count(b"\n") == 5


def test_a_server_outlives_no_proxy_that_is_killed(proxied):
    """When the proxy is killed the server sees the end of its input, and ends."""
    proxy = proxied()
    proxy.call("search")
    proxy.process.kill()
    assert (
        proxy.process.stderr.read().count(b"server's own words") == 1
    )  # read to its end: the server has closed it too
