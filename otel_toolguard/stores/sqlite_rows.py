"""A session as the SQLite store keeps it: a short text, and the entries of its long dictionaries one by one."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.state import RunState, SessionState
from otel_toolguard.stores.sqlite_long import LONG, Long, is_flat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Part = tuple[str, dict[int, Long]]  # a text, and the long dictionaries that it refers to
    Row = tuple[int, str, int, str | None]  # place, key, number and value of an entry; None of one that is gone

SESSION = None  # the part that is no run
RUNS = 0  # the place under which runs are kept, in their order
_MARK = "\x00long"


class Runs(dict[str, "RunState"]):
    """The runs of a session; remembers which of them somebody asked for, for only those can have changed."""

    def __init__(self, runs: dict[str, RunState]) -> None:
        super().__init__(runs)
        self.touched: set[str] = set()

    def __getitem__(self, run_id: str) -> RunState:
        self.touched.add(run_id)
        return super().__getitem__(run_id)

    def __setitem__(self, run_id: str, run: RunState) -> None:
        self.touched.add(run_id)
        super().__setitem__(run_id, run)

    def get(self, run_id: str, default: Any = None) -> Any:
        """The run of that id."""
        self.touched.add(run_id)
        return super().get(run_id, default)

    def values(self) -> Any:
        """All of them."""
        self.touched.update(self)
        return super().values()

    def items(self) -> Any:
        """All of them, with their ids."""
        self.touched.update(self)
        return super().items()

    def setdefault(self, run_id: str, default: Any = None) -> Any:
        """The run of that id, which is the default from now on if there was none."""
        self.touched.add(run_id)
        return super().setdefault(run_id, default)

    def update(self, *given: Any, **named: Any) -> None:
        """Adds runs."""
        super().update(*given, **named)
        self.touched.update(self)


class Kept:
    """What this process knows of a session, as of one version of its row.

    Attributes:
        lock: Held while a step runs; re-entrant, for a signal handler or a finalizer may come in the middle of one.
        state: None where nothing is known, or a step was not finished.
        row: The row's number, None if it has none; with ``version`` it names what is in the file.
        parts: The session itself and its runs as they are in the file; empty if nothing of it is.
        leases: Run, number, until when and by whom of each call in flight.
        used: When the row was written.
        blank: Whether entries that the file has of this session are to be deleted first.
        busy: Whether the lock's holder is at work here; ``depth`` is how many steps deep.
        opened: Of which opening of the file all this is.
        order: The number of each run that is not written yet; they are read in this order.
        pending: The parts that a step may have changed, as it left them; ``gone`` are runs that it deleted, ``written``
            is where and when all that was written.
        added: What was counted while the file was away and is in the state now; it is to be noted once that is written.
        shared: For how many more steps others are expected to write, too; each one that is seen to do so renews it.
    """

    state: SessionState | None

    __slots__ = ("added", "blank", "busy", "depth", "gone", "id", "leases", "lock", "longs", "opened", "order",
                 "parts", "pending", "places", "row", "shared", "state", "used", "version", "written")  # fmt: skip

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.lock = threading.RLock()
        self.depth = 0
        self.busy = False
        self.opened = 0
        self.added: Any = None
        self.shared = 0
        self.pending: dict[str | None, Part] = {}
        self.gone: list[str | None] = []
        self.written = (0, 0.0)
        self.begin(None, 0)
        self.forget()

    def forget(self) -> None:
        """Has the next step read the row; what was last read or written is still known."""
        self.state = None

    def begin(self, row: int | None, version: int, *, blank: bool = False) -> None:
        """Starts the session afresh, in a row that is there or in none."""
        self.state = SessionState(self.id)
        self.row, self.version, self.blank = row, version, blank
        self.state.runs = Runs({})
        self.parts: dict[str | None, Part] = {}
        self.order: dict[str, int] = {}
        self.leases: dict[tuple[str, int], list[Any]] = {}
        self.longs: dict[int, Long] = {}
        self.places = 0
        self.used = 0.0

    def load(
        self, row: tuple[Any, ...], changed: Iterable[Row], entries_of: Callable[[int], Iterable[tuple[str, Any]]]
    ) -> None:
        """Brings what is known up to date, which is all of the session if nothing is.

        Args:
            row: Number, version, time of use, state, leases.
            changed: The runs, and entries of long dictionaries, that others have written since, in their order.
            entries_of: The entries of a long dictionary, for one that is new here.

        Raises:
            ValueError, KeyError, TypeError, IndexError, AttributeError: They are not what ``save`` has written.
        """
        runs = dict(self.state.runs) if self.state is not None else {}
        self.forget()
        self.row, self.version, self.used, text, leases = row
        before = self.places
        plain, self.places = json.loads(text)
        self.parts[SESSION] = (text, {})
        plain["runs"] = []
        for place, key, seq, value in changed:
            if place != RUNS:
                if place in self.longs:
                    self.longs[place].follow(key, seq, value)
                continue
            if value is None or seq > before:  # deleted, and perhaps begun again since
                self.parts.pop(key, None)
                runs.pop(key, None)
            if value is not None:
                self.parts[key] = (value, {})
                plain["runs"].append([key, json.loads(value)])
        for run_id, holder, name in _holders(plain):
            value = holder[name]
            if type(value) is dict and _MARK in value:
                place, seq = value[_MARK]
                long = self.longs.get(place)
                if long is None:
                    long = self.longs[place] = Long(place, entries_of(place))
                long.seq = seq
                holder[name] = self.parts[run_id][1][place] = long
        self.longs = {place: long for _, longs in self.parts.values() for place, long in longs.items()}
        self.leases = {(run_id, number): [until, owner] for run_id, number, until, owner in json.loads(leases)}
        self.state = _revived(plain, runs)

    def take(self, plain: dict[str, Any]) -> None:
        """Puts another state in place of the one that is kept."""
        self.state = SessionState.from_plain(plain)
        self.state.runs = runs = Runs(self.state.runs)
        runs.touched.update(runs)
        self.longs, self.parts, self.blank = {}, {}, True

    def plain(self) -> dict[str, Any]:
        """The state as plain data of its own, long dictionaries included."""
        state = self.state or SessionState(self.id)
        found: dict[str, Any] = json.loads(json.dumps(state.to_plain()))
        return found

    def last_known(self) -> dict[str, Any]:
        """The state as plain data, as this process last saw it in the file; a fresh one if it never did."""
        if SESSION not in self.parts:
            return SessionState(self.id).to_plain()
        plain: dict[str, Any] = json.loads(self.parts[SESSION][0])[0]
        plain["runs"] = [
            [run_id, json.loads(text)] for run_id, (text, _) in self.parts.items() if run_id is not SESSION
        ]
        for run_id, holder, name in _holders(plain):
            value = holder[name]
            if type(value) is dict and _MARK in value:
                holder[name] = dict(self.parts[run_id][1].get(value[_MARK][0], ()))
        return plain

    def leases_text(self) -> str:
        """The leases as they are kept."""
        return json.dumps([[run_id, number, *entry] for (run_id, number), entry in self.leases.items()])

    def pack(self) -> bool:
        """Makes ``pending`` what a step has left; whether that is anything new."""
        state = self.state
        assert state is not None  # noqa: S101  (whoever packs has run a step)
        runs: dict[str, RunState] = state.runs
        touched = runs.touched if isinstance(runs, Runs) else set(runs)
        # A call counts in the runs above its own, too.
        changed = {run.id: run for each in touched if each in runs for run in dict.__getitem__(runs, each).lineage()}
        if self._lengthen(state.rules):
            for run in dict.values(runs):
                run.bound = None
        pending: dict[str | None, Part] = {}
        for run_id in dict.keys(runs):  # a run comes after the one above it
            if run_id in changed:
                pending[run_id] = self._packed(changed[run_id])
                if run_id not in self.parts:
                    self.places += 1
                    self.order[run_id] = self.places
        longs: dict[int, Long] = {}
        try:
            state.runs = {}
            plain = state.to_plain()
        finally:
            state.runs = runs
        plain["rules"] = _marked(state.rules, longs)
        pending[SESSION] = (_text([plain, self.places]), longs)
        self.pending = pending
        self.gone = [each for each in self.parts if each is not SESSION and each not in runs]
        if isinstance(runs, Runs):
            touched.clear()
        else:
            state.runs = Runs(runs)
        if self.blank or self.gone:
            return True
        if SESSION not in self.parts:
            return len(pending) > 1 or pending[SESSION][0] != _text([SessionState(self.id).to_plain(), 0])
        return any(self.is_new(each) or any(long.changed for long in pending[each][1].values()) for each in pending)

    def is_new(self, part: str | None) -> bool:
        """Whether the text of a run, or of the session itself, is not the one that was written."""
        return part not in self.parts or self.parts[part][0] != self.pending[part][0]

    def saved(self) -> None:
        """Notes that ``pending`` was committed."""
        self.row, self.used = self.written
        self.version += 1
        if self.blank:
            self.parts, self.blank = {}, False
        for place in self.orphans():
            self.longs.pop(place, None)
        for each in self.gone:
            del self.parts[each]
        self.parts.update(self.pending)
        self.order.clear()
        for _, longs in self.pending.values():
            for long in longs.values():
                long.written()

    def orphans(self) -> list[int]:
        """The long dictionaries in the file that nothing refers to any more."""
        parts = self.parts
        left = [place for each in self.gone for place in parts[each][1]]
        return left + [
            place
            for each, (_, longs) in self.pending.items()
            if each in parts
            for place in parts[each][1]
            if place not in longs
        ]

    def _packed(self, run: RunState) -> Part:
        if run.ended:  # hardly ever asked for again: one text is read far faster than its entries
            _fold(run)
            return _text(run.to_plain()), {}
        if self._grew_long(run.signatures):
            run.signatures = self._long(run.signatures)
        if self._lengthen(run.rules):
            run.bound = None  # hooks hold what they work on
        longs: dict[int, Long] = {}
        signatures = run.signatures
        if isinstance(signatures, Long):
            longs[signatures.place] = signatures
            run.signatures = OrderedDict(_mark(signatures))  # so that nobody copies thousands of entries
        try:
            plain = run.to_plain()
        finally:
            run.signatures = signatures
        plain["rules"] = _marked(run.rules, longs)
        return _text(plain), longs

    def _lengthen(self, rules: dict[str, Any]) -> bool:
        made = False
        for name, mine in rules.items():
            if self._grew_long(mine):
                rules[name] = self._long(mine)
                made = True
            elif type(mine) is dict and len(mine) < LONG:
                for field, value in mine.items():
                    if self._grew_long(value):
                        mine[field] = self._long(value)
        return made

    def _grew_long(self, entries: Any) -> bool:
        """Whether something is to be kept by entries from now on, or under another place than so far."""
        if isinstance(entries, Long):
            return self.longs.get(entries.place) is not entries
        return isinstance(entries, dict) and len(entries) >= LONG and is_flat(entries)

    def _long(self, entries: dict[str, Any]) -> Long:
        self.places += 1
        made = self.longs[self.places] = Long.made_of(self.places, entries)
        return made


def _holders(plain: dict[str, Any]) -> Iterator[tuple[str | None, dict[str, Any], str]]:
    """Where in a session's plain data a long dictionary may be, and of which part that is."""
    parts: list[tuple[str | None, dict[str, Any]]] = [(SESSION, plain), *plain["runs"]]
    for run_id, part in parts:
        rules = part["rules"]
        for name, mine in rules.items():
            yield run_id, rules, name
            if isinstance(mine, dict):
                yield from ((run_id, mine, field) for field in mine if field != _MARK)
        if run_id is not SESSION:
            yield run_id, part, "signatures"


