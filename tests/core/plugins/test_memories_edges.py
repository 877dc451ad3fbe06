"""What a rule remembers, how much of it, and what it forgets first."""

import json
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins import failure_streak, file_edits, signature_failures, stagnation, tool_stats
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.file_edits import FileEdits
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.plugins.stagnation import Stagnation
from otel_toolguard.core.plugins.tool_stats import ToolStats
from otel_toolguard.core.state import SessionState

RUN = SessionState("s").run("r")


def fail(rule: Any, mine: Any, number: int) -> Any:
    """One failure of another tool each."""
    return rule.settle(mine, RUN, ToolCall(f"t{number}", f"t{number}:1"), Outcome("failed", volatile="x"))


def edit(rule: Any, mine: Any, number: int) -> Any:
    """One edit of another file each, by a call that carries its arguments."""
    call = ToolCall("edit", "edit:1", tool_class="write", arguments={"path": f"f{number}"})
    return rule.settle(mine, RUN, call, Outcome("ok"))


KEPT: list[tuple[Any, Callable[[Any, Any, int], Any], int]] = [
    (FailureStreak(2), fail, failure_streak.TOOLS_KEPT),
    (SignatureFailures(2), fail, signature_failures.SIGNATURES_KEPT),
    (FileEdits(1), edit, file_edits.FILES_KEPT),
]


@pytest.mark.parametrize(("rule", "do", "most"), KEPT)
def test_the_oldest_is_forgotten_first_and_only_when_there_is_no_room(rule: Any, do: Any, most: int) -> None:
    """With room for all, the first is still known; one more, and it alone is new again."""
    mine = rule.start()
    for number in range(most):
        do(rule, mine, number)
    assert do(rule, mine, 0).share >= 1
    do(rule, mine, most)
    assert do(rule, mine, 1).share >= 1
    again = do(rule, mine, 0)
    assert again is None or again.share < 1


def test_the_file_of_a_call_is_remembered_until_there_is_no_room() -> None:
    """A result that has lost its arguments is still an edit of the file that its call named."""
    rule = FileEdits(9)
    for more, known in ((0, True), (1, False)):
        mine = rule.start()
        for number in range(file_edits.ASKED_KEPT + more):
            rule.admit(mine, RUN, ToolCall("edit", f"e:{number}", arguments={"path": "f"}))
        rule.settle(mine, RUN, ToolCall("edit", "e:0"), Outcome("ok"))
        assert (len(mine["files"]) == 1) is known


def test_a_call_asked_for_again_makes_no_room() -> None:
    """The memory of calls that are on their way holds each once."""
    rule, mine = FileEdits(9), FileEdits(9).start()
    for number in [*range(file_edits.ASKED_KEPT), 5]:
        rule.admit(mine, RUN, ToolCall("edit", f"e:{number}", arguments={"path": "f"}))
    assert len(mine["asked"]) == file_edits.ASKED_KEPT
    assert "e:0" in mine["asked"]


EDITS = [
    ({"path": "f"}, "write", "save", "ok", True),
    ({"path": "f"}, "read", "save", "ok", False),
    ({"path": "f"}, "read", "Rewrite", "ok", False),
    ({"path": "f"}, "read", "fsWrite", "ok", True),
    ({"path": "f"}, "read", "FS_WRITE", "ok", True),
    ({"path": "f"}, "read", "Edit", "ok", True),
    ({"path": PurePosixPath("f")}, "write", "save", "ok", True),
    ({"path": 5, "file": "f"}, "write", "save", "ok", True),
    ({"path": "", "filename": "f"}, "write", "save", "ok", True),
    ({"path": "f"}, "write", "save", "closed", False),
    ({"path": "f"}, "write", "save", "cancelled", False),
    ({"path": "f"}, "write", "save", "failed", True),
    ({"path": "\ud800"}, "write", "save", "ok", True),
    (None, "write", "save", "ok", False),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "tool_class", "tool", "kind", "counts"), EDITS)
def test_which_results_are_edits(arguments: Any, tool_class: Any, tool: str, kind: Any, counts: bool) -> None:
    """A write, or a tool with edit or write in its name, that names a file and took place."""
    rule, mine = FileEdits(1), FileEdits(1).start()
    found = rule.settle(mine, RUN, ToolCall(tool, "s", tool_class=tool_class, arguments=arguments), Outcome(kind))
    assert (found is not None) is counts


