"""The page about testing: its blocks are tests, and they pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_toolguard.testing import AdapterContract, StoreContract
from otel_toolguard.testing import __all__ as names

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What pytest says to the page's blocks, put into one file."""
    file = tmp_path_factory.mktemp("page") / "test_page.py"
    file.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)), encoding="utf-8")
    (file.parent / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", file.name],
        cwd=file.parent, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", PAGE, flags=re.MULTILINE))
def test_each_block_passes(name, said):
    """The test that a block defines passes as it stands on the page."""
    assert re.search(rf"::{name} PASSED", said), said


def test_the_store_on_the_page_keeps_the_contract(said):
    """All of the store contract runs on the page's class; nothing fails."""
    checks = [name for name in dir(StoreContract) if name.startswith("test_")]
    ended = dict(re.findall(r"TestMyStore::(\w+) (\w+)", said))
    assert set(ended) == set(checks)
    assert set(ended.values()) == {"PASSED", "SKIPPED"}
    assert "failed" not in said.splitlines()[-1]


def test_the_table_names_every_check():
    """The letters of the table are those of the adapter contract's checks."""
    letters = re.findall(r"^\| (\w) \|", PAGE, flags=re.MULTILINE)
    checks = [getattr(AdapterContract, name).__doc__ for name in dir(AdapterContract) if name.startswith("test_")]
    found = {letter for text in checks for letter in re.findall(r"\b(\w)\b", text.partition(")")[0]) if text[0] == "("}
    assert letters == sorted(found) == list("abcdefghijkl")


def test_every_name_is_on_the_page():
    """The kit's public names are all on the page, but for the types that the others return and take."""
    assert [name for name in names if name not in PAGE] == ["DONE", "Captured", "Exchange", "ScriptedModel"]
