"""Limits that can never be reached, or hardly, because another rule of the chain stops first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from otel_toolguard.settings.plugins import (
    CallCeilingSettings,
    FailureStreakSettings,
    PluginSettings,
    RepeatGuardSettings,
    SameAnswerSettings,
    StagnationSettings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Chain = "Sequence[tuple[str, PluginSettings]]"


def unreachable(chain: Sequence[tuple[str, PluginSettings]]) -> Iterator[tuple[str, str, str]]:
    """(plugin, parameter, sentence) for each limit that another rule undercuts on every sequence of calls."""
    for name, ceiling in ((n, s) for n, s in chain if isinstance(s, CallCeilingSettings)):
        most = min((n for n in (ceiling.run, ceiling.session) if n is not None), default=None)
        which = "run" if most == ceiling.run else "session"
        for parameter, what, limit in _narrower(ceiling) if most is not None else ():
            # What stops the run is asked first, so that the narrower one must be smaller.
            if most is not None and limit >= most and parameter != which:
                said = f"{which} = {most} stops first; raise {which} or lower {parameter}"
                yield name, parameter, f"call_ceiling {what} = {limit} can never be reached: {said}"
        for rule, settings in chain:
            needed = _fewest_calls(settings)
            if needed is None:
                continue
            if most is not None and needed > most:
                said = f"it needs {needed} calls and call_ceiling {which} = {most} stops before"
                what = f"{rule} limit = {_limit(settings):g} can never be reached"
                yield rule, "limit", f"{what}: {said}; raise the ceiling or lower the limit"
            elif isinstance(settings, RepeatGuardSettings) and ceiling.signature is not None and (
                _fewest_laps(settings) > ceiling.signature
            ):  # fmt: skip
                said = f"call_ceiling signature = {ceiling.signature} refuses the call before"
                what = f"{rule} limit = {settings.limit} can never be reached"
                yield rule, "limit", f"{what}: {said}; raise one or lower the other"


def _narrower(ceiling: CallCeilingSettings) -> Iterator[tuple[str, str, int]]:
    """(parameter, how it is written, limit) of what the ceiling of the run may undercut."""
    for parameter in ("run", "signature"):
        limit = getattr(ceiling, parameter)
        if limit is not None:
            yield parameter, parameter, limit
    for parameter in ("tools", "classes"):
        for name, limit in getattr(ceiling, parameter).items():
            yield parameter, f'{parameter} "{name}"', limit


def hardly_reachable(chain: Sequence[tuple[str, PluginSettings]]) -> Iterator[tuple[str, str, str]]:
    """(plugin, parameter, sentence) for each repeat limit whose longest cycles do not fit under a ceiling."""
    for ceiling in (s for _, s in chain if isinstance(s, CallCeilingSettings)):
        most = min((n for n in (ceiling.run, ceiling.session) if n is not None), default=None)
        for rule, settings in chain:
            if most is not None and isinstance(settings, RepeatGuardSettings):
                longest = settings.max_period * settings.limit
                if _needed(settings) <= most < longest:
                    what = f"{rule} limit = {settings.limit} is reached by cycles of {settings.max_period} calls only"
                    yield rule, "limit", f"{what} after {longest} calls, and call_ceiling stops after {most}"


def _needed(settings: RepeatGuardSettings) -> int:
    return min(period * laps for period, laps in _laps(settings))


def _fewest_laps(settings: RepeatGuardSettings) -> int:
    return min(laps for _, laps in _laps(settings))


def _laps(settings: RepeatGuardSettings) -> Iterator[tuple[int, int]]:
    for period in range(1, settings.max_period + 1):
        laps = settings.limits.get(period, settings.limit)
        yield period, min(laps, settings.failed_limit or laps)


def _fewest_calls(settings: PluginSettings) -> int | None:
    """The fewest calls after which the rule can stop; None if it has no limit of calls."""
    if isinstance(settings, RepeatGuardSettings):
        return _needed(settings)
    if isinstance(settings, (SameAnswerSettings, FailureStreakSettings)):
        return settings.limit
    if isinstance(settings, StagnationSettings):
        # One failing call over and over scores 0.5, 1.5, 3.5, and 3 more with each call from then on.
        first = next((calls for calls, score in ((1, 0.5), (2, 1.5), (3, 3.5)) if settings.limit <= score), None)
        return first or 3 + math.ceil((settings.limit - 3.5) / 3)
    return None


def _limit(settings: PluginSettings) -> float:
    return float(getattr(settings, "limit", 0))
