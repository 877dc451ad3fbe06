"""Which tests run when: those that need a server or recorded sessions have targets of their own."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
APART = ("live", "quality")


def pytest_ignore_collect(collection_path, config):
    """Leaves out ``tests/live`` and ``tests/quality`` unless they are asked for by name."""
    for name in APART:
        folder = HERE / name
        if collection_path == folder or folder in collection_path.parents:
            asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
            return None if any(folder == path or folder in path.parents for path in asked) else True
    return None
