"""Limits that can never be reached, or hardly, because another rule of the chain stops first."""

from __future__ import annotations

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


def unreachable(chain: Sequence[tuple[str, PluginSettings]]) -> Iterator[str]:
    """One sentence for each limit that another rule undercuts on every sequence of calls."""
    for ceiling in (s for _, s in chain if isinstance(s, CallCeilingSettings)):
        if ceiling.run is not None and ceiling.session is not None and ceiling.session < ceiling.run:
            yield (f"call_ceiling run = {ceiling.run} can never be reached: session = {ceiling.session} stops first; "
                   "raise session or lower run")  # fmt: skip
        most = min((n for n in (ceiling.run, ceiling.session) if n is not None), default=None)
        name = "run" if most == ceiling.run else "session"
        for rule, settings in chain:
            needed = _fewest_calls(settings)
            if needed is None:
                continue
            if most is not None and needed > most:
                yield (f"{rule} limit = {_limit(settings):g} can never be reached: it needs {needed} calls and "
                       f"call_ceiling {name} = {most} stops before; raise the ceiling or lower the limit")  # fmt: skip
            elif isinstance(settings, RepeatGuardSettings) and ceiling.signature is not None and (
                needed > ceiling.signature
            ):  # fmt: skip
                yield (f"repeat_guard limit = {settings.limit} can never be reached: call_ceiling signature = "
                       f"{ceiling.signature} refuses the call before; raise one or lower the other")  # fmt: skip


def hardly_reachable(chain: Sequence[tuple[str, PluginSettings]]) -> Iterator[str]:
    """One sentence for each repeat limit whose longest cycles do not fit under a ceiling."""
    for ceiling in (s for _, s in chain if isinstance(s, CallCeilingSettings)):
        most = min((n for n in (ceiling.run, ceiling.session) if n is not None), default=None)
        for _, settings in chain:
            if most is not None and isinstance(settings, RepeatGuardSettings):
                longest = settings.max_period * settings.limit
                if _needed(settings) <= most < longest:
                    yield (f"repeat_guard limit = {settings.limit} is reached by cycles of {settings.max_period} calls "
                           f"only after {longest} calls, and call_ceiling stops after {most}")  # fmt: skip


def _needed(settings: RepeatGuardSettings) -> int:
    return min(period * settings.limits.get(period, settings.limit) for period in range(1, settings.max_period + 1))


def _fewest_calls(settings: PluginSettings) -> int | None:
    """The fewest calls after which the rule can stop; None if it has no limit of calls."""
    if isinstance(settings, RepeatGuardSettings):
        return _needed(settings)
    if isinstance(settings, (SameAnswerSettings, FailureStreakSettings)):
        return settings.limit
    if isinstance(settings, StagnationSettings):
        score, calls = 0.0, 1
        while score < settings.limit:  # one successful call over and over: 0, 1, 2, 3, 3, …
            score += min(calls, 3)
            calls += 1
        return calls
    return None


def _limit(settings: PluginSettings) -> float:
    return float(getattr(settings, "limit", 0))
