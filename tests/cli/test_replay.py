"""The replay command, on small recordings made on the spot."""

import gzip
import hashlib
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from otel_toolguard.cli import replay as replay_module
from otel_toolguard.cli.app import app

EXACT_3 = '[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\ncompare = "exact"\n'
MAIN = "from otel_toolguard.cli import main; main()"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TOOLGUARD_")]:
        monkeypatch.delenv(name)


def call(i, tool="bash", arguments=None, result="same", failed=False, session="s", **more):
    arguments = {"command": "make"} if arguments is None else arguments
    return {
        "session": session,
        "i": i,
        "tool": tool,
        "arguments": arguments,
        "result": result,
        "failed": failed,
        **more,
    }


def hashed(i, a="a1", r="r1", session="s", **more):
    row = {"s": session, "i": i, "t": "bash", "a": a, "an": a, "r": r, "rn": r, "rv": r, "f": False, "x": None}
    return row | more


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


class Folder:
    """Writes recordings and policies, and replays them."""

    def __init__(self, path):
        self.path = path
        self.last = None

    def write(self, name, rows):
        file = self.path / name
        data = b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
        file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(file)

    def policy(self, toml):
        file = self.path / "policy.toml"
        file.write_text(toml)
        return str(file)

    def replay(self, *files, policy=EXACT_3, code=0, options=(), stdin=None):
        names = [file if isinstance(file, str) else self.write(f"f{at}.jsonl", file) for at, file in enumerate(files)]
        chosen = ["--policy", self.policy(policy)] if policy else []
        self.last = CliRunner().invoke(app, ["replay", *names, *chosen, "--json", *options], input=stdin)
        assert self.last.exit_code == code, self.last.output
        return [json.loads(line) for line in self.last.stdout.splitlines()]

    def trip(self, *files, **more):
        (row,) = self.replay(*files, **more)
        return row["trip"] and (row["trip"]["index"], row["trip"]["rule"], row["trip"]["period"])


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_one_line_a_session(folder):
    """A stopped session's line names the call whose result tripped and counts all recorded calls."""
    rows = folder.replay([call(i) for i in range(5)] + [call(0, session="t")])
    assert rows == [
        {
            "session": "s",
            "calls": 5,
            "trip": {"index": 2, "rule": "repeat_guard", "scope": "run", "period": 1, "limit": 3, "observed": 3},
            "refused": [],
        },
        {"session": "t", "calls": 1, "trip": None, "refused": []},
    ]


@pytest.mark.parametrize("name", ["calls.jsonl", "calls.jsonl.gz", "misnamed.jsonl"])
def test_gzip_is_known_by_its_bytes(folder, name):
    """Plain and compressed files give the same answer, whatever they are called."""
    rows = [call(i) for i in range(3)]
    path = folder.write(name, rows)
    if name == "misnamed.jsonl":
        (folder.path / name).write_bytes(gzip.compress((folder.path / name).read_bytes()))
    assert folder.trip(path) == (2, "repeat_guard", 1)


def test_standard_input(folder):
    """A dash reads recordings from standard input."""
    assert folder.trip("-", stdin="".join(json.dumps(call(i)) + "\n" for i in range(3))) == (2, "repeat_guard", 1)


def test_hashes_are_told_by_their_keys(folder):
    """Calls as hashes and calls with text may be mixed in one invocation, and the keys tell which is which."""
    rows = folder.replay([hashed(i) for i in range(3)], [call(i, session="t") for i in range(3)])
    assert [row["trip"]["index"] for row in rows] == [2, 2]


def test_interleaved_sessions_are_kept_apart(folder):
    """Calls of several sessions in turn are judged as if each session stood alone."""
    mixed = [call(i, session=name) for i in range(4) for name in "ab"]
    assert [(row["session"], row["trip"]["index"]) for row in folder.replay(mixed)] == [("a", 2), ("b", 2)]


def test_states_set_aside_are_taken_up_again(folder, monkeypatch):
    """Sessions whose state was packed away because many are open go on where they were."""
    monkeypatch.setattr(replay_module, "LIVE_CALLS", 0)
    mixed = [call(i, session=name) for i in range(4) for name in "abc"]
    assert [row["trip"]["index"] for row in folder.replay(mixed)] == [2, 2, 2]


