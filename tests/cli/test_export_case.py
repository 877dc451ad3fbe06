"""The export-case command: every kind of loop, from a trip, a log and a recording, as a test that is really run."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool, trip_log
from otel_toolguard.cli.app import app
from otel_toolguard.cli.export_made_up import letters
from otel_toolguard.cli.export_recorded import SHOWN
from otel_toolguard.cli.export_text import literal

SECRET = "hunter2-and-more"
ALONE = "import sys\nfor name in ('typer', 'rich', 'opentelemetry.sdk', 'opentelemetry.instrumentation'):\n    sys.modules[name] = None\n"
RUFF = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TOOLGUARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(trip_log, "_places", {})


def export(*words, code=0, given=None):
    done = CliRunner().invoke(app, ["export-case", *map(str, words)], input=given)
    assert done.exit_code == code, done.output
    return done


def run_tests(folder):
    """Runs every test in a folder where nothing but the library and pytest can be imported; names and outcomes."""
    (folder / "conftest.py").write_text(ALONE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-rA", "-q", "--rootdir", folder, folder],
        capture_output=True, text=True, cwd=folder, check=False,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    found = re.findall(r"^(PASSED|FAILED|ERROR) (test_[^:\s]+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return {name: outcome for outcome, name in found}


def changed(text, rule, old, new):
    """The text with another number in the table of that rule, and only there."""
    chain, mark, rest = text.partition("\nTOOLS = ")
    table = chain.index(f'"plugin": "{rule}"')
    assert old in chain[table:], text
    return chain[:table] + chain[table:].replace(old, new, 1) + mark + rest


@guard_tool
def search(q: str) -> str:
    return "nothing"


@guard_tool
def look(at: str) -> str:
    return f"seen {at}"


@guard_tool
def edit_file(path: str) -> str:
    return "ok"


@guard_tool
def book(seat: str) -> str:
    raise LookupError("full")


@guard_tool
def fetch(url: str) -> str:
    raise TimeoutError("timed out")


@guard_tool(poll=3)
def ask(at: str) -> str:
    return "not yet"


@guard_tool(name="größe_📏")
def size(at: str) -> str:
    return "größer"


def word(n):
    return "x" * n


def kind(name, rule, loop, plugins, calls, old, new, **tools):
    return pytest.param(rule, loop, plugins, calls, old, new, tools, id=name)


def guard(rule, **limits):
    return [{"plugin": rule, **limits}]


again = [(search, "x")] * 30
CEILED = {"plugin": "call_ceiling", "tools": {"search": 1}}
KINDS = [
    kind("exact_repeat", "repeat_guard", "exact_repeat", guard("repeat_guard", limit=5), again, "5", "6"),
    kind("oscillation", "repeat_guard", "oscillation", guard("repeat_guard", limit=4),
         [(look, "a"), (look, "b"), (search, "c")] * 9, "4", "5"),
    kind("of_one_period", "repeat_guard", "oscillation", guard("repeat_guard", limit=9, limits={2: 3}),
         [(look, "a"), (look, "b")] * 9, "2: 3", "2: 4"),
    kind("error_storm", "repeat_guard", "error_storm", guard("repeat_guard", limit=5), [(book, "a")] * 9, "5", "6"),
    kind("transient", "failure_streak", "error_storm", guard("failure_streak", limit=3),
         [(fetch, word(n)) for n in range(20)], "3", "4"),
    kind("streak", "failure_streak", "error_storm", guard("failure_streak", limit=4),
         [(book, word(n)) for n in range(20)], "4", "5"),
    kind("signature", "signature_failures", "error_storm", guard("signature_failures", limit=4), [(book, "a")] * 9,
         "4", "5"),
    kind("writes", "repeat_guard", "exact_repeat", guard("repeat_guard", limit=4), [(edit_file, "a")] * 9, "4", "5"),
    kind("poller", "repeat_guard", "exact_repeat", guard("repeat_guard", limit=3), [(ask, "a")] * 12, "3", "4"),
    kind("unicode", "repeat_guard", "exact_repeat", guard("repeat_guard", limit=5), [(size, "x")] * 9, "5", "6"),
    kind("stagnation", "stagnation", "stagnation", guard("stagnation", limit=12), again, "12", "20"),
    kind("stagnation_of_errors", "stagnation", "stagnation", guard("stagnation", limit=4),
         [(tool, word(n)) for n in range(20) for tool in (book, fetch)], "4", "5"),
    kind("same_answer", "same_answer", "same_answer", guard("same_answer", limit=5),
         [(search, word(n)) for n in range(20)], "5", "6"),
    kind("over_use", "call_ceiling", "over_use", guard("call_ceiling", run=7),
         [(look, word(n)) for n in range(20)], "7", "8"),
    kind("over_use_of_a_tool", "call_ceiling", "over_use", guard("call_ceiling", tools={"l*": 3}),
         [(look, word(n)) for n in range(20)], ": 3", ": 4"),
    kind("over_use_of_a_session", "call_ceiling", "over_use", guard("call_ceiling", session=7),
         [(look, word(n)) for n in range(20)], "7", "8"),
    kind("refused_too_often", "max_refusals", "refused_too_often", [*guard("max_refusals", limit=3), CEILED], again,
         "3", "4"),
    kind("own_limit", "repeat_guard", "exact_repeat", guard("repeat_guard", limit=9), again, "", "",
         **{"se*": {"limits": {"repeat_guard": 4}}}),
]  # fmt: skip


def tripped(rule, plugins, calls, tools, mode="enforce"):
    """The trip of that rule, of real calls under a real session."""
    trips = []
    policy = Policy(plugins=plugins, tools=tools, mode=mode)
    with Session("s1", policy=policy, on_trip=trips.append, store=MemoryStore()):
        for tool, argument in calls:
            try:
                tool(argument)
            except (CircuitOpen, LookupError, TimeoutError):
                pass
    return next(trip for trip in trips if trip.rule == rule)


def trip_in(text):
    """What an exported file asserts."""
    tree = ast.parse(text)
    return next(
        ast.literal_eval(node.value) for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "TRIP"
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::otel_toolguard.SettingsWarning")
def test_every_kind_of_loop_trips_again(tmp_path, monkeypatch):
    """A trip and its line in a log, of every loop type, become files that pass, and that fail with a limit one higher."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    types = set()
    for param in KINDS:
        rule, loop, plugins, calls, old, new, tools = param.values
        log = tmp_path / f"{param.id}.jsonl"
        monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(log))
        trip = tripped(rule, plugins, calls, tools)
        monkeypatch.delenv("TOOLGUARD_TRIP_LOG")
        types.add(trip.loop_type)
        assert trip.loop_type == loop
        plain = tmp_path / f"{param.id}.json"
        plain.write_text(json.dumps(trip.to_dict()), encoding="utf-8")
        for source, words in (("trip", [plain]), ("log", [trip.id, "--log", log])):
            file = good / f"test_{param.id}_{source}.py"
            export(*words, "-o", file)
            text = file.read_text(encoding="utf-8")
            found = trip_in(text)
            assert [found[key] for key in ("rule", "scope", "period", "limit")] == [
                trip.rule, trip.scope, trip.period, trip.limit,
            ], param.id  # fmt: skip
            if old and source == "log":
                (bad / file.name).write_text(changed(text, rule, old, new), encoding="utf-8")
    assert len(types) == 7
    passed, failed = run_tests(good), run_tests(bad)
    assert set(passed.values()) == {"PASSED"}, passed
    assert len(passed) == 2 * len(KINDS)
    assert set(failed.values()) == {"FAILED"}, failed
    assert len(failed) == len(KINDS) - 1
    linted(good)


