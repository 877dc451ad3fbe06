"""What is remembered between the calls of a session, and how it becomes plain data and back."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.batch import Batch
from otel_toolguard.core.decision import Circuit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.hooks import Bound

STATE_VERSION = 1
AFRESH = "session {} was signed under another key or by another version: its counters start afresh"
SIGNATURES_KEPT = 4096  # counts per signature and run; beyond it the oldest is forgotten
TOOLS_KEPT = 256
PAUSED_KEPT = 256
CLOSED_KEPT = 256  # circuits that closed again, whose late results are told from new ones
SPARED_MOST = 64  # refusals taken for one batch where nobody names the batch
OPEN_RUNS_KEPT = 256  # runs that nobody ended, which a session still remembers
RUNS_KEPT = 32  # ended runs that a session still remembers


class RunState:
    """Rings, streaks, refusals and the latch of one run.

    Attributes:
        above: The run inside one of whose calls this run started, None for a run of its own.
        calls: Admissions of this run and of the runs nested in it.
        number: The number given to the run's newest admission.
        refusals: Calls refused; ``refused_in_row`` since the last admission.
        flight: Tool, signature, class and risk of the calls whose bodies run, by number; ``most_in_flight`` is how many
            there were at once.
        paused: Ids of calls that were interrupted for an approval and will be asked for again.
        stop: The latch: set once, every later call is refused.
        circuits: Open circuits of scope signature and tool; ``closed`` has the number of the probe that closed one.
        rules: Each plugin's own plain state, by its name.
        bound: The chain's hooks, each with its part of ``rules``; None until they are needed, and never kept.
        would: Rules that would have tripped (observe mode), so that each says it once.
        nudges: How often each rule had the model told something; ``warned`` has the stage (1 at a half, 2 at three
            quarters) and the share of its limit that a rule's last warning was about, where warnings nudge.
    """

    __slots__ = (
        "above", "batch", "bound", "calls", "circuits", "classes", "closed", "ended", "flight", "id", "most_in_flight",
        "nudges", "number", "paused", "refusal_batch", "refusals", "refusals_spared", "refused_in_row", "rules",
        "session", "signatures", "stop", "tools", "warned", "would",
    )  # fmt: skip

    def __init__(self, run_id: str, session: SessionState, above: RunState | None = None) -> None:
        self.id = run_id
        self.session = session
        self.above = above
        self.batch = Batch()
        self.calls = 0
        self.number = 0
        self.refusals = 0
        self.refused_in_row = 0
        self.refusal_batch: str | None = None
        self.refusals_spared = 0
        # Ordered: a plain dict finds its oldest key only behind all the places of those that were forgotten before.
        self.signatures: OrderedDict[str, int] = OrderedDict()
        self.tools: dict[str, int] = {}
        self.classes: dict[str, int] = {}
        self.flight: dict[int, tuple[str, str, str, str]] = {}
        self.most_in_flight = 0
        self.paused: list[str] = []
        self.stop: Circuit | None = None
        self.circuits: dict[str, Circuit] = {}
        self.closed: dict[str, int] = {}
        self.rules: dict[str, Any] = {}
        self.bound: Bound | None = None
        self.would: list[str] = []
        self.nudges: dict[str, int] = {}
        self.warned: dict[str, list[float]] = {}
        self.ended = False

    def lineage(self) -> Iterator[RunState]:
        """The run and the runs above it."""
        here: RunState | None = self
        while here is not None:
            yield here
            here = here.above

    def latch(self) -> Circuit | None:
        """The stop that holds for this run: its own, or that of a run above it."""
        if self.above is None:
            return self.stop
        return next((run.stop for run in self.lineage() if run.stop is not None), None)

    def count(self, call: ToolCall) -> None:
        """Counts an admission of this run, or of one nested in it."""
        self.calls += 1
        signatures, signature = self.signatures, call.signature
        n = signatures.get(signature, 0)
        if not n and len(signatures) >= SIGNATURES_KEPT:
            signatures.popitem(last=False)
        signatures[signature] = n + 1
        _count(self.tools, call.tool)
        _count(self.classes, call.tool_class)

    def rises(self, rule: str, share: float) -> bool:
        """Whether that share of a limit reaches a half, or three quarters, for the first time since it was less."""
        stage = 2 if share >= 0.75 else 1
        told, before = self.warned.get(rule, (0, 0.0))
        told = told if share >= before else 0
        self.warned[rule] = [max(stage, told), share]
        return stage > told

    def circuit_of(self, signature: str, tool: str) -> Circuit | None:
        """The open circuit of a signature or its tool."""
        return self.circuits.get("signature:" + signature) or self.circuits.get("tool:" + tool)

    def all_circuits(self) -> Iterator[Circuit]:
        """The open circuits, those of single signatures and tools first."""
        yield from self.circuits.values()
        if self.stop is not None:
            yield self.stop

    @property
    def distinct(self) -> int:
        """How many different calls were counted, of those that are remembered; what was taken back is none."""
        return sum(times > 0 for times in self.signatures.values())

    def to_plain(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "above": self.above.id if self.above else None,
            "batch": self.batch.to_plain(),
            "flight": [[number, *row] for number, row in self.flight.items()],
            "stop": self.stop.to_plain() if self.stop else None,
            "circuits": {key: circuit.to_plain() for key, circuit in self.circuits.items()},
            **{name: getattr(self, name) for name in _PLAIN_RUN},
            "signatures": dict(self.signatures),
        }

    @classmethod
    def from_plain(
        cls, run_id: str, plain: dict[str, Any], session: SessionState, known: dict[str, Circuit]
    ) -> RunState:
        """The run that ``to_plain`` described; the run above it must be in the session already.

        ``known`` collects circuits by trip, for runs of one tree share their stop and its count of refusals.
        """
        run = cls(run_id, session, session.runs[plain["above"]] if plain["above"] is not None else None)
        run.batch = Batch.from_plain(plain["batch"])
        run.flight = {number: (tool, signature, kind, risk) for number, tool, signature, kind, risk in plain["flight"]}
        run.stop = _circuit(plain["stop"], known)
        run.circuits = {key: Circuit.from_plain(circuit) for key, circuit in plain["circuits"].items()}
        for name in _PLAIN_RUN:
            setattr(run, name, plain[name])
        run.signatures = OrderedDict(run.signatures)
        return run


_PLAIN_RUN = (
    "calls", "classes", "closed", "ended", "most_in_flight", "nudges", "number", "paused", "refusal_batch",
    "refusals", "refusals_spared", "refused_in_row", "rules", "signatures", "tools", "warned", "would",
)  # fmt: skip


class SessionState:
    """What lasts over the runs of one session: counters, the audit list, a stop that holds for all of them.

    Attributes:
        key_id: Names the key under which signatures were made; signatures of another key mean nothing here.
        form: Version of the canonical form, for the same reason.
        stop: A stop that outlasts runs: an operator's, or any under ``latch="session"``.
        last_run: Id of the run that began last, None before the first.
        raised: Ceilings that were raised for a while: [name, value, when that ends on the guard's clock].
        held: Circuits held by hand, by ``tool:NAME`` or ``signature:SIGNATURE``: [state, reason, when that ends, None
            for never].
        now: Seconds on the guard's clock, told only where a rule or a raised ceiling asks for them; not kept.
    """

    __slots__ = (
        "audit", "calls", "form", "held", "id", "key_id", "last_run", "now", "raised", "rules", "runs", "stop",
    )  # fmt: skip

    def __init__(self, session_id: str, *, key_id: str = "", form: int = 0) -> None:
        self.id = session_id
        self.key_id = key_id
        self.form = form
        self.calls = 0
        self.runs: dict[str, RunState] = {}
        self.last_run: str | None = None
        self.rules: dict[str, Any] = {}
        self.stop: Circuit | None = None
        self.audit: list[dict[str, Any]] = []
        self.raised: list[list[Any]] = []
        self.held: dict[str, list[Any]] = {}
        self.now = 0.0

    def tick(self, at: float) -> None:
        """Tells the time; what was raised until then falls back."""
        self.now = at
        if self.raised:
            self.raised = [entry for entry in self.raised if at < entry[2]]

    def run(self, run_id: str, above: str | None = None) -> RunState:
        """The run of that id, begun now if it is new."""
        run = self.runs.get(run_id)
        if run is None:
            self._forget_ended_runs()
            run = self.runs[run_id] = RunState(run_id, self, self.runs.get(above) if above is not None else None)
            self.last_run = run_id
        return run

    def reset(self, ceilings: Sequence[str], *, counts: bool) -> None:
        """Clears latches, rings, streaks and refusals of every run; what is held by hand stays held.

        Args:
            ceilings: Rules that count towards a ceiling.
            counts: True to clear what they, the runs and the session have counted, too.
        """
        self.stop = None
        for run in self.runs.values():
            fresh = RunState(run.id, self, run.above)
            kept = {} if counts else {name: run.rules[name] for name in ceilings if name in run.rules}
            run.stop, run.circuits, run.closed, run.batch, run.rules = None, {}, {}, fresh.batch, kept
            run.refusals = run.refused_in_row = run.refusals_spared = 0
            run.nudges, run.warned, run.bound = {}, {}, None
            run.refusal_batch, run.would, run.flight, run.paused = None, [], {}, []
            if counts:
                run.calls, run.signatures, run.tools, run.classes = 0, fresh.signatures, {}, {}
        if counts:
            self.calls = 0
            for name in ceilings:
                self.rules.pop(name, None)

    def _forget_ended_runs(self) -> None:
        if len(self.runs) < RUNS_KEPT:
            return
        needed = {run.above.id for run in self.runs.values() if run.above}
        idle = [run for run in self.runs.values() if not run.flight and run.id not in needed]
        done = [run for run in idle if run.ended][: len(self.runs) - RUNS_KEPT + 1]
        if not done and len(self.runs) >= OPEN_RUNS_KEPT:  # a framework may never say that its runs have ended
            done = idle[:1]
        for run in done:
            del self.runs[run.id]

    @property
    def in_flight(self) -> int:
        """Calls whose bodies are running, over all runs."""
        return sum(len(run.flight) for run in self.runs.values())

    def begin_under(self, key_id: str, form: int) -> bool:
        """Starts afresh where signatures are of another key or canonical form; whether something was forgotten so."""
        other = bool(self.key_id) and (self.key_id, self.form) != (key_id, form)
        if other:
            self.runs.clear()
            self.rules.clear()
            self.calls = 0
        self.key_id, self.form = key_id, form
        return other

    def to_plain(self) -> dict[str, Any]:
        """The session as JSON values."""
        return {
            "version": STATE_VERSION,
            "id": self.id,
            "key_id": self.key_id,
            "form": self.form,
            "calls": self.calls,
            "last_run": self.last_run,
            "rules": self.rules,
            "stop": self.stop.to_plain() if self.stop else None,
            "audit": self.audit,
            "raised": self.raised,
            "held": self.held,
            # A list, because a run must come after the one above it and JSON objects promise no order.
            "runs": [[run.id, run.to_plain()] for run in self.runs.values()],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SessionState:
        """The session that ``to_plain`` described.

        Raises:
            ValueError: It was written by another version of the library.
        """
        if plain.get("version") != STATE_VERSION:
            raise ValueError(f"state has version {plain.get('version')!r}, this library reads {STATE_VERSION}")
        session = cls(plain["id"], key_id=plain["key_id"], form=plain["form"])
        for name in ("calls", "last_run", "rules", "audit", "raised", "held"):
            setattr(session, name, plain[name])
        known: dict[str, Circuit] = {}
        session.stop = _circuit(plain["stop"], known)
        for run_id, run in plain["runs"]:
            session.runs[run_id] = RunState.from_plain(run_id, run, session, known)
        return session


def _count(counts: dict[str, int], key: str) -> None:
    if key in counts:
        counts[key] += 1
        return
    if len(counts) >= TOOLS_KEPT:
        del counts[next(iter(counts))]
    counts[key] = 1


def _circuit(plain: list[Any] | None, known: dict[str, Circuit]) -> Circuit | None:
    if not plain:
        return None
    circuit = Circuit.from_plain(plain)
    return known.setdefault(circuit.trip.id, circuit)
