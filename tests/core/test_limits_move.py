"""Every limit is felt: on some session its rule stops first, and raising that limit alone moves that stop only."""

import copy

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
    "across_tools", "clear_on_write", "compare", "cooldown", "count", "failed_nudge", "max_period", "on_limit", "same_error",
}  # fmt: skip


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


same_edit = [failed("edit_file", {"path": "a"}, f"refused: {x(n)}") for n in range(40)]
one_call = [failed("book_seat", {"row": 1}, "sold out")] * 40
repeats = [("look", {"at": "a"}, "same", None)] * 40
answers = [("search", {"q": x(n)}, "nothing", None) for n in range(60)]
streak = [failed("look", {"at": x(n)}, f"no {x(n)}") for n in range(60)]
work = [new(n) for n in range(520)]
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
}
BY_PROFILE = {case: session for case, (beside, _, session) in CASES.items() if not beside}
# Where fewer calls are refused there are fewer refusals to count.
TIED = {("signature_failures", "max_refusals")}


def balanced(rule=None, **changed):
    plugins = copy.deepcopy(PROFILES["balanced"])
    for table in plugins:
        if table["plugin"] == rule:
            table.update(changed)
    return Policy(plugins=plugins, mode="enforce")


def first(policy, session, rule=None):
    """Index and rule of the first trip (of that rule, or that stops the run); None if there is none."""
    state, tools = SessionState("s"), {}
    for index, (name, arguments, result, failure) in enumerate(session):
        call = tools.setdefault(name, Tool(name)).call(arguments, policy, SIGNER, world=None)
        admission = policy.chain.admit(state, "r", call)
        if isinstance(admission, Refuse):
            trips = [admission.trip, *([admission.opened.trip] if admission.opened else [])]
        else:
            exact, masked, digits = fingerprints(SIGNER, result, failed=bool(failure), needs=policy.chain.needs)
            kind = "failed" if failure else "ok"
            outcome = Outcome(kind, failure=failure, exact=exact, volatile=masked, digits=digits)
            settled = policy.chain.settle(state, "r", admission.number, call, outcome)
            trips = [settled.trip] if settled.trip else []
        for trip in trips:
            if rule in (None, trip.rule) or trip.stops:
                return index, trip.rule
    return None


def test_every_limit_has_a_case():
    """No parameter that is a limit was forgotten."""
    parameters = {(rule, name) for rule, kind in PLUGINS.items() for name in kind.model_fields if name not in NO_LIMIT}
    rules = {rule for rule, _ in CASES}
    assert {pair for pair in parameters if pair[0] in rules} == set(CASES)
    assert {table["plugin"] for table in PROFILES["balanced"]} - rules == {"classify", "tool_stats"}


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
    ("max_refusals", "total"): (60, 62),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_the_stop_moves_by_one_lap(case):
    """Where the stop stands before and after is what the definition of the rule says."""
    (rule, parameter), (beside, raised, session) = case, CASES[case]
    found = [first(balanced(rule, **settings), session, rule) for settings in (beside, beside | {parameter: raised})]
    assert [at and at[0] for at in found] == list(EXPECTED[case])
