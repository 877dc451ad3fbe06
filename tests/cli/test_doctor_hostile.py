"""What would hang doctor, make it tell secrets, or spoil its report."""

from __future__ import annotations

import json
import os

import pytest

from .doctored import SECRET, clean, command, page, report

EMBEDDINGS = """
from otel_toolguard import guard_tool

VECTORS = [[0.5] * 1536 for _ in range(1000)]
DEEP = [[[0.1] * 2000 for _ in range(300)] for _ in range(5)]

@guard_tool
def find(): ...

TABLE = {"tools": [None] * 5000, "found": [1, find.__wrapped__ and 2]}
"""
MANY = """
class Thing: ...
THINGS = [[Thing() for _ in range(900)] for _ in range(900)]
WIDE = [Thing() for _ in range(5000)]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Writes a module where the command runs, whose name no other test has."""
    monkeypatch.chdir(tmp_path)

    def write(code):
        name = f"hostile_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        return name

    return write


def test_data_is_no_tool(here, monkeypatch):
    """Millions of numbers at the top of a module are passed over, and the tool beside them is found."""
    clean(monkeypatch)
    told = report(here(EMBEDDINGS))["module"]
    assert told["guarded"]["tools"] == ["find"]
    assert "hidden" not in told


def test_too_much_to_look_at(here, monkeypatch):
    """Of more objects than anybody makes tools of only some are looked at, which is said."""
    clean(monkeypatch)
    told = report(here(MANY))["module"]["hidden"]
    assert any(each.startswith("the rest of") for each in told["things"])
    assert any(each.startswith("all from") for each in told["things"])


THREAD = """
import os, subprocess, threading
threading.Thread(target=threading.Event().wait, name="poller").start()
threading.Thread(target=threading.Event().wait, name="quiet", daemon=True).start()
os.write(1, b"noise\\n")
os.system("echo noise")
print("noise")
"""


def test_a_thread_that_never_ends_and_noise_from_below(here):
    """A thread that the import leaves is named and not waited for; what is written past Python is no part of the JSON."""
    done = command(here(THREAD), "--json")
    told = json.loads(done.stdout)["sections"]["module"]
    assert [each["threads"] for each in told if each["name"] == "threads"] == [["poller"]]
    assert (done.returncode, done.stderr.count("noise")) == (0, 3)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("class Odd(BaseException): ...\nraise Odd('so')", "Odd: so"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class Mute(Exception):\n    def __str__(self): raise OSError\nraise Mute", "Mute: it cannot be told"),
        (f"raise ValueError('postgres://u:{SECRET}@h and sk-abc{SECRET}')", "ValueError: postgres://***@h and ***"),
        (f"raise ValueError('postgres://u:{SECRET}/x@h')", "postgres://***@h"),
        ("import os; raise ValueError('so ' + os.environ['MY_API_KEY'])", "so ***"),
    ],
)
def test_imports_that_raise(code, words, here, monkeypatch):
    """Whatever a module raises is one failing line, in which no secret is."""
    clean(monkeypatch, MY_API_KEY=SECRET)
    name = here(code)
    shown = page(name, code=1) + page(name, "--json", code=1)
    assert SECRET not in shown
    assert words in report(name, code=1)["module"][name]["error"]


@pytest.mark.parametrize(("shell", "words"), [(">/dev/full", "No space left"), (">&-", "is closed"), (">&- 2>&-", "")])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_report_that_cannot_be_written(more, shell, words):
    """Where nothing can be written one line says so, the exit code is 1, and there is no traceback."""
    done = command(*more, shell=shell)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") <= 1


def test_settings_without_end(tmp_path, monkeypatch):
    """Settings in a device or a pipe fail, as they do in the agent, and are not waited for."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        clean(monkeypatch, TOOLGUARD_CONFIG=path)
        told = report(code=1)["policy"]["settings"]
        assert path in told["text"]
        assert "plain file" in told["text"]


@pytest.mark.parametrize(
    "variables",
    [
        {"TOOLGUARD_CONFIG": f"https://u:{SECRET}@h/x"},
        {"TOOLGUARD_CONFIG": f"https://u:{SECRET}/y@h/x"},
        {"TOOLGUARD_CONFIG": f"https://u:'{SECRET}'\"@h/x"},
        {"TOOLGUARD_STORE": f"redis://u:{SECRET}@h"},
        {"TOOLGUARD_TRIP_LOG": f"https://u:{SECRET}@h/x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{SECRET}/x@host.invalid"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{SECRET}?x@[host"},
        {
            "OTEL_EXPORTER_OTLP_CERTIFICATE": f"https://u:{SECRET}@h",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1",
        },
        {"OTEL_TRACES_EXPORTER": f"http://u:{SECRET}@h"},
    ],
)
def test_secrets_in_values(variables, monkeypatch):
    """Credentials of an address are never shown, in whatever variable it stands."""
    clean(monkeypatch, **variables)
    assert SECRET not in page(code=1) + page("--json", code=1)


@pytest.mark.parametrize("path", ["x" * 5000, "/", "/no/such/folder/x", os.devnull + "/x"])
def test_trip_logs_that_cannot_be(path, monkeypatch):
    """A trip log that cannot be written fails without a traceback."""
    clean(monkeypatch, TOOLGUARD_TRIP_LOG=path)
    assert report(code=1)["store"]["trip log"]["level"] == "fail"


def test_a_trip_log_that_nobody_reads(tmp_path, monkeypatch):
    """A pipe without a reader takes no trip, which is found out without waiting."""
    os.mkfifo(tmp_path / "pipe")
    clean(monkeypatch, TOOLGUARD_TRIP_LOG=str(tmp_path / "pipe"))
    assert report(code=1)["store"]["trip log"]["level"] == "fail"
