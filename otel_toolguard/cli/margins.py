"""What would have let a stopped run go on: the smallest change of settings, tried on a session rebuilt from a trip."""

from __future__ import annotations

import glob
import math
import os
import re
import tempfile
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from otel_toolguard.cli.check import with_warnings, without_environment
from otel_toolguard.cli.inspect import KEY
from otel_toolguard.cli.rebuilt import REFUSED, Step, session
from otel_toolguard.cli.toml_text import plain, toml_of, value_of
from otel_toolguard.core.call import Outcome
from otel_toolguard.core.canonical import Signer
from otel_toolguard.core.classify import classify, is_shell_like
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.state import SessionState
from otel_toolguard.errors import SettingsError
from otel_toolguard.settings import PLUGINS, PROFILES, Policy
from otel_toolguard.settings.profiles import DEFAULT_PROFILE
from otel_toolguard.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.core.call import ToolCall
    from otel_toolguard.core.classify import ToolClass
    from otel_toolguard.core.decision import Trip

_TOLD = {"across_tools", "compare", "count"}  # parameters that a trip's sentence gives away
_OWN = re.compile(r"; \[tools\.\"(?P<glob>[^\"]+)\"\] limits = \{(?P<rule>\w+) = (?P<limit>[0-9]+)\}")
_COMPARED = (("with exactly the same results", "exact"), ("with the same arguments", "call"))
_LOOKS = re.compile(
    r"(?i)(?:\b|_)(?:status|state|check|get|list|poll|wait|progress|jobs?|queue|ready|health|logs?|show|describe|query"
    r"|inspect|fetch|lookup)(?:\b|_)"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

Table = dict[str, Any]


class Change(NamedTuple):
    """One change of settings, and whether a replay found that it is enough (None: not tried).

    ``base`` is the profile whose chain this is, None where the trip comes from a chain of its own.
    """

    kind: str
    says: str
    toml: str
    base: str | None
    checked: bool | None
    how: str


def changes(trip: Trip) -> list[Change]:
    """The changes that would have let the call through, the smallest first; none for a stop from outside."""
    if trip.rule not in PLUGINS:
        return []
    own = _OWN.search(trip.why)
    if own is not None and own["rule"] == trip.rule:
        return [_of_one_tool(trip, own["glob"], int(own["limit"]))]
    asked = _Question(trip)
    raised = asked.raised()
    return [asked.polling(), raised] if asked.looks_like_polling() else [raised]


class _Question:
    """A trip, and what can be concluded from it about the settings it came from."""

    def __init__(self, trip: Trip) -> None:
        self.trip = trip
        self.new = _setting(trip)
        self.old, self.patience = self._before()
        tools = {member.tool for member in trip.members} or {trip.tool or ""}
        self.busy = [tool for tool in tools if not classify(tool).neutral]
        same = self._bases()
        self.base, self.same = (same[0] if same else None), same[1:]
        self.steps, self.partly = session(trip, self.new)
        # A profile under which another rule had ended the same session earlier is not the one the trip came from.
        if self.base is not None and self.steps:
            first = _tried(self._with(self.old), self.steps, self)
            if first is None or first[1] != trip.rule:
                self.base, self.partly = None, f"{self.partly} (that rule alone)"

    def _before(self) -> tuple[Table, int]:
        """The settings as they were, as far as the trip tells, and how many times the limit the cycle had."""
        limit = plain(self.trip.limit or 0)
        if self.trip.rule != "repeat_guard":
            return _each(self.new, lambda _: limit), 1
        before = _each(self.new, lambda raised: raised - 1)
        return before, max(1, round(limit / max(1, _number(before))))

    def _own(self) -> Table:
        """Parameters beside the limit that the trip gives away."""
        trip, own = self.trip, Table()
        if trip.rule == "repeat_guard":
            own |= next(({"compare": how} for words, how in _COMPARED if words in self.trip.why), {})
            if (trip.period or 0) > 3:
                own["max_period"] = trip.period
        elif trip.rule == "failure_streak" and self.trip.why.startswith("Tools failed"):
            own["across_tools"] = True
        elif trip.rule == "signature_failures" and self.trip.why:
            if " in a row" not in self.trip.why:
                own["count"] = "cumulative"
            if "with the same error" not in self.trip.why:
                own |= {"same_error": False, "clear_on_write": False}
            if trip.retryable and trip.retry_after_s:
                own["cooldown"] = float(trip.retry_after_s)
        elif trip.scope == "session" and "scope" in PLUGINS[trip.rule].model_fields:
            own["scope"] = "session"
        return own

    def _bases(self) -> list[str]:
        """The profiles that have this very limit, the default one first."""
        own = self._own()
        tables = {
            name: next((table for table in PROFILES[name] if table["plugin"] == self.trip.rule), {})
            for name in (DEFAULT_PROFILE, *PROFILES)
        }
        return [
            name for name, table in tables.items()
            if table and table | self.old == table and own.items() <= table.items()
            and (not self.trip.why or _TOLD & table.keys() <= own.keys())
        ]  # fmt: skip

    def _with(self, said: Table, tools: Table | None = None) -> tuple[list[Table], Table]:
        """The chain with those parameters of the rule, and the settings of tools."""
        rule = self.trip.rule
        if self.base is not None:
            chain = [table | said if table["plugin"] == rule else table for table in PROFILES[self.base]]
        else:
            table: Table = {"plugin": rule}
            if "limit" not in said and PLUGINS[rule].model_fields.get("limit") is not None:
                table["limit"] = _number(self.old)
            chain = [table | said | self._own()]
        return chain, tools or {}

    def raised(self) -> Change:
        """The limit raised by just enough."""
        chain, _ = self._with(self.new)
        setting = ", ".join(f"{name} = {value_of(value)}" for name, value in self.new.items())
        if self.base is not None:
            same = f" ({' and '.join(self.same)} had it too)" if self.same else ""
            head = f"# The chain of the profile {self.base}, with one limit raised{same}.\nversion = 1\n"
            says = f"{self.trip.rule} {setting}: one more than it counted; everything else as in {self.base}."
        else:
            head = "# Change this one table in your own chain and keep the rest: alone it is a chain of one rule.\n"
            says = f"{self.trip.rule} {setting}: one more than it counted."
        toml = toml_of(chain, {}, self.new if self.base is None else None)
        return Change("limit", says, head + toml, self.base, *self._check(self._with(self.new)))

    def looks_like_polling(self) -> bool:
        """Whether the cycle is one call that looks at something, perhaps with waiting between."""
        trip = self.trip
        if trip.rule not in ("repeat_guard", "stagnation", "same_answer") or trip.loop_type == "error_storm":
            return False
        if self._own().get("compare") == "exact" or self.patience > 1:
            return False
        alone = len(self.busy) == 1 and trip.tool_class in ("read", "network", "other", "mcp")
        return alone and not is_shell_like(self.busy[0]) and _LOOKS.search(_HUMP.sub("_", self.busy[0])) is not None

    def polling(self) -> Change:
        """The tool declared a poller."""
        name, rule = self.busy[0], self.trip.rule
        declared = {glob.escape(name): {"poll": True}}
        own = "# In your own settings file, beside the chain.\n"
        head = f'version = 1\nprofile = "{self.base}"\n\n' if self.base else own
        exempt = "it has ten times the repeat limit" if rule == "repeat_guard" else f"{rule} leaves it out"
        says = f"If {name} is asked again and again by nature, say so: {exempt}."
        if rule == "stagnation":
            self.steps = [Step(name, self.trip.signature or "tool:0")] * (int(self.trip.limit or 0) + 2)
            self.partly = "in part: one call of it again and again"
        return Change(
            "poll", says, head + toml_of([], declared), self.base, *self._check(self._with(self.old, declared))
        )  # fmt: skip

    def _check(
        self, after: tuple[list[Table], Table], before: tuple[list[Table], Table] | None = None
    ) -> tuple[bool | None, str]:
        """Plays the rebuilt session under the old settings and under the new ones."""
        if not self.steps:
            return None, self.partly
        try:
            was = _tried(before or self._with(self.old), self.steps, self)
            now = _tried(after, self.steps, self)
        except SettingsError as error:
            said = str(error).rpartition("toml:")[2].partition(": ")[2] or str(error)
            return None, f"these settings cannot stand by themselves ({said})"
        if was is None or was[1] != self.trip.rule:
            return False, f"{self.partly}: the old settings do not stop it"
        if now is not None:
            return False, f"{self.partly}: {now[1]} still stops it at call {now[0] + 1} of {len(self.steps)}"
        return True, f"{self.partly}: the old settings stop it at call {was[0] + 1} of {len(self.steps)}, these do not"


def _of_one_tool(trip: Trip, glob_of_it: str, limit: int) -> Change:
    """The limit of a tool's own raised by just enough."""
    asked = _Question(replace(trip, why=trip.why.partition(";")[0]))
    asked.base, asked.patience = None, 1
    chain, _ = asked._with({"limit": max(2, limit)})  # noqa: SLF001
    was, now = ({glob_of_it: {"limits": {trip.rule: n}}} for n in (limit - 1, limit))
    says = f"{trip.rule} = {limit} for {glob_of_it}: one more than it counted."
    toml = "# In your own settings file, beside the chain.\n" + toml_of([], now)
    return Change("limit", says, toml, None, *asked._check((chain, now), (chain, was)))  # noqa: SLF001


def _setting(trip: Trip) -> Table:
    """The setting that would have allowed it: the one that the record names, else the rule's plain limit."""
    named = re.search(rf"(?:^|; ){re.escape(trip.rule)} (.+?)(?: \(.*\))? would have allowed \w+", trip.why)
    try:
        said = tomllib.loads(named[1]) if named else {}
    except tomllib.TOMLDecodeError:
        said = {}
    if said and _is_setting(trip.rule, said):
        return said
    more = math.floor((trip.observed or trip.limit or 0) + 0.01) + 1
    if trip.rule != "call_ceiling":
        return {"seconds" if trip.rule == "deadline" else "limit": more}
    if trip.scope == "tool":
        return {"tools": {glob.escape(trip.tool or "*"): more}}
    return {trip.scope: more}


def _is_setting(rule: str, said: Table) -> bool:
    """Whether that is one parameter of the rule with a number (for tables: one number)."""
    name, alone = next(iter(said)), len(said) == 1 and all(len(v) == 1 for v in said.values() if isinstance(v, dict))
    return alone and name in PLUGINS[rule].model_fields and type(_number(said)) is int and _number(said) > 1


def _number(said: Table) -> Any:
    """The number of the one parameter."""
    value = next(iter(said.values()))
    return next(iter(value.values())) if isinstance(value, dict) else value


def _each(said: Table, change: Callable[[Any], Any]) -> Table:
    return {name: _each(value, change) if isinstance(value, dict) else change(value) for name, value in said.items()}


def _tried(settings: tuple[list[Table], Table], steps: list[Step], asked: _Question) -> tuple[int, str] | None:
    """Index and rule of the first trip that is of the rule in question or stops the run; None if there is none."""
    policy, signer, rule = _policy(*settings, refusing=asked.trip.rule == "max_refusals"), Signer(KEY), asked.trip.rule
    state, tools = SessionState("rebuilt"), dict[str, Tool]()
    for index, step in enumerate(steps):
        tool = tools.get(step.tool) or tools.setdefault(step.tool, Tool(step.tool))
        call = tool.call({"path": "file"} if rule == "file_edits" else {}, policy, signer, world=None)
        call = _as_recorded(call, step, policy, asked)
        at = index * (asked.trip.observed or 0.0) if rule == "deadline" else 0.0
        admission = policy.chain.admit(state, step.run, call, at=at)
        if isinstance(admission, Refuse):
            trips = [admission.trip, *([admission.opened.trip] if admission.opened else [])]
        else:
            answer = ("!" if step.failure else "") + step.answer
            outcome = Outcome("failed" if step.failure else "ok", failure=step.failure, exact=answer, volatile=answer,
                              digits=answer)  # fmt: skip
            settled = policy.chain.settle(state, step.run, admission.number, call, outcome, at=at)
            trips = [settled.trip] if settled.trip else []
        found = next((trip for trip in trips if trip.rule == rule or trip.stops), None)
        if found is not None:
            return index, found.rule
    return None


def _as_recorded(call: ToolCall, step: Step, policy: Policy, asked: _Question) -> ToolCall:
    """The call with what the trip knows better than the tool's name."""
    call.signature = call.shape = step.signature
    call.reached = True
    if step.tool_class is not None:
        call.tool_class = cast("ToolClass", step.tool_class)  # checked when the trip was read
    if policy.tool(step.tool).poll is None:  # the cycle's patience is known from its limit
        call.patience, call.poll = asked.patience, asked.patience > 1
    if asked.trip.rule != "repeat_guard":
        call.neutral = False
    return call


def _policy(chain: list[Table], tools: Table, *, refusing: bool) -> Policy:
    if refusing:
        ceiling = next((table for table in chain if table["plugin"] == "call_ceiling"), {"plugin": "call_ceiling"})
        chain = [table for table in chain if table["plugin"] != "call_ceiling"]
        chain = [*chain, ceiling | {"tools": {REFUSED: 1}}]
    handle, path = tempfile.mkstemp(suffix=".toml")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(toml_of(chain, tools))
        with without_environment():
            return with_warnings(lambda: Policy.from_toml(path))[0]
    finally:
        os.unlink(path)  # noqa: PTH108
