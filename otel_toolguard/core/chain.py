"""Folds the plugins over the state: admit a call, settle it, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.core.decision import SILENT, Admission, Circuit, Finding, Nudge, Permit, Refuse, Settled, Stop, Trip
from otel_toolguard.core.holds import RULE, forced, held
from otel_toolguard.core.hooks import Bound, Hook, bound_to, hooks_of, judging
from otel_toolguard.core.report import RunEnd, end_run, report
from otel_toolguard.core.state import CLOSED_KEPT, PAUSED_KEPT, SPARED_MOST, RunState, SessionState
from otel_toolguard.core.trips import key_of, operator_trip, trip_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_toolguard.core.batch import Done
    from otel_toolguard.core.call import Outcome, ToolCall


class Chain:
    """The ordered plugins of one policy.

    Args:
        plugins: In the order in which they judge; the first one that opens a circuit gives the trip its name.
        observe: True to let every call run and only say what would have been stopped.
        lasting_stop: True to let a stop outlast its run (``latch="session"``).
        nudge_on_warn: True to have the model told when half and when three quarters of a limit are used.
    """

    def __init__(
        self, plugins: Iterable[Any], *, observe: bool = False, lasting_stop: bool = False, nudge_on_warn: bool = False
    ) -> None:
        self.plugins: tuple[Any, ...] = tuple(plugins)
        self.observe = observe
        self.lasting_stop = lasting_stop
        self.nudge_on_warn = nudge_on_warn
        self.needs = frozenset(need for plugin in self.plugins for need in getattr(plugin, "needs", ()))
        self._admits = hooks_of(self.plugins, "admit")
        self._settles = hooks_of(self.plugins, "settle")
        self._refusals = hooks_of(self.plugins, "refused")
        self._costs = hooks_of(self.plugins, "on_cost")
        self._timed = any(getattr(plugin, "timed", False) for plugin in self.plugins)
        self._ceilings = [plugin.name for plugin in self.plugins if getattr(plugin, "ceiling", False)]

    def admit(
        self, state: SessionState, run_id: str, call: ToolCall,
        above: str | None = None, link: Callable[[], str | None] | None = None, at: float = 0.0,
    ) -> Admission:  # fmt: skip
        """Reserves a place for the call, or refuses it.

        Args:
            state: The session; changed in place.
            run_id: The run that the call belongs to, begun now if it is new.
            call: The call; nothing of it has run yet.
            above: The run inside one of whose calls this run started; looked at when the run is new.
            link: Asked for the tripping span's trace and span id if this very call opens a circuit.
            at: Seconds on the guard's clock.
        """
        if self._timed or state.raised:
            state.tick(at)
        run = state.runs.get(run_id) or state.run(run_id, above)
        latched = state.stop or (run.stop if run.above is None else run.latch())
        if latched is not None:
            admission: Admission = self._refuse(run, call, latched, fresh=False, at=at)
        elif run.circuits or state.held or call.overrides is not None:
            admission = self._admit_beside(state, run, call, at)
        else:
            admission = self._judge_start(state, run, call, at)
        if link is not None and isinstance(admission, Refuse):
            for circuit in (admission.circuit if admission.fresh else None, admission.opened):
                if circuit is not None:
                    circuit.link = link()
        return admission

    def _admit_beside(self, state: SessionState, run: RunState, call: ToolCall, at: float) -> Admission:
        """Admits a call beside open circuits, and those that somebody holds."""
        circuit = run.circuit_of(call.signature, call.tool) if run.circuits else None
        if state.held or call.overrides is not None:
            hold = held(state, call, at)
            if hold == RULE:
                return self._forced(state, run, call, at)
            circuit = circuit if hold == "closed" else None
        if circuit is not None and circuit.refuses(at):
            return self._refuse(run, call, circuit, fresh=False, at=at)
        admission = self._judge_start(state, run, call, at)
        if circuit is not None and isinstance(admission, Permit):
            circuit.try_with(admission.number, at)
        return admission

    def _forced(self, state: SessionState, run: RunState, call: ToolCall, at: float) -> Admission:
        """Refuses a call whose circuit somebody forced open; observing, lets it run and says so once a run."""
        key, finding = forced(run, call, at)
        if self.observe:
            admission = self._judge_start(state, run, call, at)
            if isinstance(admission, Permit):
                admission.would_trip = admission.would_trip or self._would(run, call, finding)
            return admission
        known = run.circuits.get(key)
        circuit = known or Circuit(trip_of(run, call, finding), cooldown_s=finding.retry_after_s, at=at)
        run.circuits[key] = circuit
        return self._refuse(run, call, circuit, fresh=known is None, at=at)

    def _judge_start(self, state: SessionState, run: RunState, call: ToolCall, at: float) -> Admission:
        # A call resumed after an approval was counted when it was first asked for.
        resumed = call.call_id is not None and call.call_id in run.paused
        warned: tuple[str, ...] = ()
        shares: tuple[float, ...] = ()
        nudges: tuple[Nudge, ...] = ()
        would: Trip | None = None
        bound = run.bound
        if bound is None or bound.chain is not self:
            bound = run.bound = Bound(self, self._admits, run)
        hooks = [] if resumed else bound.admits
        for admit, mine, hook in hooks if call.overrides is None else judging(hooks, call.overrides):
            finding = admit(mine, run, call)
            if finding is None:
                continue
            if finding.nudge or finding.share < 1:
                warned += (finding.rule,)
                shares += (finding.share,)
                nudges += self._told(run, hook, finding)
            elif leniency := self._leniency(run, call, finding, at):
                would = would or self._would(run, call, finding, leniency)
            elif finding.passing:
                return self._refuse(run, call, Circuit(trip_of(run, call, finding)), fresh=False, at=at)
            else:
                return self._refuse(run, call, self.open_circuit(run, call, finding, at), fresh=True, at=at)
        if run.batch.waiting and (ready := run.batch.before_start(call)):
            settled, opened = self._judge(run, ready, at)
            would = would or settled.would_trip
            warned += settled.warned
            shares += settled.shares
            nudges += settled.nudges
            if opened is not None and (opened.trip.stops or opened is run.circuit_of(call.signature, call.tool)):
                return self._refuse(run, call, opened, fresh=True, at=at)
        if resumed:
            run.paused = [call_id for call_id in run.paused if call_id != call.call_id]
        number = self._reserve(state, run, call, counted=not resumed)
        return Permit(
            number, run.signatures.get(call.signature, 0), run.calls, state.calls, warned, would, nudges, shares
        )  # fmt: skip

    def _reserve(self, state: SessionState, run: RunState, call: ToolCall, *, counted: bool) -> int:
        run.number = number = run.number + 1
        run.batch.start(number, call)
        flight = run.flight
        flight[number] = (call.tool, call.signature, call.tool_class, call.risk)
        run.most_in_flight = max(run.most_in_flight, len(flight))
        if not call.neutral:  # a thought or a pause between two refusals is no way round them
            run.refused_in_row = 0
        if counted:
            state.calls += 1
            run.count(call)
            if run.above is not None:
                for counting in run.above.lineage():
                    counting.count(call)
        return number

    def settle(
        self, state: SessionState, run_id: str, number: int, call: ToolCall, outcome: Outcome,
        link: Callable[[], str | None] | None = None, at: float = 0.0,
    ) -> Settled:  # fmt: skip
        """Gives the place back and judges what is ready to be judged.

        Args:
            state: The session; changed in place.
            run_id: The run that the call was admitted in.
            number: ``Permit.number``.
            call: The call.
            outcome: How it came out.
            link: Asked for the tripping span's trace and span id if this result opens a circuit.
            at: Seconds on the guard's clock.
        """
        if self._timed:
            state.tick(at)
        run = state.runs.get(run_id)
        if run is None or run.flight.pop(number, None) is None:
            return SILENT  # a late result, from before a reset: it opens and closes nothing
        if run.circuits or run.closed:
            self._end_probe(run, number, call, outcome, at)
        if outcome.kind == "interrupted":
            ready = run.batch.forget(number)  # a pause, not a round: its resumption is the round
            if call.call_id is not None:
                run.paused = [*run.paused[1 - PAUSED_KEPT :], call.call_id]
        else:
            ready = run.batch.end(number, call, outcome)
        settled, circuit = self._judge(run, ready, at)
        if circuit is not None:
            circuit.link = link() if link else None
            settled.trip = circuit.trip
        return settled

    def _end_probe(self, run: RunState, number: int, call: ToolCall, outcome: Outcome, at: float) -> None:
        """Closes, reopens or gives back a half-open circuit if this was its probe; marks results of older circuits."""
        keys = ("signature:" + call.signature, "tool:" + call.tool)
        outcome.late = any(number < run.closed.get(key, 0) for key in keys)
        key = keys[0] if keys[0] in run.circuits else keys[1]
        circuit = run.circuits.get(key)
        if circuit is None or circuit.probe != number:
            return
        if outcome.kind == "ok":
            del run.circuits[key]
            run.closed = {**dict(list(run.closed.items())[1 - CLOSED_KEPT :]), key: number}
        elif outcome.failed:
            circuit.reopen(at)
        else:
            circuit.probe = None  # a probe that was cancelled has said nothing

    def _judge(self, run: RunState, ready: Sequence[Done], at: float) -> tuple[Settled, Circuit | None]:
        """What the rules say of these results, and the circuit that they opened."""
        settled: Settled | None = None
        opened: Circuit | None = None
        # What ends after a stop, wherever in the tree, opens no second circuit.
        stopped = run.session.stop is not None or (run.stop if run.above is None else run.latch()) is not None
        bound = run.bound
        if bound is None or bound.chain is not self:
            bound = run.bound = Bound(self, self._admits, run)
        if bound.settles is None:
            bound.settles = bound_to(run, self._settles)
        hooks = bound.settles
        for call, outcome in ready:
            for settle, mine, hook in hooks if call.overrides is None else judging(hooks, call.overrides):
                if stopped and not hook.observes:
                    continue
                finding = settle(mine, run, call, outcome)
                if finding is None:
                    continue
                if settled is None:
                    settled = Settled()
                circuit = self._weigh(run, call, hook, finding, settled, at)
                if circuit is not None:
                    stopped = circuit.trip.stops
                    opened = circuit if opened is None or stopped else opened
        return settled or SILENT, opened

    def _weigh(
        self, run: RunState, call: ToolCall, hook: Hook, finding: Finding, settled: Settled, at: float
    ) -> Circuit | None:
        """Notes what one rule found in a result; the circuit if it opens one."""
        if finding.period is not None:
            settled.repeat_length, settled.repeat_count = finding.period, int(finding.observed or 0)
        if finding.share < 0.5 and not finding.nudge:
            return None
        if finding.share < 1 or finding.nudge:
            settled.warned += (finding.rule,)
            settled.shares += (finding.share,)
            settled.nudges += self._told(run, hook, finding)
        elif leniency := self._leniency(run, call, finding, at):
            settled.would_trip = settled.would_trip or self._would(run, call, finding, leniency)
        elif (key := key_of(finding, call)) is None or key not in run.circuits:
            return self.open_circuit(run, call, finding, at)
        return None

    def _leniency(self, run: RunState, call: ToolCall, finding: Finding, at: float) -> str:
        """What keeps a finding from opening a circuit: "observe", "disabled" or nothing."""
        if self.observe:
            return "observe"
        if finding.scope in ("run", "session") or not (run.session.held or call.overrides is not None):
            return ""
        return held(run.session, call, at).removeprefix("closed")

    def _told(self, run: RunState, hook: Hook, finding: Finding) -> tuple[Nudge, ...]:
        """What a warning has the model told: what the rule itself says, else (if so set) its advice."""
        if self.observe or not (finding.nudge or (self.nudge_on_warn and run.rises(finding.rule, finding.share))):
            return ()
        run.nudges[finding.rule] = run.nudges.get(finding.rule, 0) + 1
        return (Nudge.cut(finding.rule, finding.nudge or hook.advice),)

    def _refuse(self, run: RunState, call: ToolCall, circuit: Circuit, *, fresh: bool, at: float) -> Refuse:
        ready = run.batch.skip(call)
        if ready:  # this was the last sibling that a batch of results waited for
            _, waited = self._judge(run, ready, at)
            if waited is not None and waited.trip.stops:
                circuit, fresh = waited, True
        counted = self._counts(run, call)
        run.refusals += 1
        if counted:
            run.refused_in_row += 1
        circuit.refused += 1
        opened: Circuit | None = None
        for hook in () if circuit.trip.stops else self._refusals:
            finding = hook.call(hook.mine(run), run, call, counted)
            if finding is not None and finding.share >= 1 and opened is None:
                opened = self.open_circuit(run, call, finding, at)
        kind = Stop if circuit.trip.stops else Refuse
        return kind(
            circuit, fresh=fresh, nth=circuit.refused, trip=circuit.trip_at(at), opened=opened,
            signature_calls=run.signatures.get(call.signature, 0), run_calls=run.calls, session_calls=run.session.calls,
        )  # fmt: skip

    def _counts(self, run: RunState, call: ToolCall) -> bool:
        """Whether a refusal counts: those of one batch count once.

        Where nobody names the batch, a refusal beside calls that started and have not ended is taken for a sibling of
        theirs, up to a bound: somebody may ask again and again while one slow call runs.
        """
        batch = call.batch or (f"#{run.number}" if run.batch.running else None)
        spared = batch is not None and batch == run.refusal_batch
        if spared and call.batch is None:
            run.refusals_spared += 1
            spared = run.refusals_spared < SPARED_MOST
        if not spared:
            run.refusal_batch, run.refusals_spared = batch, 0
        return not spared

    def open_circuit(self, run: RunState, call: ToolCall, finding: Finding, at: float) -> Circuit:
        """Opens the circuit that a finding is about."""
        key = key_of(finding, call)
        circuit = Circuit(trip_of(run, call, finding), cooldown_s=finding.retry_after_s if key else None, at=at)
        if key is None:
            self._latch(run, circuit)
        else:
            run.circuits[key] = circuit
        return circuit

    def _would(self, run: RunState, call: ToolCall | None, finding: Finding, how: str = "observe") -> Trip | None:
        if how != "observe" or finding.rule in run.would:
            return None
        run.would.append(finding.rule)
        return trip_of(run, call, finding)

    def close_batch(self, state: SessionState, run_id: str, at: float = 0.0) -> Settled:
        """Judges what still waits for siblings that never came: for the end of a model's turn."""
        if self._timed:
            state.tick(at)
        run = state.runs.get(run_id)
        if run is None:
            return SILENT
        settled, opened = self._judge(run, run.batch.close(), at)
        if opened is not None:
            settled.trip = opened.trip
        return settled

    def cost(
        self, state: SessionState, run_id: str, amount: float, *, above: str | None = None, at: float = 0.0
    ) -> Settled:
        """Notes what something cost, in whatever unit the limits are; a limit that it reaches opens the circuit."""
        settled = Settled()
        state.tick(at)
        run = state.runs.get(run_id) or state.run(run_id, above)
        for hook in self._costs:
            finding = hook.call(hook.mine(run), run, amount)
            if finding is None or state.stop is not None or run.latch() is not None:
                continue
            if finding.nudge or finding.share < 1:
                settled.warned += (finding.rule,)
            elif self.observe:
                settled.would_trip = settled.would_trip or self._would(run, None, finding)
            else:
                circuit = Circuit(trip_of(run, None, finding))
                self._latch(run, circuit)
                settled.trip = circuit.trip
        return settled

    def adopt(self, state: SessionState, run_id: str, trip: Trip) -> None:
        """Stops a run because a run nested in one of its calls was stopped, even one of another session."""
        run = state.runs.get(run_id)
        if run is not None and not self.observe:
            self._latch(run, Circuit(trip))

    def _latch(self, run: RunState, circuit: Circuit) -> None:
        for stopped in run.lineage():  # a stop anywhere stops the tree
            stopped.stop = stopped.stop or circuit
        if self.lasting_stop:
            run.session.stop = run.session.stop or circuit

    def stop(self, state: SessionState, reason: str) -> Trip:
        """Stops every run of the session until ``reset``; a stop that holds already stays as it is."""
        if state.stop is None:
            state.stop = Circuit(operator_trip(state, reason))
        return state.stop.trip

    def reset(self, state: SessionState, *, ceilings: bool) -> None:
        """Clears latches, rings, streaks and refusals of every run; counters of ceilings only if asked."""
        state.reset(self._ceilings, counts=ceilings)

    def retry(self, state: SessionState, run_id: str, kind: str, attempt: int) -> None:
        """Tells each plugin of a retry that the host reports; ``attempt`` counts from 1."""
        run = state.run(run_id)
        for hook in hooks_of(self.plugins, "on_retry"):
            hook.call(hook.mine(run), kind, attempt)

    def end_run(self, state: SessionState, run_id: str) -> RunEnd | None:
        """Notes that a run makes no more calls; what it came to, None if that was noted before."""
        return end_run(self.plugins, state, run_id)

    def report(self, state: SessionState) -> dict[str, Any]:
        """The parts of all plugins that report, put together, and every trip that the session remembers."""
        return report(self.plugins, state)
