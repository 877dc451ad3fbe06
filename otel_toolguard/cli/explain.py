"""``otel-toolguard explain``: why a run was stopped, and the smallest change that would have let it go on."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, get_args

from otel_toolguard.cli.check import note, printable
from otel_toolguard.cli.margins import changes
from otel_toolguard.core.classify import TOOL_CLASSES
from otel_toolguard.core.decision import SCOPES, InFlight, LoopType, Member, Trip
from otel_toolguard.settings import PLUGINS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    _Check = tuple[Callable[[Any], bool], str]

SIZE_LIMIT = 16 << 20  # bytes; a trip has a few thousand
MOST = 10**15  # of anything that is counted
OPERATOR, HELD = "session.stop", "forced_open"
GROUP = "otel_toolguard.plugins"  # rules of third parties
STOP_NOTHING = ("classify", "distinct_ratio", "tool_stats")
_RISKS = ("irreversible", "reversible", "read_only")

_UNITS = {
    "repeat_guard": "laps of one cycle", "stagnation": "points since the last progress",
    "same_answer": "different calls in a row with one answer", "failure_streak": "failures in a row",
    "signature_failures": "failures of one call", "call_ceiling": "admitted calls",
    "max_refusals": "refusals of calls asked for again", "file_edits": "edits of one file", "deadline": "seconds",
    "cost": "spent", "depth": "runs inside runs", "max_in_flight": "calls at the same time",
}  # fmt: skip
_MASKED = (
    "in results: clocks, dates, durations, ids, addresses, process ids, temporary names, counters of shells and "
    "notebooks, progress bars and long query values were masked; plain numbers were not"
)
_WRITES = "the results of tools of class write: an edit accepted again and again is a loop"
_NEUTRAL = "calls that only think or wait"
_POLLERS = "calls of tools that poll"
_LEFT_OUT = {
    "repeat_guard": (_MASKED, _WRITES),
    "stagnation": (_MASKED, _WRITES, _NEUTRAL, _POLLERS),
    "same_answer": (_MASKED, "writes, which end the row", _NEUTRAL, _POLLERS),
    "failure_streak": ("arguments and results", _NEUTRAL, "calls that never reached a tool"),
    "signature_failures": ("clocks, ids and the like in the errors", _NEUTRAL, "calls that never reached a tool"),
    "call_ceiling": ("results",),
    "max_refusals": ("what was refused", "all but one of the refusals of one batch"),
}
_COMPARED = {
    "repeat_guard": "tool, arguments and failed or not to the letter, and results without their passing parts",
    "stagnation": "tool and arguments to the letter, results without their passing parts, both also without numbers",
    "same_answer": "tool, failed or not, and results without their passing parts",
    "failure_streak": "the tool, and whether the call failed; a timeout, a 429 or a 5xx counts a third",
    "signature_failures": "tool and arguments to the letter, and the error; a timeout, a 429 or a 5xx counts a third",
    "call_ceiling": "nothing: calls were counted as they were admitted",
    "max_refusals": "nothing: refusals were counted",
}
_SCORE = (
    "a failure never seen before adds 0.5, one with a known error or a refused write 1, the n-th repeat since the last "
    "progress n and at most 3, a call or answer that differs in numbers only 0.5, a transient failure a third of that; "
    "a new call that works sets the score to 0"
)
_HINTS = {
    "same_answer": "If the tool answers every call with the same words although it did different things, let it return "
    "the state it changed, or say what to compare: @guard_tool(result_key=...).",
    "stagnation": "If the tool's answers hide what really changed, let it return the state it changed, or say what to "
    "compare: @guard_tool(result_key=...).",
}


class BadInput(Exception):
    """What was given holds no trip; its text names the place."""


def explain(path: str, *, as_json: bool) -> int:
    """Explains the trips of a file; returns the exit code.

    Args:
        path: A trip as JSON, or JSON that holds some under "trip", "trips" or "runs"; ``-`` is standard input.
        as_json: True for one JSON object a trip.
    """
    try:
        trips = [(_trip(where, plain), where) for where, plain in _found(path, _read(path))]
    except BadInput as error:
        note(str(error))
        return 2
    for nth, (trip, where) in enumerate(trips):
        told = explained(trip)
        if as_json:
            sys.stdout.write(json.dumps(told) + "\n")
        else:
            head = f"── {printable(where)}\n" if len(trips) > 1 else ""
            sys.stdout.write("\n" * bool(nth) + head + _text(told))
    if not trips:
        note(f"{path}: no circuit opened, there is nothing to explain")
    return 0


def explained(trip: Trip) -> dict[str, Any]:
    """All that can be said about a trip, as JSON values."""
    score = {"observed": trip.observed, "limit": trip.limit, "contributions": _parts(trip.why), "weights": _SCORE}
    flight = sorted(trip.in_flight, key=lambda call: _RISKS.index(call.risk) if call.risk in _RISKS else 0)
    return {
        "rule": trip.rule, "scope": trip.scope, "loop_type": trip.loop_type, "limit": trip.limit,
        "observed": trip.observed, "unit": _UNITS.get(trip.rule), "tool": trip.tool, "tool_class": trip.tool_class,
        "signature": trip.signature, "session_id": trip.session_id, "run_id": trip.run_id, "at_call": trip.at_call,
        "why": trip.why, "stopped": _stopped(trip), "laps": _laps(trip),
        "score": score if trip.rule == "stagnation" else None, "compared": _compared(trip),
        "left_out": _left_out(trip),
        "in_flight": [
            {"tool": c.tool, "signature": c.signature, "class": c.tool_class, "risk": c.risk,
             "half_done": c.risk != "read_only"} for c in flight],
        "changes": [change._asdict() for change in changes(trip)], "hints": _hints(trip),
    }  # fmt: skip


def _read(path: str) -> str:
    try:
        if path == "-":
            data = getattr(sys.stdin, "buffer", sys.stdin).read(SIZE_LIMIT + 1)
        else:
            with open(path, "rb") as file:  # noqa: PTH123
                data = file.read(SIZE_LIMIT + 1)
        if len(data) > SIZE_LIMIT:
            raise BadInput(f"{path}: is longer than {SIZE_LIMIT >> 20} MiB; a trip has a few thousand bytes")
        return data if isinstance(data, str) else data.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is no UTF-8 text at byte {error.start}") from None


def _found(path: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each trip of one JSON document, or of JSON lines, and where it stands."""
    try:
        yield from _within(path, json.loads(text))
    except RecursionError:
        raise BadInput(f"{path}: is nested too deeply") from None
    except json.JSONDecodeError as error:
        lines = text.splitlines()
        if error.msg != "Extra data" or len(lines) < 2:
            raise BadInput(f"{path}:{error.lineno}: is no JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise BadInput(f"{path}: is no JSON: {error}") from None
    else:
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                said = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
                raise BadInput(f"{path}:{number}: is no JSON: {said}") from None
            yield from _within(f"{path}:{number}", value)


def _within(where: str, value: Any, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list) and depth < 3:
        for index, inner in enumerate(value):
            yield from _within(f"{where}[{index}]", inner, depth + 1)
    elif not isinstance(value, dict):
        raise BadInput(f"{where}: is no trip but {'null' if value is None else type(value).__name__}")
    elif value.get("error") == "circuit_open":
        raise BadInput(f"{where}: is what the model was told, without the numbers; give what exc.to_dict() returns")
    elif "rule" in value:
        yield where, value
    elif "trip" in value:
        if value["trip"] is not None:
            yield from _within(f"{where}: trip", _with_session(value["trip"], value), depth + 1)
    elif (key := next((key for key in ("runs", "trips") if isinstance(value.get(key), list)), None)) and depth < 3:
        yield from _within(f"{where}: {key}", value[key], depth + 1)
    else:
        raise BadInput(f"{where}: key 'rule' is missing; a trip is what exc.to_dict() returns, or stands under 'trip'")


def _with_session(trip: Any, row: dict[str, Any]) -> Any:
    """A line of ``replay`` says of the trip's place what the trip itself does not."""
    if isinstance(trip, dict) and "index" in trip and "session_id" not in trip:
        trip = {key: value for key, value in trip.items() if key != "index"} | {"session_id": row.get("session"),
                "at_call": trip["index"] + 1 if type(trip["index"]) is int else 0}  # fmt: skip
    return trip


_GUESSED = {
    "repeat_guard": "exact_repeat", "stagnation": "stagnation", "same_answer": "same_answer",
    "failure_streak": "error_storm", "signature_failures": "error_storm", "call_ceiling": "over_use",
    "max_refusals": "refused_too_often", OPERATOR: "stopped_by_operator",
}  # fmt: skip


def _trip(where: str, plain: dict[str, Any]) -> Trip:
    """The trip, each field checked; what a line of ``replay`` lacks is left empty."""
    rule = plain.get("rule")
    rules = sorted({*PLUGINS, OPERATOR, HELD, *entry_points(group=GROUP).names}.difference(STOP_NOTHING))
    if not isinstance(rule, str) or rule not in rules:
        raise BadInput(f"{where}: unknown rule {rule!r:.60}; known are {', '.join(rules)}")
    known = {field.name for field in fields(Trip)}
    given = {key: value for key, value in plain.items() if key in known and value is not None}
    for key in ("scope", *(() if rule in (OPERATOR, HELD) else ("limit", "observed"))):
        if key not in given:
            raise BadInput(f"{where}: key {key!r} is missing")
    for key, value in given.items():
        if key in _CHECKS and not _CHECKS[key][0](value):
            raise BadInput(f"{where}: {key} is {value!r:.60}, not {_CHECKS[key][1]}")
    if given.get("loop_type") not in get_args(LoopType):
        given["loop_type"] = "oscillation" if given.get("period", 1) > 1 else _GUESSED.get(rule, "over_use")
    for key, kind in (("members", Member), ("in_flight", InFlight)):
        given[key] = _records(f"{where}: {key}", given.get(key) or [], kind)
    return Trip(**{"id": "", "session_id": "", "why": ""} | given)


def _one_of(choices: Sequence[str]) -> _Check:
    return lambda value: isinstance(value, str) and value in choices, f"one of {', '.join(choices)}"


def _whole(least: int) -> _Check:
    return lambda value: type(value) is int and least <= value < MOST, f"a whole number of at least {least}"


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST


_CHECKS: dict[str, _Check] = {
    "scope": _one_of(SCOPES), "tool_class": _one_of(TOOL_CLASSES), "period": _whole(1), "at_call": _whole(0),
    **dict.fromkeys(("limit", "observed", "retry_after_s"), (_number, "a number of 0 or more")),
    **dict.fromkeys(("id", "tool", "signature", "session_id", "run_id", "agent", "why", "loop_type"),
                    (lambda value: isinstance(value, str), "a string")),
}  # fmt: skip


def _records(where: str, rows: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(rows, (list, tuple)):
        raise BadInput(f"{where} is no list")
    made = []
    for index, row in enumerate(rows):
        arguments = row.get("arguments", {}) if isinstance(row, dict) else None
        if not isinstance(row, dict) or not isinstance(arguments, dict):
            raise BadInput(f"{where}[{index}] is no object that describes a call")
        for field in fields(kind):
            if field.name != "arguments" and not isinstance(row.get(field.name), str):
                raise BadInput(f"{where}[{index}]: key {field.name!r} is missing or no string")
        made.append(kind(**{f.name: row[f.name] for f in fields(kind) if f.name in row}))
    return tuple(made)


def _stopped(trip: Trip) -> str:
    if trip.rule == OPERATOR:
        return "An operator stopped the session from outside; no rule did. session.reset(reason) lets it go on."
    if trip.rule == HELD:
        what = "this call" if trip.scope == "signature" else f"the tool {trip.tool or ''}".rstrip()
        return f"Somebody forced the circuit of {what} open; no rule did. The run goes on without it."
    what = {
        "signature": f"Only this call of {trip.tool or 'the tool'} is refused; the run goes on.",
        "tool": f"Only the tool {trip.tool or ''} is refused; the run goes on.".replace("  ", " "),
        "run": "The run is over: every later tool call of it is refused.",
        "session": "The run is over, and so is every later one of the session.",
    }[trip.scope]
    unit = _UNITS.get(trip.rule, "of what it counts")
    return f"{trip.rule} counted {trip.observed:g} {unit}; its limit is {trip.limit:g}. {what}"


def _laps(trip: Trip) -> dict[str, Any] | None:
    if trip.period is None:
        return None
    calls = [{"position": n, "tool": m.tool, "signature": m.signature, "arguments": m.arguments}
             for n, m in enumerate(trip.members, 1)]  # fmt: skip
    laps = int(trip.observed or 0)
    return {"period": trip.period, "laps": laps, "calls": trip.period * laps, "members": calls}


def _compared(trip: Trip) -> str | None:
    if trip.rule == "repeat_guard" and "with exactly the same results" in trip.why:
        return "tool, arguments, failed or not and results, all to the letter"
    if trip.rule == "repeat_guard" and "with the same arguments" in trip.why:
        return "tool and arguments to the letter, and nothing else"
    if trip.rule == "signature_failures" and trip.why and "with the same error" not in trip.why:
        return "tool and arguments to the letter, whatever the error; a timeout, a 429 or a 5xx counts a third"
    if trip.rule == "failure_streak" and trip.why.startswith("Tools failed"):
        return "whether the calls failed, of whatever tool; a timeout, a 429 or a 5xx counts a third"
    return _COMPARED.get(trip.rule)


def _left_out(trip: Trip) -> list[str]:
    if trip.rule == "repeat_guard" and "with exactly the same results" in trip.why:
        return []
    if trip.rule == "repeat_guard" and "with the same arguments" in trip.why:
        return ["results"]
    return list(_LEFT_OUT.get(trip.rule, ()))


def _parts(why: str) -> dict[str, float] | None:
    """What a score is made of, as its sentence says; None where it does not."""
    said = re.search(r"allowed \(([a-z0-9., ]+)\);", why)
    pairs = [part.rpartition(" ") for part in said[1].split(", ")] if said else []
    try:
        return {what: float(points) for what, _, points in pairs} or None
    except ValueError:
        return None


def _hints(trip: Trip) -> list[str]:
    hints = [_HINTS[trip.rule]] if trip.rule in _HINTS else []
    if trip.tool_class == "write" and trip.rule in ("repeat_guard", "stagnation"):
        said = f"{trip.tool} counts as a write, so its results were not compared. If it only looks, say so: "
        hints = [said + 'class = "read" in its table under [tools], and a new answer is progress.']
    return hints


def _score_lines(score: dict[str, Any]) -> list[str]:
    parts = score["contributions"]
    lines = ["", f"The score: {score['observed']:g} of {score['limit']:g}; {_SCORE}."]
    if parts is None:
        return [*lines, "  What each kind of call added is not on the record."]
    return [*lines, *(f"  {points:g} from {what}" for what, points in parts.items())]


def _text(told: dict[str, Any]) -> str:
    lines = [told["stopped"]]
    if told["why"]:
        lines.append(f"On record: {told['why']}")
    place = [f"session {told['session_id']}" * bool(told["session_id"]), f"run {told['run_id']}" * bool(told["run_id"]),
             f"call {told['at_call']}" * bool(told["at_call"]), f"loop type {told['loop_type']}"]  # fmt: skip
    lines.append(", ".join(part for part in place if part))
    if laps := told["laps"]:
        lines += ["", f"The laps: {laps['laps']} of {laps['period']} calls each, {laps['calls']} calls in all"]
        for call in laps["members"]:
            said = ", ".join(f"{name} {shape}" for name, shape in call["arguments"].items()) or "no arguments known"
            lines.append(f"  {call['position']}. {call['tool']}  {call['signature']}  ({said})")
        if not laps["members"]:
            lines.append("  which calls they were is not on this record")
    elif told["tool"]:
        lines.append(f"The call: {told['tool']}  {told['signature']}  (class {told['tool_class']})")
    lines += _score_lines(told["score"]) if told["score"] else []
    if told["compared"]:
        lines += ["", f"Compared: {told['compared']}."]
        lines += [f"Left out: {what}." for what in told["left_out"]]
    flight = told["in_flight"]
    lines += ["", "In flight: nobody, no call was half done." if not flight else "In flight when it stopped:"]
    for call in flight:
        half = "may be half done" if call["half_done"] else "only reads"
        lines.append(f"  {call['risk']} {call['class']}: {call['tool']}  {call['signature']}  {half}")
    for nth, change in enumerate(told["changes"]):
        lines += ["", f"{'Or' if nth else 'The smallest change'}: {change['says']}", ""]
        lines += ["    " + line if line else "" for line in change["toml"].splitlines()]
        word = {True: "yes", False: "no", None: "no"}[change["checked"]]
        lines += ["", f"checked by replay: {word} ({change['how']})"]
    lines += [f"Hint: {hint}" for hint in told["hints"]]
    return "\n".join(printable(line) for line in lines) + "\n"
