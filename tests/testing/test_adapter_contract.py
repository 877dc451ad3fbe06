"""The adapter contract: an adapter of a few lines passes it, and each way to break one is found out."""

from __future__ import annotations

import contextvars
from typing import ClassVar
from unittest import SkipTest

import pytest

from otel_toolguard import SessionStopped, current_session
from otel_toolguard.adapter import at_model
from otel_toolguard.testing import AdapterContract
from otel_toolguard.testing.adapter_contract import told
from otel_toolguard.testing.adapter_hooks import Figures
from otel_toolguard.testing.agents import _answer, _failure

from .small_framework import Agent, Guarded, Instrumentor, Small


class TestSmall(Small):
    """All of it for the small framework."""


class NoGate(Guarded):
    def _gate(self):
        return


class LateGate(Guarded):
    late = False

    def _gate(self):
        if self.late:
            super()._gate()
        self.late = at_model(self.place) is not None


class NoSession(Guarded):
    def _gate(self):
        if current_session() is not None:
            super()._gate()


class OtherException(Guarded):
    def _gate(self):
        try:
            super()._gate()
        except SessionStopped as error:
            raise RuntimeError(str(error)) from error


class Quiet(Guarded):
    def _gate(self):
        try:
            super()._gate()
        except SessionStopped as error:
            error.trip = None
            raise


class RunsAnyway(Guarded):
    def refused(self, call, attempt):
        self.execute(call)
        return super().refused(call, attempt)


class LeavesOpen(Guarded):
    def _together(self, calls):
        return [answer for answer in super()._together(calls) if not answer["refused"]]


class AnswersTwice(Guarded):
    def _together(self, calls):
        return [*super()._together(calls), _answer({"id": "nobody", "name": "x"}, "")]


class EndsAtOnce(Guarded):
    def refused(self, call, attempt):
        raise attempt.error()


class TellsNothing(Guarded):
    def refused(self, call, attempt):
        return _answer(call, "no")


class CallsItGood(Guarded):
    def failed(self, call, attempt, error):
        attempt.returned(str(error))
        return _failure(call, error)


class Rewords(Guarded):
    def failed(self, call, attempt, error):
        attempt.raised(error)
        return _answer(call, "it did not work")


class NoMarker(Guarded):
    """The decorator inside does not learn that the call is counted already."""

    def execute(self, call):
        return contextvars.copy_context().run(self._unmarked, call)

    def _unmarked(self, call):
        from otel_toolguard.place import here

        here.set(self.place)
        return super().execute(call)


class NoParent(Guarded):
    def admit(self, call):
        return contextvars.Context().run(super().admit, call)


class NoContext(Guarded):
    def execute(self, call):
        return contextvars.Context().run(super().execute, call)


class NoCallId(Guarded):
    def admit(self, call):
        return super().admit({**call, "id": None})


class Forgets(Guarded):
    def failed(self, call, attempt, error):
        return _failure(call, error)


class ShowsMore(Guarded):
    @property
    def shown(self):
        return self._shown + " guarded"

    @shown.setter
    def shown(self, value):
        self._shown = value


class Touches(Guarded):
    @property
    def _text(self):
        self.history[-1]["content"] += " (guarded)"
        return super()._text


class BeginsAgain(Guarded):
    def resume(self):
        self.begin()
        return super().resume()


class ApprovalFails(Guarded):
    def _loop(self, calls):
        if self.asks and not self.approved and calls:
            self.failed(calls[0], self.admit(calls[0]), ValueError("waits"))
        return super()._loop(calls)


class HearsRefusals(Guarded):
    def refused(self, call, attempt):
        if self.heard is not None:
            self.heard.append(call["id"])
        return super().refused(call, attempt)


class LiftsTheCap(Guarded):
    def _turn(self):
        self.capped = False
        return super()._turn()


class NoBatch(Guarded):
    @property
    def batch(self):
        return None

    @batch.setter
    def batch(self, value):
        return

    def _together(self, calls):
        return [self._call(call) for call in calls]


class SameRun(Guarded):
    """The next run goes on in the stopped one."""

    PLACES: ClassVar = []

    def begin(self):
        if not self.PLACES:
            super().begin()
            self.PLACES.append(self.place)
        self.place = self.PLACES[0]


