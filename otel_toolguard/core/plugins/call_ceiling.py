"""``call_ceiling``: plain ceilings on how many calls may start."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.decision import Finding, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.decision import Trip
    from otel_toolguard.core.state import RunState, SessionState


class CallCeiling:
    """Counts admissions; the call after the last allowed one is refused.

    Args:
        run: Calls in one run, those of runs nested in it included; None for no ceiling. Ends the run.
        session: Calls over all runs of the session; None for no ceiling. Ends the run, and each later one at once.
        tools: Calls of a single tool in one run and those nested in it, by glob on its name (the first match counts).
            Refuses that tool.
        classes: Calls of one class, likewise. Refuses the tool that asked.
        signature: Calls of one signature, likewise; None for no ceiling. Refuses that signature.
    """

    name = "call_ceiling"
    advice = "Most of the calls allowed for this work are used: finish what matters, and report what is left."

    def __init__(
        self,
        *,
        run: int | None = None,
        session: int | None = None,
        tools: Mapping[str, int] | None = None,
        classes: Mapping[str, int] | None = None,
        signature: int | None = None,
    ) -> None:
        self.run = run
        self.session = session
        self.tools = dict(tools or {})
        self.classes = dict(classes or {})
        self.signature = signature
        self.needs = ("class",) if classes else ()
        self._narrow = bool(self.tools or self.classes or signature is not None)

    def admit(self, mine: Any, run: RunState, call: ToolCall) -> Finding | None:
        """A finding where this call would be one too many, or where half a ceiling is used."""
        top = None
        raised = run.session.raised
        if self.session is not None:
            used = run.session.calls
            limit = _raised(raised, "session", self.session) if raised else self.session
            if 2 * used >= limit:
                top = self._finding("session", "the session", used, limit, f"session = {used + 1}")
                if top.share >= 1:
                    return top
        if self.run is not None:
            counting: RunState | None = run
            limit = _raised(raised, "run", self.run) if raised else self.run
            while counting is not None:
                used = counting.calls
                if 2 * used >= limit:
                    found = self._finding("run", "the run", used, limit, f"run = {used + 1}")
                    if found.share >= 1:
                        return found
                    top = found if top is None or found.share > top.share else top
                counting = counting.above
        return self._top(run, call, top) if self._narrow else top

    def _top(self, run: RunState, call: ToolCall, top: Finding | None) -> Finding | None:
        """The narrower ceiling that refuses, else whatever is nearest to its limit."""
        for counting in run.lineage():
            for found in self._narrower(counting, call):
                if found.share >= 1:
                    return found
                top = found if top is None or found.share > top.share else top
        return top

    def _narrower(self, run: RunState, call: ToolCall) -> Iterator[Finding]:
        """Ceilings that refuse single calls and let the run go on; those of which half is used."""
        raised = run.session.raised
        if self.signature is not None and call.whole:  # a call that is not signed in full is no repeat
            used, limit = run.signatures.get(call.signature, 0), _raised(raised, "signature", self.signature)
            if 2 * used >= limit:
                yield self._finding("signature", "this very call", used, limit, f"signature = {used + 1}")
        if self.tools and (glob := self._glob(call.tool)) is not None:
            used, limit = run.tools.get(call.tool, 0), _raised(raised, f"tools.{glob}", self.tools[glob])
            if 2 * used >= limit:
                setting = f'tools = {{"{glob}" = {used + 1}}}'
                yield self._finding("tool", f"tool {call.tool}", used, limit, setting)
        if call.tool_class in self.classes:
            limit = _raised(raised, f"classes.{call.tool_class}", self.classes[call.tool_class])
            if 2 * (used := run.classes.get(call.tool_class, 0)) >= limit:
                setting = f"classes = {{{call.tool_class} = {used + 1}}}"
                yield self._finding("tool", f"class {call.tool_class}", used, limit, setting)

    def _glob(self, tool: str) -> str | None:
        return next((glob for glob in self.tools if fnmatchcase(tool, glob)), None)

    def _finding(self, scope: Scope, what: str, used: int, limit: int, setting: str) -> Finding:
        if used < limit:
            return Finding(self.name, used / limit)
        return Finding(
            self.name, used / limit if limit else 1.0, scope=scope, limit=limit, observed=used, loop_type="over_use",
            why=f"The ceiling of {limit} calls for {what} is used up"
            f"{' in this run' if scope in ('signature', 'tool') else ''}; "
            f"call_ceiling {setting} would have allowed one more.",
        )  # fmt: skip

    def ceilings(self) -> dict[str, int]:
        """What is set, under the names by which it can be raised."""
        named = {name: getattr(self, name) for name in ("run", "session", "signature")}
        named |= {f"tools.{glob}": limit for glob, limit in self.tools.items()}
        named |= {f"classes.{tool_class}": limit for tool_class, limit in self.classes.items()}
        return {name: limit for name, limit in named.items() if limit is not None}

    def raise_to(self, state: SessionState, name: str, value: int, reason: str, *, until: float, at: float) -> None:
        """Lets one ceiling be higher until then, and lists it; circuits that it opened are closed, a stop stays.

        Raises:
            ValueError: There is no such ceiling, or it is not lower.
        """
        ceilings = self.ceilings()
        if name not in ceilings:
            raise ValueError(f"call_ceiling has no ceiling {name!r}; it has {', '.join(ceilings)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"a ceiling is a whole number, not {value!r}")  # noqa: TRY004
        state.tick(at)
        before = _raised(state.raised, name, ceilings[name])
        if value <= before:
            raise ValueError(f"{name} is {before}; {value} would not raise it")
        state.raised.append([name, value, until])
        for run in state.runs.values():
            run.circuits = {
                key: circuit for key, circuit in run.circuits.items() if not self._is_of(circuit.trip, name)
            }
        said = {"action": "raise_ceiling", "name": name, "value": value, "was": before, "expires_at": until}
        state.audit.append({**said, "reason": reason})

    def _is_of(self, trip: Trip, name: str) -> bool:
        if trip.rule != self.name:
            return False
        if trip.scope == "signature":
            return name == "signature"
        return name in (f"tools.{self._glob(trip.tool or '')}", f"classes.{trip.tool_class}")


def _raised(raised: list[list[Any]], name: str, limit: int) -> int:
    """The ceiling in force: the highest it was raised to, else what is set."""
    return max((value for raised_name, value, _ in raised if raised_name == name), default=limit)
