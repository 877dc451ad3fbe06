"""The commands stop, reset and sessions: what a person does to agents from another shell."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from otel_toolguard import CircuitOpen, Policy, Session, SessionStopped, guard_tool
from otel_toolguard.cli.app import app
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_file import SESSIONS
from otel_toolguard.testing import capture_spans

CEILING = Policy(
    plugins=[{"plugin": "call_ceiling", "session": 5}, {"plugin": "repeat_guard", "limit": 3, "max_period": 1}]
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("CONFIG", "PROFILE", "MODE", "SIGNATURE_KEY", "STORE", "TELEMETRY", "TRIP_LOG"):
        monkeypatch.delenv("TOOLGUARD_" + name, raising=False)


class Shared:
    """A store's file, as agents have it and as the command line names it."""

    def __init__(self, path):
        self.path, self.url = path, f"sqlite://{path}"

    def agent(self, name, policy=CEILING, **options):
        """A session of an agent, as another process opens it: with a store object of its own."""
        return Session(name, policy=policy, store=SQLiteStore(self.path, **options))

    def worked(self, name, calls=1, policy=CEILING, **options):
        """The same, after one run of some calls."""
        session = self.agent(name, policy, **options)
        with session:
            for n in range(calls):
                look(n)
        return session

    def run(self, command, *arguments, code=0):
        done = CliRunner().invoke(app, [command, *arguments, "--store", self.url])
        assert done.exit_code == code, done.output
        return done

    def rows(self, *arguments):
        return [json.loads(line) for line in self.run("sessions", "--json", *arguments).stdout.splitlines()]


@guard_tool
def look(n: int) -> int:
    return n


@pytest.fixture
def shared(tmp_path):
    return Shared(tmp_path / "sessions.sqlite3")


# ------------------------------------------------------------------------------------------------ stop


def test_a_stop_holds_for_the_running_session_and_its_later_runs(shared):
    """The open run's next tool call and model boundary are refused, and so is a new run, until the reset."""
    with shared.agent("job") as session:
        look(1)
        said = shared.run("stop", "job", "--reason", "wrong customer").stdout
        assert said.startswith("job is stopped: ")
        assert said.endswith("No call is in flight.\n")
        with pytest.raises(SessionStopped, match="wrong customer"):
            look(2)
        with pytest.raises(SessionStopped):
            session.raise_if_open()
        assert (session.trip.rule, session.trip.loop_type) == ("session.stop", "stopped_by_operator")
    with shared.agent("job"), pytest.raises(SessionStopped):
        look(3)
    shared.run("reset", "job", "--reason", "it was right")
    assert shared.worked("job").trip is None


def test_stop_and_reset_are_listed_by_audit(shared):
    """The agent's own session lists both with their reasons, without outer blanks, oldest first."""
    session = shared.worked("job")
    shared.run("stop", "job", "--reason", " first ")
    shared.run("reset", "job", "--reason", "second", "--ceilings")
    listed = [(entry["action"], entry["reason"], entry.get("ceilings")) for entry in session.audit()]
    assert listed == [("stop", "first", None), ("reset", "second", True)]


def test_a_stop_is_told_to_log_trip_log_and_telemetry(shared, tmp_path, monkeypatch, caplog):
    """One WARNING, one line in the trip log and one trip event, from the process in which the command runs."""
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(tmp_path / "trips.jsonl"))
    shared.worked("job")
    with capture_spans() as captured:
        shared.run("stop", "job", "--reason", "enough")
        assert [event.attributes["toolguard.rule"] for event in captured.events()] == ["session.stop"]
    (line,) = (tmp_path / "trips.jsonl").read_text().splitlines()
    assert json.loads(line)["trip"]["session_id"] == "job"
    assert [record.levelname for record in caplog.records if "enough" in record.getMessage()] == ["WARNING"]


def test_a_second_stop_says_that_it_is_one(shared):
    """The first reason stays, the second is in the audit list, and the answer for machines says so."""
    session = shared.worked("job")
    first = json.loads(shared.run("stop", "job", "--reason", "one", "--json").stdout)
    second = json.loads(shared.run("stop", "job", "--reason", "two", "--json").stdout)
    assert (first["already"], second["already"]) == (False, True)
    assert first["trip"] == second["trip"] == session.trip.to_dict()
    assert [entry["reason"] for entry in session.audit()] == ["one", "two"]
    assert "was stopped already" in shared.run("stop", "job", "--reason", "three").stdout


def test_a_stop_tells_of_calls_in_flight(shared):
    """A call whose body runs goes on to its end, and the command says that there is one."""

    @guard_tool
    def stops_itself() -> str:
        return shared.run("stop", "job", "--reason", "now").stdout

    with shared.agent("job"):
        assert stops_itself().endswith("which go on to their end: 1.\n")
        with pytest.raises(SessionStopped):
            look(1)


