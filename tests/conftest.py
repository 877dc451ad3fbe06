"""Which tests run when: those that need a server, recorded sessions or frameworks have targets of their own."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
APART = ("enrich", "live", "node", "quality", "schemas")


def pytest_ignore_collect(collection_path, config):
    """Leaves out the folders that have a target of their own unless they are asked for by name."""
    for name in APART:
        folder = HERE / name
        if collection_path == folder or folder in collection_path.parents:
            asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
            return None if any(folder == path or folder in path.parents for path in asked) else True
    return None