def test_a_session_goes_on_in_the_next_file(folder):
    """A session that is split over two files is one session."""
    (row,) = folder.replay([call(0), call(1)], [call(2), call(3)])
    assert (row["calls"], row["trip"]["index"]) == (4, 2)


def test_a_count_from_zero_in_another_file_is_another_recording(folder):
    """The same session id counted from 0 again in a later file gets a line of its own."""
    rows = folder.replay([call(0), call(1)], [call(0), call(1)])
    assert [(row["session"], row["calls"], row["trip"]) for row in rows] == [("s", 2, None), ("s", 2, None)]


def test_the_failed_flag_is_part_of_the_key(folder):
    """A call of unknown success equals neither a success nor a failure, but does equal another unknown one."""
    assert folder.trip([call(i, failed=flag) for i, flag in enumerate([None, False, None])]) is None
    assert folder.trip([call(i, failed=None) for i in range(3)]) == (2, "repeat_guard", 1)


def test_null_and_empty_results_differ(folder):
    """Without a hash the result is complete and any JSON value counts, null and an empty string apart."""
    assert folder.trip([call(i, result=r) for i, r in enumerate([None, "", None])]) is None
    assert folder.trip([call(i, result={"a": [1]}) for i in range(3)]) == (2, "repeat_guard", 1)


def test_the_recorded_hash_is_the_exact_result(folder):
    """With a hash two results whose kept text is equal differ where the hashes do."""
    assert folder.trip([call(i, result="cut", result_sha256=sha(str(i))) for i in range(3)]) is None
    assert folder.trip([call(i, result="cut", result_sha256=sha("x")) for i in range(3)]) == (2, "repeat_guard", 1)


def test_only_shells_have_a_working_directory(folder):
    """The recorded directory tells calls of a shell apart, not those of other tools."""
    moved = [call(i, ctx={"cwd": f"/{i}"}) for i in range(3)]
    assert folder.trip(moved) is None
    assert folder.trip([row | {"tool": "search"} for row in moved]) == (2, "repeat_guard", 1)


def test_the_world_of_hashes_is_part_of_the_call(folder):
    """Calls as hashes differ where their world does."""
    assert folder.trip([hashed(i, x=f"w{i}") for i in range(3)]) is None


VOLATILE_3 = '[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\n'


def test_volatile_text_is_masked(folder):
    """Results that differ in a clock only are equal under the default comparison."""
    rows = [call(i, result=f"done at 10:11:1{i}", result_sha256=sha(str(i))) for i in range(3)]
    assert folder.trip(rows, policy=VOLATILE_3) == (2, "repeat_guard", 1)
    assert folder.trip([call(i, result=f"done at 10:11:1{i}") for i in range(3)], policy=VOLATILE_3) is not None


def test_emptied_results_are_compared_by_their_hash(folder):
    """A text that was emptied is compared by its hash, and a text that is empty is not mistaken for one."""
    emptied = [call(i, result="", result_sha256=sha(str(i))) for i in range(3)]
    assert folder.trip(emptied, policy=VOLATILE_3) is None
    assert folder.trip([row | {"result_sha256": sha("")} for row in emptied], policy=VOLATILE_3) is not None


def test_malformed_calls_never_reached_a_tool(folder):
    """Failures of a name in parentheses, or with unparsed arguments, do not count as a tool's failures."""
    policy = '[[tool_plugins]]\nplugin = "failure_streak"\nlimit = 3\n'
    failing = [call(i, arguments={"n": i}, failed=True) for i in range(3)]
    assert folder.trip(failing, policy=policy) == (2, "failure_streak", None)
    assert folder.trip([row | {"tool": "(malformed)"} for row in failing], policy=policy) is None
    assert folder.trip([row | {"arguments": '{"n": '} for row in failing], policy=policy) is None