def linted(folder):
    """Whether linter and formatter, at whatever width, have nothing to say."""
    if RUFF is None:
        return
    files = [str(path) for path in folder.glob("test_*.py")]
    config = str(Path(__file__).parents[2] / "pyproject.toml")
    ignored = "D,ANN,INP001,S101,CPY001,E501,COM812,D203,D213"
    for words in (
        ["check", "--isolated"], ["check", "--isolated", "--select", "ALL", "--ignore", ignored],
        ["check", "--config", config, "--ignore", "ANN,INP001,S101,E501"],
        ["format", "--check", "--isolated"], ["format", "--check", "--config", config],
    ):  # fmt: skip
        done = subprocess.run([RUFF, *words, "--no-cache", *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def recording(path, calls, session="s1", **more):
    """Call files: (tool, arguments, result) or (…, failed)."""
    with path.open("a", encoding="utf-8") as file:
        for i, (tool, arguments, result, *failed) in enumerate(calls):
            row = {"session": session, "i": i, "tool": tool, "arguments": arguments, "result": result,
                   "failed": failed[0] if failed else False}  # fmt: skip
            file.write(json.dumps(row | {key: value(i) for key, value in more.items()}) + "\n")
    return path


HEALTHY = [("look", {"at": word(n)}, f"found {word(n)}") for n in range(1, 40)]
LOOP = [("search", {"q": "größe 📏"}, "nichts")] * 12
DEEP = "x"
for _ in range(60):
    DEEP = [DEEP]
STRANGE = [
    ("bash", {"command": 'make \ud800 "it\'s" \\n'}, {"code": 1e400, "big": 10**30, "none": None}, True),
    ("(malformed)", '{"q": ', "no JSON", None),
    ("edit", {"deep": DEEP, "": [], "o'clock": {}}, None),
]
SESSIONS = [
    ("loop", [*HEALTHY, *LOOP], {}, len(HEALTHY)),
    ("strange", [*HEALTHY[:3], *STRANGE * 12], {}, 3),
    ("quotes", [("edit", {"text": 'it\'s "so" \\ ' * 99 + "📏" * 99, "'" * 80: ['"' * 130]}, "'\"" * 200)] * 12, {}, 0),
    ("unknown", [("search", {"q": "x"}, "same", None)] * 12, {}, 0),
    ("huge", [("search", {"q": "y" * 300_000}, "z" * 50_000 + " 7")] * 12, {}, 0),
    ("clocks", [("search", {"q": "y"}, "z" * 500 + f" at 12:00:{n:02}") for n in range(12)], {}, 0),
    ("cut", [*HEALTHY, *LOOP], {"result_sha256": lambda i: f"{i:064}" if i < len(HEALTHY) else "f" * 64}, len(HEALTHY)),
    ("overlap", [*HEALTHY, *LOOP * 4], {"ts": lambda i: 1.7e9 + i // 3 + 0.25, "dur_s": lambda i: 0.5}, 0),
    ("shell", [("bash", {"command": "make"}, "error: no", True)] * 12, {"ctx": lambda i: {"cwd": "/home/me/work"}}, 0),
]


def test_every_kind_of_recording_trips_again(tmp_path):
    """Recorded sessions, however strange, become files that pass, without the healthy calls before the loop."""
    good = tmp_path / "good"
    good.mkdir()
    for name, calls, more, before in SESSIONS:
        file = recording(tmp_path / f"{name}.jsonl", calls, **more)
        said = json.loads(export(f"{file}#s1", "--json", "-o", good / f"test_{name}.py").stdout)
        row = json.loads(CliRunner().invoke(app, ["replay", str(file), "--json"]).stdout)
        assert row["trip"]["index"] == said["trip"]["index"] + said["left_out"]
        assert {**row["trip"], "index": 0, "observed": 0} == {**said["trip"], "index": 0, "observed": 0}
        assert said["left_out"] >= before, name
        assert (good / f"test_{name}.py").stat().st_size < 20_000, name
    passed = run_tests(good)
    assert len(passed) == len(SESSIONS)
    assert set(passed.values()) == {"PASSED"}, passed
    linted(good)
    assert "/home/me" not in (good / "test_shell.py").read_text(encoding="utf-8")


def test_calls_as_hashes_trip_again(tmp_path):
    """A recording of hashes is exported as it is, and its file passes."""
    path = tmp_path / "calls.jsonl"
    rows = [
        {"s": "h", "i": i, "t": "search", "a": "a1", "an": "b1", "r": "c1", "rn": "d1", "rv": "e1", "f": False}
        for i in range(12)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "good").mkdir()
    export(path, "-o", tmp_path / "good" / "test_hashes.py")
    assert run_tests(tmp_path / "good") == {"test_hashes.py": "PASSED"}


SECRETS = [
    ("argument", {"q": "x", "password": SECRET}, "ok"),
    ("nested", {"headers": {"Authorization": {"value": SECRET}}}, "ok"),
    ("in text", {"q": f"curl -H 'Authorization: Bearer {SECRET}'"}, f"token={SECRET}"),
    ("in a result", {"q": "x"}, {"api_key": SECRET, "said": [f"used {SECRET} twice"]}),
    ("in an error", {"q": "x"}, f"password: {SECRET}"),
    ("as a name", {f"secret={SECRET}": 1}, "ok"),
]


@pytest.mark.parametrize(("arguments", "result"), [row[1:] for row in SECRETS], ids=[row[0] for row in SECRETS])
def test_secrets_of_a_recording_are_not_written_down(arguments, result, tmp_path):
    """Secrets by name or by form stand nowhere in the file, and the case trips all the same."""
    path = recording(tmp_path / "calls.jsonl", [("search", arguments, result)] * 12)
    text = export(path, "--profile", "strict").stdout
    assert SECRET not in text
    assert "(redacted a)" in text
    assert trip_in(text)["rule"] == "stagnation"


def test_a_secret_named_earlier_is_one_later(tmp_path):
    """A value that a call before the loop named as a secret stands nowhere in the file, though that call is left out."""
    calls = [("log_in", {"password": SECRET}, "welcome"), *[("search", {"q": f"who is {SECRET}"}, "nobody")] * 12]
    said = json.loads(export(recording(tmp_path / "calls.jsonl", calls), "--json").stdout)
    assert said["left_out"] == 1
    assert SECRET not in said["text"]


def test_two_secrets_stay_two(tmp_path):
    """Calls that differ in a secret only are different calls in the file too."""
    calls = [("search", {"q": "x", "token": f"{SECRET}-{word(n)}"}, "same") for n in range(40)]
    text = export(recording(tmp_path / "calls.jsonl", calls), "--profile", "balanced").stdout
    assert trip_in(text)["rule"] == "same_answer"
    assert SECRET not in text


def test_no_value_of_a_trip_is_written_down(tmp_path):
    """Of a trip the calls are made up: previews of arguments on it stay out of the file."""
    with Session("s", policy=Policy(plugins=guard("repeat_guard", limit=3), capture_arguments=True)) as session:
        for _ in range(3):
            search("quite private")
        plain = session.trip.to_dict()
    assert "quite private" in json.dumps(plain)
    assert "quite private" not in export("-", given=json.dumps(plain)).stdout


def two_trips(tmp_path, monkeypatch):
    log = tmp_path / "trips.jsonl"
    monkeypatch.setenv("TOOLGUARD_TRIP_LOG", str(log))
    tripped("repeat_guard", guard("repeat_guard", limit=3), again, {}, mode="observe")
    first = tripped("call_ceiling", [CEILED, *guard("max_refusals", limit=2)], again, {})
    last = tripped("repeat_guard", guard("repeat_guard", limit=4), again, {})
    monkeypatch.delenv("TOOLGUARD_TRIP_LOG")
    return log, first, last


def test_a_log_is_asked_by_trip_or_by_session(tmp_path, monkeypatch):
    """An id of a trip takes that trip, one of a session the newest enforced trip that stopped it; bad lines are named."""
    log, first, last = two_trips(tmp_path, monkeypatch)
    assert trip_in(export(first.id, "--log", log).stdout)["rule"] == "call_ceiling"
    assert trip_in(export(last.session_id, "--log", log).stdout)["limit"] == 4
    with log.open("a", encoding="utf-8") as file:
        file.write('{"half": \n[1]\n{"trip": 5}\n')
    done = export(last.id, "--log", log, code=1)
    assert trip_in(done.stdout)["limit"] == 4
    assert f"{log}:5: is no JSON" in done.stderr
    assert f"{log}:5: is no JSON" in export(log, code=1).stderr


def test_a_session_of_several_trips_says_which_was_taken(tmp_path):
    """Where one session has several trips of one weight the newest is taken, and the ids of the others are named."""
    trip = tripped("repeat_guard", guard("repeat_guard", limit=5), again, {}).to_dict()
    log = tmp_path / "trips.jsonl"
    rows = [{"trip": trip | {"id": f"trip-{number}"}, "enforced": True} for number in (1, 2, 3)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    said = export(trip["session_id"], "--log", log).stderr
    assert said.splitlines() == [
        f"otel-toolguard: {log}: the newest of 3 trips of {trip['session_id']} is taken; name another by its id: trip-2, trip-1"
    ]
    assert export("trip-1", "--log", log).stderr == ""


def test_a_policy_that_is_named_decides(tmp_path):
    """With --policy the chain of that file is written down, whatever the trip or the environment says."""
    path = tmp_path / "guard.toml"
    path.write_text('[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 6\n', encoding="utf-8")
    text = export(recording(tmp_path / "calls.jsonl", LOOP), "--policy", path).stdout
    assert trip_in(text)["limit"] == 6
    trip = tripped("repeat_guard", guard("repeat_guard", limit=5), again, {}).to_dict()
    assert "do not trip the same" in export("-", "--policy", path, code=1, given=json.dumps(trip)).stderr


def test_a_file_is_not_overwritten(tmp_path):
    """A file that is there stays as it is, unless --force is given."""
    source, file = recording(tmp_path / "calls.jsonl", LOOP), tmp_path / "test_case.py"
    file.write_text("mine", encoding="utf-8")
    assert "--force" in export(source, "-o", file, code=2).stderr
    assert file.read_text(encoding="utf-8") == "mine"
    export(source, "-o", file, "--force")
    assert "def test_" in file.read_text(encoding="utf-8")


def test_json_for_machines(tmp_path):
    """With --json one object says what was found; without a file it has the text."""
    path = recording(tmp_path / "calls.jsonl", [*HEALTHY, *LOOP])
    said = json.loads(export(path, "--json").stdout)
    assert sorted(said) == ["calls", "file", "head", "how", "left_out", "text", "trip"]
    assert said["trip"] == trip_in(said["text"])
    assert json.loads(export(path, "--json", "-o", tmp_path / "t.py").stdout)["text"] is None


HOSTILE = [None, 5, "x", [], [[1]], {"tool_plugins": [{}]}, {"tool_plugins": [1], "tools": 5},
           {"tool_plugins": [{"plugin": "none"}], "tools": {"*": {"poll": "x", "limits": {"x": 1}}}}]  # fmt: skip


@pytest.mark.parametrize("policy", HOSTILE)
def test_a_log_that_lies_about_its_policy_is_not_believed(policy, tmp_path):
    """Where a line's policy cannot be honoured, the trip alone is what the case is made of."""
    trip = tripped("repeat_guard", guard("repeat_guard", limit=5), again, {}).to_dict()
    log = tmp_path / "trips.jsonl"
    log.write_text(json.dumps({"trip": trip, "policy": policy}) + "\n", encoding="utf-8")
    for words in ([log], [trip["id"], "--log", log]):
        assert trip_in(export(*words).stdout)["limit"] == 5


STOP = {"rule": "session.stop", "scope": "session", "loop_type": "stopped_by_operator", "why": "", "session_id": "s"}
WRONG = [
    (["none.json"], None, 2, "cannot read none.json"),
    (["some-id"], None, 2, "only together with --log"),
    (["id", "--log", "none.jsonl"], None, 2, "cannot read none.jsonl"),
    (["id", "--log", "two.jsonl"], None, 1, "no trip or session of the id id"),
    (["id", "--log", "two.jsonl", "--session", "s"], None, 2, "give its id alone"),
    (["two.jsonl"], None, 1, "holds 2 sessions; choose one with --session, such as a"),
    (["two.jsonl#a", "--session", "b"], None, 2, "two sessions are named"),
    (["two.jsonl#none"], None, 1, "holds no call of session none"),
    (["two.jsonl#a"], None, 1, "no circuit opened"),
    (["two.jsonl#a", "--profile", "none"], None, 2, "unknown profile"),
    (["two.jsonl#a", "--profile", "strict", "--policy", "x"], None, 2, "not both"),
    (["two.jsonl#b", "-o", "none/test.py"], None, 2, "cannot be written"),
    (["-"], "nonsense", 1, "is no JSON"),
    (["-"], "[]", 1, "holds no trip"),
    (["-"], json.dumps(STOP), 1, "no calls to export"),
    (["-"], json.dumps(STOP | {"rule": "depth", "limit": 1, "observed": 2}), 1, "cannot be rebuilt"),
]


@pytest.mark.parametrize(("words", "given", "code", "said"), WRONG)
def test_what_cannot_be_exported_is_said_in_a_sentence(words, given, code, said, tmp_path, monkeypatch):
    """Bad input ends with 1 and usage with 2, each with a sentence and without a file."""
    monkeypatch.chdir(tmp_path)
    recording(tmp_path / "two.jsonl", HEALTHY, session="a")
    recording(tmp_path / "two.jsonl", LOOP, session="b")
    done = export(*words, code=code, given=given)
    assert said in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["two.jsonl"]


def test_a_session_whose_name_has_a_mark(tmp_path):
    """FILE#SESSION is taken apart where the file ends, whatever marks either name has."""
    path = recording(tmp_path / "a#b.jsonl", LOOP, session="s#1")
    recording(path, HEALTHY, session="s")
    assert trip_in(export(f"{path}#s#1").stdout)["index"] == trip_in(export(path, "--session", "s#1").stdout)["index"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_what_is_written_is_what_was_read(value):
    """A JSON value written as Python is that very value, in ASCII."""
    text = literal(value, 4, 4)
    assert text.isascii()
    assert repr(eval(text)) == repr(value)


@given(st.lists(st.text(alphabet="ab\"'\\\n\x00é", max_size=8), min_size=1, max_size=40))
def test_a_formatter_leaves_quotes_as_they_are(texts):
    """Texts stand in double quotes unless single ones need fewer escapes."""
    for text in texts:
        written = literal(text)
        assert eval(written) == text
        assert (written[0] == "'") == (text.count('"') > text.count("'"))


def test_words_for_numbers_are_all_different():
    """Numbers become words without digits, no two the same."""
    words = [letters(n) for n in range(2000)]
    assert len(set(words)) == 2000
    assert not any(re.search(r"[^a-z]", word) for word in words)
    assert [words[n] for n in (0, 25, 26, 27)] == ["a", "z", "aa", "ab"]


def test_a_long_text_is_cut(tmp_path):
    """Of a text no more than is shown is written down, and what follows still tells two of them apart."""
    long = [("search", {"q": "y" * 5000 + word(n)}, "same") for n in range(40)]
    text = export(recording(tmp_path / "calls.jsonl", long), "--profile", "balanced").stdout
    assert trip_in(text)["rule"] == "same_answer"
    assert "y" * (SHOWN + 1) not in text
