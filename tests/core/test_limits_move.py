"""Every limit is felt: on some session its rule stops first, and raising that limit alone moves that stop only."""

import copy
import re

import pytest

from otel_toolguard import Policy
from otel_toolguard.core.call import Outcome
from otel_toolguard.core.canonical import Signer, fingerprints
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.state import SessionState
from otel_toolguard.settings import PLUGINS, PROFILES
from otel_toolguard.tool import Tool

SIGNER = Signer(b"limits")
NO_LIMIT = {
    "across_tools", "clear_on_write", "compare", "cooldown", "count", "distinct", "failed_nudge", "max_period",
    "on_limit", "same_error", "scope", "window",
}  # fmt: skip
OFF = {"file_edits", "deadline", "cost", "depth", "max_in_flight"}  # in no ready chain but cmdc's: added at its end


def x(n):
    """Another word without digits for each number."""
    return "x" * (n + 1)


def new(n):
    return "look", {"at": x(n)}, f"found {x(n)}", None


def failed(tool, arguments, error, failure="permanent"):
    return tool, arguments, error, failure


def with_work(calls):
    """Work that brings something new after each call."""
    return [row for n, call in enumerate(calls) for row in (call, new(n))]


def thoughts(period):
    """Thinking the same in turn: of all rules of a profile only repeat_guard and the ceilings count it."""
    return [("think", {"of": x(n % period)}, "", None) for n in range(160)]


def made(**how):
    """The same new calls, each with something done beside it: see ``first``."""
    return [(*new(n), how) for n in range(60)]


same_edit = [failed("edit_file", {"path": "a"}, f"refused: {x(n)}") for n in range(40)]
one_call = [failed("book_seat", {"row": 1}, "sold out")] * 40
one_call_passing = [failed("book_seat", {"row": 1}, "timed out", "transient")] * 90
repeats = [("look", {"at": "a"}, "same", None)] * 40
answers = [("search", {"q": x(n)}, "nothing", None) for n in range(60)]
streak = [failed("look", {"at": x(n)}, f"no {x(n)}") for n in range(60)]
streak_passing = [failed("look", {"at": x(n)}, f"no {x(n)}", "transient") for n in range(120)]
storm = [failed(f"look_{x(n % 3)}", {"at": x(n)}, f"no {x(n)}") for n in range(90)]
storm_passing = [failed(f"look_{x(n % 9)}", {"at": x(n)}, f"no {x(n)}", "transient") for n in range(180)]
work = [new(n) for n in range(520)]
edits = [("edit_file", {"path": "a", "text": x(n)}, "edited", None) for n in range(60)]
asked_again = with_work(one_call[:6]) + one_call
asked_now_and_then = with_work(one_call)

# rule, parameter: what is set in the profile's chain beside it, the raised value, the session
CASES = {
    ("repeat_guard", "limit"): ({}, 9, same_edit),
    ("repeat_guard", "limits"): ({"limits": {1: 4}}, {1: 5}, same_edit),
    ("repeat_guard", "failed_limit"): ({"failed_limit": 4}, 5, same_edit),
    ("stagnation", "limit"): ({}, 13.0, repeats),
    ("same_answer", "limit"): ({}, 26, answers),
    ("failure_streak", "limit"): ({}, 21, streak),
    ("signature_failures", "limit"): ({}, 7, with_work(one_call)),
    ("call_ceiling", "run"): ({}, 501, work),
    ("call_ceiling", "session"): ({"run": None, "session": 60}, 61, work),
    ("call_ceiling", "tools"): ({"tools": {"lo*": 30}}, {"lo*": 31}, work),
    ("call_ceiling", "classes"): ({"classes": {"other": 30}}, {"other": 31}, work),
    ("call_ceiling", "signature"): ({"signature": 8}, 9, with_work(repeats)),
    ("max_refusals", "limit"): ({}, 3, asked_again),
    ("max_refusals", "total"): ({}, 26, asked_now_and_then),
    ("file_edits", "limit"): ({"limit": 6}, 7, edits),
    ("deadline", "seconds"): ({"seconds": 30.0}, 31.0, made(seconds=1.0)),
    ("cost", "limit"): ({"limit": 30.0}, 31.0, made(cost=1.0)),
    ("depth", "limit"): ({"limit": 4}, 5, made(nested=True)),
    ("max_in_flight", "limit"): ({"limit": 6}, 7, made(runs_on=True)),
}
BY_PROFILE = {case: session for case, (beside, _, session) in CASES.items() if not beside}
# Where fewer calls are refused there are fewer refusals to count.
TIED = {("signature_failures", "max_refusals")}


