"""What it takes to test one's own agent, store or adapter: no framework, no network, no waiting.

Names are loaded when they are first used: a fake clock needs neither pytest nor an OpenTelemetry SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_toolguard.testing.adapter_contract import AdapterContract
    from otel_toolguard.testing.adapter_hooks import Exchange
    from otel_toolguard.testing.agents import AsyncScriptedAgent, ScriptedAgent, ScriptedModel, unanswered
    from otel_toolguard.testing.capture import Captured, capture_spans
    from otel_toolguard.testing.clock import FakeClock
    from otel_toolguard.testing.scripts import DONE, always_new, for_ever, in_turn
    from otel_toolguard.testing.store_contract import StoreContract

__all__ = [
    "DONE",
    "AdapterContract",
    "AsyncScriptedAgent",
    "Captured",
    "Exchange",
    "FakeClock",
    "ScriptedAgent",
    "ScriptedModel",
    "StoreContract",
    "always_new",
    "capture_spans",
    "for_ever",
    "in_turn",
    "unanswered",
]

_HOMES = {
    "DONE": "scripts",
    "AdapterContract": "adapter_contract",
    "AsyncScriptedAgent": "agents",
    "Captured": "capture",
    "Exchange": "adapter_hooks",
    "FakeClock": "clock",
    "ScriptedAgent": "agents",
    "ScriptedModel": "agents",
    "StoreContract": "store_contract",
    "always_new": "scripts",
    "capture_spans": "capture",
    "for_ever": "scripts",
    "in_turn": "scripts",
    "unanswered": "agents",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'otel_toolguard.testing' has no attribute {name!r}")
    value = getattr(import_module(f"otel_toolguard.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
