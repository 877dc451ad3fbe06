"""What is said of the adapters."""

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "integrations"
TABLES = runpy.run_path(str(HERE / "tables.py"), run_name="tables")
LINE = "CONTRACT mcp 2.3.0 model_calls_after=0 over=0 unanswered=0 exception=SessionStopped spans_per_attempt=1"


def test_table_is_that_of_the_pyprojects():
    """The folder's page is what `make tables` makes of the pyprojects now."""
    assert (HERE / "README.md").read_text() == TABLES["readme"]()


@pytest.mark.parametrize(("said", "code"), [
    (f"1 passed\n{LINE}\n", 0),
    ("1 passed\n", 1),
    (LINE.replace("over=0", "over=1"), 1),
    (LINE.replace("attempt=1", "attempt=2"), 1),
    (LINE.replace("unanswered=0", "unanswered=3"), 1),
    (LINE.replace("after=0", "after=-"), 1),
])  # fmt: skip
def test_contract_that_does_not_hold_fails(tmp_path, capsys, said, code):
    """A run whose contract said nothing, or another figure, fails; each figure is printed."""
    log = tmp_path / "log"
    log.write_text(said)
    assert TABLES["contract"]([str(log)]) == code
    assert ("CONTRACT" in capsys.readouterr().out, said.count("CONTRACT") <= 1) == (True, True)
