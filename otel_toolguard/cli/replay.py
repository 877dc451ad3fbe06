"""``otel-toolguard replay``: recorded sessions through the very same rules, to see whom each limit would have stopped."""

from __future__ import annotations

import gc
import json
import marshal
import os
import sys
import time
import zlib
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.check import with_warnings, without_environment
from otel_toolguard.cli.inspect import KEY
from otel_toolguard.cli.recordings import BadLine, Hashes, Parts, Texts, overlap, parsed, read
from otel_toolguard.core.canonical import Signer
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit, Stop
from otel_toolguard.core.state import SessionState
from otel_toolguard.settings import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.decision import Refuse, Settled, Trip

RUN = "recorded"  # a recorded session is one run
LIVE_CALLS = 200_000  # calls of sessions kept ready; those idle longest beyond it are kept in little space
NEWS_EVERY = 5.0  # seconds
_NO_STOP = ("classify", "tool_stats")  # stop nothing; what they report is not asked for here


class Recorded:
    """One recorded session on its way through the rules."""

    __slots__ = ("bad", "calls", "doubt", "ends", "file", "finished", "lines", "next", "packed", "refused", "session",
                 "state", "stopped", "trip", "why")  # fmt: skip

    def __init__(self, session: str, file: int) -> None:
        self.session = session
        self.file = file
        self.next = 0  # the ``i`` that comes next
        self.bad = 0  # bad lines of the file before its newest line
        self.doubt = -1  # an ``i`` that came too early, and was skipped
        self.calls = 0
        self.state: SessionState | None = SessionState(session)
        self.packed = b""  # the state, while other sessions are read
        self.ends: list[tuple[float, int, int, ToolCall, Outcome]] = []  # calls whose bodies are running
        self.finished: dict[str, int] = {}  # signature -> i of calls that have ended since the last one started alone
        self.lines: dict[int, dict[str, Any]] = {}  # what to say about calls whose verdict may still change
        self.trip: dict[str, Any] | None = None
        self.why = ""
        self.stopped = False
        self.refused: list[int] = []

    def opened(self, trip: Trip, index: int) -> None:
        """Notes a circuit: the one that stops the run, else the first."""
        if self.trip is None or trip.stops:
            self.trip = {"index": index, "rule": trip.rule, "scope": trip.scope, "period": trip.period,
                         "limit": trip.limit, "observed": trip.observed}  # fmt: skip
            self.why = trip.why
        if trip.stops:
            self.stopped = True
            self.free()

    def free(self) -> None:
        """Lets go of the state, whose cycle of references would wait for the garbage collector."""
        if self.state is not None:
            self.state.runs.clear()
        self.state, self.packed, self.ends, self.finished = None, b"", [], {}

    def pack(self) -> None:
        """Keeps the state in little space until the session goes on."""
        if self.state is not None and not self.ends:
            self.packed = zlib.compress(marshal.dumps(self.state.to_plain()), 1)
            self.state.runs.clear()
            self.state = None

    def unpacked(self) -> SessionState:
        """The state, to go on with."""
        if self.state is None:
            self.state = SessionState.from_plain(marshal.loads(zlib.decompress(self.packed)))  # noqa: S302  (our own)
            self.packed = b""
        return self.state

    def row(self) -> dict[str, Any]:
        """The line that answers for the session."""
        return {"session": self.session, "calls": self.calls, "trip": self.trip, "refused": self.refused}


