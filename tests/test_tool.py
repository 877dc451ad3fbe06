"""What a tool knows of itself, what its author said, and what becomes of that under several policies and threads."""

from __future__ import annotations

import itertools
import threading

import pytest

from otel_toolguard import MemoryStore, Policy, Session, guard_tool
from otel_toolguard.core.canonical import Signer
from otel_toolguard.settings import POLLER_PATIENCE
from otel_toolguard.tool import REMEMBERED, Tool

SIGNER = Signer(b"key")
PLAIN = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}])


def raiser(_given):
    raise LookupError("by the author")


def signature(tool, **arguments):
    return tool.call(arguments, PLAIN, SIGNER).signature


def test_what_is_ignored_is_not_signed():
    """Ignored arguments are no part of the signature, all others are."""
    tool = Tool("query", ignore=["request_id"])
    assert signature(tool, sql="a", request_id=1) == signature(tool, sql="a", request_id=2)
    assert signature(tool, sql="a", request_id=1) != signature(tool, sql="b", request_id=1)


def test_a_key_replaces_what_is_signed():
    """A key gets the arguments without the ignored ones, in a dict of its own."""
    seen = []

    def key(arguments):
        seen.append(dict(arguments))
        arguments.clear()
        return len(seen) > 0

    arguments = {"a": 1, "b": 2}
    Tool("query", ignore=["b"], key=key).call(arguments, PLAIN, SIGNER)
    assert (seen, arguments) == ([{"a": 1}], {"a": 1, "b": 2})


def test_a_key_that_raises_is_said_once_and_never_felt(caplog):
    """A broken key or result_key fails no tool: arguments and results are compared as they are, and a loop still ends."""
    guarded = guard_tool(lambda q: {"error": "no rows"}, name="query", key=raiser, result_key=raiser)
    with Session("s", policy=PLAIN, store=MemoryStore()) as run:
        guarded("other")
        for _ in range(3):
            assert guarded("x") == {"error": "no rows"}
        assert run.trip.observed == 3
    said = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.args for record in said] == [("key", "query"), ("result_key", "query")]
    assert all(record.exc_info for record in said)


def test_a_hostile_key_may_interrupt():
    """Only exceptions are kept from the tool: an interrupt passes."""

    def interrupted(_given):
        raise KeyboardInterrupt

    with Session("s", policy=PLAIN, store=MemoryStore()) as run:
        with pytest.raises(KeyboardInterrupt):
            guard_tool(lambda: 1, name="query", key=interrupted)()
        assert run.guard.transact(lambda state: state.calls) == 0


@pytest.mark.parametrize(
    ("poll", "name", "patience"),
    [
        (None, "search", 1),
        (True, "search", POLLER_PATIENCE),
        (3, "search", 3),
        (1, "search", 1),
        (False, "wait_for_job", 1),
    ],
)
def test_patience(poll, name, patience):
    """True is the poller's patience, a number that many times the limit, False none at all."""
    assert Tool(name, poll=poll).traits(PLAIN, None).patience == patience


def test_a_renamed_tool_keeps_what_was_said():
    """The copy under a framework's name differs in its name only."""
    tool = Tool("a", tool_class="exec", risk="irreversible", poll=2, ignore=["x"], key=len, result_key=str, hints={},
                kind="extension")  # fmt: skip
    copy = tool.named("b")
    said = ("tool_class", "risk", "poll", "ignore", "key", "result_key", "hints", "kind")
    assert [getattr(copy, word) for word in said] == [getattr(tool, word) for word in said]
    assert copy.name == "b"


@pytest.mark.parametrize("arguments", ['{"q": ', "", None])
def test_arguments_that_were_not_parsed_reach_no_tool(arguments):
    """Raw text is signed as it is and reaches nothing; no arguments at all are fine."""
    call = Tool("search").call(arguments, PLAIN, SIGNER)
    assert call.reached is (arguments is None)
    assert call.arguments is None


def test_what_a_tool_remembers_is_bounded():
    """Thousands of commands and arguments leave no more behind than the bound says."""
    tool = Tool("bash")
    policy = Policy(plugins=[{"plugin": "stagnation", "limit": 9}])
    for n in range(3 * REMEMBERED):
        tool.call({"command": f"ls {n}"}, policy, SIGNER)
    assert len(tool._known.commands) <= REMEMBERED
    assert len(tool._shapes) <= REMEMBERED


def test_two_policies_at_once_do_not_mix():
    """Threads that call one tool under different policies always get the traits of their own, from the first call on."""
    policies = [Policy(plugins=[], tools={"search": {"poll": poll}}) for poll in (False, 7)]
    for _ in range(50):
        tool = Tool("search")
        gate = threading.Barrier(4)
        wrong = []

        def ask(policy, expected, tool=tool, gate=gate, wrong=wrong):
            gate.wait()
            for _ in range(20):
                try:
                    found = tool.traits(policy, {"q": 1}).patience
                except AttributeError as error:
                    found = error
                if found != expected:
                    wrong.append(found)

        asked = zip(itertools.cycle(policies), (1, 7, 1, 7), strict=False)
        threads = [threading.Thread(target=ask, args=each) for each in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
