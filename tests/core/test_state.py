"""The state is plain data at any moment, and bounded."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.failure_streak import FailureStreak
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.same_answer import SameAnswer
from otel_toolguard.core.plugins.stagnation import Stagnation
from otel_toolguard.core.plugins.tool_stats import ToolStats
from otel_toolguard.core.state import OPEN_RUNS_KEPT, PAUSED_KEPT, RUNS_KEPT, SIGNATURES_KEPT, SessionState

ABOVE = {"root": None, "child": "root", "grandchild": "child", "brother": "root", "other": None}
TOOLS = {"a": "read", "b": "write", "\ud800": "other"}


def through_json(state):
    return SessionState.from_plain(json.loads(json.dumps(state.to_plain())))


def chain(observe, lasting):
    return Chain(
        [
            RepeatGuard(4), Stagnation(7.0), SameAnswer(4), FailureStreak(4),
            CallCeiling(run=25, session=60, tools={"a": 12}, signature=6), MaxRefusals(3, total=6), ToolStats(),
        ],
        observe=observe, lasting_stop=lasting,
    )  # fmt: skip


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "settle", "settle", "settle", "stop", "reset", "retry"]),
        st.sampled_from(list(ABOVE)),
        st.sampled_from(list(TOOLS)),
        st.integers(0, 2),
        st.sampled_from(["ok", "ok", "failed", "interrupted", "cancelled", "unknown"]),
    ),
    min_size=40,
    max_size=90,
)


class Player:
    """Plays steps on a session and writes down every verdict; with ``disturb`` the state goes through JSON each time."""

    def __init__(self, judge, *, disturb):
        self.judge, self.disturb = judge, disturb
        self.state, self.open, self.verdicts = SessionState("s"), [], []

    def play(self, step):
        if self.disturb:
            self.state = through_json(self.state)
        kind, run, tool, number, ends = step
        getattr(self, kind)(run, tool, number, ends)

    def admit(self, run, tool, number, ends):
        call = ToolCall(
            tool,
            f"{tool}:{number}",
            shape=f"{tool}:#",
            tool_class=TOOLS[tool],
            call_id=f"c{number}",
            batch=f"b{number}" if number else None,
        )
        admission = self.judge.admit(self.state, run, call, above=ABOVE[run], link=lambda: "link")
        if isinstance(admission, Refuse):
            self.verdicts.append((type(admission).__name__, admission.trip.to_dict(), admission.fresh, admission.nth, admission.link,
                                  admission.signature_calls, admission.run_calls, admission.session_calls))  # fmt: skip
        else:
            self.open.append((run, admission.number, call))
            self.verdicts.append(
                (
                    admission.number,
                    admission.signature_calls,
                    admission.run_calls,
                    admission.session_calls,
                    admission.warned,
                    admission.would_trip,
                )
            )

    def settle(self, run, tool, number, ends):
        if not self.open:
            return
        run, place, call = self.open.pop(number % len(self.open))
        answer = f"{number}"
        outcome = Outcome(
            ends, failure="transient" if number else "permanent", exact=answer, volatile=answer, digits="#", ms=1.5
        )
        settled = self.judge.settle(self.state, run, place, call, outcome, link=lambda: "link")
        self.verdicts.append(
            (settled.trip, settled.would_trip, settled.warned, settled.repeat_length, settled.repeat_count)
        )

    def stop(self, run, tool, number, ends):
        if number == 2 and ends == "failed":
            self.verdicts.append(self.judge.stop(self.state, "reason"))

    def reset(self, run, tool, number, ends):
        if number == 2:
            self.judge.reset(self.state, ceilings=ends == "failed")
            self.state.audit.append({"action": "reset"})

    def retry(self, run, tool, number, ends):
        self.judge.retry(self.state, run, "kind", 1)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, observe=st.booleans(), lasting=st.booleans())
def test_a_state_that_went_through_json_judges_like_its_undisturbed_twin(steps, observe, lasting):
    """At any point of any interleaving over nested runs the state survives JSON, and every later verdict is the same."""
    judge = chain(observe, lasting)
    twin, disturbed = Player(judge, disturb=False), Player(judge, disturb=True)
    for step in steps:
        twin.play(step)
        disturbed.play(step)
    assert disturbed.verdicts == twin.verdicts
    assert disturbed.state.to_plain() == twin.state.to_plain()
    assert judge.report(disturbed.state) == judge.report(twin.state)


def test_another_version_is_refused():
    """State of another version is an error that names both versions."""
    plain = SessionState("s").to_plain()
    for version in (0, 2, None, "1"):
        with pytest.raises(ValueError, match="version"):
            SessionState.from_plain(plain | {"version": version})


def test_key_and_form_travel():
    """Whose signatures these are comes back with them."""
    back = through_json(SessionState("s", key_id="k", form=7))
    assert (back.id, back.key_id, back.form) == ("s", "k", 7)


def _do(judge, state, run, call):
    permit = judge.admit(state, run, call)
    judge.settle(state, run, permit.number, call, Outcome("ok"))


def test_what_is_remembered_is_bounded():
    """Signatures, paused calls and ended runs are kept up to a number each; runs still open or needed are kept."""
    judge, state = Chain([]), SessionState("s")
    for n in range(SIGNATURES_KEPT + 10):
        _do(judge, state, "r", ToolCall("t", f"t:{n}"))
    assert len(state.runs["r"].signatures) == SIGNATURES_KEPT
    for n in range(PAUSED_KEPT + 10):
        call = ToolCall("t", "t:1", call_id=f"c{n}")
        judge.settle(state, "r", judge.admit(state, "r", call).number, call, Outcome("interrupted"))
    assert len(state.runs["r"].paused) == PAUSED_KEPT
    judge.admit(state, "open", ToolCall("t", "t:1"))
    judge.admit(state, "child of open", ToolCall("t", "t:1"), above="open")
    for n in range(3 * RUNS_KEPT):
        _do(judge, state, f"run {n}", ToolCall("t", "t:1"))
        state.runs[f"run {n}"].ended = True
    assert len(state.runs) <= RUNS_KEPT + 1
    assert {"r", "open", "child of open"} <= set(state.runs)
    assert state.last_run == f"run {3 * RUNS_KEPT - 1}"


def test_in_flight_counts_over_all_runs():
    """The session knows how many bodies are running, in whichever run."""
    judge, state = Chain([]), SessionState("s")
    permits = [judge.admit(state, run, ToolCall("t", "t:1")) for run in ("x", "y", "x")]
    assert state.in_flight == 3
    judge.settle(state, "y", permits[1].number, ToolCall("t", "t:1"), Outcome("ok"))
    assert state.in_flight == 2


def test_runs_that_nobody_ends_are_forgotten_in_the_end():
    """A framework that never says that its runs are over does not fill the memory; running calls keep theirs."""
    session = SessionState("s")
    busy = session.run("busy")
    busy.flight[1] = ("t", "t:1", "other", "reversible")
    for n in range(1000):
        session.run(f"run-{n}")
    assert len(session.runs) <= OPEN_RUNS_KEPT
    assert {"busy", "run-999"} <= set(session.runs)
