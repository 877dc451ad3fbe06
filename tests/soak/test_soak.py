"""A bounded part of what ``make soak`` does a million times."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from soak import Soak


def test_a_ceiling_is_met_to_the_call_by_threads_tasks_and_nested_runs():
    """As many bodies run as are allowed, each with one ended span; nobody is left in flight, and no memory grows."""
    assert Soak(12_000).run().faults() == []
