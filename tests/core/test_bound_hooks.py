"""Hooks are bound to their state once per run: what that must not outlast."""

import json
import marshal

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import SILENT, Refuse, Settled
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.tool_stats import ToolStats
from otel_toolguard.core.state import SessionState


def do(chain, state, tool="a", kind="ok", run="r"):
    """One call from admission to settlement; its trip or refusal, or None."""
    call = ToolCall(tool, f"{tool}:1")
    admission = chain.admit(state, run, call)
    if isinstance(admission, Refuse):
        return admission.trip
    return chain.settle(state, run, admission.number, call, Outcome(kind, None, "x", "x", "x")).trip


def test_each_policy_judges_by_its_own_rules():
    """Two policies that take turns on one run judge each by its own limit, and count together."""
    loose, strict = Chain([RepeatGuard(9)]), Chain([RepeatGuard(4)])
    state = SessionState("s")
    assert [do(chain, state) for chain in (loose, strict, loose)] == [None, None, None]
    trip = do(strict, state)
    assert (trip.limit, trip.observed) == (4, 4)


@pytest.mark.parametrize("periods", [(1, 3), (3, 1)])
def test_another_policy_may_look_for_longer_cycles(periods):
    """A run that began under a rule with fewer or more periods is still judged, whatever comes next."""
    first, second = (Chain([RepeatGuard(6, max_period=period)]) for period in periods)
    state = SessionState("s")
    assert [do(chain, state) for chain in (first, first, second, second, first)] == [None] * 5
    assert do(second, state).rule == "repeat_guard"


@pytest.mark.parametrize("ceilings", [False, True])
def test_a_reset_leaves_no_hook_with_an_old_state(ceilings):
    """After a reset rings and streaks begin at nothing, and the report goes on unless ceilings were reset too."""
    chain, state = Chain([RepeatGuard(3), FailureStreak(3), ToolStats()]), SessionState("s")
    assert [do(chain, state, kind="failed") for _ in range(2)] == [None, None]
    chain.reset(state, ceilings=ceilings)
    assert [do(chain, state, kind="failed") for _ in range(2)] == [None, None]
    assert do(chain, state, kind="failed").rule == "repeat_guard"
    assert chain.report(state)["calls"] == 5


@pytest.mark.parametrize(
    "written", [lambda plain: json.loads(json.dumps(plain)), lambda plain: marshal.loads(marshal.dumps(plain))]
)
def test_a_state_taken_up_in_the_middle_goes_on(written):
    """A state that is written and read between any two calls leads to the same trip at the same call."""
    chain, state = Chain([RepeatGuard(4), CallCeiling(run=50), ToolStats()]), SessionState("s")
    trips = []
    for _ in range(4):
        trips.append(do(chain, state))
        state = SessionState.from_plain(written(state.to_plain()))
    assert [trip and trip.rule for trip in trips] == [None, None, None, "repeat_guard"]
    assert chain.report(state)["max_signature_calls"] == 4


def test_the_shared_silence_is_never_changed():
    """One record stands for all results of which the rules say nothing, so nobody may write on it."""
    chain, state = Chain([RepeatGuard(4), FailureStreak(3)], nudge_on_warn=True), SessionState("s")
    for tool, kind in [("a", "ok")] * 3 + [("b", "failed")] * 3 + [("c", "ok")] * 4:
        do(chain, state, tool, kind)
    chain.close_batch(state, "r")
    chain.close_batch(state, "of nobody")
    fields = Settled.__slots__
    assert [getattr(SILENT, name) for name in fields] == [getattr(Settled(), name) for name in fields]


def test_a_rule_whose_state_cannot_be_made_keeps_admission_going():
    """What a rule of settlement needs is made when a result is judged, so ceilings still refuse before that."""

    class Broken:
        name = "broken"

        def start(self):
            raise ValueError("no state")

        def settle(self, mine, run, call, outcome):
            raise AssertionError("judged without a state")

    chain, state = Chain([CallCeiling(run=2), Broken()]), SessionState("s")
    for _ in range(2):
        with pytest.raises(ValueError, match="no state"):
            do(chain, state)
    assert do(chain, state).rule == "call_ceiling"
