"""What the tests share."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet():
    """Servers log each failure of a tool with its stack."""
    loggers = [logging.getLogger(name) for name in ("mcp", "fastmcp")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)
