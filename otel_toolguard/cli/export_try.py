"""Calls tried under a policy: what ``replay`` says of them is what the exported test will say."""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.cli.check import with_warnings, without_environment
from otel_toolguard.cli.replay import Replay
from otel_toolguard.settings import Policy

if TYPE_CHECKING:
    from otel_toolguard.cli.export_text import Row

_STOP_NOTHING = ("classify", "distinct_ratio", "tool_stats")
SAME = ("rule", "scope", "period", "limit")


class Rules(NamedTuple):
    """A policy as the exported file will spell it out."""

    plugins: list[Row]
    tools: Row
    policy: Policy
    doubtful: bool


def rules_of(plugins: Any, tools: Any) -> Rules:
    """The chain as it is written down: every parameter, for defaults may change; no rule that stops nothing.

    Raises:
        SettingsError: It cannot be honoured.
    """
    with without_environment():
        policy, doubts = with_warnings(lambda: Policy(plugins=plugins, tools=tools, mode="enforce"))
    plain = policy.to_dict()
    kept = [table for table in plain["tool_plugins"] if table["plugin"] not in _STOP_NOTHING]
    written = [{key: value for key, value in table.items() if value is not None and value != {}} for table in kept]
    said = {glob: {"class" if key == "tool_class" else key: value for key, value in settings.items()}
            for glob, settings in plain["tools"].items()}  # fmt: skip
    return Rules(_listed(written), _listed(said), policy, bool(doubts))


def tried(rows: list[Row], policy: Policy) -> Row | None:
    """What trips, and at which of the calls; None if nothing does, or a row is no call."""
    handle, path = tempfile.mkstemp(suffix=".jsonl")
    bad: list[str] = []
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for i, row in enumerate(rows):
                place = {"s": "case", "i": i} if "t" in row else {"session": "case", "i": i}
                file.write(json.dumps(place | row) + "\n")
        found = Replay(policy, lambda *line: bad.append(str(line))).run([path], lambda *_: None)
    finally:
        os.unlink(path)  # noqa: PTH108
    return None if bad or not found else found[0].trip


def same(found: Row | None, wanted: Row) -> bool:
    """Whether the same rule tripped, of the same scope, period and limit; at the same call, if that is known."""
    if found is None or any(found[key] != wanted[key] for key in SAME):
        return False
    return "index" not in wanted or found["index"] == wanted["index"]


def _listed(value: Any) -> Any:
    """The value with lists for tuples, as a literal has them."""
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, (list, tuple)) else value
