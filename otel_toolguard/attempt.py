"""One guarded call from admission to settlement: joins the chain, the store, telemetry and the clock."""

from __future__ import annotations

import logging
import time
import weakref
from time import perf_counter
from typing import TYPE_CHECKING, Any

from otel_toolguard.across import calls_around, drawn, hand_up, returned
from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.canonical import FORM_VERSION
from otel_toolguard.core.decision import SILENT, Permit, Refuse, Settled
from otel_toolguard.errors import CircuitOpen, SessionStopped
from otel_toolguard.outcomes import OK, Ended, of_exception, of_result, outcome, uncompared
from otel_toolguard.place import Place, here
from otel_toolguard.stores.memory import MemoryStore
from otel_toolguard.telemetry.content import NOTHING
from otel_toolguard.tool import hushed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token

    from otel_toolguard.core.call import Outcome
    from otel_toolguard.core.canonical import Signer
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.core.state import SessionState
    from otel_toolguard.settings import Policy
    from otel_toolguard.stores import SessionStore
    from otel_toolguard.telemetry import Telemetry
    from otel_toolguard.telemetry.spans import Live
    from otel_toolguard.tool import Tool

__all__ = ["Attempt", "Guard", "Place", "here", "logger", "unfelt"]

logger = logging.getLogger("otel_toolguard")
SPANS_PER_CIRCUIT = 10  # refused calls beyond it are counted, but have no span of their own
_faults: set[tuple[str, type[Exception]]] = set()  # said already
_FAULTS = 64


def unfelt(step: str, fault: Exception) -> None:
    """Says that the guard itself failed: one ERROR per process, step and exception class, with the stack.

    The one rule for failures of our own: the tool does not feel them. A call that could not be admitted runs unguarded,
    one that could not be settled leaves with its own result. Only what is no ``Exception``, and in admission a
    ``CircuitOpen`` by which a store says that it refuses, passes.
    """
    kind = (step, type(fault))
    if kind in _faults or len(_faults) >= _FAULTS:
        return
    _faults.add(kind)
    _log(logging.ERROR, f"the guard failed to {step}; the tool is not affected, and this is said once", hushed(fault))


def _log(level: int, text: str, fault: Any = None, trip: Trip | None = None) -> None:
    try:
        logger.log(level, "%s", text, exc_info=fault, extra={"toolguard": trip.to_dict()} if trip else None)
    except Exception:  # a filter or handler of the application that raises must not be felt either
        pass


