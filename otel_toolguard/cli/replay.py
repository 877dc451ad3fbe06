"""``otel-toolguard replay``: recorded sessions through the very same rules, to see whom a limit would have stopped."""

from __future__ import annotations

import gc
import json
import marshal
import os
import sys
import time
import zlib
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.check import chosen_policy, note, printable
from otel_toolguard.cli.inspect import KEY
from otel_toolguard.cli.recordings import BadLine, Hashes, Parts, Texts, moment, overlap, parsed, read
from otel_toolguard.core.canonical import Signer
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.state import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.settings import Policy

RUN = "recorded"  # a recorded session is one run
LIVE_CALLS = 200_000  # calls whose sessions are kept ready; those idle longest beyond it are kept in little space
NEWS_EVERY = 5.0  # seconds
_STOP_NOTHING = ("classify", "tool_stats")  # and nobody asks here for what they report


class Recorded:
    """One recorded session on its way through the rules."""

    __slots__ = ("bad", "calls", "doubt", "ended", "file", "flight", "lines", "next", "packed", "refused", "session",
                 "state", "stopped", "trip", "why")  # fmt: skip

    def __init__(self, session: str, file: int) -> None:
        self.session = session
        self.file = file  # where its newest line stands
        self.next = 0  # the ``i`` that comes next
        self.bad = 0  # bad lines of that file up to its newest line
        self.doubt = -1  # the ``i`` of a line that was skipped because it came too early
        self.calls = 0
        self.state: SessionState | None = SessionState(session)
        self.packed = b""  # the state, while many other sessions are read
        # A heap by end: end, i, number, call, outcome of calls whose bodies are running.
        self.flight: list[tuple[float, int, int, ToolCall, Outcome]] = []
        self.ended: dict[str, int] = {}  # signature -> i of calls that ended and may not have been judged yet
        self.lines: dict[int, dict[str, Any]] = {}  # what to say of calls whose verdict may still change
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
        """Lets go of the state, whose circle of references would otherwise wait for the garbage collector."""
        if self.state is not None:
            self.state.runs.clear()
        self.state, self.packed, self.flight, self.ended = None, b"", [], {}

    def pack(self) -> None:
        """Keeps the state in little space until the session goes on."""
        if self.state is not None:
            self.packed = zlib.compress(marshal.dumps(self.state.to_plain()), 1)
            self.state.runs.clear()
            self.state = None

    def unpack(self) -> None:
        """Undoes ``pack``."""
        if self.packed:
            self.state = SessionState.from_plain(marshal.loads(zlib.decompress(self.packed)))  # noqa: S302  (our own)
            self.packed = b""

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
        self.chain = Chain(settings.build() for name, settings in policy.plugins if name not in _STOP_NOTHING)
        self.recordings: list[Recorded] = []
        self._bad = bad
        self._bad_here = 0
        self._each_call = each_call
        self._tool = policy.tool
        self._some_disabled = any(not settings.enabled for settings in policy.tools.values())
        self._texts = Texts(policy, Signer(KEY), self.chain.needs)
        self._hashes = Hashes(policy)
        self._open: dict[str, Recorded] = {}  # the newest recording of each session
        self._ready: dict[str, int] = {}  # sessions that wait with their state at hand, longest first: their calls
        self._ready_calls = 0

    def run(self, files: Sequence[str], news: Callable[[str, int], None]) -> list[Recorded]:
        """Reads all files and returns the recordings, in the order of their first calls.

        Args:
            files: Paths; ``-`` is standard input.
            news: Told now and then how far it is: file and line number.
        """
        for number, path in enumerate(files):
            self._file(number, path, news)
        for recorded in self._open.values():
            self._finish(recorded)
        return self.recordings

    def _file(self, file: int, path: str, news: Callable[[str, int], None]) -> None:
        self._bad_here = 0

        def bad(number: int, reason: str) -> None:
            self._bad_here += 1
            self._bad(path, number, reason)

        last: Recorded | None = None
        for number, line in read(path, bad):
            if not number & 4095:
                news(path, number)
            try:
                row = parsed(line)
                if row is None:
                    continue
                source: Hashes | Texts = self._hashes if "s" in row and "session" not in row else self._texts
                parts = source.parts(row)
                if last is None or last.session != parts[0]:
                    last = self._turn_to(parts, file, last)
                if parts[1] != last.next:
                    self._check_order(last, parts[1])
            except BadLine as error:
                bad(number, str(error))
            else:
                last.next = parts[1] + 1
                last.bad = self._bad_here
                last.calls += 1
                self._call(last, source, parts)
        if last is not None:
            self._rest(last)

    def _turn_to(self, parts: Parts, file: int, last: Recorded | None) -> Recorded:
        """The recording that a line belongs to, ready to go on."""
        if last is not None:
            self._rest(last)
        session = parts[0]
        self._ready_calls -= self._ready.pop(session, 0)
        known = self._open.get(session)
        if known is not None and known.file != file and parts[1] == 0 and known.next:
            self._finish(known)
            known = None  # counted from 0 again in another file: another recording under the same name
        if known is None:
            known = self._open[session] = Recorded(session, file)
            self.recordings.append(known)
        elif known.file != file:
            known.file, known.bad = file, 0
        known.unpack()
        return known

    def _rest(self, recorded: Recorded) -> None:
        """Another session comes: packs the states that have waited longest where too many are at hand."""
        if recorded.state is None or recorded.flight:
            return
        self._ready[recorded.session] = recorded.calls
        self._ready_calls += recorded.calls
        while self._ready_calls > LIVE_CALLS and len(self._ready) > 1:
            session = next(iter(self._ready))
            self._ready_calls -= self._ready.pop(session)
            self._open[session].pack()

    def _check_order(self, recorded: Recorded, i: int) -> None:
        """Lets a gap pass that bad lines explain, or that has cost one line already."""
        gap = i - recorded.next
        if gap > 0 and (gap <= self._bad_here - recorded.bad or i == recorded.doubt + 1):
            return
        recorded.doubt = i
        raise BadLine(f"i is {i}, out of order: session {recorded.session} goes on with {recorded.next}")

    def _call(self, recorded: Recorded, source: Any, parts: Parts) -> None:
        """Admits one call and settles it, at once unless others run at the same time."""
        if recorded.stopped and self._each_call is None:
            return
        i = parts[1]
        call: ToolCall = source.call(parts)
        span = overlap(parts[3], parts[4])
        if recorded.flight:
            self._end(recorded, span[0] if span else None)
        state = recorded.state
        if state is None or (self._some_disabled and not self._tool(call.tool).enabled):
            self._say(recorded, i, call, "not fed")
            return
        chain = self.chain
        waiting = bool(recorded.ended) and _waiting(state)
        at = moment(parts[3])
        admission = chain.admit(state, RUN, call, at=at)
        if isinstance(admission, Refuse):
            self._refused(recorded, i, call, admission, judged=waiting and not _waiting(state))
            return
        outcome: Outcome = source.outcome(parts)
        if span is not None:
            recorded.ended.clear()  # a start closes the batch before it
            heappush(recorded.flight, (span[1], i, admission.number, call, outcome))
            self._say(recorded, i, call, "ok", admission.warned)
            return
        settled = chain.settle(state, RUN, admission.number, call, outcome, at=at + moment(parts[4]))
        if settled.trip is not None:
            recorded.opened(settled.trip, i)
        if self._each_call is not None:
            verdict = "ok" if settled.trip is None else "tripped"
            self._say(recorded, i, call, verdict, admission.warned + settled.warned)

    def _refused(self, recorded: Recorded, i: int, call: ToolCall, refusal: Refuse, *, judged: bool) -> None:
        trip = refusal.trip
        if judged and trip.signature in recorded.ended:
            # This start closed a batch, and a result in it tripped.
            self._tripped(recorded, trip, recorded.ended[trip.signature])
            if recorded.stopped:
                self._say(recorded, i, call, "not fed")
                return
        elif refusal.fresh:
            recorded.opened(trip, i)
        if refusal.opened is not None:
            recorded.opened(refusal.opened.trip, i)
        recorded.refused.append(i)
        self._say(recorded, i, call, "refused")

    def _end(self, recorded: Recorded, until: float | None) -> None:
        """Settles the calls that end up to that time, all of them if None; an end comes before a start."""
        flight = recorded.flight
        while flight and recorded.state is not None and (until is None or flight[0][0] <= until):
            ended, i, number, call, outcome = heappop(flight)
            settled = self.chain.settle(recorded.state, RUN, number, call, outcome, at=ended)
            recorded.ended[call.signature] = i
            if i in recorded.lines:
                recorded.lines[i]["warned"] += settled.warned
            if settled.trip is not None:
                self._tripped(recorded, settled.trip, recorded.ended.get(settled.trip.signature or "", i))
        if not flight:
            recorded.ended.clear()
            self._tell(recorded)

    def _tripped(self, recorded: Recorded, trip: Trip, index: int) -> None:
        if index in recorded.lines:
            recorded.lines[index]["verdict"] = "tripped"
        recorded.opened(trip, index)

    def _finish(self, recorded: Recorded) -> None:
        """Nothing more comes for it."""
        self._end(recorded, None)
        recorded.free()
        self._tell(recorded)

    def _say(self, recorded: Recorded, i: int, call: ToolCall, verdict: str, warned: Sequence[str] = ()) -> None:
        if self._each_call is None:
            return
        recorded.lines[i] = {"session": recorded.session, "i": i, "tool": call.tool, "signature": call.signature,
                             "class": call.tool_class, "verdict": verdict, "warned": list(warned)}  # fmt: skip
        if not recorded.flight:
            self._tell(recorded)

    def _tell(self, recorded: Recorded) -> None:
        """Says what is final: all of it, once no body runs."""
        if self._each_call is not None:
            for line in recorded.lines.values():
                self._each_call(line)
            recorded.lines.clear()


