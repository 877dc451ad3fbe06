"""Limits of single tools: whether each names a rule that has such a limit, holds, and can be reached."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pydantic import ValidationError

from otel_toolguard.errors import SettingsError, SettingsWarning
from otel_toolguard.settings.plugins import PLUGINS, PluginSettings
from otel_toolguard.settings.reach import unreachable
from otel_toolguard.settings.tools import OFF_WORD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_toolguard.settings.tools import ToolSettings

OWN = ("failure_streak", "repeat_guard", "same_answer", "signature_failures")  # rules whose limit a tool may have
_EVERY_CALL = ("call_ceiling", "classify", "cost", "max_refusals", "tool_stats")  # no tool is spared by these


def check_own_limits(
    tools: Mapping[str, ToolSettings], chain: Sequence[tuple[str, PluginSettings]], place: Callable[[str], str]
) -> None:
    """Looks at the limits of every glob.

    Args:
        tools: Settings by glob.
        chain: The rules that judge.
        place: Names the place of a glob's limits, for an error.

    Raises:
        SettingsError: A limit that no rule has, or that can never be reached.
    """
    known = dict(chain)
    spared = sorted({*PLUGINS, *known}.difference(_EVERY_CALL))
    for glob, rule, limit in ((g, r, n) for g, settings in tools.items() for r, n in settings.limits.items()):
        where = f"{place(glob)}limits.{rule}"
        if rule == "call_ceiling":
            raise SettingsError(f'{where}: a ceiling of one tool is call_ceiling tools = {{"{glob}" = {limit}}}')
        if rule not in spared:
            raise SettingsError(f"{where}: no rule that could spare a tool; valid are {', '.join(spared)}")
        if rule not in known:
            warnings.warn(f"{where} has no effect: {rule} is not in the chain", SettingsWarning, stacklevel=5)
        elif limit != OFF_WORD and rule in PLUGINS:
            _check(where, rule, int(limit), known[rule], chain)


def _check(
    where: str, rule: str, limit: int, settings: PluginSettings, chain: Sequence[tuple[str, PluginSettings]]
) -> None:
    if rule not in OWN:
        raise SettingsError(f'{where} = {limit}: {rule} has one limit for all tools; valid here is "{OFF_WORD}"')
    try:
        own = type(settings).model_validate({"limit": limit})
    except ValidationError as error:
        raise SettingsError(f"{where} = {limit}: {error.errors()[0]['msg']}") from error
    for found, _, sentence in unreachable([(name, own if name == rule else other) for name, other in chain]):
        if found == rule:
            raise SettingsError(f"{where}: {sentence}")