class Guard:
    """What judges the calls of one session, or (without a session) only traces them.

    Args:
        policy: The rules.
        signer: Makes signatures.
        telemetry: Where spans, metrics and events go; None for nowhere.
        store: Keeps the state; looked at only together with ``session_id``.
        session_id: The session; None for calls outside any.
        conversation_id: The caller's own id of the conversation, None if there is none.
        on_trip: Told of each trip; an exception it raises is logged, never felt.
        clock: Seconds on a clock that never goes back.

    Attributes:
        judges: Whether calls are counted and may be refused.
        chain: The rules of the policy.
    """

    __slots__ = ("_entry", "_key_id", "chain", "clock", "conversation_id", "judges", "on_trip", "policy", "quiet",
                 "session_id", "signer", "store", "telemetry")  # fmt: skip

    def __init__(
        self,
        policy: Policy,
        signer: Signer,
        telemetry: Telemetry | None,
        store: SessionStore,
        *,
        session_id: str | None = None,
        conversation_id: str | None = None,
        on_trip: Callable[[Trip], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.signer = signer
        self.telemetry = telemetry
        self.store = store
        self.session_id = session_id
        self.conversation_id = conversation_id
        self.on_trip = on_trip
        self.clock = clock
        self.quiet: set[str] = set()  # what has had its refused spans
        self.judges = session_id is not None and policy.mode != "off"
        self.chain = policy.chain
        self._key_id = signer.key_id
        # A store of this process needs no closure for a step.
        self._entry = store.entry if isinstance(store, MemoryStore) and store.is_plain else None

    def transact(self, step: Callable[..., Any], *given: Any) -> Any:
        """Runs ``step(state, *given)`` on the session's state as one atomic step.

        Signatures of another key or canonical form make the session start fresh.
        """
        find, key_id = self._entry, self._key_id
        if find is None:

            def checked(state: SessionState) -> Any:
                if state.key_id != key_id or state.form != FORM_VERSION:
                    _start_fresh(state, key_id)
                return step(state, *given)

            return self.store.transact(self.session_id or "", checked)
        while True:
            entry = find(self.session_id or "")
            with entry.lock:
                if entry.gone:  # forgotten between look-up and lock
                    continue
                state = entry.state
                if state.key_id != key_id or state.form != FORM_VERSION:
                    _start_fresh(state, key_id)
                return step(state, *given)

    def tell(self, trip: Trip, live: Live | None, *, observed_only: bool = False) -> None:
        """Says once, everywhere, that a circuit opened (or, observing, would have)."""
        if self.telemetry is not None:
            self.telemetry.opened(live, trip, observed_only=observed_only)
        # Whose session it was stands beside the sentence, in the record's attribute ``toolguard``.
        _log(logging.WARNING, f"would have stopped: {trip.why}" if observed_only else trip.why, trip=trip)
        if self.on_trip is not None:
            try:
                self.on_trip(trip)
            except (Exception, SystemExit) as fault:
                fault.__suppress_context__ = True  # that of a tool's own failure, perhaps
                _log(logging.ERROR, "on_trip raised; the trip stands", fault)


def _start_fresh(state: SessionState, key_id: str) -> None:
    if state.key_id:
        logger.warning(
            "session %s was signed under another key or by another version: its counters start afresh", state.id
        )
        state.runs.clear()
        state.rules.clear()
        state.calls = 0
    state.key_id, state.form = key_id, FORM_VERSION


class Attempt(Place):
    """One call: admitted or refused on construction, then entered, left and ended by whoever runs the body.

    Args:
        guard: Judges it.
        place: Where it is made; None outside any session.
        tool: The tool.
        arguments: What the model said, by name; the raw text where it could not be parsed.
        call_id: The model's id of the call.
        batch: An id shared by the calls of one model turn, ``siblings`` of them; 0 if their number is unknown.
        reached: False for a call that never reaches a tool.
        body: The function that an adapter is about to have run, so that a decorator on it does not count it again.
    """

    __slots__ = ("_known", "_live", "_started", "_tokens", "body", "call", "executions", "nudges", "permit", "place",
                 "refused", "seen", "tool")  # fmt: skip

    def __init__(
        self, guard: Guard, place: Place | None, tool: Tool, arguments: Mapping[str, Any] | str, *,
        call_id: str | None = None, batch: str | None = None, siblings: int = 0, agent: str | None = None,
        reached: bool = True,
        body: Any = None,
    ) -> None:  # fmt: skip
        self.guard = guard
        self.place = self.outer = place
        if place is not None:
            self.run_id = self.last = place.run_id
            self.above = place.above
            self.session = place.session
        self.tool = tool
        self.body = body
        self.executions = 0
        self.seen: tuple[Any] | None = None  # what the body returned, where an adapter sees only a message of it
        self.permit: Permit | None = None
        self.refused: Refuse | None = None
        self.nudges: tuple[str, ...] = ()  # sentences for the model, to stand beside the result
        self._live: Live | None = None
        try:
            self._known = known = tool.known(guard.policy)
            self.call: ToolCall = tool.call(
                arguments, guard.policy, guard.signer, call_id, batch, siblings, agent, reached
            )  # fmt: skip
            if guard.telemetry is not None and not (guard.quiet and self._is_quiet()):
                self._live = self._open()
            if place is not None and guard.judges and known.by_name.enabled:
                self._admit(place)
        except BaseException as fault:
            self._not_admitted(fault)
        self._started = perf_counter()

    @property
    def inside(self) -> Attempt:  # type: ignore[override]
        """The call itself: it is the place where its body runs."""
        return self

    def _not_admitted(self, fault: BaseException) -> None:
        self._started = perf_counter()
        if not hasattr(self, "call"):
            self.call = ToolCall(self.tool.name, f"{self.tool.name}:", whole=False)
            self._live = self._open()
        if isinstance(fault, Exception) and not isinstance(fault, CircuitOpen):
            unfelt("admit a call", fault)
            return
        self.raised(fault)
        raise fault

    def _open(self) -> Live | None:
        guard, place = self.guard, self.place
        if guard.telemetry is None:
            return None
        return guard.telemetry.start(
            self.call,
            session_id=guard.session_id,
            run_id=place.run_id if place else None,
            conversation_id=guard.conversation_id,
            tool_type=self.tool.kind,
        )

    def _is_quiet(self) -> bool:
        run = self.place.run_id if self.place else ""
        return not self.guard.quiet.isdisjoint((run, f"{run}|{self.tool.name}", f"{run}|{self.call.signature}"))

    def _admit(self, place: Place) -> None:
        guard, call, live = self.guard, self.call, self._live
        link = live.link if live is not None else None
        counted = place.outer is not None and drawn(place, call)
        admission = guard.transact(guard.chain.admit, place.run_id, call, place.above, link, guard.clock())
        if isinstance(admission, Permit):
            self.permit = admission
            if admission.nudges:
                self.nudges = tuple(nudge.text for nudge in admission.nudges)
            if live is None and guard.quiet:  # a reset let it through after all
                guard.quiet.clear()
                self._live = live = self._open()
            if admission.would_trip is not None:
                guard.tell(admission.would_trip, live, observed_only=True)
            return
        self.refused = admission
        if counted:
            returned(list(calls_around(place)), call)
        if admission.fresh:
            self._tell(admission.trip)
        if admission.opened is not None:
            self._tell(admission.opened.trip)
        if guard.telemetry is not None:
            guard.telemetry.refused(live, call, admission)
        if admission.nth >= SPANS_PER_CIRCUIT:
            scope = {"signature": f"|{call.signature}", "tool": f"|{call.tool}"}.get(admission.trip.scope, "")
            guard.quiet.add(place.run_id + scope)

    def _tell(self, trip: Trip) -> None:
        self.guard.tell(trip, self._live)
        if trip.stops and self.place is not None and self.place.outer is not None:
            hand_up(self.place, trip)

    def error(self) -> CircuitOpen:
        """The exception that says why the call was refused."""
        if self.refused is None:
            raise RuntimeError("the call was not refused")
        trip = self.refused.trip
        return SessionStopped(trip) if trip.stops else CircuitOpen(trip)

    def enter(self) -> None:
        """Makes this call the current one, for the body that runs next; to be left in the same frame."""
        live = self._live
        self._tokens: tuple[Token[Place | None], object] | None = (
            here.set(None if self.place is None else self),
            None if live is None or live.silent else live.attach(),
        )  # fmt: skip

    def leave(self) -> None:
        """Undoes ``enter``."""
        if self._tokens is None:
            return
        mine, theirs = self._tokens
        try:
            here.reset(mine)
        except ValueError:  # a suspended body is closed from elsewhere, such as by the garbage collector:
            return  # that context is none of ours
        if theirs is not None and self._live is not None:
            self._live.detach(theirs)

    def returned(self, result: Any, ended: Ended | None = None) -> None:
        """Settles a call whose body returned; ``ended`` overrides what its result says about success."""
        try:
            if ended is None:
                said = result if self.seen is None else self.seen[0]
                ended = OK if type(said) is str else of_result(self.call, said)
        except Exception as fault:
            unfelt("read a result", fault)
            ended = Ended("unknown")
        self._end(ended, result)

    def raised(self, error: BaseException) -> None:
        """Settles a call whose body raised; a stop of another session inside the body stops this run too."""
        try:
            ended = of_exception(error)
        except Exception as fault:
            unfelt("read an exception", fault)
            ended = Ended("unknown")
        self._end(ended, NOTHING)
        if isinstance(error, SessionStopped) and self.permit is not None and self.place is not None:
            guard, run_id, trip = self.guard, self.place.run_id, error.trip
            try:
                guard.transact(guard.chain.adopt, run_id, trip)
            except Exception as fault:
                unfelt("hand on a stop", fault)

    def put_off(self, later: Any) -> None:
        """Settles the call when ``later`` is gone, should nobody have entered it until then.

        An awaitable that is dropped, or cancelled before its first step, runs nothing that could.
        """
        self._tokens = None
        weakref.finalize(later, self._dropped).atexit = False

    def _dropped(self) -> None:
        if self._tokens is None:
            self.raised(GeneratorExit())

    def _end(self, ended: Ended, result: Any) -> None:
        seconds = perf_counter() - self._started
        guard = self.guard
        settled = None
        try:
            compared = None
            if self._known.by_name.result_key is not None:
                compared = self.tool.comparer(guard.policy)
                result = self.seen[0] if self.seen is not None else result
            if ended.kind == "failed":
                ended = self._passing(ended)
            needs = guard.chain.needs if self.permit else _NOTHING
            record = outcome(ended, result, seconds, guard.signer, needs, compared)
        except Exception as fault:
            unfelt("compare a result", fault)
            record = uncompared(ended, seconds)
        try:
            if self.permit is not None:
                settled = self._settle(record, self.permit)
        except Exception as fault:
            unfelt("settle a call", fault)
        finally:
            if guard.telemetry is not None:
                guard.telemetry.end(
                    self._live, self.call, record, self.permit, settled,
                    seconds=seconds, message=ended.message, result=result,
                )  # fmt: skip

    def _passing(self, ended: Ended) -> Ended:
        """The failure, transient or permanent by what is set for the tool."""
        was = ended.failure == "transient"
        may_pass = self.tool.passes(self.guard.policy, ended.error_type, ended.message or "", was)
        return ended if may_pass == was else ended._replace(failure="transient" if may_pass else "permanent")

    def _settle(self, record: Outcome, permit: Permit) -> Settled:
        guard, live = self.guard, self._live
        link = live.link if live is not None else None
        settled: Settled = guard.transact(
            guard.chain.settle, self.run_id, permit.number, self.call, record, link, guard.clock()
        )
        if self.executions > 1:  # retries of the framework's own, below the adapter
            for again in range(1, self.executions):
                guard.transact(guard.chain.retry, self.run_id, "execution", again)
        if settled is SILENT:
            return settled
        if settled.nudges:
            self.nudges += tuple(nudge.text for nudge in settled.nudges)
        if settled.trip is not None:
            self._tell(settled.trip)
        elif settled.would_trip is not None:
            guard.tell(settled.would_trip, live, observed_only=True)
        return settled


_NOTHING: frozenset[str] = frozenset()