LOOP, BATCH, TOOL = (
    "test_a_loop_stops_at_its_limit",
    "test_b_batch_is_cut_at_the_ceiling",
    "test_b_refusal_of_one_tool_lets_the_run_go_on",
)
BROKEN = [
    (NoGate, LOOP, "the run ended with AssertionError"),
    (LateGate, LOOP, "model calls after the trip: expected 0, saw 1"),
    (LateGate, "test_a_cycle_stops_at_its_limit", "model calls after the trip: expected 0, saw 1"),
    (NoSession, "test_a_loop_stops_outside_any_block", "nothing stopped the run"),
    (LateGate, "test_a_loop_stops_outside_any_block", "bodies, model calls"),
    (OtherException, LOOP, "expected a SessionStopped, but the run ended with RuntimeError"),
    (Quiet, LOOP, "the record that the exception carries: expected Trip.*, saw None"),
    (RunsAnyway, BATCH, "bodies, model calls, answered ids: expected .5, 1, 10., saw .10, 1, 10."),
    (LeavesOpen, BATCH, "calls without an answer"),
    (AnswersTwice, LOOP, "answers that no call waits for|second calls, or answers"),
    (TellsNothing, BATCH, "answers that are refusals"),
    (NoBatch, "test_b_equal_calls_of_one_turn_are_one_lap", "bodies, model calls, answers"),
    (EndsAtOnce, TOOL, "error, model calls, bodies of each"),
    (LeavesOpen, TOOL, "error, model calls, bodies of each"),
    (CallsItGood, "test_c_failing_tool_is_counted_as_failed", "failures counted: expected 1, saw 0"),
    (CallsItGood, "test_c_answered_failure_is_counted_as_failed", "bodies, failures counted"),
    (Rewords, "test_c_failing_tool_is_counted_as_failed", "with the guard, and without"),
    (NoContext, "test_d_nested_trip_ends_the_outer_run", "expected|but the run ended"),
    (SameRun, "test_e_next_run_works_on_the_kept_history", "the next run was stopped"),
    (Touches, "test_f_healthy_run_is_not_touched", "with the guard, and without"),
    (ShowsMore, "test_g_schema_is_the_bare_tools", "schemas"),
    (ApprovalFails, "test_h_approval_is_no_failure", "the report while it waits"),
    (BeginsAgain, "test_h_approval_is_no_failure", "runs that the calls"),
    (NoParent, "test_i_one_span_per_attempt", "parents"),
    (NoContext, "test_i_one_span_per_attempt", "spans around what the bodies traced"),
    (NoCallId, "test_i_one_span_per_attempt", "spans of each call"),
    (NoMarker, "test_j_guarded_once_beside_the_decorator", "expected|but the run ended"),
    (HearsRefusals, "test_k_stop_beside_the_frameworks_own", "the user's hooks heard of: 4"),
    (Forgets, "test_k_failures_beside_the_frameworks_own", "expected|but the run ended"),
    (LiftsTheCap, "test_k_cap_that_is_reached_first", "with the guard, and without"),
]
MORE = {"approval": "approval", "beside": "hooks", "cap": "cap", "kind": "sync", "way": "run"}


def made(contract, check):
    """Runs one check as pytest would."""
    method = getattr(contract, check)
    wanted = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    method(**{name: MORE[name] for name in wanted})


@pytest.mark.parametrize(("adapter", "check", "said"), BROKEN)
def test_a_broken_adapter_is_found_out(adapter, check, said):
    """The check that is there for this fault fails on an adapter that has it, and says what is wrong."""
    with pytest.raises(AssertionError, match=said):
        made(type("Broken", (Small,), {"guarded": adapter})(), check)


class Leaves(Instrumentor):
    def uninstrument(self):
        return


class DoesNothing(Instrumentor):
    def instrument(self):
        return


class Twice(Instrumentor):
    def instrument(self):
        def again(*args, **more):
            return Guarded(*args, **more)

        self.patches.replace(Small.bindings(None)["make_agent"], again)


@pytest.mark.parametrize("instrumentor", [Leaves, DoesNothing, Twice])
def test_a_broken_instrumentor_is_found_out(instrumentor):
    """One that restores nothing, replaces nothing, or replaces its own replacement does not pass."""
    broken = type("Broken", (Small,), {"instrumentor": lambda self: instrumentor()})()
    try:
        with pytest.raises(AssertionError, match=r"binding|replaces something"):
            broken.test_l_uninstrument_restores_every_binding("run")
    finally:
        Instrumentor().uninstrument()
    assert Small().bindings() == {"make_agent": Agent}


def test_what_is_missing_must_be_said():
    """A check that cannot be made is an error, unless the adapter says why; then it is skipped with that reason."""
    silent = type("Silent", (Small,), {"approvals": (), "missing": {"f": "no async", "j": "one way"}})()
    with pytest.raises(AssertionError, match=r"expected \[\], saw \['h'\]"):
        silent.test_nothing_is_left_out()
    said = type("Said", (Small,), {"missing": {"h": "nobody can be asked"}})()
    with pytest.raises(SkipTest, match=r"\(h\) nobody can be asked"):
        said.test_h_approval_is_no_failure("approval", "run")


def test_the_line_of_figures(capsys):
    """The last line has the worst of each figure, and a dash for what was not measured."""
    figures = Figures()
    assert figures.line("small", "1.0") == (
        "CONTRACT small 1.0 model_calls_after=- over=- unanswered=- exception=- spans_per_attempt=-"
    )
    contract = type("Broken", (Small,), {"guarded": LateGate})
    with pytest.raises(AssertionError):
        made(contract(), LOOP)
    made(type("Whole", (contract,), {"guarded": Guarded})(), LOOP)
    contract.guarded = Guarded
    for check in (BATCH, "test_i_one_span_per_attempt"):
        made(contract(), check)
    contract.teardown_class()
    assert capsys.readouterr().out == (
        f"\nCONTRACT small {pytest.__version__} model_calls_after=1 over=0 unanswered=0 exception=SessionStopped "
        "spans_per_attempt=1\n"
    )


def test_answers_that_are_refusals():
    """A refusal is known by its JSON, with whatever a framework writes around it; nothing else is one."""
    refusal = '{"error": "circuit_open", "executed": false, "scope": "run"}'
    assert [told(text) for text in (refusal, f"Error: {refusal} Please go on.")] == ["run", "run"]
    for text in (None, "", "no", "{", "{}", "[1]", refusal.replace("false", "true"), '{"error": "circuit_open"}'):
        assert told(text) == ""


def test_hooks_must_be_there():
    """A contract without an adapter fails in the first hook that is missing."""
    contract = AdapterContract()
    for hook, given in (
        ("tool", [len]), ("failing_tool", [len]), ("agent", [[], []]), ("agent_tool", ["a", None, "run"]),
        ("run", [None, "run", ""]), ("kept", [None, None]), ("exchanges", [None]), ("text", [None]), ("asked", [None]),
        ("shown", [None]), ("approval_agent", [len, [], "a"]), ("pause", [None, "run"]), ("approve", [None, "run"]),
        ("instrumentor", []), ("bindings", []),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError):
            getattr(contract, hook)(*given)
    assert contract.heard(None) is None
