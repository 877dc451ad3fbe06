"""``call_ceiling``: plain ceilings on how many calls may start."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.decision import Finding, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.state import RunState


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
        if self.session is not None:
            used = run.session.calls
            if 2 * used >= self.session:
                top = self._finding("session", "the session", used, self.session, f"session = {used + 1}")
                if top.share >= 1:
                    return top
        if self.run is not None:
            counting: RunState | None = run
            while counting is not None:
                used = counting.calls
                if 2 * used >= self.run:
                    found = self._finding("run", "the run", used, self.run, f"run = {used + 1}")
                    if found.share >= 1:
                        return found
                    top = found if top is None or found.share > top.share else top
                counting = counting.above
        counting = run if self._narrow else None
        while counting is not None:
            if narrow := self._narrower(counting, call):
                return narrow
            counting = counting.above
        return top

    def _narrower(self, run: RunState, call: ToolCall) -> Finding | None:
        """Ceilings that refuse single calls and let the run go on."""
        if self.signature is not None:
            used = run.signatures.get(call.signature, 0)
            if used >= self.signature:
                return self._finding("signature", "this very call", used, self.signature, f"signature = {used + 1}")
        if self.tools:
            glob = next((glob for glob in self.tools if fnmatchcase(call.tool, glob)), None)
            if glob is not None and (used := run.tools.get(call.tool, 0)) >= self.tools[glob]:
                setting = f'tools = {{"{glob}" = {used + 1}}}'
                return self._finding("tool", f"tool {call.tool}", used, self.tools[glob], setting)
        limit = self.classes.get(call.tool_class)
        if limit is not None and (used := run.classes.get(call.tool_class, 0)) >= limit:
            setting = f"classes = {{{call.tool_class} = {used + 1}}}"
            return self._finding("tool", f"class {call.tool_class}", used, limit, setting)
        return None

    def _finding(self, scope: Scope, what: str, used: int, limit: int, setting: str) -> Finding:
        if used < limit:
            return Finding(self.name, used / limit)
        return Finding(
            self.name, used / limit if limit else 1.0, scope=scope, limit=limit, observed=used, loop_type="over_use",
            why=f"The ceiling of {limit} calls for {what} is used up"
            f"{' in this run' if scope in ('signature', 'tool') else ''}; "
            f"call_ceiling {setting} would have allowed one more.",
        )  # fmt: skip