def _waiting(state: SessionState) -> bool:
    """Whether results of an unfinished batch wait to be judged."""
    run = state.runs.get(RUN)
    return run is not None and bool(run.batch.to_plain()[1])


def replay(
    files: Sequence[str], *, profile: str | None, policy: str | None, as_json: bool, calls: bool, fail: bool
) -> int:  # fmt: skip
    """Prints what the rules say about recorded sessions; returns the exit code.

    Args:
        files: Paths; ``-`` is standard input.
        profile: Judge by this profile; None for ``policy``, or what the environment says.
        policy: Judge by this TOML file.
        as_json: True for one JSON line a session.
        calls: True for one line a call in addition.
        fail: True to return 3 if any circuit opened.
    """
    for path in files:
        if path != "-" and (os.path.isdir(path) or not os.access(path, os.R_OK)):  # noqa: PTH112
            note(f"cannot read {path}")
            return 2
    rules = chosen_policy(profile, policy)
    bad = 0

    def name_bad(path: str, number: int, reason: str) -> None:
        nonlocal bad
        bad += 1
        sys.stderr.write(f"{printable(path)}:{number}: {printable(reason)}\n")

    each_call = (_write_json if as_json else _write_call) if calls else None
    work = Replay(rules, name_bad, each_call)
    with _no_collector():
        recordings = work.run(files, _News())
    if as_json:
        for recorded in recordings:
            _write_json(recorded.row())
    else:
        _summary(recordings, bad, rules)
    if bad:
        note(f"{bad} bad line{'s' if bad > 1 else ''} skipped")
        return 1
    return 3 if fail and any(recorded.trip for recorded in recordings) else 0


