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


def nudged(rule, script):
    """One letter a call: n where the model is told, S where the run is stopped."""
    chain, state, letters = Chain([rule]), SessionState("s"), ""
    for index, word in enumerate(script.split()):
        call = ToolCall(word[:-1], f"{word[:-1]}:{index}")
        admission = chain.admit(state, "r", call)
        settled = chain.settle(state, "r", admission.number, call, Outcome(KINDS[word[-1]], failure="permanent"))
        letters += "S" if settled.trip else "n" if settled.nudges else "."
    return letters, settled


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(
    ("limit", "script", "letters"),
    [
        (4, "a! a! a!", "..."),
        (4, "a! " * 8, "...n...n"),
        (4, "a! a! a! a! a. a! a! a! a!", "...n....n"),
        (1, "a! a. a!", "n.n"),
    ],
)
def test_a_nudge_is_no_stop_and_starts_the_streak_again(across, limit, script, letters):
    """With on_limit="nudge" the model is told at every L-th failure in a row, and the circuit stays closed."""
    rule = FailureStreak(limit, across_tools=across, on_limit="nudge")
    assert nudged(rule, script)[0] == letters


def test_the_nudge_is_one_sentence():
    """It names the tool and the number of failures, in at most 300 characters, whatever the tool is called."""
    settled = nudged(FailureStreak(2, on_limit="nudge"), f"{'a' * 900}! " * 2)[1]
    assert settled.nudges[0].rule == "failure_streak"
    assert "failed 2 times in a row" in settled.nudges[0].text
    assert len(settled.nudges[0].text) <= 300
    assert settled.warned == ("failure_streak",)
