"""``otel-toolguard check``: whether a settings file can be honoured, and what it comes to."""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from otel_toolguard.errors import SettingsError, SettingsWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_toolguard.settings import Policy

_PREFIX = "TOOLGUARD_"


@contextmanager
def without_environment() -> Iterator[None]:
    """Hides ``TOOLGUARD_*`` inside the block: what was named on the command line is judged by itself."""
    hidden = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def with_warnings(make: Callable[[], Policy]) -> tuple[Policy, list[str]]:
    """The policy, and the sentences of what can be honoured but hardly does what was meant."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = make()
    return policy, [str(warning.message) for warning in caught if issubclass(warning.category, SettingsWarning)]


def chosen_policy(profile: str | None, path: str | None) -> Policy:
    """The policy that the command line names; what the environment says if it names none.

    Args:
        profile: A profile; the environment is ignored.
        path: A TOML file; the environment is ignored.

    Raises:
        SettingsError: It cannot be honoured.
    """
    from otel_toolguard.settings import Policy

    if profile is None and path is None:
        policy, doubts = with_warnings(Policy)
        said = [name for name in ("TOOLGUARD_CONFIG", "TOOLGUARD_PROFILE") if os.environ.get(name)]
        if said:
            note(f"judging by {' and '.join(said)}; --profile or --policy would ignore the environment")
    else:
        with without_environment():
            policy, doubts = with_warnings(lambda: Policy.from_toml(path) if path is not None else Policy(profile))
    for doubt in doubts:
        note(f"warning: {doubt}")
    return policy


def note(text: str) -> None:
    """Says something on standard error."""
    sys.stderr.write(f"otel-toolguard: {printable(text)}\n")


def printable(text: str) -> str:
    """The text without what could steer a terminal: recordings and file names may hold anything."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def check(path: str, *, as_json: bool) -> int:
    """Prints the effective chain, or what is wrong with it; returns the exit code."""
    from otel_toolguard.settings import Policy

    try:
        with without_environment():
            policy, doubts = with_warnings(lambda: Policy.from_toml(path))
    except SettingsError as error:
        if not as_json:
            raise
        _print({"ok": False, "file": path, "error": str(error), "warnings": [], "policy": None})
        return 2
    if as_json:
        _print({"ok": True, "file": path, "error": None, "warnings": doubts, "policy": policy.to_dict()})
        return 0
    sys.stdout.write(_described(policy))
    for doubt in doubts:
        sys.stdout.write(f"warning: {doubt}\n")
    sys.stdout.write("ok\n")
    return 0


def _print(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")


def _described(policy: Policy) -> str:
    plain = policy.to_dict()
    lines = [f"profile: {plain['profile'] or 'none, the chain is spelled out'}", f"mode: {plain['mode']}"]
    lines.append("chain:" if plain["tool_plugins"] else "chain: empty, no rule at all")
    lines += [f"  {_plugin(plugin)}" for plugin in plain["tool_plugins"]]
    if plain["tools"]:
        lines.append("tools:")
        lines += [f"  {glob}: {_pairs(settings)}" for glob, settings in plain["tools"].items()]
    return "\n".join(lines) + "\n"


def _plugin(plugin: dict[str, Any]) -> str:
    said = {name: value for name, value in plugin.items() if name != "plugin" and value not in (None, {})}
    return f"{plugin['plugin']}  {_pairs(said)}".rstrip()


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value, default=str)}" for name, value in values.items())
