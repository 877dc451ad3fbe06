"""Replaces what a framework has, and puts back exactly what was there."""

from __future__ import annotations

import sys
from typing import Any


class Patches:
    """Replaces functions wherever they are bound, and puts back exactly what was there."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any, Any]] = []

    def replace(self, original: Any, replacement: Any) -> None:
        """Replaces each module attribute that is ``original``; call sites import functions by name."""
        self._replaced.append((original, replacement))
        _rebind(original, replacement)

    def replace_attribute(self, owner: type, name: str, replacement: Any) -> None:
        """Replaces what a class itself has under a name: a method is looked up there, wherever it is called from."""
        self._attributes.append((owner, name, vars(owner)[name], replacement))
        setattr(owner, name, replacement)

    def restore(self) -> None:
        """Restores each binding that is ours, also those made by imports since; leaves what others put there."""
        while self._replaced:
            original, replacement = self._replaced.pop()
            _rebind(replacement, original)
        while self._attributes:
            owner, name, original, replacement = self._attributes.pop()
            if vars(owner).get(name) is replacement:  # what others put over it since stays, and calls ours
                setattr(owner, name, original)


def _rebind(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        names = [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is old]
        for name in names:
            setattr(module, name, new)