@pytest.mark.parametrize("command", ["stop", "reset"])
def test_an_unknown_session_is_named_and_left_unmade(command, shared):
    """Of a mistyped id nobody hears that it is stopped: exit 1, a sentence, and no such session afterwards."""
    shared.worked("job")
    said = shared.run(command, "jab", "--reason", "x", code=1).stderr
    assert "has no session jab; otel-toolguard sessions lists" in said
    assert [row["session"] for row in shared.rows()] == ["job"]


def test_create_stops_a_session_before_it_begins(shared):
    """With --create a store and session that are not there yet are made, and its first call is refused."""
    shared.run("stop", "job", "--create", "--reason", "not tonight")
    session = shared.agent("job")
    with session, pytest.raises(SessionStopped, match="not tonight"):
        look(1)
    assert shared.rows()[0]["rule"] == "session.stop"


def test_another_signature_key_costs_no_counter(shared, monkeypatch):
    """A stop and a reset from a shell without the agents' key leave its ceilings and its signatures as they are."""
    monkeypatch.setenv("TOOLGUARD_SIGNATURE_KEY", "of the agents")
    theirs = Policy(plugins=[{"plugin": "call_ceiling", "session": 5}])
    monkeypatch.delenv("TOOLGUARD_SIGNATURE_KEY")
    assert theirs.signature_key is not None
    session = shared.worked("job", 4, theirs)
    shared.run("stop", "job", "--reason", "x")
    shared.run("reset", "job", "--reason", "y")
    assert session.report()["calls"] == 4
    with session:
        look(4)
        with pytest.raises(CircuitOpen, match="5"):
            look(5)


# ------------------------------------------------------------------------------------------------ reset


@pytest.mark.parametrize(("flags", "left"), [((), 1), (("--ceilings",), 5)])
def test_a_reset_keeps_ceilings_unless_asked(flags, left, shared):
    """What was counted towards a ceiling of 5 goes on to count, or starts at nothing."""
    shared.worked("job", 4)
    answer = json.loads(shared.run("reset", "job", "--reason", "x", "--json", *flags).stdout)
    assert answer == {"session": "job", "reset": True, "ceilings": bool(flags)}
    with shared.agent("job"):
        for n in range(left):
            look(10 + n)
        with pytest.raises(CircuitOpen):
            look(99)


def test_a_reset_lets_a_looping_run_go_on(shared):
    """The run that a rule has stopped goes on inside its block, with a ring of its own from then on."""
    with shared.agent("job") as session:
        for _ in range(3):
            look(1)
        with pytest.raises(SessionStopped):
            session.raise_if_open()
        shared.run("reset", "job", "--reason", "it was polling")
        assert look(1) == 1


def test_a_reset_under_a_policy_without_the_ceiling_is_refused(shared, tmp_path, monkeypatch):
    """It would clear what was spent, against its word; with the agents' own settings it keeps it."""
    settings = tmp_path / "guard.toml"
    settings.write_text('[[tool_plugins]]\nplugin = "cost"\nlimit = 10\n')
    with shared.agent("job", Policy.from_toml(settings)) as session:
        session.report_cost(8)
        look(1)
        said = shared.run("reset", "job", "--reason", "x", code=2).stderr
        assert "(cost): set TOOLGUARD_CONFIG" in said
        monkeypatch.setenv("TOOLGUARD_CONFIG", str(settings))
        shared.run("reset", "job", "--reason", "x")
        assert session.trip is None
        session.report_cost(8)
        assert session.trip.rule == "cost"


# ------------------------------------------------------------------------------------------------ sessions


def test_sessions_tells_calls_refusals_runs_rule_and_time(shared):
    """A line for each session, the one used last first, with what its agents did."""
    shared.worked("quiet", 2)
    with pytest.raises(CircuitOpen):
        shared.worked("greedy", 6)
    with shared.agent("looping"):
        for _ in range(3):
            look(1)
    with shared.agent("fussy", Policy(plugins=[{"plugin": "call_ceiling", "signature": 1}])):
        look(1)
        with pytest.raises(CircuitOpen):
            look(1)
    once, first, second, third = shared.rows()
    assert [once[key] for key in list(once)[:6]] == ["fussy", 1, 1, 1, "call_ceiling", "signature"]
    assert list(first) == ["session", "calls", "refused", "runs", "rule", "scope", "last_seen"]
    assert [first[key] for key in list(first)[:6]] == ["looping", 3, 0, 1, "repeat_guard", "run"]
    assert [second[key] for key in list(second)[:6]] == ["greedy", 5, 1, 1, "call_ceiling", "session"]
    assert [third[key] for key in list(third)[:6]] == ["quiet", 2, 0, 1, None, None]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["last_seen"])


def test_sessions_as_a_table(shared, monkeypatch):
    """For people the same is a table, with a dash where nothing tripped; TOOLGUARD_STORE names the store."""
    shared.worked("quiet", 2)
    monkeypatch.setenv("TOOLGUARD_STORE", shared.url)
    head, row = CliRunner().invoke(app, ["sessions"]).stdout.splitlines()
    assert head.split() == ["session", "calls", "refused", "runs", "tripped", "last", "seen"]
    assert row.split()[:5] == ["quiet", "2", "0", "1", "-"]


