"""A framework's tools: the function behind each, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from otel_toolguard.adapter.recent import Recent
from otel_toolguard.arguments import Binder
from otel_toolguard.attempt import Attempt
from otel_toolguard.callables import LAYERS
from otel_toolguard.decorator import GuardedFunction
from otel_toolguard.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.place import Place

KEPT = 256  # tool objects that an adapter remembers between calls


def asked(arguments: Any) -> Any:
    """What the model said: an object, or the text of it; the raw text if it is no object."""
    try:
        said = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
    except (ValueError, RecursionError):
        return arguments
    return said if isinstance(said, Mapping) else str(arguments)


def defaults_in(properties: Any) -> dict[str, Any]:
    """What a JSON schema's properties fill in where the model left something out."""
    parts = properties.items() if isinstance(properties, Mapping) else ()
    return {name: part["default"] for name, part in parts if isinstance(part, Mapping) and "default" in part}


class GuardedTool:
    """A framework's tool: its name, the function behind it, and what a decorator on that function says.

    Args:
        name: As the model knows it.
        body: The function that the framework will call, None if it cannot be known.
        hints: What the tool's protocol says about it.
        defaults: What its schema fills in where the model left something out.
    """

    def __init__(
        self, name: str, body: Any = None, hints: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        told: Tool | None = None
        self.body = body  # the innermost function: other decorators may stand between the framework and ours
        for _ in range(LAYERS):
            for guarded in (self.body, getattr(self.body, "_self_parent", None)):  # a method is bound from its guard
                told = guarded.guarded_tool if told is None and isinstance(guarded, GuardedFunction) else told
            self.body = getattr(self.body, "__wrapped__", self.body)
        self.tool = told.named(name) if told is not None else Tool(name, hints=hints)
        self._binder = Binder(body) if body is not None else None
        self._defaults = dict(defaults or {})

    def attempt(
        self, place: Place, arguments: Mapping[str, Any] | str, *, call_id: str | None, batch: str | None = None,
        siblings: int = 0, agent: str | None = None, reached: bool = True, traced: bool = True,
    ) -> Attempt:  # fmt: skip
        """Admits or refuses one call; ``arguments`` are what the model said, the raw text if it could not be parsed."""
        said = arguments if isinstance(arguments, str) else {**self._defaults, **arguments}
        if self._binder is not None and not isinstance(said, str):
            bound = self._binder.bind(None, (), said)
            said = bound if "*" not in bound else said
        return Attempt(
            place.guard, place, self.tool, said,
            call_id=call_id, batch=batch, siblings=siblings, agent=agent, reached=reached, traced=traced,
            body=self.body,
        )  # fmt: skip


class GuardedTools:
    """What is known of a framework's tool objects; bounded, for an agent may be given new ones in each run.

    Args:
        make: Makes what is not known yet, from the name, the tool object and what else was asked with.
    """

    def __init__(self, make: Callable[..., GuardedTool]) -> None:
        self._make = make
        self._known: Recent[Any, tuple[Any, GuardedTool]] = Recent(KEPT)

    def of(self, name: str, tool: Any, **more: Any) -> GuardedTool:
        """The tool of that name; the same for the same object."""
        key = (name, id(tool), *more.values())  # of an object that is kept with it
        return self._known.of(key, lambda: (tool, self._make(name, tool, **more)))[1]
