"""What would have let a stopped run go on: the smallest change of settings, tried on a session rebuilt from a trip."""

from __future__ import annotations

import glob
import json
import math
import os
import re
import tempfile
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from otel_toolguard.cli.check import with_warnings, without_environment
from otel_toolguard.cli.inspect import KEY
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
    from collections.abc import Callable, Iterator

    from otel_toolguard.core.call import Failure, ToolCall
    from otel_toolguard.core.classify import ToolClass
    from otel_toolguard.core.decision import Trip

STEPS_MOST = 50_000  # calls of a rebuilt session
RUN_CALLS = 100  # calls of one run where the ceiling is that of the session
TOOLS = 5  # tools over which the failures of a rebuilt session are spread, so that no streak of one tool ends it
REFUSED = "asked_again"  # the tool that the check of max_refusals lets be refused
_TOLD = {"across_tools", "compare", "count"}  # parameters that a trip's sentence gives away
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


class Step(NamedTuple):
    """One call of a rebuilt session."""

    tool: str
    signature: str
    answer: str = "same"
    failure: Failure | None = None
    tool_class: str | None = None  # None: by the tool's name
    run: str = "rebuilt"


def changes(trip: Trip) -> list[Change]:
    """The changes that would have let the call through, the smallest first; none for a stop from outside."""
    if trip.rule not in PLUGINS:
        return []
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
        self.steps, self.partly = _session(trip, self.new)
        # A profile under which another rule had ended the same session earlier is not the one the trip came from.
        if self.base is not None and self.steps:
            first = _tried(self._with(self.old), self.steps, self)
            if first is None or first[1] != trip.rule:
                self.base, self.partly = None, f"{self.partly} (that rule alone)"

    def _before(self) -> tuple[Table, int]:
        """The settings as they were, as far as the trip tells, and how many times the limit the cycle had."""
        limit = _plain(self.trip.limit or 0)
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
        setting = ", ".join(f"{name} = {_value(value)}" for name, value in self.new.items())
        if self.base is not None:
            same = f" ({' and '.join(self.same)} had it too)" if self.same else ""
            head = f"# The chain of the profile {self.base}, with one limit raised{same}.\nversion = 1\n"
            says = f"{self.trip.rule} {setting}: one more than it counted; everything else as in {self.base}."
        else:
            head = "# Change this one table in your own chain and keep the rest: alone it is a chain of one rule.\n"
            says = f"{self.trip.rule} {setting}: one more than it counted."
        return Change("limit", says, head + _toml(chain, {}), self.base, *self._check(self._with(self.new)))

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
            "poll", says, head + _toml([], declared), self.base, *self._check(self._with(self.old, declared))
        )  # fmt: skip

    def _check(self, after: tuple[list[Table], Table]) -> tuple[bool | None, str]:
        """Plays the rebuilt session under the old settings and under the new ones."""
        if not self.steps:
            return None, self.partly
        try:
            was = _tried(self._with(self.old), self.steps, self)
            now = _tried(after, self.steps, self)
        except SettingsError as error:
            said = str(error).rpartition("toml:")[2].partition(": ")[2] or str(error)
            return None, f"these settings cannot stand by themselves ({said})"
        if was is None or was[1] != self.trip.rule:
            return False, f"{self.partly}: the old settings do not stop it"
        if now is not None:
            return False, f"{self.partly}: {now[1]} still stops it at call {now[0] + 1} of {len(self.steps)}"
        return True, f"{self.partly}: the old settings stop it at call {was[0] + 1} of {len(self.steps)}, these do not"


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


