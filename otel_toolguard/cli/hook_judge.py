"""Judges one event in the session's state, where another process will find what the next event needs.

What is kept beside the rules' own state: the run of the current prompt, the runs of sub-agents, and the calls whose
results are still to come. All of it changes in the same atomic step as what the rules count.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.hook_events import AFTER, BEFORE, PROMPT, Answer, Event
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.canonical import FORM_VERSION, signer
from otel_toolguard.core.decision import SILENT, Permit, Refuse
from otel_toolguard.core.state import AFRESH

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.cli.hook_rules import Rules
    from otel_toolguard.core.decision import Settled, Trip
    from otel_toolguard.core.state import RunState, SessionState
    from otel_toolguard.stores import SessionStore

KEY = "otel_toolguard.hook"  # where our part of a session's state is, among those of its rules
CALLS_KEPT, AGENTS_KEPT = 512, 256
DELEGATING = ("Agent", "Task")  # tools in which a sub-agent works
logger = logging.getLogger("otel_toolguard")


class Judge:
    """Judges events of one session.

    Args:
        rules: The rules.
        store: Where its state is.
        session_id: The session.
        clock: Seconds on the clock that sessions have by default, so that what a person sets for a while, in another
            process, lasts as long here. It is the machine's, not the process's.
    """

    def __init__(
        self, rules: Rules, store: SessionStore, session_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules = rules
        self._chain = rules.chain
        self._store = store
        self._session = session_id
        self._signer = signer(rules.key or store.key)
        self._clock = clock
        # Drawn here, for a step may be run again.
        self._fresh = (secrets.token_hex(8), secrets.token_hex(8))

    def answer(self, event: Event) -> Answer:
        """What is to be said to an event."""
        if event.kind == BEFORE:
            return self._before(event)
        if event.kind == AFTER:
            return self._after(event)
        return self._turn(event)

    def _before(self, event: Event) -> Answer:
        call = self._call(event)
        if call is None:
            return Answer()
        at = self._clock()

        def step(state: SessionState) -> Permit | Refuse | None:
            mine = _mine(state)
            run_id, above = self._run(state, mine, event)
            key = event.call_id or f"={call.signature}#{secrets.token_hex(4)}"
            if _is_running(state, mine["calls"].get(key)):
                return None  # told twice: the hook is installed in two places
            admission = self._chain.admit(state, run_id, call, above, None, at)
            if isinstance(admission, Permit):
                for old in list(mine["calls"])[: len(mine["calls"]) + 1 - CALLS_KEPT]:
                    del mine["calls"][old]
                said = [nudge.text for nudge in admission.nudges]
                mine["calls"][key] = [run_id, admission.number, at, call.to_plain(), said]
            return admission

        return self._admitted(self._transact(step), call)

    def _admitted(self, admission: Permit | Refuse | None, call: ToolCall) -> Answer:
        if not isinstance(admission, Refuse):
            if admission is not None and admission.would_trip is not None:
                self._tell(admission.would_trip, call, observed=True)
            return Answer()
        trip, opened = admission.trip, admission.opened.trip if admission.opened is not None else None
        if admission.fresh:
            self._tell(trip, call)
        if opened is not None:
            self._tell(opened, call)
        stop = trip if trip.stops else opened if opened is not None and opened.stops else None
        return Answer(deny=trip.to_tool_message(), stop=stop.why if stop is not None else None)

    def _after(self, event: Event) -> Answer:
        ended = self._rules.ended(
            self._signer, event.tool, event.arguments, event.result, event.error, cancelled=event.cancelled
        )
        unnamed = None
        if event.call_id is None:
            call = self._call(event)
            unnamed = None if call is None else f"={call.signature}#"
        at = self._clock()

        def step(state: SessionState) -> tuple[Settled, list[str], Trip | None, ToolCall | None, Outcome | None]:
            mine = _mine(state)
            key = event.call_id or next((key for key in mine["calls"] if unnamed and key.startswith(unnamed)), None)
            entry = mine["calls"].pop(key, None) if key is not None else None
            if entry is None:  # the call began before the hook was there, or was refused
                return SILENT, [], _latched(state, None), None, None
            run_id, number, began, plain, said = entry
            call = ToolCall.from_plain(plain)
            call.arguments = event.arguments if isinstance(event.arguments, dict) else None
            outcome = ended(max(0.0, at - began) * 1000)
            settled = self._chain.settle(state, run_id, number, call, outcome, None, at)
            return settled, said, _latched(state, state.runs.get(run_id)), call, outcome

        settled, said, latched, call, outcome = self._transact(step)
        self._tell_settled(settled, call, outcome)
        context = (*said, *(nudge.text for nudge in settled.nudges))
        return Answer(stop=latched.why if latched is not None else None, context=context)

    def _turn(self, event: Event) -> Answer:
        """A prompt begins a run; the end of a turn ends it, and every call of it whose result never came."""
        at = self._clock()

        def step(state: SessionState) -> tuple[list[Settled], Trip | None]:
            mine = _mine(state)
            ending: str | None = mine["run"]
            if event.agent is not None:  # an agent of which nothing was heard has no run
                ending, _ = mine["agents"].pop(event.agent, (None, None))
            judged = self._end(state, mine, ending, at) if ending is not None else []
            if event.kind == PROMPT:
                mine["run"] = self._fresh[0]
            return judged, state.stop.trip if state.stop is not None else None

        judged, stopped = self._transact(step)
        for settled in judged:
            self._tell_settled(settled, None, None)
        if event.kind == PROMPT:
            return Answer(stop=stopped.why if stopped is not None else None)
        late = next((settled.trip for settled in judged if settled.trip is not None), None)
        return Answer(message=late.why if late is not None else None)

    def _end(self, state: SessionState, mine: dict[str, Any], run_id: str, at: float) -> list[Settled]:
        judged = []
        for key, (its_run, number, began, plain, _) in list(mine["calls"].items()):
            if its_run == run_id:
                del mine["calls"][key]
                ms = max(0.0, at - began) * 1000
                given_up = Outcome("cancelled", None, None, None, None, ms=ms)
                call = ToolCall.from_plain(plain)
                judged.append(self._chain.settle(state, run_id, number, call, given_up, None, at))
        judged.append(self._chain.close_batch(state, run_id, at))
        self._chain.end_run(state, run_id)
        return judged

    def _call(self, event: Event) -> ToolCall | None:
        return self._rules.call(
            self._signer, event.tool, event.arguments, call_id=event.call_id, agent=event.agent_kind or event.agent,
            where=event.where,
        )  # fmt: skip

    def _run(self, state: SessionState, mine: dict[str, Any], event: Event) -> tuple[str, str | None]:
        """The run of a call, and the run in one of whose calls that run began."""
        if mine["run"] is None:
            mine["run"] = self._fresh[0]
        if event.agent is None:
            return mine["run"], None
        agents = mine["agents"]
        if event.agent not in agents:
            for old in list(agents)[: len(agents) + 1 - AGENTS_KEPT]:
                del agents[old]
            above = _run_above(mine, event)
            state.run(above)  # a main agent that has made no call that we know of
            agents[event.agent] = [self._fresh[1], above]
        run_id, above = agents[event.agent]
        return run_id, above

    def _transact(self, step: Callable[[SessionState], Any]) -> Any:
        def checked(state: SessionState) -> Any:
            if state.key_id != self._signer.key_id:  # its key may be in a file that could not be read before
                self._signer = signer(self._rules.key or self._store.key)
            if state.begin_under(self._signer.key_id, FORM_VERSION):
                logger.warning(AFRESH.format(state.id))
            return step(state)

        return self._store.transact(self._session, checked)

    def _tell_settled(self, settled: Settled, call: ToolCall | None, outcome: Outcome | None) -> None:
        trip = settled.trip or settled.would_trip
        if trip is not None:
            self._tell(trip, call, outcome, observed=settled.trip is None)

    def _tell(
        self, trip: Trip, call: ToolCall | None, outcome: Outcome | None = None, *, observed: bool = False
    ) -> None:
        """Says that a circuit opened: in the log and the trip log."""
        from otel_toolguard.guard import Guard  # loads pydantic, and trips are rare
        from otel_toolguard.settings import Policy

        policy = self._rules.policy or Policy()
        guard = Guard(policy, self._signer, None, self._store, session_id=self._session, clock=self._clock)
        guard.tell(trip, None, observed_only=observed, by=None if call is None else (call, outcome))


def _mine(state: SessionState) -> dict[str, Any]:
    mine: dict[str, Any] | None = state.rules.get(KEY)
    if mine is None:
        mine = state.rules[KEY] = {"run": None, "agents": {}, "calls": {}}
    return mine


def _run_above(mine: dict[str, Any], event: Event) -> str:
    """The run of the call in which a sub-agent works: the one that is named, else the first that has none yet."""
    told = mine["calls"].get(event.parent) if event.parent is not None else None
    if told is None:
        free = [entry for entry in mine["calls"].values() if entry[3][0] in DELEGATING]
        taken = [above for _, above in mine["agents"].values()]
        told = next((entry for entry in free if taken.count(entry[0]) < _held(free, entry[0])), None)
    run: str = told[0] if told is not None else mine["run"]
    return run


def _held(free: list[Any], run_id: str) -> int:
    return sum(entry[0] == run_id for entry in free)


def _is_running(state: SessionState, entry: list[Any] | None) -> bool:
    run = state.runs.get(entry[0]) if entry is not None else None
    return entry is not None and run is not None and entry[1] in run.flight


def _latched(state: SessionState, run: RunState | None) -> Trip | None:
    """Why the run may go no further; of the current run where none is given."""
    if run is None:
        run = state.runs.get(_mine(state)["run"] or "")
    latch = state.stop or (run.latch() if run is not None else None)
    return latch.trip if latch is not None else None
