"""The trip log: what stands on a line, who may read it, and that nothing which is wrong with it is ever felt."""

import json
import logging
import os
import stat
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool, trip_log
from otel_toolguard.cli.app import app

REPEATS = {"plugin": "repeat_guard", "limit": 3}


@guard_tool
def search(q: str, password: str = "") -> str:
    return "nothing"


@guard_tool
def book(seat: int) -> str:
    raise TimeoutError("timed out")


@pytest.fixture(autouse=True)
def log(monkeypatch, tmp_path):
    """A log in a folder of its own; nothing is remembered from other tests."""
    monkeypatch.setattr(trip_log, "_places", {})
    monkeypatch.setattr(trip_log, "_complained", set())
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "trips.jsonl"
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(path))
    return path


def policy(*plugins, **more):
    return Policy(plugins=list(plugins or [REPEATS]), **{"mode": "enforce", **more})


def opened(name, rules, **more):
    return Session(name, policy=rules, store=MemoryStore(), **more)


def looped(session, call=lambda: search("x"), times=6):
    with session:
        for _ in range(times):
            try:
                call()
            except (CircuitOpen, TimeoutError):
                pass


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_trip_is_one_line(log):
    """A line has the trip as it is, the call, how it came out, the counts of the run, the settings and a time in UTC."""
    trips = []
    looped(opened("s1", policy(tools={"search": {"class": "read"}}), on_trip=trips.append))
    (row,), (trip,) = rows(log), trips
    assert row["trip"] == trip.to_dict()
    assert (row["version"], row["mode"], row["enforced"]) == (1, "enforce", True)
    assert row["settings"]["plugin"] == "repeat_guard"
    assert row["settings"]["limit"] == 3
    assert row["policy"]["tools"] == {"search": {"tool_class": "read"}}
    assert row["run"]["calls"] == 3
    assert row["run"]["tools"] == {"search": 3}
    assert row["run"]["signatures"] == {trip.signature: 3}
    assert row["call"]["arguments"] == {"q": "str(1)", "password": "str(0)"}
    assert row["outcome"] == {"kind": "ok", "failure": None, "error_type": None}
    assert datetime.fromisoformat(row["time"]).utcoffset() == timedelta(0)


def test_an_observed_trip_is_marked(log):
    """What only would have tripped has a line too, and the line says so."""
    looped(opened("s1", policy(mode="observe")))
    (row,) = rows(log)
    assert (row["mode"], row["enforced"], row["trip"]["rule"]) == ("observe", False, "repeat_guard")


def stopped(session):
    session.stop("enough")


def costly(session):
    with session:
        session.report_cost(2)


def failed(session):
    looped(session, lambda: book(1))


WAYS = [
    (failed, [REPEATS], ["repeat_guard"], {"kind": "failed", "failure": "transient", "error_type": "TimeoutError"}),
    (looped, [{"plugin": "call_ceiling", "run": 3}], ["call_ceiling"], None),
    (
        looped, [{"plugin": "call_ceiling", "tools": {"search": 2}}, {"plugin": "max_refusals", "limit": 2}],
        ["call_ceiling", "max_refusals"], None,
    ),
    (stopped, [], ["session.stop"], None),
    (costly, [{"plugin": "cost", "limit": 1}], ["cost"], None),
]  # fmt: skip


