"""The score of stagnation, by hand on small sequences, and against its definition on random ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins.stagnation import COUNTS_KEPT, ERRORS_KEPT, SEEN_KEPT, Stagnation
from otel_toolguard.core.state import SessionState

KINDS = {"!": "failed", "?": "failed", "~": "cancelled", "^": "closed", "0": "unknown"}


def parse(word):
    """``a1=x5``: tool a, arguments 1, answer x5 (digits masked: x#); ``!`` fails, ``?`` fails for now, ``~`` cancelled."""
    name, _, answer = word.partition("=")
    mark = answer[-1] if answer[-1] in KINDS and answer[-1] != "0" else "0" if answer.endswith("_0") else ""
    answer = answer.removesuffix("_0").rstrip("!?~^")
    kind = KINDS.get(mark, "ok")
    flag = "!" if kind == "failed" else ""
    call = ToolCall(
        name[0], name, shape=f"{name[0]}#", tool_class="write" if name[0] == "w" else "read",
        poll=name[0] == "p", neutral=name[0] == "n", whole=name[0] != "h",
    )  # fmt: skip
    if answer == "huge":
        return call, Outcome(kind, exact=None, volatile=None, digits=None)
    digits = "".join("#" if c.isdigit() else c for c in answer)
    return call, Outcome(
        kind,
        failure={"!": "permanent", "?": "transient"}.get(mark),
        exact=answer,
        volatile=flag + answer,
        digits=flag + digits,
    )


def scores(script, limit=1000.0):
    """The score after each call; ``[a b]`` is a batch, whose score is written once."""
    chain, state, found, waiting, open_ = Chain([Stagnation(limit)]), SessionState("s"), [], [], False
    for word in script.replace("[", "[ ").replace("]", " ]").split():
        if word in "[]":
            open_ = word == "["
        else:
            call, outcome = parse(word)
            waiting.append((chain.admit(state, "r", call).number, call, outcome))
        if not open_:
            for number, call, outcome in waiting:
                chain.settle(state, "r", number, call, outcome)
            waiting = []
            found.append(round(state.runs["r"].rules["stagnation"]["score"], 3))
    return found


TABLE = [
    ("the n-th repeat adds n, at most 3", "a1=x a1=x a1=x a1=x a1=x", [0, 1, 3, 6, 9]),
    ("new calls are progress", "a1=x a2=y a3=z", [0, 0, 0]),
    ("a really new answer is progress", "a1=x a1=x a1=y a1=y", [0, 1, 0, 1]),
    ("a repeat from before the last progress is free, once", "a1=x b1=y a1=x a1=x", [0, 0, 0, 1]),
    ("only numbers differ", "a1=x1 a1=x2 a1=x3", [0, 0.5, 1]),
    ("arguments differ in numbers only and the answer is the same", "a1=x a2=x a3=x", [0, 0.5, 1]),
    ("but a write that works is new", "w1=x w2=x w3=x", [0, 0, 0]),
    ("an equal write is a repeat whatever it returns", "w1=x w1=y w1=z", [0, 1, 3]),
    ("a first failure adds a half", "a1=e!", [0.5]),
    ("a known error of that tool adds 1", "a1=e! a2=e! a3=e!", [0.5, 1.5, 2.5]),
    ("the same error of another tool is new", "a1=e! b1=e!", [0.5, 1]),
    ("the n-th equal failure adds n, at most 3", "a1=e! a1=e! a1=e! a1=e! a1=e!", [0.5, 1.5, 3.5, 6.5, 9.5]),
    ("an equal failure of a write adds 1", "w1=e! w1=e! w1=e!", [0.5, 1.5, 2.5]),
    ("another error of the same write is another failure, for its answer is left out", "w1=e! w1=f!", [0.5, 1.5]),
    ("transient failures count a third", "a1=e? a1=e? a1=e?", [0.167, 0.5, 1.167]),
    ("a call that works after failures is progress", "a1=e! a1=e! a1=x", [0.5, 1.5, 0]),
    ("a new transient failure makes repeats free again", "a1=x a1=x b1=e? a1=x a1=x", [0, 1, 1.167, 1.167, 2.167]),
    ("a known transient error does not", "b1=e? a1=x a1=x b2=e? a1=x", [0.167, 0, 1, 1.333, 3.333]),
    ("a permanent failure does not either", "a1=x a1=x b1=e! a1=x", [0, 1, 1.5, 3.5]),
    ("unknown is not failed", "a1=x_0 a1=x_0 a1=x_0", [0, 1, 3]),
    ("pollers and neutral calls are left out", "a1=x p1=x p1=x n1=x n1=x a1=x", [0, 0, 0, 0, 0, 1]),
    ("so are cancelled and closed ones", "a1=x a1=x~ a1=x^ a1=x", [0, 0, 0, 1]),
    ("what cannot be compared is new", "a1=x a1=x a2=huge a1=x", [0, 1, 0, 0]),
    ("so is what cannot be signed", "a1=x a1=x h1=x a1=x", [0, 1, 0, 0]),
    ("twins of a batch count once", "[a1=x a1=x a1=x a1=x] a1=x", [0, 1]),
    ("siblings with other answers count each", "[a1=x a1=y] a1=y", [0, 1]),
    ("of the failures of a batch only the first adds", "[a1=e! a2=e! b1=f!] a1=e!", [0.5, 1.5]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "script", "expected"), TABLE)
def test_scores_by_hand(name, script, expected):
    """Each sentence of the rule, on the smallest sequence that shows it."""
    assert scores(script) == expected


def definition(calls):
    """The score after each call, as the rule is written, with unbounded memories."""
    score, seen, errors, count = 0.0, set(), set(), {}
    for call, outcome in calls:
        tool, args, fp, digits = call.tool, call.signature, outcome.volatile, outcome.digits
        write = call.tool_class == "write"
        key = (tool, args, None if write else fp, outcome.failed)
        n = count.get(key, 0)
        if outcome.failed:
            transient = outcome.failure == "transient"
            add = (1 if write else min(n, 3)) if n else (1 if (tool, fp) in errors else 0.5)
            score += add / 3 if transient else add
            if transient and (tool, args) not in seen and (tool, fp) not in errors:
                count.clear()
            errors.add((tool, fp))
        elif key in seen:
            score += min(n, 3)
        elif (tool, args, digits, "digits") in seen or (not write and (call.shape, fp, "shape") in seen):
            score += 0.5
        else:
            score = 0.0
            count.clear()
        count[key] = count.get(key, 0) + 1
        seen |= {key, (tool, args), (tool, args, digits, "digits"), (call.shape, fp, "shape")}
        yield score


WORDS = st.builds(
    "{}{}={}{}{}".format,
    st.sampled_from("abw"),
    st.integers(1, 3),
    st.sampled_from("xy"),
    st.integers(1, 2),
    st.sampled_from(["", "", "", "!", "?"]),
)


@settings(max_examples=800, deadline=None)
@given(st.lists(WORDS, max_size=40))
def test_the_score_equals_the_definition(words):
    """On arbitrary sequences the score after each call is that of the definition."""
    assert scores(" ".join(words)) == [round(score, 3) for score in definition(map(parse, words))]


@pytest.mark.parametrize(("limit", "index"), [(1.0, 1), (1.5, 2), (3.0, 2), (3.5, 3), (6.0, 3), (6.5, 4)])
def test_the_limit_is_met_at_its_score(limit, index):
    """The run stops with the result at which the score reaches the limit, not before."""
    chain, state = Chain([Stagnation(limit)]), SessionState("s")
    call, outcome = parse("a1=x")
    trips = []
    while not any(trips):
        trips.append(chain.settle(state, "r", chain.admit(state, "r", call).number, call, outcome).trip)
    trip = trips[-1]
    assert len(trips) == index + 1
    assert (trip.scope, trip.loop_type, trip.limit) == ("run", "stagnation", limit)
    assert f"stagnation limit = {int(trip.observed) + 1} " in trip.why


def test_memories_are_bounded_and_err_towards_not_stopping():
    """Full memories forget their oldest entry, which makes that call new again."""
    rule = Stagnation(1e9)
    mine = rule.start()
    for n in range(2000):
        for word in (f"a{n}=x{n}!", f"b{n}=y{n}x"):
            rule.settle(mine, None, *parse(word))
    assert (len(mine["seen"]), len(mine["errors"])) == (SEEN_KEPT, ERRORS_KEPT)
    assert len(mine["count"]) <= COUNTS_KEPT
    mine["score"] = 5.0
    rule.settle(mine, None, *parse("b0=y0x"))
    assert mine["score"] <= 5.5
