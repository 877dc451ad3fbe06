"""The live tests' own tools: how a program is had, and the command that leaves all services up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from services import binaries
from services.places import bare_environment, json_of, until
from services.stack import RUN_S

UP, DETACHED = (Path(__file__).parent / "services" / name for name in ("up.py", "detached.py"))


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with an empty cache and without Go."""
    monkeypatch.setattr(binaries, "CACHE", tmp_path)
    monkeypatch.setattr(binaries.shutil, "which", lambda _name: None)
    for get in (binaries.jaeger, binaries.collector):
        get.cache_clear()
    yield tmp_path
    for get in (binaries.jaeger, binaries.collector):
        get.cache_clear()


@pytest.mark.parametrize(("get", "name"), [(binaries.jaeger, "jaeger"), (binaries.collector, "otelcol-toolguard")])
def test_without_go_it_is_said_where_a_program_may_be_put(bare, get, name):
    """A machine that cannot build gets a sentence with the path, and a program that is put there is used."""
    with pytest.raises(binaries.CannotGetError, match=f"install Go, or put the program at .*/{name}$") as caught:
        get()
    path = Path(str(caught.value).rpartition(" at ")[2])
    path.write_text("a program", encoding="utf-8")
    assert get().path == path


def test_another_list_of_parts_is_another_program(bare, monkeypatch):
    """A changed builder.yaml is not served by a Collector that was built from the old one."""
    path = bare / "builder.yaml"
    monkeypatch.setattr(binaries, "MANIFEST", path)
    wanted = set()
    for parts in ("one", "two"):
        path.write_text(parts, encoding="utf-8")
        with pytest.raises(binaries.CannotGetError) as caught:
            binaries.collector()
        wanted.add(str(caught.value))
    assert len(wanted) == 2


def test_the_services_are_left_up_for_whoever_wants_to_look(had):
    """up.py tells each program's path, version and sha256, where each service is, and the traces of a demo, and ends."""
    with had():
        programs = [binaries.jaeger(), binaries.collector(), binaries.prometheus()]
    argv = [sys.executable, UP, "--minutes", "0"]
    done = subprocess.run(argv, env=bare_environment(), capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if " sha256 " in line] == [str(program) for program in programs]
    assert len(re.findall(r"^  \w+: http://127.0.0.1:\d+/api/v3/traces/[0-9a-f]{32}\b", done.stdout, re.MULTILINE)) == 6
    assert all(
        any(line.startswith(name) for line in lines) for name in ("jaeger http", "collector http", "prometheus http")
    )


def test_they_run_in_the_background_until_they_are_ended(had, tmp_path):
    """Once `detached.py up` has returned Jaeger has the demo's trip; after `down` nothing answers, and again is no fault."""
    with had():
        binaries.jaeger(), binaries.collector(), binaries.prometheus()
    env = bare_environment() | {"LIVE_UP": str(tmp_path)}

    def command(word):
        done = subprocess.run([sys.executable, DETACHED, word], env=env, capture_output=True, text=True, timeout=RUN_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        said = command("up")
        (jaeger,) = re.findall(r"^jaeger (http://\S+) ", said, re.MULTILINE)
        trace = re.findall(r"^  loop: (\S+)$", said, re.MULTILINE)[0]
        assert until(lambda: json_of(trace))
        assert "live-down" in said
    finally:
        ended = command("down")
    assert "ended process" in ended
    assert json_of(f"{jaeger}/api/v3/services") is None
    assert command("down") == ""
