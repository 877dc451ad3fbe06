"""A server and a client from the npm registry, neither of which knows anything of the proxy.

They need Node and a folder of packages (``make node``), and are collected only where this folder is asked for by name.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def node():
    """The folder of the packages; without it the tests fail in CI and are skipped, with advice, elsewhere."""
    folder = Path(os.environ.get("NODE_MCP", HERE.parent.parent / ".node-mcp")).resolve()
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    advice = f"install Node.js 20 or newer, which brings {' and '.join(missing)}" if missing else "run `make node`"
    if missing or not (folder / "node_modules" / "@modelcontextprotocol" / "server-everything").is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"the tests with a Node server cannot run: {advice}")
        pytest.skip(advice)
    return folder
