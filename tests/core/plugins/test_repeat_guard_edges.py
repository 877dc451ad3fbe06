"""Cycles to the letter: which of several is said, what of mixed limits holds, and what is reported."""

from typing import Any

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.overrides import Overrides
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.state import SessionState
from otel_toolguard.settings import Policy

RUN = SessionState("s").run("r")


def play(rule: RepeatGuard, tools: str, *, own: "dict[str, int] | None" = None, patience: int = 1) -> Any:
    """The last finding; ``n`` is neutral, a failing call is a capital letter."""
    mine, found = rule.start(), None
    for tool in tools:
        limit = (own or {}).get(tool)
        call = ToolCall(
            tool, f"{tool}:1", neutral=tool == "n", patience=patience,
            overrides=None if own is None else Overrides(f"{tool}*", {"repeat_guard": limit} if limit else {}),
        )  # fmt: skip
        failed: Any = "failed" if tool.isupper() else "ok"
        found = rule.settle(mine, RUN, call, Outcome(failed, exact="x", volatile="x"))
    return found


CYCLES: list[tuple[Any, str, tuple[int, int, float]]] = [
    (RepeatGuard(9), "caacaa", (1, 2, 0.2222)),
    (RepeatGuard(9), "caacaacaa", (3, 3, 0.3333)),
    (RepeatGuard(2, limits={3: 1}), "caacaa", (1, 2, 1.0)),
    (RepeatGuard(9), "abab", (2, 2, 0.2222)),
    (RepeatGuard(9), "aaaa", (1, 4, 0.4444)),
    (RepeatGuard(9, limits={2: 3}), "abababab", (2, 4, 1.3333)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "tools", "expected"), CYCLES)
def test_of_several_cycles_the_one_nearest_to_its_limit_is_said(
    rule: Any, tools: str, expected: "tuple[int, int, float]"
) -> None:
    """The shorter where they are equally near, or where it has reached its own."""
    found = play(rule, tools)
    assert (found.period, found.observed, round(found.share, 4)) == expected


OWN: list[tuple[str, dict[str, int], int]] = [
    ("aaa", {}, 4),
    ("aaa", {"a": 3}, 3),
    ("aaa", {"a": 7}, 7),
    ("abab", {"a": 3}, 3),
    ("abab", {"b": 3}, 3),
    ("abab", {"a": 7}, 4),
    ("abab", {"a": 7, "b": 6}, 6),
    ("abab", {"a": 6, "b": 7}, 6),
    ("anan", {"a": 7}, 7),
    ("anan", {"n": 7}, 4),
    ("anan", {"n": 3}, 3),
    ("ABAB", {"A": 7}, 4),
]  # fmt: skip


@pytest.mark.parametrize(("tools", "own", "limit"), OWN)
def test_a_cycle_has_the_fewest_laps_that_one_of_its_calls_has(tools: str, own: "dict[str, int]", limit: int) -> None:
    """A tool without a limit of its own has the rule's; waiting between two calls has none."""
    found = play(RepeatGuard(4), tools, own=own)
    assert round(found.share * limit) == found.observed == (2 if len(tools) == 4 else 3)


def test_the_sentence_names_the_tool_whose_limit_it_was() -> None:
    """The one with fewer laps; of two with as many, the newest."""
    for own, glob in (({"a": 2, "b": 3}, "a*"), ({"a": 3, "b": 2}, "b*"), ({"a": 2, "b": 2}, "b*"), ({"b": 2}, "b*")):
        found = play(RepeatGuard(9), "abab", own=own)
        assert found.why.endswith(f'; [tools."{glob}"] limits = {{repeat_guard = 3}} would have allowed it.')
    assert play(RepeatGuard(2), "abab", own={"a": 3}).why.endswith("; repeat_guard limit = 3 would have allowed it.")


@pytest.mark.parametrize(("patience", "says"), [(1, "limit = 2 "), (2, "limit = 2 (times 2 for a poller) ")])
def test_the_sentence_says_how_much_patience_there_was(patience: int, says: str) -> None:
    """From twice on."""
    found = play(RepeatGuard(1), "a" * max(2, patience), patience=patience)
    assert f"; repeat_guard {says}would" in found.why


def test_a_cycle_that_the_model_is_told_of_is_named_with_the_result() -> None:
    """Its length and laps, as for any other; then it begins anew."""
    chain, state, said = Chain([RepeatGuard(2, on_limit="nudge")]), SessionState("s"), []
    for _ in range(5):
        call = ToolCall("a", "a:1")
        permit: Any = chain.admit(state, "r", call)
        settled = chain.settle(state, "r", permit.number, call, Outcome("ok"))
        said.append((settled.repeat_length, settled.repeat_count, len(settled.nudges)))
    assert said == [(0, 0, 0), (1, 2, 1), (0, 0, 0), (1, 2, 1), (0, 0, 0)]


def test_the_report_has_the_most_laps_and_their_cycle() -> None:
    """The first of those with as many, over all runs."""
    rule = RepeatGuard(99)
    states = []
    for tools in ("abab", "aaaaa", "abcabc"):
        mine = rule.start()
        for tool in tools:
            rule.settle(mine, RUN, ToolCall(tool, f"{tool}:1"), Outcome("ok"))
        states.append(mine)
    assert rule.report(states) == {"longest_repeat": {"period": 1, "laps": 5}}
    mine = rule.start()
    for tool in "aabcbc":
        rule.settle(mine, RUN, ToolCall(tool, f"{tool}:1"), Outcome("ok"))
    assert mine["peak"] == [1, 2]
    assert rule.report([rule.start()]) == rule.report([]) == {"longest_repeat": {"period": 0, "laps": 0}}


@pytest.mark.parametrize(("outcomes", "observed", "limit"), [
    ("oof", None, None), ("off", None, None), ("ff", 2, 2), ("offfff", 6, 6), ("offffff", 6, 6),
])  # fmt: skip
def test_a_lap_that_worked_is_no_lap_of_failures(outcomes, observed, limit):
    """Comparing calls alone, a cycle whose first laps worked has the limit of cycles that work."""
    guard = {"plugin": "repeat_guard", "limit": 6, "max_period": 1, "compare": "call", "failed_limit": 2}
    chain, state, trip = Policy(plugins=[guard]).chain, SessionState("s"), None
    for kind in outcomes:
        call = ToolCall("look", "look:1")
        admission = chain.admit(state, "r", call)
        if trip is not None:
            break
        trip = chain.settle(state, "r", admission.number, call, Outcome("ok" if kind == "o" else "failed")).trip
    assert (trip and trip.observed, trip and trip.limit) == (observed, limit)
