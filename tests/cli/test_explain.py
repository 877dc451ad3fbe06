"""The explain command: trips of every rule, made by the rules themselves, and input that is no trip."""

import io
import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_toolguard import Policy
from otel_toolguard.cli.app import app
from otel_toolguard.core.call import Outcome
from otel_toolguard.core.canonical import Signer, fingerprints
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.state import SessionState
from otel_toolguard.tool import Tool

SIGNER = Signer(b"explain")
P = "permanent"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TOOLGUARD_")]:
        monkeypatch.delenv(name)


def trip(rule, calls, policy, *, running=None):
    """The trip of that rule; calls are (tool, arguments, result) or (…, "permanent" or "transient")."""
    state, tools = SessionState("s1"), {}
    if running:
        policy.chain.admit(state, "r", Tool(running).call({}, policy, SIGNER))
    for name, arguments, result, *failure in calls:
        call = tools.setdefault(name, Tool(name)).call(arguments, policy, SIGNER, world=None)
        admission = policy.chain.admit(state, "r", call)
        if isinstance(admission, Refuse):
            found = [admission.trip, *([admission.opened.trip] if admission.opened else [])]
        else:
            exact, masked, numberless = fingerprints(SIGNER, result, failed=bool(failure), needs=policy.chain.needs)
            outcome = Outcome("failed" if failure else "ok", failure=failure[0] if failure else None, exact=exact,
                              volatile=masked, digits=numberless)  # fmt: skip
            settled = policy.chain.settle(state, "r", admission.number, call, outcome)
            found = [settled.trip] if settled.trip else []
        for one in found:
            if one.rule == rule:
                return one.to_dict()
    raise AssertionError(f"{rule} did not trip")


def chain(*plugins):
    return Policy(plugins=list(plugins), mode="enforce")


def run(text, *options, code=0):
    done = CliRunner().invoke(app, ["explain", "-", *options], input=text)
    assert done.exit_code == code, done.output
    return done


def told(plain):
    """The JSON answer; the words are asked for too, which must not fail."""
    text = json.dumps(plain)
    (answer,) = [json.loads(line) for line in run(text, "--json").stdout.splitlines()]
    words = run(text).stdout
    assert answer["stopped"] in words
    return answer, words


def settings_of(change, tmp_path):
    path = tmp_path / "guard.toml"
    path.write_text(change["toml"], encoding="utf-8")
    return Policy.from_toml(path)


new = [("look", {"at": "x" * n}, "found " + "y" * n) for n in range(1, 700)]
refused_edit = [("edit_file", {"path": "a"}, "refused", P)]
failing = [("read_page", {"at": "x" * n}, "no " + "y" * n, P) for n in range(1, 90)]
one_failing = [row for n in range(40) for row in (("book", {"seat": 1}, "full", P), new[n])]
same = [("search", {"q": "x" * n}, "nothing") for n in range(1, 90)]
again = [("get_report", {"id": "a"}, "same")]
two = [("look", {"at": "a"}, "x"), ("look", {"at": "b"}, "y")]

CASES = [
    ("repeat_guard", refused_edit * 30, "conservative", {"limit": 13}),
    ("stagnation", again * 30, "balanced", {"limit": 13}),
    ("stagnation", [two[0], *failing], "strict", {"limit": 11}),
    ("same_answer", same, "strict", {"limit": 21}),
    ("failure_streak", failing, "balanced", {"limit": 21}),
    ("signature_failures", one_failing, "balanced", {"limit": 7}),
    ("call_ceiling", new, "balanced", {"run": 501}),
    ("max_refusals", one_failing[:11] + one_failing[:1] * 3, "balanced", {"limit": 3}),
    ("max_refusals", one_failing, "balanced", {"total": 26}),
]


