"""The case of a trip: calls made up from the record, because a trip keeps neither arguments nor results."""

from __future__ import annotations

import glob
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.cli.explain import BadInput
from otel_toolguard.cli.export_try import SAME, Rules, rules_of, same, tried
from otel_toolguard.cli.margins import _OWN, _Question
from otel_toolguard.cli.rebuilt import REFUSED, Step
from otel_toolguard.core.classify import classify
from otel_toolguard.errors import SettingsError
from otel_toolguard.settings import PLUGINS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_toolguard.cli.export_text import Row
    from otel_toolguard.core.decision import Trip

_OF_A_TOOL = {"class": ("class", "tool_class"), "risk": ("risk",), "poll": ("poll",), "limits": ("limits",)}
_ONLY_REPEATS = re.compile(r"allowed \(repeats [0-9.]+\);")
_NUMBER = re.compile(r"\d+")


class Case(NamedTuple):
    """What an exported file holds."""

    rows: list[Row]
    rules: Rules
    trip: Row
    head: str
    how: str
    left_out: int = 0  # recorded calls before it that make no difference


def letters(number: int) -> str:
    """A number as a word: numbers themselves are masked where results and arguments are compared."""
    word = ""
    while True:
        number, digit = divmod(number, 26)
        word = chr(ord("a") + digit) + word
        if not number:
            return word
        number -= 1


def made_up(trip: Trip, logged: Row | None, chosen: tuple[Any, Any] | None) -> Case:
    """The case of a trip, tried.

    Args:
        trip: The trip.
        logged: Its line in a trip log, which knows the policy; None for the trip alone.
        chosen: Chain and settings of tools that the command line names; None to find them out.

    Raises:
        BadInput: No such calls can be made up, or under no likely policy do they trip the same.
    """
    if trip.rule not in PLUGINS:
        raise BadInput(f"{trip.rule}: no rule of the library opened this circuit, so there are no calls to export")
    asked, own = _question(trip)
    if not asked.steps:
        raise BadInput(f"{trip.rule}: {asked.partly}; export the recorded session instead")
    wanted = {key: getattr(trip, key) for key in SAME}
    doubt: Exception | None = None
    for (chain, tools, where), (steps, how) in product(_likely(asked, own, logged, chosen), _ways(asked)):
        try:
            rules = rules_of(_refusing(chain) if trip.rule == "max_refusals" else chain, _tools(asked, steps, tools))
        except SettingsError as error:
            doubt = error
            continue
        rows = [*_rows(steps, trip)]
        found = tried(rows, rules.policy)
        if found is not None and same(found, wanted):
            cut = rows[: found["index"] + 1]
            if tried(cut, rules.policy) == found:
                return Case(cut, rules, found, f"A case made up from a trip, under {where}.", f"Made up: {how}.")
    why = f" ({doubt})" if doubt is not None else ""
    raise BadInput(f"{trip.rule}: calls made up from the trip do not trip the same{why}; export the recorded session")


def _question(trip: Trip) -> tuple[_Question, Row]:
    """What ``explain`` concludes from a trip, and the limit of a tool's own by which it tripped."""
    found = _OWN.search(trip.why)
    if found is None or found["rule"] != trip.rule:
        return _Question(trip), {}
    asked = _Question(replace(trip, why=trip.why.partition(";")[0]))
    limit = int(found["limit"])
    asked.base, asked.old, asked.patience = None, {"limit": max(2, limit)}, 1
    return asked, {found["glob"]: {"limits": {trip.rule: limit - 1}}}


def _likely(
    asked: _Question, own: Row, logged: Row | None, chosen: tuple[Any, Any] | None
) -> Iterator[tuple[list[Row], Row, str]]:
    """Chains and settings of tools that the trip may come from, the surest first."""
    if chosen is not None:
        yield *chosen, "the given policy"
        return
    policy = logged.get("policy") if logged else None
    if isinstance(policy, dict) and isinstance(policy.get("tool_plugins"), list):
        tools = policy.get("tools")
        tools = tools if isinstance(tools, dict) else {}
        chain = [table for table in policy["tool_plugins"] if isinstance(table, dict)]
        yield chain, tools, "the policy on its record"
        yield [table for table in chain if table.get("plugin") == asked.trip.rule], tools, "its rule alone"
    guessed, _ = asked._with(asked.old)  # noqa: SLF001
    yield guessed, own, f"the profile {asked.base}" if asked.base else "its rule alone"


def _ways(asked: _Question) -> Iterator[tuple[list[Step], str]]:
    """Sessions that may have led to the trip, the likeliest first."""
    trip = asked.trip
    if trip.rule == "stagnation" and _ONLY_REPEATS.search(trip.why):
        again = Step(trip.tool or "tool", trip.signature or "tool:0", tool_class=trip.tool_class)
        yield [again] * (int(trip.limit or 0) + 2), "one call again and again, until the score on record was reached"
    yield asked.steps, asked.partly


def _refusing(chain: list[Row]) -> list[Row]:
    """The chain with the ceiling by which the made-up calls are refused."""
    ceiling: Row = next((table for table in chain if table.get("plugin") == "call_ceiling"), {"plugin": "call_ceiling"})
    others = [table for table in chain if table.get("plugin") != "call_ceiling"]
    return [*others, ceiling | {"tools": {REFUSED: 1}}]


def _tools(asked: _Question, steps: Sequence[Step], given: Row) -> Row:
    """Settings of the tools of the case: what the record knows better than their names, else what is given."""
    trip, made = asked.trip, {}
    for name, tool_class in {step.tool: step.tool_class for step in steps}.items():
        glob_of_it = next((each for each in given if fnmatchcase(name, each)), None)
        said = given[glob_of_it] if glob_of_it is not None and isinstance(given[glob_of_it], dict) else {}
        settings = {
            key: said[word] for key, words in _OF_A_TOOL.items() for word in words if said.get(word) not in (None, {})
        }
        known = classify(name)
        if tool_class is not None and tool_class != settings.get("class", known.tool_class):
            settings["class"] = tool_class
        polls = known.poll if settings.get("poll") is None else settings["poll"]
        if trip.rule == "repeat_guard" and asked.patience > 1:
            settings["poll"] = asked.patience
        elif polls:
            settings["poll"] = False
        if settings:
            made[glob.escape(name)] = settings
    return made


def _rows(steps: Sequence[Step], trip: Trip) -> Iterator[Row]:
    """The calls as ``replay`` reads them; what is different differs in letters, which nothing masks."""
    labels: dict[str, str] = {}
    for index, step in enumerate(steps):
        label = labels.setdefault(step.signature, letters(len(labels)))
        answer = _NUMBER.sub(lambda found: letters(int(found[0])), step.answer)
        where = {"path": "file"} if trip.rule == "file_edits" else {}
        told = {"permanent": "refused: ", "transient": "timed out: ", None: ""}[step.failure]
        row: Row = {"tool": step.tool, "arguments": {**where, "case": label}, "result": told + answer,
                    "failed": step.failure is not None}  # fmt: skip
        yield row | ({"ts": index * (trip.observed or 0.0)} if trip.rule == "deadline" else {})