def test_a_file_is_known_by_a_short_digest_of_its_own_in_each_session() -> None:
    """Nobody can tell from two states whether they are about one file."""
    names = set()
    for session in ("one", "other"):
        run, mine = SessionState(session).run("r"), FileEdits(9).start()
        call = ToolCall("edit", "e:1", arguments={"path": "f"})
        FileEdits(9).admit(mine, run, call)
        direct = FileEdits(9).start()
        FileEdits(9).settle(direct, run, call, Outcome("ok"))
        assert set(mine["asked"].values()) == set(direct["files"])
        names |= set(direct["files"])
    assert [len(name) for name in names] == [16, 16]


def test_a_warned_file_is_forgotten_like_any_other() -> None:
    """The nudge for a file holds as long as the file is known, over JSON too."""
    rule = FileEdits(1, on_limit="nudge")
    mine = rule.start()
    assert [bool(edit(rule, mine, 0).nudge) for _ in range(2)] == [False, True]
    mine = json.loads(json.dumps(mine))
    assert [edit(rule, mine, 0).share for _ in range(2)] == [0.5, 2.0]


def scored(rule: Stagnation, mine: Any, name: str, answer: str, kind: Any = "ok", failure: Any = None) -> float:
    """The score after one more call."""
    outcome = Outcome(kind, failure=failure, volatile=answer, digits=answer)
    rule.settle(mine, RUN, ToolCall(name[0], name, shape=name), outcome)
    return float(mine["score"])


