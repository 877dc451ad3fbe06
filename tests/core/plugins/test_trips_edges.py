"""What each rule puts on record: the sentence, the numbers, the cycle; and what it has the model told."""

from typing import Any

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Refuse, Trip
from otel_toolguard.core.overrides import Overrides
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.cost import Cost
from otel_toolguard.core.plugins.deadline import Deadline
from otel_toolguard.core.plugins.depth import Depth
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.file_edits import FileEdits
from otel_toolguard.core.plugins.max_in_flight import MaxInFlight
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.plugins.stagnation import Stagnation
from otel_toolguard.core.state import SessionState

KINDS = {"!": ("failed", "permanent"), "?": ("failed", "transient")}


class World:
    """Plays calls such as ``a1=x``: tool a, arguments 1, answer x; ``!`` behind it fails for good, ``?`` for now."""

    def __init__(self, *rules: Any, run: str = "r", own: "dict[str, int] | None" = None, **options: Any) -> None:
        self.chain, self.state, self.run = Chain(rules, **options), SessionState("s"), run
        self.own = Overrides("a*", own) if own else None
        self.at = 0.0
        self.told: list[tuple[str, str]] = []

    def do(self, word: str) -> "Trip | None":
        """Admits and settles one call; the trip, if it opened one."""
        name, _, answer = word.partition("=")
        kind, failure = KINDS.get(answer[-1:], ("ok", None))
        call = ToolCall(
            name[:-1], name, tool_class="write" if name[0] == "w" else "read", arguments={"path": "f", "n": int(name[-1])},
            neutral=name[0] == "n", patience=10 if name[0] == "p" else 1, overrides=self.own, agent="scout",
        )  # fmt: skip
        admission = self.chain.admit(self.state, self.run, call, at=self.at)
        if isinstance(admission, Refuse):
            return admission.opened.trip if admission.opened else admission.trip
        digits = "".join("#" if c.isdigit() else c for c in answer)
        outcome = Outcome(kind, failure=failure, exact=answer, volatile=answer, digits=digits)  # type: ignore[arg-type]
        settled = self.chain.settle(self.state, self.run, admission.number, call, outcome, at=self.at)
        self.told += [(nudge.rule, nudge.text) for nudge in admission.nudges + settled.nudges]
        return settled.trip

    def first(self, script: str) -> Trip:
        """The first trip, which the last call of the script must bring."""
        *before, last = script.split()
        for word in before:
            assert self.do(word) is None, word
        trip = self.do(last)
        assert trip is not None
        return trip


