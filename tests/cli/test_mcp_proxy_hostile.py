"""Frames that nobody should send: an answer or a passage, never a hang, never a word of Python's to the client."""

from __future__ import annotations

import json

import pytest

from otel_toolguard import Policy, Session
from otel_toolguard.cli.mcp_gate import WAITED_FOR, Gate
from otel_toolguard.cli.mcp_judge import Judge

from .mcp_proxied import proxies, refused

DEEP = b"[" * 100_000 + b"]" * 100_000


def call(arguments=b"{}", given=b"1", name=b'"search"', more=b""):
    """A call, made of bytes."""
    return (b'{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%s,"arguments":%s}%s}'
            % (given, name, arguments, more))  # fmt: skip


@pytest.fixture
def proxied(tmp_path):
    """Makes proxies."""
    with proxies(tmp_path) as make:
        yield make


@pytest.fixture
def gate():
    """A gate behind which three equal answers are a loop."""
    return Gate(Judge(Session(policy=Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}]))))


ANSWERED = [
    call(b'{"text":"' + b"x" * 20_000_000 + b'"}'),
    call(b'{"deep":' + DEEP + b"}"),
    call(b'{"text":"\xff\xfe\xc3"}'),
    call(b'{"text":"\\ud800\x00\x01"}'),
    call(b'{"number":' + b"9" * 10_000 + b"}"),
    call(b"[1,2]"),
    call(b"7"),
    call(b"null"),
    call(name=b'"\\u0000\\ud800' + b"n" * 70_000 + b'"'),
    call(name=b'""'),
    call(name=b"7"),
    call(given=b"null"),
    call(given=DEEP),
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
    b'{"method":"tools/call","id":1,"params":{"name":"search"},"method":"tools/call"}',
    b"[" + b",".join([call()] * 50) + b"]",
    b'[[[{"id":1}]]]',
    b"{" + b'"a":' * 3,
    b"\xef\xbb\xbf" + call(),
    b"}{", b"nul", b'"', b"\x00" * 5000, DEEP, b"[]", b"{}", b"-", b"1e999999",
]  # fmt: skip


@pytest.mark.parametrize("frame", ANSWERED, ids=lambda frame: repr(frame[:60]))
def test_a_hostile_frame_passes_and_the_connection_lives_on(frame, proxied):
    """It reaches the server to the byte, the next request is answered, and nobody sees a traceback."""
    proxy = proxied("--no-trace")
    proxy.write(frame + b"\n" + b'{"jsonrpc":"2.0","id":"after","method":"ping"}\n')
    answer = b""
    while b'"after"' not in answer:
        answer = proxy.read()
        assert answer
    code, out, _ = proxy.end()
    assert code == 0
    assert all(b'"error":{"code": -32000' in line for line in out.splitlines())  # what the server gave up is answered
    assert proxy.seen().startswith(frame + b"\n")


LOOPS = [
    call(b'{"deep":' + DEEP + b"}"),
    call(b'{"text":"\xff\xfe\xc3"}'),
    call(b'{"number":' + b"9" * 10_000 + b"}"),
    call(b"[1,2]"),
    call(b'"text"'),
    call(name=b'"\\ud800"'),
    call(given=b'"\xff"'),
    b'{"id":1,"params":{"name":"search","_meta":7},"method":"x","method":"tools/call"}',
]


@pytest.mark.parametrize("frame", LOOPS, ids=lambda frame: repr(frame[:60]))
def test_odd_calls_are_judged_all_the_same(frame, gate):
    """Whatever the arguments are like, the fourth equal call after three equal answers is refused."""
    for _ in range(3):
        passage = gate.asked(frame)
        assert passage.forward == frame
        gate.answered(b'{"id":%s,"result":{"content":[]}}' % passage.keys[0].encode())
        assert gate.waiting == 0
    passage = gate.asked(frame)
    assert passage.forward is None
    assert refused(json.loads(passage.answer().decode("utf-8", "replace")))


def test_of_a_batch_only_what_is_refused_is_taken_out(gate):
    """The rest of a batch passes to the letter, and the refusals are an answer to a batch."""
    loop, ping = call(), b'{"jsonrpc" : "2.0","id":7,"method":"ping"}'
    for _ in range(3):
        assert gate.asked(b"[%s]\n" % loop).forward == b"[%s]\n" % loop
        gate.answered(b'[{"id":1,"result":{"content":[]}}]')
    passage = gate.asked(b"[%s , %s,%s]\n" % (loop, ping, loop))
    assert passage.forward == b"[%s]\n" % ping
    assert [refused(each) for each in json.loads(passage.answer())] == [True, True]
    alone = gate.asked(b"[%s]" % loop)
    assert (alone.forward, len(json.loads(alone.answer()))) == (None, 1)
    silent = gate.asked(b'{"method":"tools/call","params":{"name":"search","arguments":{}}}')
    assert (silent.forward, silent.answer()) == (None, None)


def test_one_id_used_twice_is_two_calls(gate):
    """Each answer settles one of them; a third answer passes."""
    frames = [call(b'{"n":%d}' % number) for number in range(2)]
    for frame in frames:
        gate.asked(frame)
    assert gate.waiting == 2
    for left in (1, 0, 0):
        answer = b'{"id":1.0,"result":{}}'
        assert gate.answered(answer) is answer
        assert gate.waiting == left


def test_what_the_client_cancelled_is_not_waited_for(gate):
    """A cancelled request, a call or another, need not be answered any more, and gets no error when the server ends."""
    other = b'{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{}}'
    for frame in (call(given=b"1"), other, call(given=b"3")):
        gate.asked(frame)
    for given in (b"1", b"2", b"2", b"7"):
        gone = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}' % given
        assert gate.asked(gone).forward == gone
    assert gate.waiting == 1
    gate.answered(b'{"jsonrpc":"2.0","id":2,"result":{}}')  # answered all the same
    assert gate.waiting == 1
    assert [json.loads(error)["id"] for error in gate.gone()] == [3]
    assert gate.waiting == 0


def test_what_is_never_answered_is_forgotten_at_last(gate):
    """Requests under way are bounded: the oldest gives way, as a call of which nobody knows how it ended."""
    for number in range(WAITED_FOR + 5):
        gate.asked(call(b'{"n":%d}' % number, b"%d" % number))
    assert gate.waiting == WAITED_FOR
    report = gate._judge.session.report()
    assert report["in_flight"] == WAITED_FOR
    assert len(gate.gone()) == WAITED_FOR
    assert gate._judge.session.report()["in_flight"] == 0


def test_a_failure_of_the_guard_lets_the_frame_pass(gate, monkeypatch, caplog):
    """A fault of ours is logged once, without words of the call, and is not felt in either direction."""
    words = "secr" + "et"

    def broken(*_, **__):
        raise LookupError(words)

    monkeypatch.setattr(gate._judge, "admit", broken)
    for _ in range(3):
        assert gate.asked(call()).forward == call()
    monkeypatch.undo()
    gate.asked(call())
    monkeypatch.setattr(gate._judge, "settle", broken)
    answer = b'{"id":1,"result":{}}'
    assert gate.answered(answer) is answer
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert words not in caplog.text
