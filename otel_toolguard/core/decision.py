"""What comes out of a decision: a permit, a refusal, a stop, and the record of why a circuit opened."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

Scope = Literal["signature", "tool", "run", "session"]
SCOPES: tuple[Scope, ...] = ("signature", "tool", "run", "session")
LoopType = Literal[
    "exact_repeat", "oscillation", "error_storm", "stagnation", "same_answer", "over_use", "refused_too_often",
    "stopped_by_operator",
]  # fmt: skip
MESSAGE_LIMIT = 600  # characters of the answer that the model gets for a refused call
NUDGE_LIMIT = 300  # characters of what the model is told beside a result


@dataclass(frozen=True, slots=True)
class Member:
    """One distinct call of a repeated cycle: argument names with types and lengths, never values."""

    tool: str
    signature: str
    arguments: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A call whose body was running when a circuit opened; ``risk`` says whether it may be half done."""

    tool: str
    signature: str
    tool_class: str
    risk: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """Why a circuit opened.

    Attributes:
        id: Unique within a store.
        rule: The plugin's name.
        scope: What is closed to further calls: one ``signature``, one ``tool``, the ``run`` or the ``session``.
        tool: The tool of the call that tripped; None where no call did (stopped by an operator).
        signature: That call's signature, None likewise.
        tool_class: That call's class, None likewise.
        period: Calls in one lap of the cycle; None if the rule knows no cycle.
        limit: The limit that was reached, in the unit of the rule.
        observed: What was counted when it was reached.
        members: The distinct calls of the cycle, in order; empty if the rule knows no cycle.
        in_flight: Calls of the session whose bodies were running, the tripping one excluded.
        session_id: The session.
        run_id: The run; None for a stop that holds for the whole session.
        agent: The agent that asked, None if unknown.
        retryable: Whether the same call may succeed later.
        retry_after_s: Seconds to wait before that; None if no time helps.
        loop_type: exact_repeat, oscillation, error_storm, stagnation, same_answer, over_use, refused_too_often or
            stopped_by_operator.
        at_call: Calls admitted in the run when the circuit opened.
        why: One English sentence with the numbers and the setting that would have allowed it.
    """

    id: str
    rule: str
    scope: Scope
    tool: str | None = None
    signature: str | None = None
    tool_class: str | None = None
    period: int | None = None
    limit: float | None = None
    observed: float | None = None
    members: tuple[Member, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    session_id: str
    run_id: str | None = None
    agent: str | None = None
    retryable: bool = False
    retry_after_s: float | None = None
    loop_type: LoopType
    at_call: int = 0
    why: str

    @property
    def stops(self) -> bool:
        """Whether this ends the run (scope run or session), rather than refusing single calls."""
        return self.scope in ("run", "session")

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values."""
        plain = asdict(self)
        plain["members"] = list(plain["members"])
        plain["in_flight"] = list(plain["in_flight"])
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Trip:
        """The record that ``to_dict`` described.

        Raises:
            TypeError: A field is missing or unknown.
        """
        known = dict(plain)
        known["members"] = tuple(Member(**member) for member in plain.get("members", ()))
        known["in_flight"] = tuple(InFlight(**call) for call in plain.get("in_flight", ()))
        return cls(**known)

    def to_tool_message(self) -> str:
        """What the model is told instead of a result: JSON of at most 600 characters, without argument values."""
        why = _utf8(self.why)
        body = {
            "error": "circuit_open",
            "executed": False,
            "tool": _short(self.tool, 80),
            "rule": _short(self.rule, 40),
            "scope": self.scope,
            "why": why,
            "retryable": self.retryable,
            "retry_after_s": self.retry_after_s,
            "instead": _INSTEAD["stop" if self.stops else "later" if self.retryable else "refuse"],
        }
        text = json.dumps(body, ensure_ascii=False)
        if len(text) > MESSAGE_LIMIT:
            # Cut the sentence, not the JSON: it stays parsable. Escapes may lengthen what is left, hence the loop.
            keep = len(why)
            while len(text) > MESSAGE_LIMIT and keep > 0:
                keep = max(0, keep - max(1, len(text) - MESSAGE_LIMIT))
                text = json.dumps(body | {"why": why[:keep].rstrip() + "…"}, ensure_ascii=False)
        return text


_INSTEAD = {
    "stop": "The run has ended: do not call tools, report what was done and what was not.",
    "later": "Do not ask for this call again at once: do something else first, or report it as not done.",
    "refuse": "Do not ask for this call again: use another tool or other arguments, or report it as not done.",
}


def _short(text: str | None, limit: int) -> str | None:
    """At most ``limit`` characters, even once JSON has escaped them."""
    if text is None:
        return None
    text = _utf8(text[:limit]) + "…" * (len(text) > limit)
    while len(json.dumps(text, ensure_ascii=False)) > limit + 2:
        text = text.removesuffix("…")[:-1] + "…"
    return text


def _utf8(text: str) -> str:
    """The text without lone surrogates, which no transport would take."""
    return text.encode("utf-8", "replace").decode()


_THIRDS = 1e-6  # three thirds are a little less than one in binary


def share_of(limit: float, count: float) -> float:
    """How much of a limit is used, and no less than that although thirds do not add up exactly."""
    return (count + _THIRDS) / limit


def next_whole(count: float) -> int:
    """The smallest whole limit that a count of failures, whole or in thirds, does not reach."""
    return int(count + _THIRDS) + 1


class Finding:
    """What one rule says about one call.

    ``share`` is how much of the limit is used: 1.0 and more opens a circuit of ``scope``, less is a warning and needs
    no other field. With ``nudge``, a sentence for the model, it never opens anything: the model is told, whatever the
    share. With ``passing`` (at admission) it refuses this one call and opens nothing either.
    """

    __slots__ = (
        "limit", "loop_type", "members", "nudge", "observed", "passing", "period", "retry_after_s", "retryable", "rule",
        "scope", "share", "why",
    )  # fmt: skip

    def __init__(
        self,
        rule: str,
        share: float = 1.0,
        *,
        scope: Scope = "run",
        limit: float | None = None,
        observed: float | None = None,
        loop_type: LoopType = "over_use",
        why: str = "",
        period: int | None = None,
        members: tuple[Member, ...] = (),
        retryable: bool = False,
        retry_after_s: float | None = None,
        nudge: str = "",
        passing: bool = False,
    ) -> None:
        self.rule = rule
        self.share = share
        self.scope: Scope = scope
        self.limit = limit
        self.observed = observed
        self.loop_type: LoopType = loop_type
        self.why = why
        self.period = period
        self.members = members
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.nudge = nudge
        self.passing = passing


class Nudge(NamedTuple):
    """What a rule has the model told beside a result: one sentence of at most 300 characters, no argument values."""

    rule: str
    text: str

    @classmethod
    def cut(cls, rule: str, text: str) -> Nudge:
        """The nudge, with what is too long of its sentence left out."""
        return cls(rule, text[:NUDGE_LIMIT])


class Permit:
    """The call may run. Counts include this call; ``number`` names its place until it is settled.

    ``shares`` says for each rule that ``warned`` how much of its limit is used.
    """

    __slots__ = ("nudges", "number", "run_calls", "session_calls", "shares", "signature_calls", "warned", "would_trip")

    def __init__(
        self,
        number: int,
        signature_calls: int,
        run_calls: int,
        session_calls: int,
        warned: tuple[str, ...] = (),
        would_trip: Trip | None = None,
        nudges: tuple[Nudge, ...] = (),
        shares: tuple[float, ...] = (),
    ) -> None:
        self.number = number
        self.signature_calls = signature_calls
        self.run_calls = run_calls
        self.session_calls = session_calls
        self.warned = warned
        self.nudges = nudges
        self.shares = shares
        self.would_trip = would_trip


class Circuit:
    """An open circuit.

    Without a cooldown it stays open. With one it is half open once the time is over: one call, the probe, is let
    through under a lease; its success closes the circuit, its failure opens it for twice as long.

    Attributes:
        trip: Why it opened.
        link: Trace and span id of the call that opened it, None if unknown.
        refused: How many calls it has refused.
        cooldown_s: Seconds until the next probe; None for never.
        until: When that is, on the guard's clock.
        probe: Number of the call that is being tried, None if none is.
        lease: When the probe's time is over, so that one that never ends does not hold the circuit for ever.
    """

    __slots__ = ("cooldown_s", "lease", "link", "probe", "refused", "trip", "until")

    def __init__(
        self, trip: Trip, *, link: str | None = None, refused: int = 0, cooldown_s: float | None = None,
        at: float = 0.0,
    ) -> None:  # fmt: skip
        self.trip = trip
        self.link = link
        self.refused = refused
        self.cooldown_s = cooldown_s
        self.until = None if cooldown_s is None else at + cooldown_s
        self.probe: int | None = None
        self.lease = 0.0

    def refuses(self, at: float) -> bool:
        """Whether a call at that time is refused: the circuit is open, or half open with its probe on the way."""
        if self.until is None or at < self.until:
            return True
        return self.probe is not None and at < self.lease

    def try_with(self, number: int, at: float) -> None:
        """Lets call ``number`` be the probe."""
        self.probe, self.lease = number, at + (self.cooldown_s or 0.0)

    def reopen(self, at: float) -> None:
        """The probe failed."""
        self.probe = None
        self.cooldown_s = min(2 * (self.cooldown_s or 0.0), COOLDOWN_MOST_S)
        self.until = at + self.cooldown_s

    def trip_at(self, at: float) -> Trip:
        """Why a call at that time is refused, with the seconds that are left."""
        if self.until is None:
            return self.trip
        return replace(self.trip, retry_after_s=round(max(self.until, self.lease if self.probe else 0.0) - at, 3))

    def to_plain(self) -> list[Any]:
        """The circuit as JSON values."""
        return [self.trip.to_dict(), *(getattr(self, name) for name in _PLAIN_CIRCUIT)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Circuit:
        """The circuit that ``to_plain`` described."""
        trip, *rest = plain
        circuit = cls(Trip.from_dict(trip))
        for name, value in zip(_PLAIN_CIRCUIT, rest, strict=True):
            setattr(circuit, name, value)
        return circuit


COOLDOWN_MOST_S = 3600.0
_PLAIN_CIRCUIT = ("link", "refused", "cooldown_s", "until", "probe", "lease")


class Refuse:
    """The call must not run; siblings may.

    ``fresh`` says that this very call opened the circuit; ``nth`` is how many calls the circuit has refused, this one
    included. ``opened`` is a stop that this refusal brought about: it holds from the next call on. Counts are those
    before the call.
    """

    __slots__ = ("circuit", "fresh", "nth", "opened", "run_calls", "session_calls", "signature_calls", "trip")

    def __init__(
        self,
        circuit: Circuit,
        *,
        fresh: bool,
        nth: int,
        trip: Trip | None = None,
        opened: Circuit | None = None,
        signature_calls: int = 0,
        run_calls: int = 0,
        session_calls: int = 0,
    ) -> None:
        self.circuit = circuit
        self.trip = trip or circuit.trip
        self.fresh = fresh
        self.nth = nth
        self.opened = opened
        self.signature_calls = signature_calls
        self.run_calls = run_calls
        self.session_calls = session_calls

    @property
    def link(self) -> str | None:
        """Trace and span id of the call that opened the circuit; None if that is this call, or unknown."""
        return None if self.fresh else self.circuit.link


class Stop(Refuse):
    """The call must not run, and nothing else of this run tree may."""

    __slots__ = ()


Admission = Permit | Refuse


class Settled:
    """What the rules say after a result.

    ``trip`` is set if this result opened a circuit, ``would_trip`` if it would have (observe mode); ``repeat_length``
    and ``repeat_count`` are the period and laps of the cycle so far (0 and 0 without one). ``nudges`` are for the
    model; their rules are among ``warned``, and ``shares`` says how much of each one's limit is used.
    """

    __slots__ = ("nudges", "repeat_count", "repeat_length", "shares", "trip", "warned", "would_trip")

    def __init__(self) -> None:
        self.trip: Trip | None = None
        self.would_trip: Trip | None = None
        self.warned: tuple[str, ...] = ()
        self.shares: tuple[float, ...] = ()
        self.nudges: tuple[Nudge, ...] = ()
        self.repeat_length = 0
        self.repeat_count = 0


SILENT = Settled()  # the rules had nothing to say: one for all such results, never to be changed