ALLOWED = "would have allowed it."
ROW = "failed {} times in a row, with whatever arguments"
THIRD = " (transient failures count a third)"
SENTENCES: list[tuple[Any, str, str]] = [
    (Stagnation(2), "a1=x a1=x a1=x", f"Repeats and failures since the last progress scored 3.0 of 2 allowed (repeats 3); stagnation limit = 4 {ALLOWED}"),
    (Stagnation(1), "a1=x1 a1=x2 a1=x3", f"Repeats and failures since the last progress scored 1.0 of 1 allowed (only numbers new 1); stagnation limit = 2 {ALLOWED}"),
    (Stagnation(1), "a1=e? a1=e? a1=e?", f"Repeats and failures since the last progress scored 1.2 of 1 allowed (new failures 0.17, failures repeated 1); stagnation limit = 2 {ALLOWED}"),
    (Stagnation(1.5), "a1=x a1=x1 a2=e! a3=e!", f"Repeats and failures since the last progress scored 1.5 of 1.5 allowed (new failures 0.5, known errors 1); stagnation limit = 2 {ALLOWED}"),
    (FailureStreak(2), "a1=x! a2=y!", f"a {ROW.format(2)}; failure_streak limit = 3 {ALLOWED}"),
    (FailureStreak(1), "a1=x? a2=y? a3=z!", f"a {ROW.format('1.667')}; failure_streak limit = 2 {ALLOWED}"),
    (FailureStreak(1), "a1=x? a2=y? a3=z?", f"a {ROW.format(1)}{THIRD}; failure_streak limit = 2 {ALLOWED}"),
    (FailureStreak(2, across_tools=True), "a1=x! b2=y!", f"Tools {ROW.format(2)}; failure_streak limit = 3 {ALLOWED}"),
    (SignatureFailures(2), "a1=x! a1=x!", f"This very call of a failed 2 times in a row with the same error; signature_failures limit = 3 {ALLOWED}"),
    (SignatureFailures(2, same_error=False), "a1=x! a1=y!", f"This very call of a failed 2 times in a row; signature_failures limit = 3 {ALLOWED}"),
    (SignatureFailures(2, count="cumulative"), "a1=x! a1=y a1=x!", f"This very call of a failed 2 times with the same error; signature_failures limit = 3 {ALLOWED}"),
    (SignatureFailures(1), "a1=x? a1=x? a1=x?", f"This very call of a failed 1 times in a row{THIRD} with the same error; signature_failures limit = 2 {ALLOWED}"),
    (SameAnswer(2), "a1=x a2=x", f"2 different calls of a in a row got one and the same answer; same_answer limit = 3 {ALLOWED}"),
    (FileEdits(2), "w1=x w2=x w3=x", f"One file was edited 3 times in this run; file_edits limit = 3 {ALLOWED}"),
    (FileEdits(1, on_limit="nudge"), "w1=x w2=x w3=x w4=x", f"One file was edited 2 times in this run once more after a warning; file_edits limit = 2 {ALLOWED}"),
    (RepeatGuard(2), "a1=x a1=x", f"The same call of a came round 2 times in a row with the same results; repeat_guard limit = 3 {ALLOWED}"),
    (RepeatGuard(2, compare="exact"), "a1=x a1=x", f"The same call of a came round 2 times in a row with exactly the same results; repeat_guard limit = 3 {ALLOWED}"),
    (RepeatGuard(2, compare="call"), "a1=x a1=y", f"The same call of a came round 2 times in a row with the same arguments; repeat_guard limit = 3 {ALLOWED}"),
    (RepeatGuard(2), "a1=x b1=x a1=x b1=x", f"The same 2 calls (a, b) came round 2 times in a row with the same results; repeat_guard limit = 3 {ALLOWED}"),
    (RepeatGuard(2), "a1=x a2=x a1=x a2=x", f"The same 2 calls (a) came round 2 times in a row with the same results; repeat_guard limit = 3 {ALLOWED}"),
    (RepeatGuard(2), "c1=x b1=x a1=x c1=x b1=x a1=x", f"The same 3 calls (c, b, a) came round 2 times in a row with the same results; repeat_guard limit = 3 {ALLOWED}"),
    (RepeatGuard(9, limits={1: 2}), "a1=x a1=x", f"The same call of a came round 2 times in a row with the same results; repeat_guard limits = {{1 = 3}} {ALLOWED}"),
    (RepeatGuard(9, failed_limit=2), "a1=x! a1=x!", f"The same call of a came round 2 times in a row with the same results; repeat_guard failed_limit = 3 {ALLOWED}"),
    (RepeatGuard(1, failed_limit=9), "p1=x " * 10, f"The same call of p came round 10 times in a row with the same results; repeat_guard limit = 2 (times 10 for a poller) {ALLOWED}"),
    (RepeatGuard(9, limits={1: 1}), "p1=x " * 10, f"The same call of p came round 10 times in a row with the same results; repeat_guard limits = {{1 = 2}} (times 10 for a poller) {ALLOWED}"),
    (RepeatGuard(9, failed_limit=1), "p1=x! " * 10, f"The same call of p came round 10 times in a row with the same results; repeat_guard failed_limit = 2 (times 10 for a poller) {ALLOWED}"),
    (RepeatGuard(2), "a1=x p1=x a1=x p1=x", f"The same 2 calls (a, p) came round 2 times in a row with the same results; repeat_guard limit = 3 {ALLOWED}"),
    (CallCeiling(run=1), "a1=x a1=x", "The ceiling of 1 calls for the run is used up; call_ceiling run = 2 would have allowed one more."),
    (MaxInFlight(0), "a1=x", "0 calls of this run are running; max_in_flight limit = 1 would have allowed one more."),
    (MaxInFlight(0, scope="session"), "a1=x", "0 calls of this session are running; max_in_flight limit = 1 would have allowed one more."),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "script", "why"), SENTENCES)
def test_the_sentence_of_a_trip(rule: Any, script: str, why: str) -> None:
    """It has the numbers and names the least setting that would have let this call pass."""
    assert World(rule).first(script).why == why


OWN: list[tuple[Any, str, str]] = [
    (RepeatGuard(9), "a1=x a1=x", "repeat_guard"),
    (FailureStreak(9), "a1=x! a2=y!", "failure_streak"),
    (SignatureFailures(9), "a1=x! a1=x!", "signature_failures"),
    (SameAnswer(9), "a1=x a2=x", "same_answer"),
]


