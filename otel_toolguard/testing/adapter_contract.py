"""What every adapter must do, as tests to inherit: one class for each framework, its model scripted and offline.

The letters are those of the list that each adapter is held to; ``CONTRACT`` lines sum the results up.
"""

from __future__ import annotations

import json
import pickle
import time
from typing import TYPE_CHECKING, Any

from otel_toolguard import CircuitOpen, Policy, Session, SessionStopped, SettingsError, find_trip, guard_tool
from otel_toolguard.telemetry import attributes as names
from otel_toolguard.testing.adapter_hooks import BARE, AdapterHooks, Away, Bodies, Ran, ceiling, repeat
from otel_toolguard.testing.capture import capture_spans
from otel_toolguard.testing.expectation import expect
from otel_toolguard.testing.scripts import DONE, always_new, for_ever, in_turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.testing.capture import Captured

GENEROUS = Policy(profile="balanced")
LIMIT = 4


class AdapterContract(AdapterHooks):
    """Derive a test class from it, set its attributes and implement the hooks of ``AdapterHooks``."""

    def test_nothing_is_left_out(self) -> None:
        """Each check is made, or ``missing`` says why it cannot be."""
        ways = (*self.sync_ways, *self.async_ways)
        parts = {
            "f": self.sync_ways and self.async_ways and [way for way in ways if "stream" in way],
            "h": self.approvals,
            "j": self.guards,
            "k": self.besides and self.caps,
        }
        left_out = [letter for letter, given in parts.items() if not given and letter not in self.missing]
        expect(left_out, [], "checks without what they need")

    def test_a_loop_stops_at_its_limit(self, way: str, kind: str) -> None:
        """(a, f) An agent that loops for ever ends in ``CircuitOpen`` at the limit, with no further model call."""
        tool = Bodies(kind)
        ran = self.go(self.agent([self.tool(tool.function)], for_ever("search")), way, repeat(LIMIT))
        self.stopped(ran, "repeat_guard", SessionStopped)
        self.figures.worst("over", max(0, tool.ran - LIMIT))
        expect((tool.ran, ran.asked, len(ran.history)), (LIMIT, LIMIT, LIMIT), "bodies, model calls, answers")
        expect((ran.trip.limit, ran.trip.at_call) if ran.trip else None, (LIMIT, LIMIT), "the trip's limit and call")

    def test_a_loop_stops_outside_any_block(self, way: str) -> None:
        """(a) Where nobody opened a session the adapter's own, under the default rules, ends the loop."""
        tool = Bodies()
        agent = self.agent([self.tool(tool.function)], for_ever("search"))
        try:
            self.run(agent, way, "Find the word.")
        except CircuitOpen as stopped:
            expect((tool.ran, self.asked(agent)), (stopped.trip.at_call,) * 2, "bodies, model calls")
            expect([one.call_id for one in self.exchanges(self.kept(agent, stopped)) if one.answer is None], [], "open")
        else:
            raise AssertionError("the loop was not stopped")

    def test_a_cycle_stops_at_its_limit(self, way: str) -> None:
        """(a) Two calls that take turns end after the limit's full laps."""
        tool = Bodies()
        asks = in_turn(("search", {"q": "one"}), ("search", {"q": "two"}))
        ran = self.go(self.agent([self.tool(tool.function)], asks), way, repeat(3))
        self.stopped(ran, "repeat_guard", SessionStopped)
        expect((tool.ran, ran.asked, ran.trip.period if ran.trip else 0), (6, 6, 2), "bodies, model calls, period")

    def test_b_batch_is_cut_at_the_ceiling(self, way: str, kind: str) -> None:
        """(b) Of ten calls in one turn exactly five run at a ceiling of five, and all ten ids are answered."""
        tool = Bodies(kind, slow)
        ran = self.go(self.agent([self.tool(tool.function)], always_new("search", batch=10)), way, ceiling(5))
        self.figures.worst("over", max(0, tool.ran - 5))
        self.stopped(ran, "call_ceiling", SessionStopped)
        expect((tool.ran, ran.asked, len(ran.history)), (5, 1, 10), "bodies, model calls, answered ids")
        refused = [one for one in ran.history if told(one.answer)]
        expect([one.failed in (True, None) for one in refused], [True] * 5, "answers that are refusals, as failures")
        counts = {name: ran.report.get(name) for name in ("calls", "refused", "in_flight")}
        expect(counts, {"calls": 5, "refused": 5, "in_flight": 0}, "what the report counts")

    def test_b_equal_calls_of_one_turn_are_one_lap(self, way: str) -> None:
        """(b) Equal calls that the model asks for at once are one lap, however quickly they end."""
        tool = Bodies()
        ran = self.go(self.agent([self.tool(tool.function)], for_ever("search", batch=3)), way, repeat(3))
        self.stopped(ran, "repeat_guard", SessionStopped)
        expect((tool.ran, ran.asked, len(ran.history)), (9, 3, 9), "bodies, model calls, answers")

    def test_b_refusal_of_one_tool_lets_the_run_go_on(self, way: str) -> None:
        """(b) A ceiling of one tool refuses that tool only; the model is told, the others run, the run goes on."""
        closed, other = Bodies(), Bodies()
        other.function.__name__ = other.function.__qualname__ = "look"
        script = [[("search", {"q": "1"}), ("look", {}), ("search", {"q": "2"})], [("look", {"q": "again"})]]
        agent = self.agent([self.tool(closed.function), self.tool(other.function)], script)
        ran = self.go(agent, way, ceiling(tools={"search": 1}))
        expect((ran.error, ran.asked, closed.ran, other.ran), (None, 3, 1, 2), "error, model calls, bodies of each")
        expect([told(one.answer) for one in ran.history].count("tool"), 1, "refusals of scope tool")
        self.whole(ran)

    def test_c_failing_tool_is_counted_as_failed(self, way: str, kind: str) -> None:
        """(c) What a tool raises comes out, or is answered, exactly as without the guard, and counts as a failure."""
        ends = []
        for guard in (BARE, "guarded"):
            tool = Bodies(kind, fails)
            agent = self.agent([self.tool(tool.function)], [[("search", {})]], guard=guard)
            with capture_spans() as captured:
                ran = self.go(agent, way, GENEROUS, within=captured)
            ends.append((type(ran.error), str(ran.error), ran.history, tool.ran))
        expect(ends[1], ends[0], "the run's end with the guard, and without")
        expect(ran.report["tools"]["search"]["failed"], 1, "failures counted")
        expect(captured.outcomes(), ["failed"], "outcomes on the spans")

    def test_c_answered_failure_is_counted_as_failed(self, way: str, kind: str) -> None:
        """(c) A failure that the framework answers to the model counts too, and repeated it stops the run."""
        tool = Bodies(kind, fails)
        agent = self.agent([self.failing_tool(tool.function)], for_ever("search"))
        with capture_spans() as captured:
            ran = self.go(agent, way, repeat(3), within=captured)
        self.stopped(ran, "repeat_guard", SessionStopped)
        expect((tool.ran, ran.report["tools"]["search"]["failed"]), (3, 3), "bodies, failures counted")
        expect(captured.outcomes(), ["failed"] * 3, "outcomes on the spans")

    def test_d_nested_trip_ends_the_outer_run(self, way: str) -> None:
        """(d) The loop of an agent inside a tool ends the outer run too: no further call of either model."""
        tool = Bodies()
        inner = self.agent([self.tool(tool.function)], for_ever("search"), prefix="inner")
        outer = self.agent([self.agent_tool("delegate", inner, way)], for_ever("delegate"))
        with capture_spans() as captured:
            ran = self.go(outer, way, repeat(3), within=captured, agents=[inner])
        self.stopped(ran, "repeat_guard", SessionStopped)
        expect((tool.ran, self.asked(inner), ran.asked), (3, 3, 1), "bodies, calls of the inner model, of the outer")
        expect(ran.trip.tool if ran.trip else None, "search", "the tool that the trip names")
        (above,) = captured.spans("delegate")
        parents = {span.parent.span_id if span.parent else None for span in captured.spans("search")}
        expect(parents, {above.context.span_id if above.context else 0}, "parents of the inner calls' spans")

    def test_e_next_run_works_on_the_kept_history(self, way: str) -> None:
        """(e) A provider accepts what is kept after a stop, and the next run begins with clean rules."""
        tool = Bodies()
        agent = self.agent([self.tool(tool.function)], [[("search", {})]] * 5)
        with Session(policy=repeat(3)) as session:
            try:
                self.run(agent, way, "Find the word.")
            except CircuitOpen as stopped:
                kept = self.kept(agent, stopped)
            else:
                raise AssertionError("the loop was not stopped")
            try:
                whole = self.run(agent, way, "Sum up.", kept)
            except CircuitOpen as stopped:
                raise AssertionError("the next run was stopped by what the last one did") from stopped
            expect(session.report()["calls"], 5, "calls of both runs")
        expect((self.text(whole), tool.ran, self.asked(agent)), (DONE, 5, 6), "last text, bodies, model calls")
        expect(len(self.exchanges(whole)), 5, "calls in the whole history")

    def test_f_healthy_run_is_not_touched(self, way: str, kind: str) -> None:
        """(f) A run below its limits gives what it gives without the guard."""
        ends = []
        for guard in (BARE, "guarded"):
            tool = Bodies(kind)
            script = [[("search", {"q": "a"}), ("search", {"q": "b"})], [("search", {"q": "c"})]]
            ran = self.go(self.agent([self.tool(tool.function)], script, guard=guard), way, GENEROUS)
            expect(ran.error, None, "error")
            ends.append((ran.history, self.text(ran.kept), tool.ran, ran.asked))
        expect(ends[1], ends[0], "the run's end with the guard, and without")
        self.whole(ran)

    def test_f_store_that_is_away_is_not_felt(self, way: str) -> None:
        """(f) Where the store fails in every transaction the run ends as it does without the guard."""
        ends = []
        for guard in (BARE, "guarded"):
            tool = Bodies()
            agent = self.agent([self.tool(tool.function)], [[("search", {})]] * 2, guard=guard)
            with Session(store=Away()):
                whole = self.run(agent, way, "Find the word.")
            ends.append((self.text(whole), tool.ran, self.asked(agent)))
        expect(ends[1], ends[0], "the run's end with the guard, and without")

    def test_g_schema_is_the_bare_tools(self, way: str, kind: str) -> None:
        """(g) What the model is shown is byte for byte what it is shown without guard and decorator."""
        bare, *guarded = [
            self.agent([self.tool(put(Bodies(kind).function))], [[("search", {})]], guard=guard)
            for put, guard in ((as_it_is, BARE), (as_it_is, "guarded"), (guard_tool, "guarded"), (guard_tool, BARE))
        ]
        for agent in (bare, *guarded):
            self.go(agent, way, GENEROUS)
        expect("search" in self.shown(bare), True, "the model is shown the tool")
        expect([self.shown(agent) for agent in guarded], [self.shown(bare)] * 3, "schemas")

    def test_h_approval_is_no_failure(self, approval: str, way: str) -> None:
        """(h) A call that waits for a person is no failure while it waits, and counts once when it has run."""
        self.possible("h")
        tool = Bodies()
        with capture_spans() as captured, Session(policy=ceiling(5), telemetry=captured.telemetry) as session:
            agent = self.approval_agent(tool.function, [[("search", {"q": "a"})], [("search", {"q": "b"})]], approval)
            self.pause(agent, way)
            quiet = {name: session.report()[name] for name in ("failed", "refused", "in_flight", "trips")}
            expect(quiet, {"failed": 0, "refused": 0, "in_flight": 0, "trips": []}, "the report while it waits")
            expect(tool.ran, 0, "bodies while it waits")
            self.approve(agent, way)
            kept = self.approve(agent, way)
            report = session.report()
        expect((self.text(kept), tool.ran), (DONE, 2), "last text, bodies")
        expect((report["calls"], report["failed"], report["refused"]), (2, 0, 0), "calls, failed, refused")
        expect(sorted(set(captured.outcomes()) - {"interrupted"}), ["ok"], "outcomes but for the pauses")
        runs = {(span.attributes or {}).get(names.RUN_ID) for span in captured.spans()}
        expect(len(runs), 1, "runs that the calls before and after the pause belong to")
        expect([one.answer is None for one in self.exchanges(kept)], [False, False], "calls without an answer")

    def test_i_one_span_per_attempt(self, way: str, kind: str) -> None:
        """(i) Each attempt, refused ones included, has one span, below the user's and around what the body traces."""
        with capture_spans() as captured:

            def says(q: str) -> str:
                with captured.tracer.start_as_current_span("inside"):
                    return q

            agent = self.agent([self.tool(Bodies(kind, says).function)], always_new("search", batch=3))
            with captured.tracer.start_as_current_span("request") as request:
                ran = self.go(agent, way, ceiling(4), within=captured)
        self.stopped(ran, "call_ceiling", SessionStopped)
        spans = captured.spans("search")
        self.one_span_each(captured, ran)
        expect({span.parent and span.parent.span_id for span in spans}, {request.get_span_context().span_id}, "parents")
        expect(sorted(captured.outcomes()), ["ok"] * 4 + ["refused"] * 2, "outcomes")
        inside = {span.parent and span.parent.span_id for span in captured.all_spans() if span.name == "inside"}
        ran_spans = {s.context and s.context.span_id for s in spans if (s.attributes or {})[names.OUTCOME] == "ok"}
        expect(inside, ran_spans, "spans around what the bodies traced")

    def test_j_guarded_once(self, guard: str, way: str) -> None:
        """(j) However often and wherever the guard is put on, a call is one attempt, one span, one count."""
        self.possible("j")
        self._guarded_once(guard, way, as_it_is)

    def test_j_guarded_once_beside_the_decorator(self, way: str, kind: str) -> None:
        """(j) A decorator on the function below the adapter, or two of them, add no second attempt."""
        self._guarded_once("guarded", way, guard_tool, kind)
        self._guarded_once("guarded", way, twice, kind)

    def test_j_guard_on_a_tool_object(self, way: str) -> None:
        """(j) The decorator on the framework's tool object says that it belongs elsewhere, or guards once."""
        tool = Bodies()
        try:
            put = guard_tool(self.tool(tool.function))
        except SettingsError:
            return
        self._loops_once(tool, self.agent([put], for_ever("search")), way)

    def _guarded_once(self, guard: str, way: str, put: Callable[[Any], Any], kind: str = "sync") -> None:
        tool = Bodies(kind)
        self._loops_once(tool, self.agent([self.tool(put(tool.function))], for_ever("search"), guard=guard), way)

    def _loops_once(self, tool: Bodies, agent: Any, way: str) -> None:
        with capture_spans() as captured:
            ran = self.go(agent, way, repeat(LIMIT), within=captured)
        self.stopped(ran, "repeat_guard", SessionStopped)
        expect((tool.ran, ran.asked, ran.report["calls"]), (LIMIT,) * 3, "bodies, model calls, calls counted")
        self.one_span_each(captured, ran)

    def test_k_stop_beside_the_frameworks_own(self, beside: str, way: str) -> None:
        """(k) Caps, retries, error middleware and the user's hooks neither swallow a stop nor pay for another turn."""
        self.possible("k")
        tool = Bodies()
        ran = self.go(
            agent := self.agent([self.tool(tool.function)], always_new("search"), beside=beside), way, ceiling(3)
        )
        self.stopped(ran, "call_ceiling", SessionStopped)
        expect((tool.ran, ran.asked, ran.report["refused"]), (3, 4, 1), "bodies, model calls, refusals")
        expect(self.heard(agent) in (None, 3), True, f"executions that the user's hooks heard of: {self.heard(agent)}")

    def test_k_failures_beside_the_frameworks_own(self, beside: str, way: str) -> None:
        """(k) Beside them a failing tool still counts as failed, once for each time that its body ran."""
        self.possible("k")
        tool = Bodies("sync", fails)
        ran = self.go(self.agent([self.failing_tool(tool.function)], for_ever("search"), beside=beside), way, repeat(3))
        self.stopped(ran, "repeat_guard", SessionStopped)
        expect(ran.report["tools"]["search"]["failed"], tool.ran, "failures counted")

    def test_k_cap_that_is_reached_first(self, cap: str, way: str) -> None:
        """(k) A lower cap of the framework's own does what it does without the guard."""
        self.possible("k")
        ends = []
        for guard in (BARE, "guarded"):
            tool = Bodies()
            agent = self.agent([self.tool(tool.function)], always_new("search"), guard=guard, beside=cap)
            ran = self.go(agent, way, ceiling(10))
            ends.append((type(ran.error), tool.ran, ran.asked, ran.history))
        expect(ends[1], ends[0], "the run's end with the guard, and without")
        expect(tool.ran < 10, True, "the cap ends the run before ten calls")

    def test_l_uninstrument_restores_every_binding(self, way: str) -> None:
        """(l) Instrumented, an agent that knows nothing of the guard is stopped; after that everything is as it was."""
        self.possible("l")
        before, instrumentor = dict(self.bindings()), self.instrumentor()

        def ran(script: Any) -> tuple[Ran, int]:
            tool = Bodies()
            return self.go(self.agent([self.tool(tool.function)], script, guard=BARE), way, repeat(LIMIT)), tool.ran

        instrumentor.instrument()
        try:
            during = dict(self.bindings())
            instrumentor.instrument()
            expect(same(dict(self.bindings()), during), [], "bindings that a second instrument() changed")
            expect(same(during, before) != [], True, "instrument() replaces something")
            guarded, bodies = ran(for_ever("search"))
            self._guarded_once("guarded", way, as_it_is)
        finally:
            instrumentor.uninstrument()
        self.stopped(guarded, "repeat_guard", SessionStopped)
        expect(bodies, LIMIT, "bodies of the instrumented agent")
        expect(same(dict(self.bindings()), before), [], "bindings that were not restored")
        free, bodies = ran([[("search", {})]] * (LIMIT + 2))
        expect((free.error, bodies), (None, LIMIT + 2), "error and bodies of an agent made afterwards")

    # -------------------------------------------------------------------------------------------- what is the same

    def stopped(self, ran: Ran, rule: str, kind: type[CircuitOpen]) -> None:
        """The caller caught our exception with the record, no model was asked since, and no call is left open."""
        if not isinstance(ran.error, kind):
            ended = f"expected a {kind.__name__}, but the run ended with {ran.error!r}"
            raise AssertionError(ended) from ran.error  # noqa: TRY004  (a check failed, nobody passed a wrong type)
        self.figures.exceptions.add(type(ran.error).__name__)
        self.figures.worst("after", ran.after or 0)
        expect(ran.after, 0, "model calls after the trip")
        found = find_trip(ran.error)
        expect(found, ran.trip, "the record that the exception carries")
        expect(found.rule if found else None, rule, "the rule that stopped the run")
        expect(find_trip(pickle.loads(pickle.dumps(ran.error))), found, "the record elsewhere")  # noqa: S301
        self.whole(ran)

    def whole(self, ran: Ran) -> None:
        """Each call of the history has exactly one answer."""
        open_calls = [one.call_id for one in ran.history if one.answer is None]
        self.figures.worst("unanswered", len(open_calls))
        expect(open_calls, [], "calls without an answer")
        ids = [one.call_id for one in ran.history]
        expect(len(ids) - len(set(ids)), 0, "second calls, or answers, under one id")
        expect([one.call_id for one in ran.history if not one.tool], [], "answers that no call waits for")

    def one_span_each(self, captured: Captured, ran: Ran) -> None:
        """Each call of the history, run or refused, has one span that names it."""
        named = [(span.attributes or {}).get(names.CALL_ID) for span in captured.spans()]
        per_call = [named.count(one.call_id) for one in ran.history]
        self.figures.spans.update(per_call)
        expect(per_call, [1] * len(ran.history), "spans of each call")
        expect(len(named), len(ran.history), "spans in all")


def told(answer: str | None) -> str:
    """The scope of the refusal that an answer tells the model of; "" if it tells of none."""
    text = answer or ""
    start = text.find("{")
    try:
        found = json.loads(text[start : text.rfind("}") + 1]) if start >= 0 else {}
    except ValueError:
        return ""
    refusal = isinstance(found, dict) and found.get("error") == "circuit_open" and found.get("executed") is False
    return str(found["scope"]) if refusal else ""


def same(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Names that are not bound to the very same object."""
    return [name for name in now.keys() | before.keys() if now.get(name) is not before.get(name)]


def as_it_is(function: Any) -> Any:
    """No decorator."""
    return function


def twice(function: Any) -> Any:
    """Two decorators."""
    return guard_tool(guard_tool(function))


def slow(q: str) -> str:
    """A tool's body that takes long enough for others to begin beside it."""
    time.sleep(0.002)
    return q


def fails(_q: str) -> str:
    """A tool's body that fails in one and the same way."""
    raise ValueError("no such word")
