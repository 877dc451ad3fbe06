"""Rules of third parties: found by entry point, built from their own parameters, and never felt when they fail."""

from __future__ import annotations

import inspect
import logging
import math
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ConfigDict, PrivateAttr

from otel_toolguard.core.decision import SCOPES, Finding, LoopType
from otel_toolguard.settings.plugins import PluginSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint

GROUP = "otel_toolguard.plugins"
_JUDGING = ("admit", "settle", "refused", "on_cost")
_TRUTHS = ("lasting", "observes", "timed", "ceiling")
_LOOP_TYPES = get_args(LoopType)
logger = logging.getLogger("otel_toolguard")


def installed() -> dict[str, EntryPoint]:
    """What is installed, by name. Asked for only where a name is none of the library's own."""
    from importlib.metadata import entry_points  # noqa: PLC0415  (costs start-up time)

    return {found.name: found for found in entry_points(group=GROUP)}


class ForeignSettings(PluginSettings):
    """The parameters of a plugin of a third party, and the plugin that was built from them."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    _made: Any = PrivateAttr()

    def made(self, plugin: Foreign) -> ForeignSettings:
        """These settings, with what was built from them."""
        self._made = plugin
        return self

    def build(self) -> Any:
        """The plugin, wrapped so that it cannot break a call."""
        return self._made


def read(name: str, found: EntryPoint, parameters: Mapping[str, Any]) -> ForeignSettings:
    """Loads and builds a plugin; one that cannot be loaded is said once and stands in the chain without any hook.

    Raises:
        ValueError: A parameter is unknown, missing or refused by the plugin; names those that there are.
    """
    plugin: Any = None
    try:
        kind = found.load()
    except Exception as fault:
        _say(f"plugin {name} ({found.value}) cannot be loaded; it is skipped", fault)
    else:
        plugin = _built(getattr(kind, "from_settings", kind), parameters)
    return ForeignSettings(**parameters).made(Foreign(name, plugin))


def _built(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        signature = inspect.signature(lambda **_: None)
    known = [p.name for p in signature.parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    valid = f"valid parameters are {', '.join(known) or 'none: it has no parameters'}"
    unknown = [name for name in parameters if name not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        raise ValueError(f"unknown parameter {unknown[0]!r}; {valid}")
    try:
        return factory(**parameters)
    except Exception as fault:
        raise ValueError(f"{str(fault) or type(fault).__name__}; {valid}") from fault


class Foreign:
    """A plugin whose every hook is caught: a fault is logged once for each hook, and the rule says nothing then."""

    def __init__(self, name: str, plugin: Any) -> None:
        self.name = name
        self._said: set[str] = set()
        try:
            hooks = {hook: getattr(plugin, hook) for hook in (*_JUDGING, "on_retry", "report") if hasattr(plugin, hook)}
            for hook, call in hooks.items():
                setattr(self, hook, self._caught(hook, call))
            for truth in _TRUTHS:
                setattr(self, truth, bool(getattr(plugin, truth, False)))
            needs = getattr(plugin, "needs", ())
            self.needs = (needs,) if isinstance(needs, str) else tuple(map(str, needs))
            self.advice = str(getattr(plugin, "advice", ""))
            self._start = getattr(plugin, "start", dict)
        except Exception as fault:
            self._fault("what it says of itself", fault)

    def start(self) -> Any:
        """The plugin's fresh state; an empty table where it fails."""
        try:
            return self._start()
        except Exception as fault:
            self._fault("start", fault)
            return {}

    def _caught(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def caught(*given: Any) -> Any:
            try:
                answer = call(*given)
                if hook in _JUDGING and answer is not None:
                    answer = _checked(answer, self.name)
                elif hook == "report":
                    answer = dict(answer)
            except Exception as fault:
                self._fault(hook, fault)
                return {} if hook == "report" else None
            return answer

        return caught

    def _fault(self, hook: str, fault: Exception) -> None:
        if hook not in self._said:
            self._said.add(hook)
            _say(f"plugin {self.name} failed in {hook}; it is skipped there, and this is said once", fault)


def _checked(answer: Any, name: str) -> Finding:
    if not isinstance(answer, Finding):
        raise TypeError(f"a hook returns a Finding or None, not {type(answer).__name__}")
    if answer.scope not in SCOPES or answer.loop_type not in _LOOP_TYPES or math.isnan(answer.share):
        raise ValueError(f"scope {answer.scope!r}, loop_type {answer.loop_type!r}, share {answer.share!r}")
    answer.rule, answer.why, answer.nudge = name, str(answer.why), str(answer.nudge)
    return answer


def _say(text: str, fault: Exception) -> None:
    try:
        logger.error("%s", text, exc_info=fault)
    except Exception:  # a handler of the application that raises must not be felt either
        pass
