"""Failures of one tool in a row, whatever the arguments."""

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.plugins.failure_streak import TOOLS_KEPT, FailureStreak
from otel_toolguard.core.state import SessionState

KINDS = {"!": "failed", "?": "failed", ".": "ok", "~": "cancelled", "^": "closed", "0": "unknown"}


def play(rule, script):
    """Index of the tripping call and its trip. ``a!`` fails for good, ``a?`` for now, ``a.`` works; ``[a! b!]`` is a batch."""
    chain, state, open_, waiting = Chain([rule]), SessionState("s"), False, []
    for index, word in enumerate(script.replace("[", "[ ").replace("]", " ]").split()):
        if word in "[]":
            open_ = word == "["
        else:
            name, kind = word[:-1], word[-1]
            call = ToolCall(name, f"{name}:{index}", neutral=name == "think", reached=name != "(malformed)")
            admission = chain.admit(state, "r", call)
            assert not isinstance(admission, Refuse)
            waiting.append(
                (admission.number, call, Outcome(KINDS[kind], failure={"!": "permanent", "?": "transient"}.get(kind)))
            )
        if not open_:
            for number, call, outcome in waiting:
                trip = chain.settle(state, "r", number, call, outcome).trip
                if trip:
                    return int(number) - 1, trip
            waiting = []
    return None


TABLE = [
    (1, "a!", 0),
    (3, "a! a!", None),
    (3, "a! a! a!", 2),
    (3, "a! a! a. a! a!", None),
    (3, "a! a! b. a!", 3),
    (3, "a! b! a! b! a!", 4),
    (3, "a! a! a~ a^ a0 a!", 5),
    (1, "a? a?", None),
    (1, "a? a? a?", 2),
    (2, "a! a? a? a?", 3),
    (2, "a! a? a?", None),
    (3, "a? a? a. a? a? a? a? a? a? a? a? a?", 11),
    (2, "think! think! think!", None),
    (2, "(malformed)! (malformed)! (malformed)!", None),
    (2, "a! think. (malformed)! a!", 3),
    (3, "[a! a! a! a! a!]", None),
    (3, "[a! a!] [a! a!] [a! a!]", 5),
    (2, "[a! b!] [a! b!]", 3),
    (2, "[a! b.] [a! b.]", 3),
]


@pytest.mark.parametrize(("limit", "script", "index"), TABLE)
def test_failures_in_a_row(limit, script, index):
    """Only a success of that tool clears; transient failures count a third, those of a batch once, some not at all."""
    tripped = play(FailureStreak(limit), script)
    assert (tripped and tripped[0]) == index


ACROSS = [(3, "a! b! c!", 2), (3, "a! b! c. a!", None), (3, "a! b! c. a! b! c!", 5)]


@pytest.mark.parametrize(("limit", "script", "index"), ACROSS)
def test_across_tools_a_success_of_any_tool_clears(limit, script, index):
    """With across_tools there is one streak for all."""
    tripped = play(FailureStreak(limit, across_tools=True), script)
    assert (tripped and tripped[0]) == index


@pytest.mark.parametrize("limit", [1, 2, 3, 16, 20, 25, 100])
def test_thirds_add_up_exactly_at_the_limit(limit):
    """Three transient failures count one at every limit, and the sentence names a limit that would have allowed them."""
    index, trip = play(FailureStreak(limit), "a? " * (3 * limit))
    assert (index, trip.observed) == (3 * limit - 1, limit)
    assert f"failure_streak limit = {limit + 1} " in trip.why
    assert play(FailureStreak(limit), "a? " * (3 * limit - 1)) is None


def test_the_trip_is_an_error_storm():
    """Scope run, named after the tool."""
    _, trip = play(FailureStreak(2), "a! a!")
    assert (trip.rule, trip.scope, trip.loop_type, trip.tool, trip.limit) == (
        "failure_streak",
        "run",
        "error_storm",
        "a",
        2,
    )


def test_memory_is_bounded():
    """However many tools fail, so many streaks are kept."""
    rule = FailureStreak(3)
    mine = rule.start()
    for n in range(TOOLS_KEPT + 50):
        rule.settle(mine, None, ToolCall(f"t{n}", f"t{n}:1"), Outcome("failed"))
    assert len(mine) == TOOLS_KEPT


def test_a_sibling_that_was_cancelled_is_no_failure():
    """A batch of one failure and cancelled siblings counts one."""
    assert play(FailureStreak(2), "[a! a~ a~] a!")[0] == 3