def chain(profile, rule=None, **changed):
    """The profile's chain with one rule changed; a rule that is off there is added."""
    plugins = copy.deepcopy(PROFILES[profile])
    if rule in OFF:
        plugins.append({"plugin": rule})
    for table in plugins:
        if table["plugin"] == rule:
            table.update(changed)
    return Policy(plugins=plugins, mode="enforce")


def balanced(rule=None, **changed):
    return chain("balanced", rule, **changed)


def first(policy, session, rule=None):
    """Index and rule of the first trip."""
    found = first_trip(policy, session, rule)
    return found and (found[0], found[1].rule)


def first_trip(policy, session, rule=None):
    """Index and record of the first trip (of that rule, or that stops the run); None if there is none.

    A call may carry what is done beside it: so many ``seconds`` pass after it, it has a ``cost``, it is ``nested`` in
    the run of the call before, or ``runs_on`` while the next ones are made.
    """
    state, tools, now = SessionState("s"), {}, 0.0
    for index, (name, arguments, result, failure, *beside) in enumerate(session):
        how = beside[0] if beside else {}
        run = f"r{index}" if how.get("nested") else "r"
        call = tools.setdefault(name, Tool(name)).call(arguments, policy, SIGNER, world=None)
        admission = policy.chain.admit(state, run, call, above=f"r{index - 1}", at=now)
        if isinstance(admission, Refuse):
            trips = [admission.trip, *([admission.opened.trip] if admission.opened else [])]
        elif how.get("runs_on") or how.get("nested"):
            trips = []
        else:
            exact, masked, digits = fingerprints(SIGNER, result, failed=bool(failure), needs=policy.chain.needs)
            kind = "failed" if failure else "ok"
            outcome = Outcome(kind, failure=failure, exact=exact, volatile=masked, digits=digits)
            settled = [policy.chain.settle(state, run, admission.number, call, outcome, at=now)]
            if "cost" in how:
                settled.append(policy.chain.cost(state, run, how["cost"], at=now))
            trips = [each.trip for each in settled if each.trip]
        for trip in trips:
            if rule in (None, trip.rule) or trip.stops:
                return index, trip
        now += how.get("seconds", 0.0)
    return None


def test_every_limit_has_a_case():
    """No parameter that is a limit was forgotten, of whatever rule."""
    parameters = {(rule, name) for rule, kind in PLUGINS.items() for name in kind.model_fields if name not in NO_LIMIT}
    assert parameters == set(CASES)
    assert {(rule, parameter) for rule, parameter, *_ in MOVES} == set(CASES)
    assert {rule for rule, _ in CASES} | {"classify", "tool_stats", "distinct_ratio"} == set(PLUGINS)


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_raising_one_limit_moves_its_stop(case):
    """The rule stops first; with its limit raised by one the stop comes later or is another rule's."""
    (rule, parameter), (beside, raised, session) = case, CASES[case]
    before = first(balanced(rule, **beside), session, rule)
    assert before is not None
    assert before[1] == rule
    after = first(balanced(rule, **beside | {parameter: raised}), session, rule)
    assert after is None or after[1] != rule or after[0] > before[0]
    assert after is None or after[0] >= before[0]


