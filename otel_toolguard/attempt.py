"""One guarded call from admission to settlement: joins the chain, the store, telemetry and the clock."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from otel_toolguard.across import calls_around, drawn, hand_up, returned
from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.decision import SILENT, Permit, Refuse, Settled
from otel_toolguard.errors import CircuitOpen, SessionStopped
from otel_toolguard.guard import unfelt
from otel_toolguard.outcomes import OK, Ended, of_exception, of_result, outcome, uncompared
from otel_toolguard.place import Place, here
from otel_toolguard.telemetry.content import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextvars import Token

    from otel_toolguard.core.call import Outcome
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.guard import Guard
    from otel_toolguard.telemetry.spans import Live
    from otel_toolguard.tool import Tool

SPANS_PER_CIRCUIT = 10  # refused calls beyond it are counted, but have no span of their own


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
        traced: False leaves its span to ``tracing``, for where another instrumentation opens one nearer to the body.
        body: The function that an adapter has run, or ``AnyOf`` its name: a decorator on it does not count it again.
    """

    __slots__ = ("_known", "_live", "_started", "_tokens", "body", "call", "executions", "fault", "nudges", "permit",
                 "place", "refused", "seen", "settled", "tool", "traced")  # fmt: skip

    def __init__(
        self, guard: Guard, place: Place | None, tool: Tool, arguments: Mapping[str, Any] | str, *,
        call_id: str | None = None, batch: str | None = None, siblings: int = 0, agent: str | None = None,
        reached: bool = True, traced: bool = True, body: Any = None,
    ) -> None:  # fmt: skip
        self.guard = guard
        self.place = self.outer = place
        if place is not None:
            self.run_id = self.last = place.run_id
            self.above = place.above
            self.session = place.session
        self.tool = tool
        self.traced = traced
        self.settled = False  # once, by whoever is nearest to the body
        self.body = body
        self.executions = 0
        self.seen: tuple[Any] | None = None  # what the body returned, where an adapter sees only a message of it
        self.fault: BaseException | None = None  # what it raised, likewise; for the adapter to tell
        self.permit: Permit | None = None
        self.refused: Refuse | None = None
        self.nudges: tuple[str, ...] = ()  # sentences for the model, to stand beside the result
        self._live: Live | None = None
        try:
            self._known = known = tool.known(guard.policy)
            self.call: ToolCall = tool.call(
                arguments, guard.policy, guard.signer, call_id, batch, siblings, agent, reached
            )  # fmt: skip
            if traced and guard.telemetry is not None and not (guard.quiet and self._is_quiet()):
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
            if live is None and guard.quiet and self.traced:  # a reset let it through after all
                guard.quiet.clear()
                self._live = live = self._open()
            if admission.would_trip is not None:
                guard.tell(admission.would_trip, live, observed_only=True, by=(call, None))
            return
        self.refused = admission
        self._trace()
        live = self._live
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

    def _tell(self, trip: Trip, record: Outcome | None = None) -> None:
        self.guard.tell(trip, self._live, by=(self.call, record))
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

    def _trace(self) -> None:
        if not self.traced:
            self.traced = True
            if not self._is_quiet():
                self._live = self._open()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Around the function itself: opens the span that ``traced=False`` left out, and makes it the current one."""
        self._trace()
        live = self._live
        theirs = None if live is None or live.silent else live.attach()
        try:
            yield
        finally:
            if theirs is not None and live is not None:
                live.detach(theirs)

    def returned(self, result: Any, ended: Ended | None = None) -> None:
        """Settles a call whose body returned; ``ended`` overrides what its result says about success."""
        if self.settled:
            return
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
        if self.settled:
            return
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
        self.settled = True
        seconds = perf_counter() - self._started
        self._trace()
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
            self._tell(settled.trip, record)
        elif settled.would_trip is not None:
            guard.tell(settled.would_trip, live, observed_only=True, by=(self.call, record))
        return settled


_NOTHING: frozenset[str] = frozenset()