class _Rebuilt:
    """A session that may have led to a trip; each method is named after its rule."""

    def __init__(self, trip: Trip, new: Table, count: float) -> None:
        self.trip, self.new, self.count = trip, new, int(count + 0.01)
        self.thirds = round((count - self.count) * 3)
        self.tool, self.signature = trip.tool or "tool", trip.signature or "tool:0"

    def repeat_guard(self) -> Iterator[Step]:
        """The members in order; where they are fewer than the period, the first comes again with other answers."""
        trip = self.trip
        failure: Failure | None = "permanent" if trip.loop_type == "error_storm" else None
        members = [(member.tool, member.signature) for member in trip.members]
        members = members or [(self.tool, f"tool:{n}") for n in range(trip.period or 1)]
        missing = max(0, (trip.period or 1) - len(members))
        for _ in range(self.count):
            for at, (tool, signature) in enumerate(members[:1] * missing + members):
                tool_class = trip.tool_class if tool == trip.tool else None
                yield Step(tool, signature, f"answer {at}" if missing else "same", failure, tool_class)

    def call_ceiling(self) -> Iterator[Step]:
        for n in range(self.count + 1):
            signature = self.signature if "signature" in self.new else f"{self.tool}:{n}"
            run = f"run {n // RUN_CALLS}" if "session" in self.new else "rebuilt"
            yield Step(self.tool, signature, f"new {n}", tool_class=self.trip.tool_class, run=run)

    def _failures(self) -> Iterator[tuple[int, Failure]]:
        for n in range(self.count + self.thirds):
            yield n, "permanent" if n < self.count else "transient"

    def failure_streak(self) -> Iterator[Step]:
        for n, failure in self._failures():
            yield Step(self.tool, f"tool:{n}", f"error {n}", failure, self.trip.tool_class)

    def signature_failures(self) -> Iterator[Step]:
        """Other work between, or other rules would have been first."""
        for n, failure in self._failures():
            yield Step(self.tool, self.signature, "same error", failure, self.trip.tool_class)
            yield Step("elsewhere", f"elsewhere:{n}", f"new {n}", tool_class="read")

    def max_refusals(self) -> Iterator[Step]:
        yield Step(REFUSED, f"{REFUSED}:0", tool_class="read")
        for n in range(self.count):
            if "total" in self.new:
                yield Step("elsewhere", f"elsewhere:{n}", f"new {n}", tool_class="read")
            yield Step(REFUSED, f"{REFUSED}:0", tool_class="read")

    def same_answer(self) -> Iterator[Step]:
        for n in range(self.count):
            yield Step(self.tool, f"tool:{n}", tool_class=self.trip.tool_class)

    def file_edits(self) -> Iterator[Step]:
        for n in range(self.count):
            yield Step(self.tool, f"{self.tool}:{n}", f"new {n}", tool_class="write")

    def deadline(self) -> Iterator[Step]:
        yield from [Step(self.tool, self.signature)] * 2

    def stagnation(self) -> Iterator[Step]:
        """Failures of several tools, each new, which add a half each."""
        for n in range(2 * self.count + self.thirds * 2 // 3):
            yield Step(f"tool {n % TOOLS}", f"tool {n % TOOLS}:{n}", f"error {n}", "permanent", "read")


_REBUILT = {
    "repeat_guard": "the same cycle for the observed laps",
    "call_ceiling": "as many admissions as were observed, and one more",
    "failure_streak": "as many failures of the tool in a row, with made-up arguments and errors",
    "signature_failures": "as many failures of that call, with other work between",
    "max_refusals": "as many refusals, brought about by a ceiling",
    "file_edits": "as many different edits of one file",
    "deadline": "two calls, with as much time between",
    "same_answer": "in part: as many different calls with one answer, all of them made up",
    "stagnation": "in part: the score alone, reached by failures, for what added to it is not on record",
}


def _session(trip: Trip, new: Table) -> tuple[list[Step], str]:
    """Its calls, and what of it is known; no calls where it cannot be rebuilt, and why."""
    count = trip.observed if trip.observed is not None else trip.limit or 0
    if trip.rule not in _REBUILT:
        return [], "what it judged cannot be rebuilt from a trip"
    if trip.rule != "deadline" and count * (trip.period or 1) > STEPS_MOST:
        return [], f"a session of more than {STEPS_MOST} calls is not rebuilt"
    return list(getattr(_Rebuilt(trip, new, count), trip.rule)()), _REBUILT[trip.rule]


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
            file.write(_toml(chain, tools))
        with without_environment():
            return with_warnings(lambda: Policy.from_toml(path))[0]
    finally:
        os.unlink(path)  # noqa: PTH108


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _toml(chain: list[Table], tools: Table) -> str:
    lines: list[str] = []
    for table in chain:
        lines += ["", "[[tool_plugins]]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    for name, settings in tools.items():
        lines += ["", f"[tools.{_value(name)}]", *(f"{key} = {_value(value)}" for key, value in settings.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_value(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        value = _plain(value)
    return json.dumps(value)