@pytest.mark.parametrize(("rule", "script", "name"), OWN)
def test_a_limit_of_the_tool_s_own_is_named_where_it_is_written(rule: Any, script: str, name: str) -> None:
    """The trip has the tool's limit, and the sentence the table in which it stands."""
    trip = World(rule, own={name: 2}).first(script)
    assert (trip.limit, trip.observed) == (2, 2)
    assert trip.why.endswith(f'; [tools."a*"] limits = {{{name} = 3}} would have allowed it.')


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (RepeatGuard(2), "repeat_guard"),
        (FailureStreak(2), "failure_streak"),
        (SignatureFailures(2), "signature_failures"),
        (SameAnswer(1), "same_answer"),
    ],
)
def test_settings_of_a_tool_that_are_about_another_rule_change_no_limit(rule: Any, name: str) -> None:
    """The rule's own limit holds."""
    trip = World(rule, own={"other": 1}).first("a1=x" if name == "same_answer" else "a1=x! a1=x!")
    assert (trip.rule, trip.limit) == (name, rule.limit)
    assert trip.why.endswith(f"; {name} limit = {rule.limit + 1} would have allowed it.")


A, B, C = ((tool, f"{tool}1", {"path": "str(1)", "n": "int"}) for tool in "abc")
RECORDS: list[tuple[Any, str, dict[str, Any]]] = [
    (Stagnation(1), "a1=e? a1=e? a1=e?", {"scope": "run", "limit": 1, "observed": 1.17, "loop_type": "stagnation"}),
    (FailureStreak(1), "a1=x? a2=y? a3=z!", {"scope": "run", "limit": 1, "observed": 1.67, "loop_type": "error_storm"}),
    (SignatureFailures(1, same_error=False), "a1=x? a1=x? a1=x!", {"scope": "signature", "limit": 1, "observed": 1.67, "loop_type": "error_storm", "retryable": False, "retry_after_s": None}),
    (SignatureFailures(1, cooldown=7.5), "a1=x!", {"scope": "signature", "observed": 1, "retryable": True, "retry_after_s": 7.5}),
    (SameAnswer(2), "a1=x a2=x", {"scope": "run", "limit": 2, "observed": 2, "loop_type": "same_answer"}),
    (FileEdits(2), "w1=x w2=x w3=x", {"scope": "run", "limit": 2, "observed": 3, "loop_type": "over_use", "tool_class": "write"}),
    (CallCeiling(session=2), "a1=x a1=x a2=x", {"scope": "session", "limit": 2, "observed": 2, "at_call": 2, "signature": "a2"}),
    (CallCeiling(signature=0), "a1=x", {"scope": "signature", "limit": 0, "observed": 0, "at_call": 0}),
    (MaxInFlight(0), "a1=x", {"scope": "signature", "limit": 0, "observed": 0, "loop_type": "over_use", "retryable": True, "retry_after_s": None}),
    (RepeatGuard(2), "a1=x a1=x", {"scope": "run", "limit": 2, "observed": 2, "period": 1, "loop_type": "exact_repeat", "members": [A], "retryable": False}),
    (RepeatGuard(2), "a1=x! a1=x!", {"limit": 2, "observed": 2, "period": 1, "loop_type": "error_storm", "members": [A]}),
    (RepeatGuard(2), "a1=x b1=x! a1=x b1=x!", {"limit": 2, "observed": 2, "period": 2, "loop_type": "oscillation", "members": [A, B]}),
    (RepeatGuard(2), "a1=x! b1=x! a1=x! b1=x!", {"period": 2, "loop_type": "error_storm", "members": [A, B]}),
    (RepeatGuard(2), "c1=x a1=x b1=x c1=x a1=x b1=x", {"period": 3, "loop_type": "oscillation", "members": [C, A, B]}),
    (RepeatGuard(2), "c1=x a1=x a1=x", {"period": 1, "members": [A], "at_call": 3}),
    (RepeatGuard(3), "c1=x a1=x a1=x " * 3, {"period": 3, "observed": 3, "members": [C, A]}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "script", "expected"), RECORDS)
def test_the_record_of_a_trip(rule: Any, script: str, expected: "dict[str, Any]") -> None:
    """Scope, limit, what was counted, and the cycle's calls in their order, without argument values."""
    trip = World(rule).first(script).to_dict()
    trip["members"] = [(member["tool"], member["signature"], member["arguments"]) for member in trip["members"]]
    assert {name: trip[name] for name in expected} == expected
    last = script.rsplit(maxsplit=1)[-1].partition("=")[0]
    assert (trip["rule"], trip["tool"], trip["signature"], trip["agent"]) == (rule.name, last[:-1], last, "scout")


