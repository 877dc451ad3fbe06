"""The order in which overlapping calls are judged."""

import json

import pytest

from otel_toolguard.core.batch import SAME_ANSWER, SAME_CALL, SAME_RESULT, Batch
from otel_toolguard.core.call import Outcome, ToolCall


def play(script):
    """What is judged after each step of a script such as ``+a +b -b !a``: a start, an end, an interruption."""
    batch, numbers, judged = Batch(), {}, []
    for step in script.split():
        name = step[1:]
        if step[0] == "+":
            judged.append("".join(call.tool for call, _ in batch.before_start()))
            numbers[name] = len(numbers)
            batch.start(numbers[name])
        elif step[0] == "!":
            judged.append("".join(call.tool for call, _ in batch.forget(numbers[name])))
        else:
            done = batch.end(numbers[name], ToolCall(name, f"{name}:1"), Outcome("ok", exact="x", volatile="x"))
            judged.append("".join(call.tool for call, _ in done))
        batch = Batch.from_plain(json.loads(json.dumps(batch.to_plain())))
    return " ".join(part or "." for part in judged)


SCRIPTS = [
    ("+a -a +b -b", ". a . b"),
    ("+a +b -a -b", ". . . ab"),
    ("+a +b -b -a", ". . . ab"),
    ("+c +a +b -c -b -a", ". . . . . abc"),
    ("+a +b -b +c -a -c", ". . . b a c"),  # a is a straggler and commits alone
    ("+a +b +c -c -b +d -a -d", ". . . . . bc a d"),
    ("+a +b -b +c +d -d -a -c", ". . . b . . a cd"),  # a straggler ends between two of a later batch
    ("+h +a -a +b -b +c -c", ". . . a b . c"),  # a hung call neither blinds nor reorders
    ("+a +b -a !b", ". . . a"),  # an interrupted call is not waited for
    ("+a +b !b -a", ". . . a"),
    ("+a !a +b -b", ". . . b"),
]


@pytest.mark.parametrize(("script", "expected"), SCRIPTS)
def test_commit_order(script, expected):
    """A batch commits in canonical order with its last end, or at the next start after a first end; stragglers alone."""
    assert play(script) == expected


def twins(*calls, tool_class="other"):
    """Twin marks in commit order of a batch of (signature, exact, volatile) or (…, kind)."""
    batch = Batch()
    for number in range(len(calls)):
        batch.start(number)
    done = ()
    for number, (signature, exact, volatile, *kind) in enumerate(calls):
        outcome = Outcome(kind[0] if kind else "ok", exact=exact, volatile=volatile)
        done = batch.end(number, ToolCall("t", signature, tool_class=tool_class), outcome)
    return [outcome.twin for _, outcome in done]


TWINS = [
    ("all equal", [("s", "x", "x")] * 3, [0, SAME_RESULT, SAME_RESULT]),
    ("equal but for passing tokens", [("s", "x1", "x"), ("s", "x2", "x")], [0, SAME_ANSWER]),
    ("other answers", [("s", "x", "x"), ("s", "y", "y")], [0, SAME_CALL]),
    ("other calls", [("s", "x", "x"), ("t", "x", "x")], [0, 0]),
    ("one failed", [("s", "x", "x"), ("s", "x", "x", "failed")], [0, SAME_CALL]),
    ("other answers where no rule asks for exact ones", [("s", "", "x"), ("s", "", "y")], [0, SAME_CALL]),
    ("equal answers where no rule asks for exact ones", [("s", "", "x"), ("s", "", "x")], [0, SAME_ANSWER]),
]


@pytest.mark.parametrize(("name", "calls", "expected"), TWINS)
def test_twins(name, calls, expected):
    """A later call of the batch is a twin as far as call, answer and result are equal, and no farther."""
    assert twins(*calls) == expected


def test_results_of_writes_make_no_difference():
    """Two equal writes of one batch are the same answer whatever they returned."""
    assert twins(("s", "x", "x"), ("s", "y", "y"), tool_class="write") == [0, SAME_ANSWER]


def test_only_the_first_failure_of_a_batch_is_no_echo():
    """Failures after the first of one batch are marked, whatever their tools; a lone failure is not."""
    batch = Batch()
    for number in range(3):
        batch.start(number)
    done = ()
    for number, kind in enumerate(("failed", "ok", "failed")):
        done = batch.end(number, ToolCall(f"t{number}", f"t{number}:1"), Outcome(kind))
    assert [outcome.echo for _, outcome in done] == [False, False, True]