def test_transient_failures_count_a_third(folder):
    """A failure whose text speaks of a timeout counts a third; of calls as hashes nothing is transient."""
    policy = '[[tool_plugins]]\nplugin = "failure_streak"\nlimit = 2\n'
    rows = [call(i, arguments={"n": i}, result="Request timed out", failed=True) for i in range(9)]
    assert folder.trip(rows, policy=policy)[0] == 5
    assert folder.trip([hashed(i, f=True) for i in range(9)], policy=policy)[0] == 1


def test_a_ceiling_names_the_refused_call(folder):
    """At a ceiling the index is that of the call that was not run, and that call is listed as refused."""
    policy = '[[tool_plugins]]\nplugin = "call_ceiling"\nrun = 2\n'
    (row,) = folder.replay([call(i, arguments={"n": i}) for i in range(5)], policy=policy)
    assert (row["calls"], row["refused"]) == (5, [2])
    assert row["trip"] == {
        "index": 2,
        "rule": "call_ceiling",
        "scope": "run",
        "period": None,
        "limit": 2,
        "observed": 2,
    }


NARROW = '[[tool_plugins]]\nplugin = "call_ceiling"\nsignature = 2\n'


def test_a_refused_call_is_not_fed(folder):
    """A refusal of one signature lets the session go on, and the first trip is the one that is told."""
    rows = [call(i, arguments={"n": 0 if i % 2 == 0 else i}) for i in range(7)]
    (row,) = folder.replay(rows, policy=NARROW)
    assert row["refused"] == [4, 6]
    assert (row["trip"]["index"], row["trip"]["scope"]) == (4, "signature")


def test_the_stopping_trip_wins_over_the_first(folder):
    """Where refusals end in a stop, the line tells the stop, at the refusal that reached the limit."""
    policy = NARROW + '[[tool_plugins]]\nplugin = "max_refusals"\nlimit = 2\n'
    (row,) = folder.replay([call(i) for i in range(6)], policy=policy)
    assert row["refused"] == [2, 3]
    assert (row["trip"]["index"], row["trip"]["rule"], row["trip"]["scope"]) == (3, "max_refusals", "run")


def timed(i, start, seconds, **more):
    return call(i, ts=start, dur_s=seconds, **more)


def test_overlapping_calls_are_one_batch(folder):
    """Calls that ran at the same time are judged together: equal ones are one lap, whatever their order."""
    at_once = [timed(i, 10.5, 2.25) for i in range(3)]
    assert folder.trip(at_once) is None
    laps = [timed(3 * lap + n, 10.5 + lap * 10, 2.25 + n) for lap in range(3) for n in range(3)]
    assert folder.trip(laps)[:2] == (8, "repeat_guard")


def test_an_end_comes_before_a_start_at_the_same_time(folder):
    """Calls that touch do not overlap."""
    assert folder.trip([timed(i, 10.5 + i * 2.25, 2.25) for i in range(3)]) == (2, "repeat_guard", 1)


def test_coarse_clocks_tell_no_overlap(folder):
    """Where a time has whole seconds only, calls follow each other."""
    assert folder.trip([timed(i, 10.0, 2.5) for i in range(3)]) == (2, "repeat_guard", 1)
    assert folder.trip([timed(i, 10.5, 2) for i in range(3)]) == (2, "repeat_guard", 1)


def test_a_start_that_closes_a_batch_is_not_blamed(folder):
    """A trip found when the next call starts belongs to the call whose result tripped, and the next is not fed."""
    rows = [timed(0, 10.5, 1.25), timed(1, 20.5, 1.25), timed(2, 30.5, 1.25), timed(3, 30.5, 50.25, tool="serve")]
    (row,) = folder.replay([*rows, timed(4, 40.5, 1.25, tool="read")])
    assert (row["trip"]["index"], row["refused"], row["calls"]) == (2, [], 5)


def test_each_call_has_a_line(folder):
    """--calls tells signature, class and verdict of each call, those after the stop included."""
    rows = folder.replay([call(i) for i in range(4)], options=["--calls"])
    lines = [row for row in rows if "i" in row]
    assert [line["verdict"] for line in lines] == ["ok", "ok", "tripped", "not fed"]
    assert lines[1]["warned"] == ["repeat_guard"]
    assert {line["class"] for line in lines} == {"build"}
    assert len({line["signature"] for line in lines}) == 1
    assert lines[0].keys() == {"session", "i", "tool", "signature", "class", "verdict", "warned"}