TOLD: list[tuple[Any, str, str]] = [
    (FailureStreak(2, on_limit="nudge"), "a1=x! a2=y!", "a failed 2 times in a row: read the errors and change the approach, or report what is in the way."),
    (FailureStreak(1, on_limit="nudge"), "a1=x? a2=y? a3=z!", "a failed 1.667 times in a row: read the errors and change the approach, or report what is in the way."),
    (FailureStreak(2, on_limit="nudge", across_tools=True), "a1=x! b2=y!", "Calls failed 2 times in a row: read the errors and change the approach, or report what is in the way."),
    (FileEdits(1, on_limit="nudge"), "w1=x w2=x", "The same file has been edited 2 times in this run: stop editing it piece by piece; read it as a whole, decide what it shall be, or report what is in the way."),
    (RepeatGuard(2, on_limit="nudge"), "a1=x a1=x", "The same calls have come round 2 times in a row and brought nothing new: do something else, or report what is missing."),
    (RepeatGuard(9, failed_nudge=2), "a1=x! a1=x!", "The same calls have come round 2 times in a row and brought nothing new: do something else, or report what is missing."),
    (RepeatGuard(9, failed_nudge=2), "a1=x! b1=x! a1=x! b1=x!", "The same calls have come round 2 times in a row and brought nothing new: do something else, or report what is missing."),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "script", "text"), TOLD)
def test_the_sentence_for_the_model(rule: Any, script: str, text: str) -> None:
    """The model is told once, by that rule, at the last call of the script, in exactly these words."""
    world = World(rule)
    *before, last = script.split()
    assert [world.do(word) for word in before] == [None] * len(before)
    assert world.told == []
    assert world.do(last) is None
    assert world.told == [(rule.name, text)]


def test_a_long_tool_name_is_cut_at_80_characters() -> None:
    """The model's sentence stays readable."""
    world, name = World(FailureStreak(1, on_limit="nudge")), "n" * 40 + "m" * 60
    call = ToolCall(name, "s")
    permit = world.chain.admit(world.state, "r", call)
    settled = world.chain.settle(world.state, "r", permit.number, call, Outcome("failed"))  # type: ignore[union-attr]
    assert settled.nudges[0].text.startswith("n" * 40 + "m" * 40 + " failed 1 times")


TIMES = [
    (Deadline(10), [0.0, 10.12345], "run", 10.123, "The run has gone on for 10.12 seconds; deadline seconds = 11 would have allowed it."),
    (Deadline(10, scope="session"), [5.0, 25.0], "session", 20.0, "The session has gone on for 20 seconds; deadline seconds = 21 would have allowed it."),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "times", "scope", "observed", "why"), TIMES)
def test_a_deadline_says_how_long_it_was(
    rule: Deadline, times: list[float], scope: str, observed: float, why: str
) -> None:
    """Seconds since the first call, to the millisecond."""
    world, trip = World(rule), None
    for at in times:
        world.at = at
        trip = world.do("a1=x")
    assert trip is not None
    assert (trip.rule, trip.scope, trip.limit, trip.observed, trip.why) == ("deadline", scope, 10, observed, why)


@pytest.mark.parametrize("scope", ["run", "session"])
def test_a_cost_says_what_was_spent(scope: Any) -> None:
    """No call is named, for none did it."""
    world = World(Cost(2.5, scope=scope))
    assert world.chain.cost(world.state, "r", 2.0).trip is None
    trip = world.chain.cost(world.state, "r", 1.25).trip
    assert trip is not None
    assert (trip.rule, trip.scope, trip.limit, trip.observed, trip.tool) == ("cost", scope, 2.5, 3.25, None)
    assert trip.why == f"The {scope} has cost 3.25 of 2.5 allowed; a cost limit above 3.25 would have allowed it."


REFUSED = [
    ({"limit": 2}, "limit", 2, "Calls were refused 2 times in a row, and the agent asked again; max_refusals limit = 3 would have allowed it."),
    ({"limit": 9, "total": 2}, "total", 2, "Calls were refused 2 times in this run, and the agent asked again; max_refusals total = 3 would have allowed it."),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "which", "limit", "why"), REFUSED)
def test_max_refusals_says_how_often(limits: "dict[str, int]", which: str, limit: int, why: str) -> None:
    """In a row or in the run, whichever was reached."""
    world = World(CallCeiling(tools={"a": 0}), MaxRefusals(**limits))
    world.do("a1=x")
    trip = world.do("a1=x")
    assert trip is not None
    assert (trip.rule, trip.scope, trip.limit, trip.observed, trip.why) == ("max_refusals", "run", limit, 2, why)
    assert trip.loop_type == "refused_too_often"


@pytest.mark.parametrize("scope", ["run", "session"])
def test_depth_says_how_deep_it_was(scope: Any) -> None:
    """One level is a run of its own."""
    world = World(Depth(1, scope=scope))
    world.do("a1=x")
    refused = world.chain.admit(world.state, "inner", ToolCall("a", "a1"), above="r")
    assert isinstance(refused, Refuse)
    trip = refused.trip
    assert (trip.rule, trip.scope, trip.limit, trip.observed, trip.loop_type) == ("depth", scope, 1, 2, "over_use")
    assert trip.why == (
        "Runs are nested 2 deep, each inside a call of the one above; depth limit = 2 would have allowed it."
    )