class Replay:
    """Feeds recordings to the rules of one policy.

    Args:
        policy: Its rules and what it says about tools; its mode is taken for "enforce".
        bad: Told of each bad line: file, line number, reason.
        each_call: Told of each call once its verdict is final; None if nobody asks.
    """

    def __init__(
        self,
        policy: Policy,
        bad: Callable[[str, int, str], None],
        each_call: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.chain = Chain(settings.build() for name, settings in policy.plugins if name not in _NO_STOP)
        self.recordings: list[Recorded] = []
        self.calls = 0
        self._bad = bad
        self._bad_here = 0
        self._each_call = each_call
        self._texts = Texts(policy, Signer(KEY), self.chain.needs)
        self._hashes = Hashes(policy)
        self._open: dict[str, Recorded] = {}  # by session; those touched last come last
        self._live: dict[str, int] = {}  # calls of sessions whose state is not packed, in the same order
        self._live_calls = 0

    def run(self, files: Sequence[str], news: Callable[[str, int, int], None]) -> list[Recorded]:
        """Reads all files and returns the recordings, in order of their first call."""
        for number, path in enumerate(files):
            self._file(number, path, news)
        for recorded in self._open.values():
            self._finish(recorded)
        return self.recordings

    def _file(self, file: int, path: str, news: Callable[[str, int, int], None]) -> None:
        self._bad_here = 0

        def bad(number: int, reason: str) -> None:
            self._bad_here += 1
            self._bad(path, number, reason)

        last: Recorded | None = None
        for number, line in read(path, bad):
            if not number & 4095:
                news(path, number, self.calls)
            try:
                row = parsed(line)
                if row is None:
                    continue
                source: Hashes | Texts = self._hashes if "s" in row and "session" not in row else self._texts
                parts = source.parts(row)
                if last is None or last.session != parts[0]:
                    last = self._turn_to(parts, file, last)
                if parts[1] != last.next:
                    self._out_of_order(last, parts[1])
            except BadLine as error:
                bad(number, str(error))
                continue
            last.next = parts[1] + 1
            last.bad = self._bad_here
            last.calls += 1
            if not last.stopped or self._each_call is not None:
                self._call(last, source, parts)
        if last is not None:
            self._rest(last)

    def _turn_to(self, parts: Parts, file: int, last: Recorded | None) -> Recorded:
        """The recording that a line belongs to, made ready to go on."""
        if last is not None:
            self._rest(last)
        known = self._open.get(parts.session)
        if known is None or (known.file != file and parts.i == 0 and known.next):
            if known is not None:
                self._live_calls -= self._live.pop(parts.session, 0)
                self._finish(known)
            known = self._open[parts.session] = Recorded(parts.session, file)
            self.recordings.append(known)
            return known
        if known.file != file:
            known.file, known.bad = file, 0
        self._live_calls -= self._live.pop(parts.session, 0)
        if known.packed:
            known.unpack()
        return known

    def _rest(self, recorded: Recorded) -> None:
        """Another session comes; packs those that have waited longest where too much is kept ready."""
        self.calls += recorded.calls - recorded.told
        recorded.told = recorded.calls
        if recorded.state is None or recorded.ends:
            return
        self._live[recorded.session] = recorded.calls
        self._live_calls += recorded.calls
        while self._live_calls > LIVE_CALLS and len(self._live) > 1:
            session = next(iter(self._live))
            self._live_calls -= self._live.pop(session)
            self._open[session].pack()

    def _out_of_order(self, recorded: Recorded, i: int) -> None:
        """Lets a gap pass that skipped lines explain, or that the line before has been skipped for."""
        if i < recorded.next:
            raise BadLine(f"i is {i}, out of order: {recorded.next} comes next in {recorded.session}")
        explained = i - recorded.next <= self._bad_here - recorded.bad
        if not explained and i != recorded.doubt + 1:
            recorded.doubt = i
            raise BadLine(f"i is {i}, out of order: {recorded.next} comes next in {recorded.session}")

    def _call(self, recorded: Recorded, source: Any, parts: Parts) -> None:
        """Admits one call and, unless its body overlaps others, settles it."""
        traits = source.traits(parts)
        if recorded.stopped or not traits.enabled:
            self._say(recorded, parts.i, source.call(parts, traits), "not fed")
            return
        span = overlap(parts)
        if recorded.ends:
            self._end(recorded, span[0] if span else None)
            if recorded.stopped:
                self._call(recorded, source, parts)
                return
        state = recorded.state
        if state is None:
            return
        call: ToolCall = source.call(parts, traits)
        admission = self.chain.admit(state, RUN, call)
        if type(admission) is not Permit:
            self._refused(recorded, parts.i, call, admission)  # type: ignore[arg-type]
            return
        outcome: Outcome = source.outcome(parts)
        if span is not None:
            recorded.finished.clear() if not recorded.ends else None
            heappush(recorded.ends, (span[1], parts.i, admission.number, call, outcome))
            self._say(recorded, parts.i, call, "ok", admission.warned)
            return
        settled = self.chain.settle(state, RUN, admission.number, call, outcome)
        if self._each_call is not None:
            self._say(recorded, parts.i, call, "ok" if settled.trip is None else "tripped",
                      admission.warned + settled.warned)  # fmt: skip
        if settled.trip is not None:
            recorded.opened(settled.trip, parts.i)