@pytest.mark.parametrize(("rule", "calls", "profile", "raised"), CASES, ids=[f"{c[0]}-{c[3]}" for c in CASES])
def test_a_trip_of_each_rule_of_a_profile(rule, calls, profile, raised, tmp_path):
    """The change is the profile's whole chain with one limit raised by one, it loads, and a replay found it enough."""
    policy = Policy(profile=profile)
    if rule == "stagnation" and calls[0] == two[0]:
        policy = chain({"plugin": "stagnation", "limit": 10.0})  # alone, or the streak would be first
        profile = None
    answer, words = told(trip(rule, calls, policy))
    change = answer["changes"][-1]
    assert change["kind"] == "limit"
    assert change["checked"] is True, change
    assert f"checked by replay: yes ({change['how']})" in words
    after = dict(settings_of(change, tmp_path).plugins)
    assert {name: getattr(after[rule], name) for name in raised} == raised
    if profile is not None:
        assert change["base"] == profile
        before = dict(Policy(profile=profile).plugins)
        assert list(after) == list(before)
        assert {name for name in after if after[name] != before[name]} == {rule}
    assert answer["rule"] == rule
    assert answer["unit"] in answer["stopped"]


OWN = [
    ("repeat_guard", two * 9, {"limit": 5}, {"limit": 6}),
    ("repeat_guard", again * 9, {"limit": 9, "limits": {1: 4}}, {"limits": {1: 5}}),
    ("repeat_guard", refused_edit * 9, {"limit": 9, "failed_limit": 3}, {"failed_limit": 4}),
    ("repeat_guard", again * 9, {"limit": 3, "compare": "exact"}, {"limit": 4, "compare": "exact"}),
    ("repeat_guard", again * 9, {"limit": 3, "compare": "call"}, {"limit": 4, "compare": "call"}),
    ("repeat_guard", [*new[:5]] * 9, {"limit": 4, "max_period": 6}, {"limit": 5, "max_period": 5}),
    ("repeat_guard", [("watch_job", {}, "same")] * 90, {"limit": 3}, {"limit": 4}),
    ("repeat_guard", [again[0], (*again[0][:2], "other"), two[0]] * 9, {"limit": 3}, {"limit": 4}),
    ("stagnation", again * 9, {"limit": 4.5}, {"limit": 7}),
    ("failure_streak", failing, {"limit": 4, "across_tools": True}, {"limit": 5, "across_tools": True}),
    ("failure_streak", [(*row[:3], "transient") for row in failing], {"limit": 3}, {"limit": 4}),
    ("signature_failures", one_failing, {"limit": 4, "count": "cumulative", "same_error": False, "clear_on_write": False},
     {"limit": 5, "count": "cumulative", "same_error": False}),
    ("signature_failures", one_failing, {"limit": 3, "cooldown": 5.0}, {"limit": 4, "cooldown": 5.0}),
    ("same_answer", same, {"limit": 4}, {"limit": 5}),
    ("file_edits", [("edit_file", {"path": "a", "n": n}, f"edited {'x' * n}") for n in range(9)], {"limit": 4}, {"limit": 5}),
    ("call_ceiling", new, {"run": 7}, {"run": 8}),
    ("call_ceiling", new, {"session": 150}, {"session": 151}),
    ("call_ceiling", new, {"tools": {"lo*": 3}}, {"tools": {"lo*": 4}}),
    ("call_ceiling", same, {"classes": {"read": 3}}, {"classes": {"read": 4}}),
    ("call_ceiling", again * 9, {"signature": 3}, {"signature": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "calls", "parameters", "raised"), OWN, ids=[f"{c[0]}-{c[2]}" for c in OWN])
def test_a_trip_of_a_chain_of_its_own(rule, calls, parameters, raised, tmp_path):
    """Where no profile has that limit the change is the one table, with what else the trip gives away, and holds."""
    answer, _ = told(trip(rule, calls, chain({"plugin": rule, **parameters})))
    change = answer["changes"][-1]
    assert (change["base"], change["checked"]) == (None, True), change
    ((name, after),) = settings_of(change, tmp_path).plugins
    assert name == rule
    assert {key: getattr(after, key) for key in raised} == raised


def test_total_refusals(tmp_path):
    """A total of refusals is raised as such, and the row of refusals is left alone."""
    asked = [row for n in range(20) for row in (again[0], new[n])]
    policy = chain(
        {"plugin": "call_ceiling", "tools": {"get_*": 1}}, {"plugin": "max_refusals", "limit": 9, "total": 4}
    )
    answer, _ = told(trip("max_refusals", asked, policy))
    (change,) = answer["changes"]
    assert change["checked"] is True
    assert settings_of(change, tmp_path).plugins[0][1].total == 5


def test_the_laps_are_told_in_order():
    """Period, laps and calls are told, and each member with tool, signature and the names of its arguments."""
    answer, words = told(trip("repeat_guard", two * 9, chain({"plugin": "repeat_guard", "limit": 5})))
    laps = answer["laps"]
    assert (laps["period"], laps["laps"], laps["calls"]) == (2, 5, 10)
    assert [m["position"] for m in laps["members"]] == [1, 2]
    assert laps["members"][0]["arguments"] == {"at": "str(1)"}
    assert f"1. look  {laps['members'][0]['signature']}  (at str(1))" in words


def test_a_tool_that_looks_like_polling_may_be_declared(tmp_path):
    """For one call that looks at something, poll = true is offered first: it keeps every limit, and it is enough."""
    for rule, policy in (
        ("stagnation", Policy(profile="balanced")),
        ("repeat_guard", chain({"plugin": "repeat_guard", "limit": 4})),
    ):
        answer, words = told(trip(rule, again * 20, policy))
        first, second = answer["changes"]
        assert (first["kind"], second["kind"]) == ("poll", "limit")
        assert first["checked"] is True, first
        assert tomllib.loads(first["toml"])["tools"] == {"get_report": {"poll": True}}
        assert settings_of(first, tmp_path).tool("get_report").poll is True
        assert "If get_report is asked again and again by nature" in words


@pytest.mark.parametrize("calls", [refused_edit, [("bash", {"command": "get"}, "x")], [("watch_get", {}, "x")], two])
def test_what_does_not_look_like_polling(calls):
    """Writes, shells, known pollers and cycles of two busy calls are offered a limit only."""
    policy = chain({"plugin": "repeat_guard", "limit": 3})
    answer, _ = told(trip("repeat_guard", calls * 40, policy))
    assert [change["kind"] for change in answer["changes"]] == ["limit"]


def test_a_wrong_profile_is_not_claimed():
    """A cycle that another rule of the profile had stopped earlier comes from a chain of its own, and that is said."""
    answer, _ = told(trip("repeat_guard", two * 9, chain({"plugin": "repeat_guard", "limit": 8})))
    (change,) = answer["changes"]
    assert (change["base"], change["checked"]) == (None, True)
    assert "that rule alone" in change["how"]


def test_what_was_compared_and_left_out():
    """Masks, writes and neutral calls are named where they count, and only there."""
    by_rule = {}
    for rule, calls, profile, _ in CASES[:1] + CASES[3:]:
        by_rule[rule], _ = told(trip(rule, calls, Policy(profile=profile)))
    assert any("clocks" in said for said in by_rule["same_answer"]["left_out"])
    assert any("class write" in said for said in by_rule["repeat_guard"]["left_out"])
    assert by_rule["failure_streak"]["left_out"][0] == "arguments and results"
    exact, _ = told(trip("repeat_guard", again * 9, chain({"plugin": "repeat_guard", "limit": 3, "compare": "exact"})))
    assert exact["left_out"] == []
    assert "to the letter" in exact["compared"]
    loose, _ = told(trip("repeat_guard", again * 9, chain({"plugin": "repeat_guard", "limit": 3, "compare": "call"})))
    assert loose["left_out"] == ["results"]
    assert "as a write" in by_rule["repeat_guard"]["hints"][0]
    assert "result_key" in by_rule["same_answer"]["hints"][0]


def test_the_score_is_told_by_what_made_it():
    """A stagnation trip tells its score, the weights and what each kind of call added; an old record says it cannot."""
    calls = [*failing[:2], ("read_page", {"at": "z"}, failing[1][2], P), *(again * 9)]
    plain = trip("stagnation", calls, Policy(profile="strict"))
    answer, words = told(plain)
    assert answer["score"]["observed"] >= answer["score"]["limit"] == 10
    assert answer["score"]["contributions"] == {"repeats": 12.0}  # the first call that worked was progress
    assert "  12 from repeats" in words
    assert "in part: " in answer["changes"][-1]["how"]
    known = [("read_page", {"at": "z" * n}, "no", P) for n in range(12)]
    parts = told(trip("stagnation", known, Policy(profile="strict")))[0]["score"]["contributions"]
    assert parts == {"new failures": 0.5, "known errors": 10.0}
    older = plain | {"why": plain["why"].replace("repeats 12", "")}
    assert "What each kind of call added is not on the record." in told(older)[1]


@pytest.mark.parametrize(
    ("rule", "calls"),
    [
        ("repeat_guard", again * 5),
        ("repeat_guard", two * 5),
        ("failure_streak", failing),
        ("signature_failures", one_failing),
        ("same_answer", same),
    ],
)
def test_a_limit_of_one_tool_is_raised_for_that_tool(rule, calls, tmp_path):
    """Where a tool's own limit was reached, the change is that limit in the tool's table, and it is enough."""
    name = calls[0][0]
    policy = Policy(plugins=[{"plugin": rule, "limit": 30}], tools={f"{name[:3]}*": {"limits": {rule: 4}}})
    answer, _ = told(trip(rule, calls, policy))
    (change,) = answer["changes"]
    assert tomllib.loads(change["toml"]) == {"tools": {f"{name[:3]}*": {"limits": {rule: 5}}}}
    assert change["checked"] is True, change["how"]


def test_a_circuit_that_somebody_holds_has_no_limit():
    """A forced circuit is told as somebody's will, without a change of limits."""
    policy = Policy(plugins=[], tools={"send": {"circuit": "forced_open"}})
    admission = policy.chain.admit(SessionState("s1"), "r", Tool("send").call({}, policy, SIGNER))
    answer, words = told(admission.trip.to_dict())
    assert (answer["rule"], answer["changes"]) == ("forced_open", [])
    assert "forced the circuit of the tool send open" in words


def test_half_done_writes_come_first():
    """Calls in flight are told, the irreversible ones first, with whether they may be half done."""
    plain = trip("call_ceiling", new, chain({"plugin": "call_ceiling", "run": 7}), running="look")
    answer, words = told(plain)
    assert [call["tool"] for call in answer["in_flight"]] == ["look"]
    flight = [{"tool": risk, "signature": f"{risk}:1", "tool_class": "write", "risk": risk}
              for risk in ("read_only", "reversible", "irreversible")]  # fmt: skip
    answer, words = told(plain | {"in_flight": flight})
    assert [(call["risk"], call["half_done"]) for call in answer["in_flight"]] == [
        ("irreversible", True), ("reversible", True), ("read_only", False)]  # fmt: skip
    assert "irreversible write: irreversible  irreversible:1  may be half done" in words
    assert "In flight: nobody" in told(plain | {"in_flight": []})[1]


def test_a_stop_by_an_operator_has_no_setting():
    """Where no rule stopped, nothing needs to be raised."""
    policy = Policy(profile="balanced")
    state = SessionState("s1")
    answer, words = told(policy.chain.stop(state, "enough").to_dict())
    assert (answer["rule"], answer["changes"], answer["compared"]) == ("session.stop", [], None)
    assert "session.reset" in words


def test_rules_that_time_money_and_nesting_trip(tmp_path):
    """A deadline is tried on a clock of its own; what cost, depth and concurrency judged is told as not rebuilt."""
    plain = GOOD | {"members": [], "period": None, "limit": 5, "loop_type": "over_use"}
    for rule, observed, raised in (("deadline", 6.5, "seconds"), ("cost", 6.5, "limit"), ("depth", 6, "limit"),
                                   ("max_in_flight", 5, "limit")):  # fmt: skip
        answer, words = told(plain | {"rule": rule, "observed": observed, "scope": "session", "why": ""})
        (change,) = answer["changes"]
        assert change["checked"] is (True if rule == "deadline" else None)
        settings = dict(settings_of(change, tmp_path).plugins)[rule]
        assert (getattr(settings, raised) > observed, settings.scope) == (True, "session")
        assert answer["unit"] in words


def test_a_rule_of_a_third_party_is_told_without_a_change(monkeypatch):
    """What an installed plugin stopped is told as it is on record; its settings are its own."""
    from importlib.metadata import EntryPoint, EntryPoints

    found = EntryPoints([EntryPoint("quota", "quota:Quota", "otel_toolguard.plugins")])
    monkeypatch.setattr("otel_toolguard.cli.explain.entry_points", lambda group: found.select(group=group))
    answer, words = told(GOOD | {"rule": "quota", "members": [], "period": None})
    assert (answer["changes"], answer["compared"]) == ([], None)
    assert "quota counted 5 of what it counts" in words


def test_what_cannot_be_tried_is_not_claimed():
    """A session too long to rebuild, and settings that cannot stand, are told as not checked."""
    plain = trip("call_ceiling", new, chain({"plugin": "call_ceiling", "run": 7}))
    answer, words = told(plain | {"limit": 10**9, "observed": 10**9, "why": ""})
    (change,) = answer["changes"]
    assert (change["checked"], change["base"]) == (None, None)
    assert "checked by replay: no (a session of more than" in words
    answer, words = told(plain | {"limit": 7, "observed": 2, "why": ""})  # no rule trips below its limit
    assert answer["changes"][0]["checked"] is False
    assert "the old settings do not stop it" in words


def test_the_lines_of_replay_and_the_runs_of_demo(tmp_path):
    """A trip is found under "trip", "trips" or "runs", on JSON lines too; what is not on record is left out."""
    rows = [{"session": "s9", "i": i, "tool": "bash", "arguments": {"command": "make"}, "result": "x", "failed": True}
            for i in range(30)]  # fmt: skip
    file = tmp_path / "f.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    replayed = CliRunner().invoke(app, ["replay", str(file), "--profile", "conservative", "--json"]).stdout
    (answer,) = [json.loads(line) for line in run(replayed, "--json").stdout.splitlines()]
    assert (answer["rule"], answer["session_id"], answer["changes"][0]["checked"]) == ("stagnation", "s9", True)
    plain = trip("repeat_guard", two * 9, chain({"plugin": "repeat_guard", "limit": 5}))
    runs = json.dumps({"runs": [{"name": "healthy", "trip": None}, {"name": "loop", "trip": plain}]})
    assert "1. look" in run(runs).stdout
    assert len(run(json.dumps({"trips": [plain, plain]}), "--json").stdout.splitlines()) == 2
    lines = json.dumps(plain) + "\n\n" + json.dumps({"trip": plain}) + "\n"
    assert len(run(lines, "--json").stdout.splitlines()) == 2
    assert "── -:3: trip" in run(lines).stdout


def test_no_trip_is_no_error():
    """A run that nobody stopped is told as that."""
    done = run(json.dumps({"trip": None}))
    assert done.stdout == ""
    assert "nothing to explain" in done.stderr


GOOD = trip("repeat_guard", two * 9, chain({"plugin": "repeat_guard", "limit": 5}))
BAD = [
    ("{", "-:1: is no JSON"),
    ('{\n "rule": }', "-:2: is no JSON: Expecting value at column 10"),
    ("", "is no JSON"),
    ("[" * 200_000, "nested too deeply"),
    ("3", "is no trip but int"),
    ("null", "is no trip but null"),
    ("{}", "key 'rule' is missing"),
    ('{"trip": 3}', "-: trip: is no trip but int"),
    ('{"runs": [{"trip": null}, {"trip": {"rule": "repeat_guard"}}]}', "-: runs[1]: trip: key 'scope' is missing"),
    (json.dumps(GOOD) + "\n{\n", "-:2: is no JSON"),
    ('{"error": "circuit_open", "rule": "repeat_guard"}', "what the model was told"),
    *(
        (json.dumps(GOOD | changed), said)
        for changed, said in [
            ({"rule": "no_such_rule"}, "unknown rule 'no_such_rule'; known are call_ceiling"),
            ({"rule": None}, "unknown rule None"),
            ({"rule": "classify"}, "unknown rule 'classify'"),
            ({"limit": None}, "key 'limit' is missing"),
            ({"observed": "8"}, "observed is '8', not a number"),
            ({"limit": 10**400}, "limit is 1000"),
            ({"scope": "world"}, "scope is 'world', not one of signature, tool, run, session"),
            ({"period": 0}, "period is 0, not a whole number of at least 1"),
            ({"tool_class": "wizardry"}, "tool_class is 'wizardry'"),
            ({"why": 3}, "why is 3, not a string"),
            ({"members": 3}, "members is no list"),
            ({"members": [3]}, "members[0] is no object"),
            ({"members": [{"tool": "a"}]}, "members[0]: key 'signature' is missing"),
            ({"in_flight": [{"tool": "a"}]}, "in_flight[0]: key 'signature' is missing"),
        ]
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_input_is_named_with_its_place(text, said):
    """What is no trip exits with 2, says where and why, and prints nothing."""
    done = run(text, "--json", code=2)
    assert said in done.stderr
    assert done.stdout == ""


def test_files_that_are_no_text(tmp_path):
    """A missing file, a folder, bytes that are no UTF-8 and a huge file are told by name; a byte order mark is none."""
    path = tmp_path / "trip.json"
    path.write_bytes(b'{"rule": "\xff"}')
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(20 << 20)
    for file, said in ((path, "is no UTF-8 text at byte 10"), (huge, "is longer than 16 MiB"), (tmp_path, "cannot be read"),
                       (tmp_path / "none.json", "cannot be read")):  # fmt: skip
        done = CliRunner().invoke(app, ["explain", str(file)])
        assert done.exit_code == 2
        assert f"{file}: {said}" in done.stderr
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert CliRunner().invoke(app, ["explain", str(path)]).exit_code == 0


def test_names_may_hold_anything(tmp_path):
    """Tools named with quotes, globs, escapes or lone surrogates still give settings that load."""
    for name in ('get_"x"', "get_*[a]?", "get_\x1b[31m\n", "get_\ud800", "get_\x7f"):
        plain = GOOD | {"tool": name, "members": [{"tool": name, "signature": "a:1", "arguments": {}}], "period": 1,
                        "loop_type": "exact_repeat", "tool_class": "read"}  # fmt: skip
        answer, words = told(plain)
        assert "\x1b" not in words
        assert [change["kind"] for change in answer["changes"]] == ["poll", "limit"]
        assert [change["checked"] for change in answer["changes"]] == [True, True]
        settings_of(answer["changes"][0], tmp_path)


def test_standard_input_is_read_as_bytes(monkeypatch, capsys):
    """Text streams without bytes behind them work as well."""
    from otel_toolguard.cli.explain import explain

    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(GOOD)))
    assert explain("-", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["rule"] == "repeat_guard"


def test_the_environment_does_not_count(monkeypatch):
    """The check reads no TOOLGUARD_ variable."""
    monkeypatch.setenv("TOOLGUARD_PROFILE", "crucible")
    monkeypatch.setenv("TOOLGUARD_MODE", "off")
    assert told(GOOD)[0]["changes"][0]["checked"] is True


def test_the_documented_settings_load(tmp_path):
    """The TOML in docs/detection.md are policies: one with fewer laps for short cycles, one with a poller."""
    text = (Path(__file__).parents[2] / "docs" / "detection.md").read_text(encoding="utf-8")
    stricter, polling = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    assert dict(settings_of({"toml": stricter}, tmp_path).plugins)["repeat_guard"].limits == {2: 3, 3: 3}
    assert settings_of({"toml": polling}, tmp_path).tool("get_build").poll is True