class _News:
    """Says on standard error how far a long replay is."""

    def __init__(self) -> None:
        self._next = time.monotonic() + NEWS_EVERY

    def __call__(self, path: str, number: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + NEWS_EVERY
            note(f"{path}: {number:,} lines read")


@contextmanager
def _no_collector() -> Iterator[None]:
    """Nothing here waits for the garbage collector, which would look through all open sessions again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _write_json(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")


def _write_call(line: dict[str, Any]) -> None:
    warned = f"  warned by {', '.join(line['warned'])}" if line["warned"] else ""
    text = f"{line['session']} {line['i']}  {line['signature']}  {line['class']}  {line['verdict']}{warned}"
    sys.stdout.write(printable(text) + "\n")


def _summary(recordings: Sequence[Recorded], bad: int, policy: Policy) -> None:
    """The sessions with a trip as a table, and the totals."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    tripped = [recorded for recorded in recordings if recorded.trip is not None]
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False)
    if tripped:
        table = Table("session", "calls", "at", "rule", "scope", "refused", "why")
        for recorded in tripped:
            trip: dict[str, Any] = recorded.trip or {}
            cells = (recorded.session, recorded.calls, trip["index"], trip["rule"], trip["scope"],
                     len(recorded.refused), recorded.why)  # fmt: skip
            table.add_row(*(Text(printable(str(cell)), overflow="fold") for cell in cells))
        console.print(table)
    stopped = sum(recorded.stopped for recorded in recordings)
    calls = sum(recorded.calls for recorded in recordings)
    totals = (
        f"{len(recordings):,} sessions, {calls:,} calls: {stopped:,} stopped, {len(tripped) - stopped:,} with refusals "
        f"only, {bad:,} bad lines; judged by {policy.profile_name or 'a chain of its own'}"
    )
    console.print(Text(totals))