def test_lines_of_refused_and_overlapping_calls(folder):
    """--calls says refused for what was not run, and waits for the verdict of calls that overlap."""
    lines = folder.replay([call(i) for i in range(3)], policy=NARROW, options=["--calls"])[:-1]
    assert [line["verdict"] for line in lines] == ["ok", "ok", "refused"]
    laps = [timed(2 * lap + n, 10.5 + lap * 10, 2.25 + n) for lap in range(3) for n in range(2)]
    lines = folder.replay(laps, options=["--calls"])[:-1]
    assert [line["i"] for line in lines] == list(range(6))
    assert [line["verdict"] for line in lines].count("tripped") == 1


def test_settings_of_tools_are_applied(folder):
    """What the policy says about a tool counts: poller, ignored argument, class, switched off."""
    rows = [call(i, arguments={"command": "make", "id": i}) for i in range(4)]
    assert folder.trip(rows, policy=VOLATILE_3) is None
    ignoring = VOLATILE_3 + '[tools.bash]\nignore = ["id"]\n'
    assert folder.trip(rows, policy=ignoring) == (2, "repeat_guard", 1)
    assert folder.trip(rows, policy=ignoring + "poll = true\n") is None
    assert folder.trip(rows, policy=ignoring + "poll = 1\n") == (2, "repeat_guard", 1)
    assert folder.trip(rows, policy=ignoring + "enabled = false\n") is None
    lines = folder.replay(rows, policy=ignoring + 'class = "read"\n', options=["--calls"])
    assert lines[0]["class"] == "read"


def test_the_mode_is_always_enforce(folder):
    """A policy that only observes stops in a replay all the same."""
    assert folder.trip([call(i) for i in range(3)], policy='mode = "observe"\n' + EXACT_3) == (2, "repeat_guard", 1)


BAD = [
    (b"{no json", "is no JSON"),
    (b"[1]", "no JSON object but a list"),
    (b"null", "no JSON object but null"),
    (b"[" * 200_000, "nested too deeply"),
    (b"\xff\xfe", "no UTF-8"),
    (b'{"session": "s"}', "key 'i' is missing"),
    (json.dumps(call("1")).encode(), "i is a string, not an integer"),
    (json.dumps(call(1, failed="no")).encode(), "failed is a string"),
    (json.dumps(call(1, arguments=[])).encode(), "arguments is a list"),
    (json.dumps(call(True)).encode(), "i is true or false"),
    (json.dumps(call(-1)).encode(), "i is negative"),
    (json.dumps(hashed(1, rv=None)).encode(), "rv is null, not a string"),
    (json.dumps(call(0)).encode(), "i is 0, out of order"),
    (json.dumps(call(7)).encode(), "i is 7, out of order"),
]


