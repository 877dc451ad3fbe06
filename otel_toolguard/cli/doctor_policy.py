"""Which rules would judge, and where each value comes from."""

from __future__ import annotations

import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.check import with_warnings
from otel_toolguard.cli.doctor_finding import Finding, one_line
from otel_toolguard.errors import SettingsError
from otel_toolguard.settings import ENVIRONMENT, Policy
from otel_toolguard.settings.places import line_of
from otel_toolguard.settings.profiles import DEFAULT_PROFILE, PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONFIG = "TOOLGUARD_CONFIG"
VARIABLES = (*ENVIRONMENT, "TOOLGUARD_STORE", "TOOLGUARD_TELEMETRY", "TOOLGUARD_TRIP_LOG")
_SINGLE = ("mode", "strict", "latch", "on_warn", "capture_arguments")
_DEFAULT = "default"


def policy_findings(environment: Mapping[str, str]) -> tuple[Policy | None, list[Finding]]:
    """The policy that the environment comes to, None if it cannot be honoured; and each value with its source."""
    unknown = list(_unknown(environment))
    path = environment.get(CONFIG) or None
    try:
        policy, doubts = with_warnings(Policy)
    except SettingsError as error:
        advice = "correct it; until then each Session raises this error"
        return None, [Finding("fail", "settings", one_line(error, 600), advice), *unknown]
    sources = Sources(environment, path, Path(path).read_text(encoding="utf-8") if path else "")
    findings = [sources.finding(name, getattr(policy, name)) for name in _SINGLE]
    findings += [*sources.chain(policy), *sources.tools(policy), *sources.unheard()]
    findings += [Finding("warn", "settings", one_line(doubt, 600), "change one of the two") for doubt in doubts]
    return policy, [*findings, *unknown]


class Sources:
    """Where the values of the policy come from: the first of environment, file and profile that speaks."""

    def __init__(self, environment: Mapping[str, str], path: str | None, text: str) -> None:
        self._environment = environment
        self._path = path
        self._text = text
        self._file: dict[str, Any] = tomllib.loads(text)  # as the policy has been made of it already

    def finding(self, name: str, value: Any) -> Finding:
        """A single value."""
        source = self.of(name)
        level: Any = "ok"
        text, advice = f"{_shown(value)} ({source})", ""
        if name == "mode" and value == "observe":
            level, text = "note", f"{text}: every call runs, and what would be stopped is told"
        elif name == "mode" and value == "off":
            level, text, advice = "warn", f"{text}: nothing is judged", "set TOOLGUARD_MODE=enforce to be guarded"
        return Finding(level, name, text, advice, {"value": value, "source": source})

    def of(self, name: str) -> str:
        """The source of a value at the top of the settings."""
        variable = f"TOOLGUARD_{name.upper()}"
        if variable in ENVIRONMENT and self._environment.get(variable):
            return variable
        return self._at(key=name) if name in self._file else _DEFAULT

    def chain(self, policy: Policy) -> Iterator[Finding]:
        """The profile, and each rule with its parameters."""
        source = self.of("profile")
        spelled = policy.profile_name is None
        said = f"none: the rules are spelled out ({self._at(key='tool_plugins')})" if spelled else policy.profile_name
        text = str(said) if spelled else f"{said} ({source})"
        yield Finding("ok", "profile", text, "", {"value": policy.profile_name, "source": None if spelled else source})
        given = self._file["tool_plugins"] if spelled else PROFILES[policy.profile_name or DEFAULT_PROFILE]
        if not given:
            yield Finding(
                "warn", "rules", "none at all: nothing is ever stopped", "list some, or leave tool_plugins out"
            )
        for index, (name, settings) in enumerate(policy.plugins):
            own = {key for key in given[index] if key != "plugin"}
            values = {key: value for key, value in settings.model_dump().items() if value not in (None, {})}
            rows = {
                key: {"value": value, "source": self._of_parameter(key if key in own else None, index, spelled, policy)}
                for key, value in values.items()
            }
            yield Finding("ok", name, _rule_text(rows, self._at(plugin=index) if spelled else ""), "", {"values": rows})

    def _of_parameter(self, key: str | None, index: int, spelled: bool, policy: Policy) -> str:
        if key is None:
            return _DEFAULT
        return self._at(plugin=index, key=key) if spelled else f"profile {policy.profile_name}"

    def tools(self, policy: Policy) -> Iterator[Finding]:
        """The settings of single tools."""
        for glob, values in policy.to_dict()["tools"].items():
            settings = {"class" if key == "tool_class" else key: value for key, value in values.items()}
            text = f"{_pairs(settings) or 'nothing set'} ({self._at(tool=glob)})"
            yield Finding(
                "ok", f'tools."{one_line(glob, 40)}"', text, "", {"values": settings, "source": self._at(tool=glob)}
            )

    def unheard(self) -> Iterator[Finding]:
        """What the file says in vain, because something else speaks before it."""
        for name in _SINGLE:
            source = self.of(name)
            if name in self._file and source.startswith("TOOLGUARD_"):
                yield Finding(
                    "note", "not used", f"{name} of the file ({self._at(key=name)}): {source} speaks before it"
                )
        source = self.of("profile")
        by_variable = source.startswith("TOOLGUARD_")
        for key in ("tool_plugins", "profile") if by_variable else ("profile",):
            if key in self._file and (by_variable or "tool_plugins" in self._file):
                said = source if by_variable else "tool_plugins"
                text = f"{key} of the file ({self._at(key=key)}): {said} decides instead"
                yield Finding("warn", "not used", text, "take one of the two away")

    def _at(self, **what: Any) -> str:
        return one_line(f"{self._path}:{line_of(self._text, **what)}")


def _unknown(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(environment):
        if name.startswith("TOOLGUARD_") and name not in VARIABLES:
            near = get_close_matches(name, VARIABLES, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(VARIABLES)}"
            yield Finding("warn", "variable", f"{one_line(name, 60)} is none of ours and does nothing", advice)


def _rule_text(rows: Mapping[str, Mapping[str, Any]], place: str) -> str:
    """The parameters of a rule: those that somebody set, then the defaults."""
    by_source: dict[str, list[str]] = {}
    for key, row in sorted(rows.items(), key=lambda item: item[1]["source"] == _DEFAULT):
        by_source.setdefault(row["source"], []).append(f"{key} = {_shown(row['value'])}")
    said = "; ".join(f"{', '.join(pairs)} ({source})" for source, pairs in by_source.items())
    return said or (f"on ({place})" if place else "on")


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_shown(value)}" for key, value in values.items())


def _shown(value: Any) -> str:
    return one_line(json.dumps(value, default=str), 120) if not isinstance(value, str) else one_line(value, 120)
