"""Limits that can never be reached, or hardly, because another rule of the chain stops first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from otel_toolguard.settings.plugins import (
    CallCeilingSettings,
    DepthSettings,
    FailureStreakSettings,
    FileEditsSettings,
    MaxInFlightSettings,
    PluginSettings,
    RepeatGuardSettings,
    SameAnswerSettings,
    SignatureFailuresSettings,
    StagnationSettings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Chain = "Sequence[tuple[str, PluginSettings]]"


def unreachable(chain: Sequence[tuple[str, PluginSettings]]) -> Iterator[tuple[str, str, str]]:
    """(plugin, parameter, sentence) for each limit that another rule undercuts on every sequence of calls."""
    yield from _undercut_by_itself(chain)
    for name, ceiling in ((n, s) for n, s in chain if isinstance(s, CallCeilingSettings)):
        most = min((n for n in (ceiling.run, ceiling.session) if n is not None), default=None)
        which = "run" if most == ceiling.run else "session"
        for parameter, what, limit in _narrower(ceiling) if most is not None else ():
            # What stops the run is asked first, so that the narrower one must be smaller.
            if most is not None and limit >= most and parameter != which:
                said = f"{which} = {most} stops first; raise {which} or lower {parameter}"
                yield name, parameter, f"call_ceiling {what} = {limit} can never be reached: {said}"
        for rule, settings in chain:
            for need in _needs(settings):
                what = f"{rule} {need.parameter} = {need.limit:g} can never be reached"
                if most is not None and need.calls > most:
                    said = f"it needs {need.calls} calls and call_ceiling {which} = {most} stops before"
                    yield rule, need.parameter, f"{what}: {said}; raise the ceiling or lower the limit"
                elif ceiling.signature is not None and need.laps > ceiling.signature:
                    said = f"call_ceiling signature = {ceiling.signature} refuses the call before"
                    yield rule, need.parameter, f"{what}: {said}; raise one or lower the other"


def _undercut_by_itself(chain: Sequence[tuple[str, PluginSettings]]) -> Iterator[tuple[str, str, str]]:
    for name, guard in ((n, s) for n, s in chain if isinstance(s, RepeatGuardSettings)):
        last = guard.failed_limit or max(_laps(guard).values())
        if guard.failed_nudge is not None and guard.failed_nudge >= last:
            said = f"the limit for such cycles is {last}; lower failed_nudge or raise that"
            yield name, "failed_nudge", f"{name} failed_nudge = {guard.failed_nudge} can never be reached: {said}"


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


class _Need(NamedTuple):
    """What a limit needs at least: so many calls, and so many of one signature (0 if the rule does not care)."""

    parameter: str
    limit: float
    calls: int
    laps: int = 0


def _needs(settings: PluginSettings) -> Iterator[_Need]:
    if isinstance(settings, RepeatGuardSettings):
        laps = _laps(settings)
        yield _Need("limit", settings.limit, _needed(settings), min(laps.values()))
        if settings.failed_limit is not None:
            yield _Need("failed_limit", settings.failed_limit, settings.failed_limit, settings.failed_limit)
    elif isinstance(settings, (SameAnswerSettings, FailureStreakSettings)):
        yield _Need("limit", settings.limit, settings.limit)
    elif isinstance(settings, SignatureFailuresSettings):
        yield _Need("limit", settings.limit, settings.limit, settings.limit)
    elif isinstance(settings, (FileEditsSettings, MaxInFlightSettings, DepthSettings)):
        # So many are allowed (edits, calls that run, calls with a nested run in them), and the next is one too many.
        yield _Need("limit", settings.limit, settings.limit + 1)
    elif isinstance(settings, StagnationSettings):
        # One failing call over and over scores 0.5, 1.5, 3.5, and 3 more with each call from then on.
        first = next((calls for calls, score in ((1, 0.5), (2, 1.5), (3, 3.5)) if settings.limit <= score), None)
        yield _Need("limit", settings.limit, first or 3 + math.ceil((settings.limit - 3.5) / 3))


def _laps(settings: RepeatGuardSettings) -> dict[int, int]:
    return {p: settings.limits.get(p, settings.limit) for p in range(1, settings.max_period + 1)}


def _needed(settings: RepeatGuardSettings) -> int:
    return min(period * laps for period, laps in _laps(settings).items())