@pytest.mark.parametrize(("line", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_line_is_named_counted_and_skipped(folder, line, reason):
    """A bad line costs itself only: file, line and reason are told, and the session's answer is complete."""
    path = folder.write("f.jsonl", [call(0), line, call(1), call(2)])
    (row,) = folder.replay(path, code=1)
    assert (row["calls"], row["trip"]["index"]) == (3, 2)
    assert f"{path}:2: " in folder.last.stderr
    assert reason in folder.last.stderr
    assert "1 bad line skipped" in folder.last.stderr


def test_a_lost_line_does_not_cost_the_session(folder):
    """Where a bad line took a call with it, the calls after it keep their own indices."""
    (row,) = folder.replay([call(0), b"{", *(call(i) for i in range(2, 5))], code=1)
    assert (row["calls"], row["trip"]["index"]) == (4, 3)


def test_a_gap_that_nothing_explains_costs_one_line(folder):
    """Calls missing from the recording are told once, and the rest is judged."""
    (row,) = folder.replay([call(0), *(call(i) for i in range(5, 9))], code=1)
    assert (row["calls"], row["trip"]["index"]) == (4, 7)
    assert "1 bad line skipped" in folder.last.stderr


def test_a_broken_gzip_tail_is_a_bad_line(folder):
    """A compressed file that ends too early answers for what could be read, and is reported."""
    path = folder.write("f.jsonl.gz", [call(i, result=sha(str(i))) for i in range(2000)])
    data = (folder.path / "f.jsonl.gz").read_bytes()
    (folder.path / "f.jsonl.gz").write_bytes(data[: len(data) // 2])
    (row,) = folder.replay(path, code=1)
    assert 0 < row["calls"] < 2000
    assert f"{path}:{row['calls'] + 1}: cannot be read" in folder.last.stderr


def test_blank_lines_carriage_returns_and_byte_order_marks(folder):
    """Blank lines, Windows line ends, a byte order mark and a missing last line end are no errors."""
    lines = [json.dumps(call(i)).encode() for i in range(3)]
    path = folder.path / "f.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n\r\n  \n \t" + lines[1] + b"\r\n" + lines[2])
    assert folder.trip(str(path)) == (2, "repeat_guard", 1)


def test_an_empty_file_has_no_sessions(folder):
    """Nothing recorded, nothing said."""
    assert folder.replay([]) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere.jsonl"],
        ["."],
        [],
        ["-", "--profile", "x"],
        ["-", "--profile", "strict", "--policy", "p.toml"],
        ["-", "--policy", "no.toml"],
    ],
)
def test_usage_errors(arguments):
    """A missing file, a folder, no file, unknown or contradicting settings: 2, before anything is printed."""
    done = CliRunner().invoke(app, ["replay", *arguments, "--json"], input="")
    assert done.exit_code == 2
    assert done.stdout == ""


def test_fail_on_trip(folder):
    """With --fail-on-trip a trip is 3, none is 0, and bad lines are 1 before either."""
    rows = [call(i) for i in range(3)]
    folder.replay(rows, code=3, options=["--fail-on-trip"])
    folder.replay(rows[:2], code=0, options=["--fail-on-trip"])
    folder.replay([*rows, b"{"], code=1, options=["--fail-on-trip"])


def test_the_environment_does_not_surprise(folder, monkeypatch):
    """Named settings are judged by themselves; with none named the environment counts, and that is said."""
    rows = [call(i) for i in range(7)]
    monkeypatch.setenv("TOOLGUARD_PROFILE", "strict")
    assert folder.replay(rows, policy=None)[0]["trip"] is not None
    assert "TOOLGUARD_PROFILE" in folder.last.stderr
    assert folder.trip(rows) == (2, "repeat_guard", 1)
    assert folder.replay(rows, policy=None, options=["--profile", "crucible"])[0]["trip"] is None
    assert os.environ["TOOLGUARD_PROFILE"] == "strict"


def test_the_table_is_for_people(folder):
    """Without --json a table tells who was stopped and why, without control characters of the recording."""
    path = folder.write("f.jsonl", [call(i, session="s\x1b[31m") for i in range(3)])
    done = CliRunner().invoke(app, ["replay", path, "--policy", folder.policy(EXACT_3), "--calls"])
    assert done.exit_code == 0
    assert "repeat_guard" in done.stdout
    assert "1 sessions, 3 calls: 1 stopped" in done.stdout
    assert "\x1b[31m" not in done.stdout


def test_a_reader_that_leaves_is_no_error(folder):
    """A closed pipe ends the command quietly."""
    path = folder.write("f.jsonl", [call(0, session=f"session {n}") for n in range(20_000)])
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "replay", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as done:
        done.stdout.readline()
        done.stdout.close()
        assert done.stderr.read() == b""
        assert done.wait() == 0


@pytest.mark.parametrize("options", [["--json"], []])
def test_any_output_encoding(folder, options):
    """Names that the output's encoding does not have, lone surrogates too, never fail the command."""
    path = folder.write("f.jsonl", [call(i, session="\u2713 \ud800", tool="\u30c4") for i in range(9)])
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "replay", path, "--calls", *options],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
