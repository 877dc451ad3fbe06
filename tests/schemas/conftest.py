"""These tests need the frameworks themselves and run in an environment of their own, by ``make schemas``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
