"""The command doctor as a whole: its page, its JSON, its exit codes, and what it costs the other commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from otel_toolguard.cli.app import app

from .doctored import clean, dead, otlp, page

LEVELS = ("ok", "note", "warn", "fail")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_page_fits(columns, monkeypatch):
    """Lines are no wider than the terminal, unless one word is; each begins with a word that says how it is."""
    clean(monkeypatch, COLUMNS=str(columns), OTEL_SDK_DISABLED="true", **otlp(f"http://127.0.0.1:{dead()}"))
    lines = page(code=1).splitlines()
    assert max(len(line) for line in lines if " " in line.strip()) <= columns
    told = [line for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert {line.split()[0] for line in told} <= set(LEVELS)
    assert [line for line in lines if line and line[0] != " "][1:-1] == [
        "export", "providers", "other instrumentations", "policy", "store",
    ]  # fmt: skip


def test_what_fails_or_warns_says_what_to_do(monkeypatch):
    """Each failure and each warning has an advice."""
    clean(monkeypatch, OTEL_SDK_DISABLED="true", TOOLGUARD_MODE="off", TOOLGUARD_X="1", OTEL_TRACES_SAMPLER="traceidratio",
          TOOLGUARD_STORE="redis:", **otlp(f"http://127.0.0.1:{dead()}"))  # fmt: skip
    answer = json.loads(page("--json", code=1))
    found = [finding for findings in answer["sections"].values() for finding in findings]
    assert all(finding["advice"] for finding in found if finding["level"] in ("warn", "fail"))
    assert answer["counts"] == {level: sum(finding["level"] == level for finding in found) for level in LEVELS}


def test_exit_codes(monkeypatch):
    """0 if all is well, 1 if something will not do what its setting says, 2 for wrong usage."""
    clean(monkeypatch)
    assert page().splitlines()[-1] == "Nothing is wrong."
    monkeypatch.setenv("TOOLGUARD_MODE", "off")
    assert page().splitlines()[-1] == "Nothing fails; look at the warnings."
    monkeypatch.setenv("TOOLGUARD_MODE", "on")
    assert page(code=1).splitlines()[-1] == "1 thing will not do what its setting says."
    assert CliRunner().invoke(app, ["doctor", "--nope"]).exit_code == 2


def test_loggers_speak_again_afterwards(monkeypatch):
    """What doctor silences while it looks is not silent afterwards."""
    import logging

    clean(monkeypatch)
    page()
    assert logging.root.manager.disable == logging.NOTSET


def test_nothing_but_the_page(tmp_path):
    """Run as a command in a clean environment it writes nothing on standard error, and no traceback."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
    command = [sys.executable, "-c", "from otel_toolguard.cli import main; main()", "doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("otel-toolguard ")


def test_others_do_not_pay_for_it():
    """No other command imports doctor, and the hook not even the command line's libraries."""
    code = (
        "import sys; import otel_toolguard.cli.hook, otel_toolguard.cli.app; "
        "sys.exit(any('doctor' in name or name == 'grpc' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