@pytest.mark.parametrize(("way", "plugins", "rules", "outcome"), WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_trip_passes(way, plugins, rules, outcome, log):
    """Trips on a result, at admission, by refusals, by an operator and by costs are each written once."""
    way(opened("s1", Policy(plugins=plugins, mode="enforce")))
    assert [row["trip"]["rule"] for row in rows(log)] == rules
    assert rows(log)[0]["outcome"] == outcome


@pytest.mark.parametrize("capture", [False, True])
def test_arguments_are_written_only_where_that_was_asked_for(capture, log):
    """Values stand on a line only under capture_arguments, and secrets not even then."""
    secret = "hunter2-and-more"
    looped(
        opened("s1", policy(capture_arguments=capture)),
        lambda: search("größe token=" + secret, password=secret),
    )
    text = log.read_text(encoding="utf-8")
    (row,) = rows(log)
    assert secret not in text
    assert ("größe" in row["call"]["arguments"]["q"]) == capture


@pytest.mark.parametrize("given", [None, ""])
def test_no_variable_no_log(given, log, monkeypatch, tmp_path):
    """Without the variable nothing is written, least of all into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLGUARD_TRIP_LOG") if given is None else monkeypatch.setenv("TOOLGUARD_TRIP_LOG", given)
    looped(opened("s1", policy()))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["logs"]


def test_only_the_owner_may_read_it(log):
    """The file is made with mode 0600, whatever the process's mask allows; one that is there keeps its own."""
    before = os.umask(0)
    try:
        looped(opened("s1", policy()))
    finally:
        os.umask(before)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    log.chmod(0o640)
    looped(opened("s2", policy()))
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
    assert len(rows(log)) == 2


def test_a_relative_path_stays_where_it_was(log, monkeypatch, tmp_path):
    """A path that says so is below the working directory of the first trip, also when the process moves on."""
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", "here.jsonl")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        looped(opened(name, policy()))
    assert len(rows(tmp_path / "a" / "here.jsonl")) == 2
    assert list((tmp_path / "b").iterdir()) == []


WRITER = """
import sys
from otel_toolguard import Session
for n in range(500):
    Session(f"{sys.argv[1]}-{n}").stop("as long as a page " + "x" * 6000)
"""


def test_lines_of_two_processes_never_mix(log):
    """Two processes that write 500 lines each at the same time leave 1000 whole lines, of each trip one."""
    environment = os.environ | {"TOOLGUARD_TELEMETRY": "off"}
    both = [
        subprocess.Popen([sys.executable, "-c", WRITER, name], env=environment, stderr=subprocess.DEVNULL)
        for name in ("a", "b")
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert {row["trip"]["session_id"] for row in rows(log)} == {f"{name}-{n}" for name in "ab" for n in range(500)}
    assert len(rows(log)) == 1000


def missing_folder(tmp_path):
    return tmp_path / "none" / "trips.jsonl"


def a_folder(tmp_path):
    return tmp_path


def full_disk(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    return "/dev/full"


def unread_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("place", [missing_folder, a_folder, full_disk, unread_pipe])
def test_what_cannot_be_written_is_said_once(place, monkeypatch, tmp_path, caplog):
    """A folder that is missing, a full disk, a pipe that nobody reads: one WARNING, and calls go on as ever."""
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(place(tmp_path)))
    trips = []
    with caplog.at_level(logging.WARNING, "otel_toolguard"):
        for name in ("a", "b"):
            looped(opened(name, policy(), on_trip=trips.append))
    assert len(trips) == 2
    said = [record for record in caplog.records if "trip log" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    assert not (tmp_path / "none").exists()


def test_half_a_line_stands_alone(monkeypatch, tmp_path, caplog):
    """A disk that takes only half of a line leaves the next trip a line of its own."""
    path, write = tmp_path / "trips.jsonl", os.write
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(path))
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", lambda handle, data: write(handle, data[: max(1, len(data) // 2)]))
        looped(opened("a", policy()))
    looped(opened("b", policy()))
    half, whole = path.read_bytes().splitlines()
    assert json.loads(whole)["trip"]["session_id"] == "b"
    assert half.startswith(b'{"version":1')
    assert "No space left" in caplog.text


def test_a_store_that_is_away_costs_only_the_counts(log, monkeypatch):
    """Where the state cannot be read the line is written all the same, without the counts of the run."""
    session = opened("s1", policy())
    with session:
        search("x")
    trip = session.stop("first")
    log.unlink()
    monkeypatch.setattr(type(session.guard), "transact", lambda *_: 1 / 0)
    trip_log.log_trip(session.guard, trip, observed=False, by=None)
    (row,) = rows(log)
    assert row["run"] is None
    assert row["trip"]["rule"] == "session.stop"


def test_a_logger_that_raises_is_not_felt(monkeypatch, tmp_path):
    """A filter of the application that raises on the complaint does not reach the tool."""
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(tmp_path))
    monkeypatch.setattr(trip_log, "_logger", None)
    trips = []
    looped(opened("s1", policy(), on_trip=trips.append))
    assert len(trips) == 1


def test_explain_reads_it(log):
    """The log is what explain reads: each line says why, and what would have let the run go on."""
    from typer.testing import CliRunner

    looped(opened("s1", policy()))
    looped(opened("s2", policy()), lambda: book(1))
    done = CliRunner().invoke(app, ["explain", str(log), "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["session_id"] for line in done.stdout.splitlines()] == ["s1", "s2"]