def test_many_sessions_are_cut(shared):
    """Only the newest are shown, as many as --limit says, and how many there are is said beside them."""
    for n in range(53):
        shared.worked(f"job-{n}")
    assert [row["session"] for row in shared.rows("--limit", "2")] == ["job-52", "job-51"]
    done = shared.run("sessions", "--json")
    assert len(done.stdout.splitlines()) == 50
    assert "the newest 50 of 53 sessions; --limit shows more" in done.stderr


def test_looking_changes_nothing(shared):
    """A list is no sign of life: a session used an hour ago stays so old, and one that has expired is not shown."""
    shared.worked("old", clock=lambda: time.time() - 3_600)
    shared.worked("expired", clock=lambda: time.time() - 90_000)
    before = SQLiteStore(shared.path).sessions()
    assert [row["session"] for row in shared.rows()] == ["old"]
    assert SQLiteStore(shared.path).sessions() == before


def test_hostile_ids_do_not_steer_the_terminal(shared):
    """An id with control characters, markup or 10,000 letters is shown as text on one line."""
    shared.worked("\x1b[2J[red]x\nok\r")
    shared.worked("y" * 10_000)
    lines = shared.run("sessions").stdout.splitlines()
    assert len(lines) == 3
    assert "[2J[red]x" in lines[2]
    assert "\x1b" not in lines[2]
    assert {row["session"] for row in shared.rows()} == {"\x1b[2J[red]x\nok\r", "y" * 10_000}


# ------------------------------------------------------------------------------------------------ what cannot be done


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stop", "job", "--reason", " ", "--store", "sqlite:"], "a reason is needed"),
        (["reset", "job", "--reason", "", "--store", "sqlite:"], "a reason is needed"),
        (["stop", "job", "--store", "sqlite:"], "--reason"),
        (["stop", "job", "--reason", "x"], "TOOLGUARD_STORE"),
        (["stop", "job", "--reason", "x", "--store", "memory:"], "seen by nobody but the process that has it"),
        (["sessions", "--store", "memory:"], "seen by nobody but the process that has it"),
        (["sessions", "--store", "carrier-pigeon://x"], "valid are memory and sqlite"),
        (["sessions", "--store", "sqlite:///x?lease=never"], "lease takes seconds"),
        (["sessions", "--store", "sqlite:", "--limit", "0"], "limit"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments, said, tmp_path, monkeypatch):
    """Exit 2 and one sentence; nothing is made."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["stop", "job", "--reason", "x"], ["reset", "job", "--reason", "x"], ["sessions"]])
def test_a_store_that_is_not_there_is_not_made(command, shared):
    """A mistyped address is told, and leaves no empty file behind."""
    assert "there is no store" in shared.run(*command, code=1).stderr
    assert not shared.path.exists()


@pytest.mark.parametrize("command", [["stop", "job", "--reason", "x"], ["reset", "job", "--reason", "x"], ["sessions"]])
def test_a_file_that_is_no_store_is_an_error(command, shared):
    """Of a corrupt file nobody hears that something in it is stopped."""
    shared.path.write_bytes(b"no database at all" * 100)
    assert "cannot be read" in shared.run(*command, code=1).stderr


def test_one_broken_session_hides_no_other(shared):
    """The others are listed, exit 1 names the one that cannot be read, and nobody hears that it is stopped."""
    for name in ("good", "broken", "better"):
        shared.worked(name)
    connection = sqlite3.connect(shared.path, isolation_level=None)
    connection.execute(f"UPDATE {SESSIONS} SET state = '[' WHERE id = ?", (b"broken",))
    connection.close()
    done = shared.run("sessions", "--json", code=1)
    assert [json.loads(line)["session"] for line in done.stdout.splitlines()] == ["better", "good"]
    assert "cannot be read: session broken, " in done.stderr
    assert "cannot be read" in shared.run("stop", "broken", "--reason", "x", code=1).stderr


@pytest.mark.parametrize("command", ["stop", "reset"])
def test_what_was_not_written_is_not_said_to_be_done(command, shared):
    """While another process holds the file, the store counts for itself: the command says that it was not done."""
    shared.worked("job")
    shared.url += "?timeout=0.05"
    other = sqlite3.connect(shared.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert "could not be written" in shared.run(command, "job", "--reason", "x", code=1).stderr
    finally:
        other.close()
    assert shared.worked("job").audit() == []


def test_from_a_shell_of_its_own(shared):
    """The command itself, as another process, stops a session that is open here."""
    with shared.agent("job"):
        look(1)
        command = [sys.executable, "-c", "from otel_toolguard.cli import main; main()", "stop", "job"]
        done = subprocess.run(
            [*command, "--reason", "enough", "--store", shared.url], capture_output=True, text=True, check=False
        )
        assert (done.returncode, "enough" in done.stderr) == (0, True), done.stderr
        with pytest.raises(SessionStopped, match="enough"):
            look(2)
