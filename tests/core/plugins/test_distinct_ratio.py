"""A warning, never a stop, while the last calls are nearly all the same."""

import json

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins.distinct_ratio import DistinctRatio
from otel_toolguard.core.state import SessionState


def play(rule, names):
    """One letter a call: w warned, "." not. ``?`` is a call that could not be signed in full."""
    chain, state, letters = Chain([rule]), SessionState("s"), ""
    for number, name in enumerate(names):
        call = ToolCall(name, f"{name}:1", whole=name != "?")
        permit = chain.admit(state, "r", call)
        settled = chain.settle(state, "r", permit.number, call, Outcome("ok", volatile=str(number)))
        assert settled.trip is None
        letters += "w" if settled.warned == ("distinct_ratio",) else "."
        state = SessionState.from_plain(json.loads(json.dumps(state.to_plain())))
    return letters


TABLE = [
    ({}, "aaaa", "...."),
    ({}, "aaaaa", "....w"),
    ({}, "aaaaaa", "....ww"),
    ({}, "ababa", "....w"),
    ({}, "abcab", "....."),
    ({}, "abcaaaaa", "......ww"),
    ({}, "aaaaabc", "....ww."),
    ({"window": 3, "distinct": 1}, "aaabbb", "..w..w"),
    ({"window": 4, "distinct": 3}, "abcdabca", ".......w"),
    ({}, "?????", "....."),
    ({}, "aaaa?", "....w"),
    ({}, "aaa??", "....."),
]


@pytest.mark.parametrize(("settings", "names", "expected"), TABLE)
def test_at_most_so_many_different_calls_among_the_last(settings, names, expected):
    """Warned while a full window holds at most ``distinct`` signatures; results say nothing, unsigned calls are alike to none."""
    assert play(DistinctRatio(**settings), names) == expected


def test_memory_is_the_window():
    """However many calls there were, so many are remembered."""
    rule = DistinctRatio(5)
    mine = rule.start()
    for number in range(1000):
        rule.settle(mine, None, ToolCall("t", f"t:{number}"), Outcome("ok"))
    assert len(mine["last"]) == 5
