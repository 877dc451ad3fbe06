"""The shape of the house: layers, sizes, pins, the face, and tests that say what they prove."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import otel_toolguard

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "otel_toolguard"
MODULES = sorted([*PACKAGE.rglob("*.py"), *ROOT.glob("integrations/*/otel_toolguard_*/**/*.py")])
TESTS = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("integrations/*/tests/**/*.py")])
LOCKS = ("uv.lock", "pylock.toml", "pylock.*.toml", "poetry.lock", "pdm.lock", "Pipfile.lock", "conda-lock.yml")
LINES, NAMES = 400, 18


def lint(folder):
    """Runs import-linter on the package in a folder; returns its exit status and what it printed."""
    code = (
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command(['--no-cache']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path):
    """The package and its contracts, to be broken."""
    shutil.copytree(PACKAGE, tmp_path / "otel_toolguard", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_are_kept():
    """Every floor uses only the floors below it, and only the named modules know a library."""
    status, said = lint(ROOT)
    assert status == 0, said
    assert "0 broken" in said


WRONG = [
    ("core/batch.py", "import time", "core is pure"),
    ("core/masks.py", "import opentelemetry.trace", "core is pure"),
    ("core/chain.py", "import otel_toolguard.errors", "Layers"),
    ("core/plugins/classify.py", "import os", "core is pure"),
    ("records.py", "import otel_toolguard.errors", "Layers"),
    ("errors.py", "import otel_toolguard.settings", "Layers"),
    ("stores/memory.py", "import otel_toolguard.telemetry", "Layers"),
    ("stores/memory.py", "import pydantic", "know pydantic"),
    ("session.py", "import opentelemetry.trace", "know OpenTelemetry"),
    ("session.py", "import otel_toolguard.decorator", "Layers"),
    ("session.py", "import wrapt", "know wrapt"),
    ("decorator.py", "import otel_toolguard.adapter", "Layers"),
    ("adapter/__init__.py", "import otel_toolguard.cli.app", "Layers"),
]


@pytest.mark.parametrize(("module", "line", "contract"), WRONG)
def test_one_wrong_import_breaks_a_contract(module, line, contract, copy):
    """In a copy of the package a single import against the rule is found, and its contract is named."""
    path = copy / "otel_toolguard" / module
    path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    status, said = lint(copy)
    assert status == 1
    broken = [row for row in said.splitlines() if "BROKEN" in row]
    assert any(contract in row for row in broken), said


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_long(path):
    """A module has at most 400 lines."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES


def test_pins_hold_names_and_versions_only():
    """constraints.txt is name==version on every line: no address, no marker, no option."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def test_there_are_no_lock_files():
    """Lock files hold addresses; none is kept."""
    found = [path for pattern in LOCKS for path in (*ROOT.glob(pattern), *ROOT.glob(f"integrations/*/{pattern}"))]
    assert found == []


def test_the_face_is_the_reviewed_one():
    """The public names are those of tests/face.txt: sorted, few, importable, and listed by dir()."""
    reviewed = (ROOT / "tests" / "face.txt").read_text(encoding="utf-8").split()
    assert otel_toolguard.__all__ == reviewed == sorted(reviewed) == dir(otel_toolguard)
    assert len(reviewed) <= NAMES
    for name in reviewed:
        assert getattr(otel_toolguard, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        otel_toolguard.nothing  # noqa: B018


def test_importing_the_face_loads_no_library():
    """The names load when they are used: importing the package alone pulls in none of the libraries."""
    code = "import otel_toolguard, sys; print({'pydantic', 'wrapt', 'opentelemetry'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_says_what_it_proves(path):
    """Each test function in the repository carries a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert [node.name for node in functions if node.name.startswith("test") and not ast.get_docstring(node)] == []
