"""Different calls of one tool that all get one and the same answer."""

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.state import SessionState

KINDS = {"!": "failed", "~": "cancelled", "^": "closed"}


def play(limit, script, *, observe=False):
    """Index of the tripping call. ``a1=x`` is call 1 of tool a with answer x; ``w…`` writes, ``p…`` polls, ``n…`` is neutral."""
    chain, state = Chain([SameAnswer(limit)], observe=observe), SessionState("s")
    for index, word in enumerate(script.split()):
        name, _, answer = word.partition("=")
        kind = KINDS.get(answer[-1:], "ok")
        answer = None if answer == "huge" else answer.rstrip("!~^")
        tool_class = "write" if name[0] == "w" else "read"
        call = ToolCall(name[0], name, tool_class=tool_class, poll=name[0] == "p", neutral=name[0] == "n")
        permit = chain.admit(state, "r", call)
        settled = chain.settle(state, "r", permit.number, call, Outcome(kind, volatile=answer))
        if settled.trip or settled.would_trip:
            return index, settled.trip or settled.would_trip, state
    return None


TABLE = [
    (3, "a1=x a2=x", None),
    (3, "a1=x a2=x a3=x", 2),
    (3, "a1=x a2=x a3=x a4=x", 2),
    (3, "a1=x a1=x a1=x a1=x", None),
    (3, "a1=x a1=x a2=x a2=x a3=x", 4),
    (3, "a1=x a2=y a3=x a4=y a5=x", None),
    (3, "a1=x a2=x b1=x a3=x", None),
    (3, "a1=x a2=x b1=y a3=x", None),
    (3, "a1=x a2=x w1=x a3=x", None),
    (3, "w1=x w2=x w3=x w4=x", None),
    (3, "p1=x p2=x p3=x p4=x", None),
    (3, "n1=x n2=x n3=x n4=x", None),
    (3, "a1=x a2=x n1=z p1=z a3=x", 4),
    (3, "a1=x a2=x a9=x~ a8=z^ a3=x", 4),
    (3, "a1=x! a2=x! a3=x!", 2),
    (3, "a1=x a2=x a3=x!", None),
    (3, "a1=huge a2=huge a3=huge a4=huge", None),
    (3, "a1=x a2=x a9=huge a3=x", None),
]


@pytest.mark.parametrize(("limit", "script", "index"), TABLE)
def test_distinct_calls_with_one_answer(limit, script, index):
    """Counted are distinct calls of one tool; another answer, another tool or a write starts afresh."""
    tripped = play(limit, script)
    assert (tripped and tripped[0]) == index


def test_the_trip_says_so():
    """Scope run, its own loop type, and the setting that would have allowed it."""
    _, trip, _ = play(2, "a1=x a2=x")
    assert (trip.rule, trip.scope, trip.loop_type, trip.limit, trip.observed) == (
        "same_answer",
        "run",
        "same_answer",
        2,
        2,
    )
    assert (
        trip.why
        == "2 different calls of a in a row got one and the same answer; same_answer limit = 3 would have allowed it."
    )


def test_memory_is_bounded_while_observing():
    """Where nothing is stopped the row may go on for ever, but what is remembered may not grow."""
    rule = SameAnswer(5)
    mine = rule.start()
    for n in range(1000):
        rule.settle(mine, None, ToolCall("a", f"a:{n}"), Outcome("ok", volatile="x"))
    assert len(mine["calls"]) == 5