def _marked(rules: dict[str, Any], longs: dict[int, Long]) -> dict[str, Any]:
    marked = {}
    for name, mine in rules.items():
        if isinstance(mine, Long):
            longs[mine.place] = mine
            marked[name] = _mark(mine)
        elif type(mine) is dict:
            marked[name] = own = {}
            for field, value in mine.items():
                if isinstance(value, Long):
                    longs[value.place] = value
                    own[field] = _mark(value)
                else:
                    own[field] = value
        else:
            marked[name] = mine
    return marked


def _mark(long: Long) -> dict[str, Any]:
    return {_MARK: [long.place, long.seq]}


def _revived(plain: dict[str, Any], runs: dict[str, RunState]) -> SessionState:
    """The session of the plain data, with the runs that are there already and those that the data has."""
    state = SessionState.from_plain({**plain, "runs": []})
    state.runs = runs
    for run_id, part in plain["runs"]:
        signatures = part["signatures"]
        if isinstance(signatures, Long):
            part["signatures"] = {}  # so that nobody copies thousands of entries
        run = runs[run_id] = RunState.from_plain(run_id, part, state, {})
        if isinstance(signatures, Long):
            run.signatures = signatures
    known = {} if state.stop is None else {state.stop.trip.id: state.stop}
    for run in runs.values():
        run.session, run.bound = state, None  # hooks hold what they work on
        if run.above is not None:
            run.above = runs[run.above.id]
        if run.stop is not None:
            run.stop = known.setdefault(run.stop.trip.id, run.stop)
    state.runs = Runs(runs)
    return state


def _fold(run: RunState) -> None:
    """Makes usual dictionaries of the long ones of a run."""
    run.bound = None
    if isinstance(run.signatures, Long):
        run.signatures = OrderedDict(run.signatures)
    for name, mine in run.rules.items():
        if isinstance(mine, Long):
            run.rules[name] = dict(mine)
        elif isinstance(mine, dict):
            for field, value in mine.items():
                if isinstance(value, Long):
                    mine[field] = dict(value)


def _text(plain: Any) -> str:
    return json.dumps(plain, separators=(",", ":"))


def needed(state: SessionState) -> bool:
    """Whether a session has something that was decided; calls in flight are seen by their leases."""
    return (
        state.stop is not None
        or bool(state.held)
        or any(run.circuits or run.stop is not None for run in dict.values(state.runs))
    )
