"""The order in which overlapping calls are judged."""

import json

import pytest

from otel_toolguard.core.batch import SAME_ANSWER, SAME_CALL, SAME_RESULT, Batch
from otel_toolguard.core.call import Outcome, ToolCall


def play(script, turns=None):
    """What is judged after each step of a script such as ``+a +b -b !a ~c =``.

    A start, an end, an interruption, a refusal, the end of the turn; ``turns`` gives calls a (batch, size).
    """
    batch, numbers, judged = Batch(), {}, []

    def asked(name):
        turn, size = (turns or {}).get(name, (None, 0))
        return ToolCall(name, f"{name}:1", batch=turn, siblings=size)

    for step in script.split():
        name = step[1:]
        if step[0] == "+":
            judged.append("".join(call.tool for call, _ in batch.before_start(asked(name))))
            numbers[name] = len(numbers)
            batch.start(numbers[name], asked(name))
        elif step[0] == "~":
            judged.append("".join(call.tool for call, _ in batch.skip(asked(name))))
        elif step[0] == "=":
            judged.append("".join(call.tool for call, _ in batch.close()))
        elif step[0] == "!":
            judged.append("".join(call.tool for call, _ in batch.forget(numbers[name])))
        else:
            done = batch.end(numbers[name], asked(name), Outcome("ok", exact="x", volatile="x"))
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


ONE_TURN = dict.fromkeys("abc", ("m1", 3))
NAMED = [
    ("+a -a +b -b +c -c", ONE_TURN, ". . . . . abc"),  # siblings that did not overlap are one batch all the same
    ("+c +b -b -c +a -a", ONE_TURN, ". . . . . abc"),
    ("+a -a ~b +c -c", ONE_TURN, ". . . . ac"),  # a refused sibling is not waited for
    ("+a -a +b -b ~c", ONE_TURN, ". . . . ab"),
    ("~a +b -b +c -c", ONE_TURN, ". . . . bc"),
    ("+a -a +b -b =", ONE_TURN, ". . . . ab"),  # one that never came, at the end of the turn
    ("+a -a +b -b +d -d", ONE_TURN | {"d": ("m2", 1)}, ". . . . ab d"),  # or when the next turn begins
    ("+d -d +e -e", {"d": ("m1", 1), "e": ("m2", 1)}, ". d . e"),  # a turn of one call is judged at once
    ("+a -a +b -b", dict.fromkeys("ab", ("m1", 0)), ". a . b"),  # no size: overlap decides
]


@pytest.mark.parametrize(("script", "turns", "expected"), NAMED)
def test_commit_order_of_named_batches(script, turns, expected):
    """Where the turn and its size are known, its calls commit together, whether or not they overlapped."""
    assert play(script, turns) == expected


def twins(*calls, tool_class="other"):
    """Twin marks in commit order of a batch of (signature, exact, volatile) or (…, kind)."""
    batch = Batch()
    for number, (signature, *_) in enumerate(calls):
        batch.start(number, ToolCall("t", signature))
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
        batch.start(number, ToolCall("t", "t:1"))
    done = ()
    for number, kind in enumerate(("failed", "ok", "failed")):
        done = batch.end(number, ToolCall(f"t{number}", f"t{number}:1"), Outcome(kind))
    assert [outcome.echo for _, outcome in done] == [False, False, True]