def test_stagnation_forgets_the_oldest_call() -> None:
    """A call that was pushed out by 512 remembered things is progress when it comes again; before that it is not."""
    rule = Stagnation(1e9)
    for others, again in ((stagnation.SEEN_KEPT // 4 - 1, 1.0), (stagnation.SEEN_KEPT // 4, 0.0)):
        mine = rule.start()
        scored(rule, mine, "a0", "first", "unknown")
        for number in range(others):
            scored(rule, mine, f"b{number}", f"x{number}")
        mine["score"], mine["count"] = 1.0, {}
        assert scored(rule, mine, "a0", "first", "unknown") == again


def test_stagnation_forgets_nothing_for_a_call_that_it_knows() -> None:
    """With a full memory a repeat takes no room."""
    rule = Stagnation(1e9)
    mine = rule.start()
    calls = stagnation.SEEN_KEPT // 4
    for number in range(calls):
        scored(rule, mine, f"b{number}", f"x{number}")
    assert len(mine["seen"]) == stagnation.SEEN_KEPT
    before = list(mine["seen"])
    scored(rule, mine, f"b{calls - 1}", f"x{calls - 1}")
    assert list(mine["seen"]) == before


def test_stagnation_forgets_the_oldest_error() -> None:
    """An error that was pushed out is a new one, which adds a half in place of 1."""
    rule = Stagnation(1e9)
    for others, added in ((stagnation.ERRORS_KEPT - 1, 1.0), (stagnation.ERRORS_KEPT, 0.5)):
        mine = rule.start()
        for number in range(others + 1):
            scored(rule, mine, f"a{number}", f"error {number}", "failed")
        before = mine["score"]
        assert scored(rule, mine, "az", "error 0", "failed") - before == added


def test_stagnation_forgets_the_oldest_count() -> None:
    """A failure whose count was pushed out begins its count again."""
    rule = Stagnation(1e9)
    for others, added in ((stagnation.COUNTS_KEPT - 1, 2.0), (stagnation.COUNTS_KEPT, 0.5)):
        mine = rule.start()
        for number in [0, *range(others + 1)]:
            scored(rule, mine, f"a{number}", f"error {number}", "failed")
        before = mine["score"]
        assert scored(rule, mine, "a0", "error 0", "failed") - before == added


PARTS = [
    ("a1=e! a1=e!", {"new failures": 0.5, "failures repeated": 1.0}),
    ("a1=e! a2=e!", {"new failures": 0.5, "known errors": 1.0}),
    ("a1=x a1=x a1=x", {"repeats": 3.0}),
    ("a1=x a2=y", {}),
    ("a1=x a1=x a2=y", {}),
    ("a1=x! a1=x! b1=huge", {}),
]  # fmt: skip


@pytest.mark.parametrize(("script", "parts"), PARTS)
def test_stagnation_says_what_the_score_is_made_of(script: str, parts: "dict[str, float]") -> None:
    """By kind, since the last progress."""
    rule, mine = Stagnation(9), Stagnation(9).start()
    for word in script.split():
        name, _, answer = word.partition("=")
        known: Any = None if answer == "huge" else answer
        kind: Any = "failed" if answer.endswith("!") else "ok"
        rule.settle(mine, RUN, ToolCall(name[0], name, shape=name), Outcome(kind, volatile=known, digits=known))
    assert mine["parts"] == parts
    assert mine["score"] == sum(parts.values())


def test_a_whole_call_without_a_comparable_answer_is_progress_and_so_is_one_not_signed_in_full() -> None:
    """Either is enough: nobody can tell whether it was new."""
    for whole, answer in ((True, None), (False, "x")):
        rule, mine = Stagnation(9), Stagnation(9).start()
        mine["score"] = 5.0
        mine["count"] = {"k": 1}
        assert rule.settle(mine, RUN, ToolCall("a", "a1", whole=whole), Outcome("ok", volatile=answer)) is None
        assert (mine["score"], mine["count"]) == (0.0, {})


def test_writes_that_differ_in_their_answer_are_one_call() -> None:
    """An equal write is a repeat, one with other arguments is not, whatever was answered."""
    rule, mine = Stagnation(9), Stagnation(9).start()
    found = []
    for name, answer in (("w1", "x"), ("w1", "y"), ("w2", "x")):
        call = ToolCall("w", name, shape="w#", tool_class="write")
        rule.settle(mine, RUN, call, Outcome("ok", volatile=answer, digits=answer))
        found.append(mine["score"])
    assert found == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("twin", [0, 1, 2, 3])
def test_twins_of_a_batch(twin: int) -> None:
    """The same call with the same answer counts once; one that only asked the same counts."""
    stagnant, failing = Stagnation(1), SignatureFailures(1)
    outcome = Outcome("failed", volatile="x")
    outcome.twin = twin
    assert (stagnant.settle(stagnant.start(), RUN, ToolCall("a", "a1"), outcome) is None) is (twin >= 2)
    assert (failing.settle(failing.start(), RUN, ToolCall("a", "a1"), outcome) is None) is (twin >= 2)


@pytest.mark.parametrize(("compare", "least"), [("call", 1), ("volatile", 2), ("exact", 3)])
def test_twins_of_a_batch_are_one_lap(compare: Any, least: int) -> None:
    """What counts as alike is what the guard compares."""
    for twin in range(4):
        rule = RepeatGuard(9, compare=compare)
        mine, outcome = rule.start(), Outcome("ok", exact="x", volatile="x")
        outcome.twin = twin
        rule.settle(mine, RUN, ToolCall("a", "a1"), outcome)
        assert (mine["last"] == []) is (twin >= least)


def test_only_the_newest_answer_is_remembered() -> None:
    """State as it is written: the answer and who got it."""
    rule = SameAnswer(3)
    mine = rule.start()
    assert mine == {"answer": None, "calls": {}}
    for name in ("a1", "a2"):
        rule.settle(mine, RUN, ToolCall("a", name), Outcome("ok", volatile="x"))
    assert (mine["answer"], list(mine["calls"])) == ("a|x|ok", ["a1", "a2"])
    rule.settle(mine, RUN, ToolCall("w", "w1", tool_class="write"), Outcome("ok", volatile="x"))
    assert mine == {"answer": None, "calls": {}}


# ------------------------------------------------------------------------------------------------ tool_stats


class Stats:
    """One session of ``tool_stats`` alone."""

    def __init__(self) -> None:
        self.chain, self.state = Chain([ToolStats()]), SessionState("s")

    def do(self, tool: str, kind: Any = "ok", *, ms: "float | None" = None, number: int = 1, **more: Any) -> None:
        call = ToolCall(tool, f"{tool}:{number}", **more)
        place: Any = self.chain.admit(self.state, "r", call)
        self.chain.settle(self.state, "r", place.number, call, Outcome(kind, ms=ms))

    def report(self) -> dict[str, Any]:
        return self.chain.report(self.state)


NOTHING = {
    "calls": 0, "retries": 0, "longest_fail_streak": 0, "tools": {}, "classes": {}, "failed": 0, "cancelled": 0,
    "distinct_signatures": 0, "distinct_ratio": 1.0, "max_signature_calls": 0, "max_in_flight": 0, "approximate": False,
}  # fmt: skip


def test_the_report_of_no_call() -> None:
    """All of it is there, at zero, also once the rule has a state."""
    assert ToolStats().report([]) == ToolStats().report([ToolStats().start()]) == NOTHING


def test_the_report_of_some_calls() -> None:
    """Every number of it."""
    stats = Stats()
    for number, (tool, kind, ms) in enumerate(
        [
            ("a", "failed", 1.23456),
            ("a", "failed", 2.0),
            ("b", "cancelled", None),
            ("b", "cancelled", 0.00051),
            ("a", "ok", 1.0),
        ]
    ):
        stats.do(tool, kind, ms=ms, number=number // 2, tool_class="read" if tool == "a" else "write")
    stats.chain.retry(stats.state, "r", "rate_limit", 2)
    stats.chain.retry(stats.state, "r", "rate_limit", 3)
    assert ToolStats().report([stats.state.rules["tool_stats"]]) == {
        "calls": 5, "retries": 2, "longest_fail_streak": 2, "classes": {"read": 3, "write": 2}, "failed": 2, "cancelled": 2,
        "tools": {
            "a": {"calls": 3, "failed": 2, "ms": 4.235, "max_ms": 2.0},
            "b": {"calls": 2, "failed": 0, "ms": 0.001, "max_ms": 0.001},
        },
        "distinct_signatures": 3, "distinct_ratio": 0.6, "max_signature_calls": 2, "max_in_flight": 1, "approximate": False,
    }  # fmt: skip


def test_ratios_have_four_digits() -> None:
    """Two of three are 0.6667."""
    stats = Stats()
    for number in (1, 2, 2):
        stats.do("a", number=number)
    assert stats.report()["distinct_ratio"] == 0.6667


STREAKS = [
    ("!", 1), ("!!.!", 2), ("!.!!", 2), ("!n!", 2), ("!~!", 2), ("!.", 1), (".", 0), ("nN", 0), ("!N!", 2), ("!0!", 1),
]  # fmt: skip


@pytest.mark.parametrize(("script", "longest"), STREAKS)
def test_the_longest_row_of_failures(script: str, longest: int) -> None:
    """``!`` failed, ``.`` worked, ``~`` was cancelled, ``0`` is unknown; n and N are a neutral call, working and failed."""
    stats = Stats()
    kinds = {"!": "failed", ".": "ok", "~": "cancelled", "0": "unknown", "n": "ok", "N": "failed"}
    for letter in script:
        stats.do("a", kinds[letter], neutral=letter in "nN")
    assert stats.report()["longest_fail_streak"] == longest


def test_tools_beyond_the_most_are_counted_together_and_that_is_said() -> None:
    """The 256th tool has its own row and nothing is approximate; the 257th shares one, and is counted there."""
    stats = Stats()
    for number in range(tool_stats.TOOLS_KEPT):
        stats.do(f"t{number}")
    report = stats.report()
    assert (len(report["tools"]), report["approximate"], "(other)" in report["tools"]) == (256, False, False)
    for number in (1, 2):
        stats.do("late", "failed", ms=2.0, number=number)
    stats.do("t0")
    report = stats.report()
    assert (report["tools"]["(other)"], report["approximate"]) == (
        {"calls": 2, "failed": 2, "ms": 4.0, "max_ms": 2.0},
        True,
    )
    assert report["tools"]["t0"]["calls"] == 2


def test_signatures_beyond_the_most_are_not_told_apart_and_that_is_said() -> None:
    """The 4096th signature is counted and nothing is approximate; the next is not, known ones go on."""
    rule = ToolStats()
    mine = rule.start()
    for number in range(tool_stats.SIGNATURES_KEPT):
        rule.settle(mine, RUN, ToolCall("a", f"a:{number}"), Outcome("ok"))
    assert (rule.report([mine])["distinct_signatures"], rule.report([mine])["approximate"]) == (4096, False)
    rule.settle(mine, RUN, ToolCall("a", "a:0"), Outcome("ok"))
    assert rule.report([mine])["approximate"] is False
    rule.settle(mine, RUN, ToolCall("a", "a:new"), Outcome("ok"))
    report = rule.report([mine])
    assert (report["distinct_signatures"], report["max_signature_calls"], report["approximate"]) == (4096, 2, True)
