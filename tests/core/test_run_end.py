"""What a run came to, as it is told when it ends."""

from __future__ import annotations

import pytest

from otel_toolguard import Policy
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.nesting import draw, give_back
from otel_toolguard.core.report import RunEnd
from otel_toolguard.core.state import SessionState

REPEAT, STATS = {"plugin": "repeat_guard", "limit": 4}, {"plugin": "tool_stats"}


def chain(*plugins):
    return Policy(plugins=list(plugins)).chain


def called(chain, state, run, words, above=None):
    """Calls of one tool, a letter each, that all answer alike."""
    for word in words:
        call = ToolCall("look", f"look:{word}")
        number = chain.admit(state, run, call, above=above).number
        chain.settle(state, run, number, call, Outcome("ok", exact="x", volatile="x", digits="x"))


@pytest.mark.parametrize(("words", "peak"), [("", 0), ("a", 0), ("aab", 2), ("abab", 2), ("aaab", 3)])
@pytest.mark.parametrize("plugins", [[REPEAT, STATS], [STATS, REPEAT], [REPEAT]])
def test_calls_and_the_most_laps(words, peak, plugins):
    """A run's end has its calls and the most laps of any cycle, whatever else is in the chain."""
    rules, state = chain(*plugins), SessionState("s")
    called(rules, state, "r", words)
    assert rules.end_run(state, "r") == RunEnd(
        len(words), peak, tripped=False, session_calls=len(words), session_tripped=False, distinct=len(set(words))
    )


def test_without_the_rule_there_are_no_laps():
    """A chain without repeat_guard knows no laps, and one whose rules have seen nothing neither."""
    rules, state = chain(STATS, {"plugin": "call_ceiling", "run": 9}), SessionState("s")
    called(rules, state, "r", "aaa")
    assert rules.end_run(state, "r").peak_repeats == 0


def test_an_end_is_noted_once():
    """The second end of a run is None, and the run stays marked as ended."""
    rules, state = chain(REPEAT), SessionState("s")
    called(rules, state, "r", "ab")
    assert rules.end_run(state, "r") is not None
    assert state.runs["r"].ended is True
    assert rules.end_run(state, "r") is None


def test_a_run_that_made_no_call():
    """A run that nobody knows ends with nothing, and with what the session counted elsewhere."""
    rules, state = chain(REPEAT), SessionState("s")
    called(rules, state, "other", "aaaa")
    assert rules.end_run(state, "r") == RunEnd(0, 0, tripped=False, session_calls=4, session_tripped=True)
    assert "r" not in state.runs


def test_stops_of_run_and_session():
    """A stopped run says so, another run only that one of its session was; an operator's stop holds for both."""
    rules, state = chain(REPEAT), SessionState("s")
    called(rules, state, "one", "aaaa")
    called(rules, state, "two", "ab")
    assert rules.end_run(state, "one") == RunEnd(4, 4, tripped=True, session_calls=6, session_tripped=True, distinct=1)
    assert rules.end_run(state, "two") == RunEnd(2, 0, tripped=False, session_calls=6, session_tripped=True, distinct=2)
    calm = SessionState("t")
    called(rules, calm, "r", "a")
    rules.stop(calm, "enough")
    assert rules.end_run(calm, "r") == RunEnd(1, 0, tripped=True, session_calls=1, session_tripped=True, distinct=1)
    assert rules.end_run(calm, "never") == RunEnd(0, 0, tripped=False, session_calls=1, session_tripped=True)


def test_a_nested_run_is_stopped_with_the_one_above():
    """A stop anywhere stops the tree, and the end of a nested run says so."""
    rules, state = chain(REPEAT), SessionState("s")
    called(rules, state, "above", "a")
    called(rules, state, "nested", "b", above="above")
    called(rules, state, "above", "aaa")
    assert rules.end_run(state, "nested") == RunEnd(
        1, 0, tripped=True, session_calls=5, session_tripped=True, distinct=1
    )


def test_more_calls_than_are_remembered():
    """Of a run whose oldest calls are forgotten nobody can say how many were different."""
    rules, state = chain(STATS), SessionState("s")
    called(rules, state, "r", "ab")
    state.runs["r"].calls = 4097
    assert rules.end_run(state, "r").distinct == 0


def test_a_rule_without_laps_in_its_report_counts_none():
    """Reports of other rules, with or without numbers of their own, are no laps."""
    rules, state = chain(STATS, {"plugin": "distinct_ratio"}, REPEAT), SessionState("s")
    called(rules, state, "r", "aa")
    assert rules.end_run(state, "r").peak_repeats == 2


def test_what_is_given_back_was_counted():
    """A call taken back after everything was cleared, or for a run that is gone, leaves no count below nothing."""
    rules, state = chain(REPEAT), SessionState("s")
    called(rules, state, "r", "a")
    call = ToolCall("look", "look:b")
    assert draw(rules, state, "r", call, 0.0) == (None, False)
    assert (state.calls, state.runs["r"].calls, state.runs["r"].signatures["look:b"]) == (2, 2, 1)
    give_back(state, "r", call)
    assert (state.calls, state.runs["r"].calls, state.runs["r"].signatures["look:b"]) == (1, 1, 0)
    rules.reset(state, ceilings=True)
    give_back(state, "r", call)
    give_back(state, "gone", call)
    assert (state.calls, state.runs["r"].calls, state.runs["r"].signatures) == (0, 0, {})
    assert draw(rules, state, "gone", call, 0.0) == (None, False)