@pytest.mark.parametrize("case", BY_PROFILE, ids=".".join)
def test_raising_one_limit_moves_nothing_else(case):
    """The sessions that other limits stop are stopped where they were."""
    rule, parameter = case
    raised = balanced(rule, **{parameter: CASES[case][1]})
    for (other, name), session in BY_PROFILE.items():
        if (other, name) != case and (rule, other) not in TIED:
            assert first(raised, session, other) == first(balanced(), session, other), (other, name)


EXPECTED = {
    ("repeat_guard", "limit"): (7, 8), ("repeat_guard", "limits"): (3, 4), ("repeat_guard", "failed_limit"): (3, 4),
    ("stagnation", "limit"): (5, 6), ("same_answer", "limit"): (24, 25), ("failure_streak", "limit"): (19, 20),
    ("signature_failures", "limit"): (10, 12), ("call_ceiling", "run"): (500, 501),
    ("call_ceiling", "session"): (60, 61), ("call_ceiling", "tools"): (30, 31), ("call_ceiling", "classes"): (30, 31),
    ("call_ceiling", "signature"): (16, 18), ("max_refusals", "limit"): (13, 14),
    ("max_refusals", "total"): (60, 62), ("file_edits", "limit"): (6, 7), ("deadline", "seconds"): (30, 31),
    ("cost", "limit"): (29, 30), ("depth", "limit"): (4, 5), ("max_in_flight", "limit"): (6, 7),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_the_stop_moves_by_one_lap(case):
    """Where the stop stands before and after is what the definition of the rule says."""
    (rule, parameter), (beside, raised, session) = case, CASES[case]
    found = [first(balanced(rule, **settings), session, rule) for settings in (beside, beside | {parameter: raised})]
    assert [at and at[0] for at in found] == list(EXPECTED[case])


# rule, parameter, what the session shows: what is set beside it (for ``limits`` and the like: the limit itself), the
# session, the calls that one more of the limit is worth, and the index of the stop in the balanced and strict chain
MOVES = {
    ("repeat_guard", "limit", "one call"): ({}, same_edit, 1, 7, 6),
    ("repeat_guard", "limit", "one thought"): ({}, thoughts(1), 1, 7, 6),
    ("repeat_guard", "limit", "two in turn"): ({}, thoughts(2), 2, 15, 13),
    ("repeat_guard", "limit", "three in turn"): ({}, thoughts(3), 3, 23, 20),
    ("repeat_guard", "limits", "one call"): ({"limits": {1: 4}}, same_edit, 1, 3, 3),
    ("repeat_guard", "limits", "two in turn"): ({"limits": {2: 4}}, thoughts(2), 2, 7, 7),
    ("repeat_guard", "limits", "three in turn"): ({"limits": {3: 4}}, thoughts(3), 3, 11, 11),
    ("repeat_guard", "failed_limit", "one call"): ({"failed_limit": 4}, same_edit, 1, 3, 3),
    ("stagnation", "limit", "failures, each its own"): ({}, storm, 2, 23, 19),
    ("stagnation", "limit", "that may pass"): ({}, storm_passing, 6, 71, 59),
    ("same_answer", "limit", "different calls"): ({}, answers, 1, 24, 19),
    ("failure_streak", "limit", "failures"): ({}, streak, 1, 19, 15),
    ("failure_streak", "limit", "that may pass"): ({}, streak_passing, 3, 59, 47),
    ("signature_failures", "limit", "every other call"): ({}, with_work(one_call), 2, 10, 8),
    ("signature_failures", "limit", "that may pass"): ({}, with_work(one_call_passing), 6, 34, 28),
    ("call_ceiling", "run", "work"): ({}, work, 1, 500, 500),
    ("call_ceiling", "session", "work"): ({"run": None, "session": 60}, work, 1, 60, 60),
    ("call_ceiling", "tools", "work"): ({"tools": {"lo*": 30}}, work, 1, 30, 30),
    ("call_ceiling", "classes", "work"): ({"classes": {"other": 30}}, work, 1, 30, 30),
    ("call_ceiling", "signature", "every other call"): ({"signature": 8}, with_work(repeats), 2, 16, 16),
    ("max_refusals", "limit", "asked again"): ({}, asked_again, 1, 13, 13),
    ("max_refusals", "total", "asked now and then"): ({}, with_work(one_call), 2, 60, 58),
    ("file_edits", "limit", "one file"): ({"limit": 6}, edits, 1, 6, 6),
    ("deadline", "seconds", "a second a call"): ({"seconds": 30.0}, made(seconds=1.0), 1, 30, 30),
    ("deadline", "seconds", "half a second a call"): ({"seconds": 15.0}, made(seconds=0.5), 2, 30, 30),
    ("cost", "limit", "one a call"): ({"limit": 30.0}, made(cost=1.0), 1, 29, 29),
    ("cost", "limit", "a quarter a call"): ({"limit": 6.0}, made(cost=0.25), 4, 23, 23),
    ("depth", "limit", "each in the one before"): ({"limit": 4}, made(nested=True), 1, 4, 4),
    ("max_in_flight", "limit", "none ends"): ({"limit": 6}, made(runs_on=True), 1, 6, 6),
}


def changed(profile, rule, parameter, beside, change):
    """The setting, changed; that of its only entry where it is a table."""
    table = next((table for table in PROFILES[profile] if table["plugin"] == rule), {})
    before = (table | beside)[parameter]
    return {
        parameter: {key: change(value) for key, value in before.items()} if isinstance(before, dict) else change(before)
    }


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("profile", ["balanced", "strict"])
@pytest.mark.parametrize("case", MOVES, ids=", ".join)
def test_raising_by_k_moves_the_stop_by_k_times_its_worth(case, profile, k):
    """In both chains the rule is the first to stop; with k more of its limit alone it is first as many calls later."""
    (rule, parameter, _), (beside, session, worth, in_balanced, in_strict) = case, MOVES[case]
    at = in_balanced if profile == "balanced" else in_strict
    alone = rule if rule == "max_refusals" else None  # which needs refusals of another rule first
    assert first(chain(profile, rule, **beside), session, alone) == (at, rule)
    raised = chain(profile, rule, **beside | changed(profile, rule, parameter, beside, lambda before: before + k))
    assert first(raised, session, alone) == (at + k * worth, rule)


NAMED = re.compile(r"(?P<how>= |above )(?P<number>\d+)\}*(?: \([^)]*\))? would have allowed")


@pytest.mark.parametrize("profile", ["balanced", "strict"])
@pytest.mark.parametrize("case", MOVES, ids=", ".join)
def test_the_sentence_names_the_least_limit_that_would_have_allowed_it(case, profile):
    """With what the trip names set, that call does not trip the rule; with one less, it does."""
    (rule, parameter, _), (beside, session, *_) = case, MOVES[case]
    index, trip = first_trip(chain(profile, rule, **beside), session, rule)
    assert f"{rule} {parameter} " in trip.why
    named = NAMED.search(trip.why)
    least = int(named["number"]) + (named["how"] == "above ")
    for number, trips in ((least, False), (least - 1, True)):
        setting = changed(profile, rule, parameter, beside, lambda before, n=number: type(before)(n))
        assert (first(chain(profile, rule, **beside | setting), session[: index + 1], rule) == (index, rule)) == trips


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(("parameter", "moved"), [("window", 1), ("distinct", 0)])
def test_distinct_ratio_moves_its_first_warning(parameter, moved, k):
    """It stops nothing: one more call to look at is one call later, one more different call allowed is none."""

    def warned(**settings):
        policy = chain("skill", "distinct_ratio", **settings)
        state, tool = SessionState("s"), Tool("look")
        for index in range(60):
            call = tool.call({"at": x(index % 2)}, policy, SIGNER)
            number = policy.chain.admit(state, "r", call).number
            if "distinct_ratio" in policy.chain.settle(state, "r", number, call, Outcome("ok")).warned:
                return index
        return None

    before = {"window": 6, "distinct": 2}
    assert warned(**before) == 5
    assert warned(**before | {parameter: before[parameter] + k}) == 5 + k * moved
