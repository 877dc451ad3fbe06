"""The rules as the hook command reads them: from its cache, and the same as the library's own."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_toolguard import Policy, SettingsError
from otel_toolguard.cli import hook_rules
from otel_toolguard.core.canonical import Signer
from otel_toolguard.outcomes import OK, failed_result, of_result, outcome
from otel_toolguard.settings import PROFILES
from otel_toolguard.tool import Tool

SIGNER = Signer(b"key")
NAMES = ("Bash", "Read", "Write", "Edit", "WebFetch", "Agent", "TaskOutput", "mcp__github__get_issue", "run_shell_command",
         "str_replace_based_edit_tool", "sleep", "(malformed)", "TodoWrite", "poll_status", "x" * 300, "\ud800")  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["ls 12", "rm -rf /", "pytest -q", "view", "create", "grep x y"])
)
VALUES = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))  # fmt: skip
ARGUMENTS = st.one_of(
    TEXTS,
    st.dictionaries(st.sampled_from(["command", "cmd", "cwd", "workdir", "path", "script", "n"]), VALUES, max_size=4),
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder for the cache, and an environment that says nothing else."""
    for name in (*hook_rules.SOURCES, hook_rules.SECRET):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "otel-toolguard" / hook_rules.NAME


def plain_of(call):
    """All that a call says, for comparing."""
    return {name: getattr(call, name) for name in type(call).__slots__}


def light(profile="balanced"):
    """The rules of a profile as they are when they come from the cache."""
    os.environ["TOOLGUARD_PROFILE"] = profile
    try:
        hook_rules.load()
        found = hook_rules.load()
    finally:
        del os.environ["TOOLGUARD_PROFILE"]
    assert found.policy is None
    return found


@given(st.sampled_from(NAMES), ARGUMENTS, st.sampled_from([None, "/repo"]))
def test_a_call_is_described_as_the_library_describes_it(tool, arguments, where):
    """Signature, shape, class, patience and all else are those that ``Tool`` gives the same call."""
    policy = Policy.profile("balanced")
    rules = hook_rules.Rules(PLAIN, None)
    said = arguments if isinstance(arguments, dict) else {}
    world = next(
        (
            said[name]
            for name in ("cwd", "working_dir", "working_directory", "workdir")
            if isinstance(said.get(name), str)
        ),
        where,
    )
    theirs = Tool(tool).call(arguments, policy, SIGNER, "id", agent="a", world=world)
    ours = rules.call(SIGNER, tool, arguments, call_id="id", agent="a", where=where)
    assert repr(plain_of(ours)) == repr(plain_of(theirs))


PLAIN = {"mode": "enforce", "observe": False, "lasting": False, "nudge": False, "capture": False, "patience": 10,
         "plugins": [["repeat_guard", "RepeatGuard", {"limit": 8}], ["stagnation", "Stagnation", {"limit": 12.0}]]}  # fmt: skip


@given(VALUES, st.one_of(st.none(), TEXTS))
def test_a_result_is_compared_as_the_library_compares_it(result, error):
    """Kind, failure and fingerprints are those of ``outcome``, for answers and for failures."""
    rules = hook_rules.Rules(PLAIN, None)
    call = rules.call(SIGNER, "Read", {}, call_id=None, agent=None, where=None)
    ended = of_result(call, result) if error is None else failed_result(error)
    theirs = outcome(ended, result if error is None else error, 0.002, SIGNER, rules.chain.needs)
    ours = rules.ended(SIGNER, "Read", {}, result, error, cancelled=False)(2.0)
    assert ours.to_plain() == theirs.to_plain()


@pytest.mark.parametrize("result", [{"exit_code": 2}, {"exit_code": 0}, {"returncode": True}, {"exitCode": "1"}])
def test_an_exit_code_in_a_result_is_read_as_the_library_reads_it(result):
    """A number other than 0 is a failure, anything else is none."""
    rules = hook_rules.Rules(PLAIN, None)
    call = rules.call(SIGNER, "Read", {}, call_id=None, agent=None, where=None)
    theirs = outcome(of_result(call, result), result, 0.001, SIGNER, rules.chain.needs)
    assert rules.ended(SIGNER, "Read", {}, result, None, cancelled=False)(1.0).to_plain() == theirs.to_plain()


@pytest.mark.parametrize(
    ("command", "error", "kind"),
    [("grep -rn x .", "Exit code 1", "ok"), ("grep -rn x .", "Exit code 2\nno such file", "failed"),
     ("make", "Exit code 1\nstop", "failed"), ("diff a b", "Exit code 1\n1c1", "ok"), ("grep x", "timed out", "failed")],
)  # fmt: skip
def test_one_is_an_answer_of_some_commands(command, error, kind):
    """Exit code 1 of grep and diff is no failure; a worse code, or that of another command, is one."""
    rules = hook_rules.Rules(PLAIN, None)
    assert rules.ended(SIGNER, "Bash", {"command": command}, None, error, cancelled=False)(None).kind == kind


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_cache_holds_every_profile(profile):
    """From the cache come the same plugins with the same settings as from the policy."""
    ours, theirs = light(profile).chain, Policy.profile(profile).chain
    assert [type(plugin) for plugin in ours.plugins] == [type(plugin) for plugin in theirs.plugins]
    assert [described(plugin) for plugin in ours.plugins] == [described(plugin) for plugin in theirs.plugins]
    assert (ours.needs, ours.observe, ours.lasting_stop, ours.nudge_on_warn) == (
        theirs.needs, theirs.observe, theirs.lasting_stop, theirs.nudge_on_warn,
    )  # fmt: skip


def described(plugin):
    """What a plugin was made of."""
    names = [name for kind in type(plugin).__mro__ for name in getattr(kind, "__slots__", ())]
    return repr({name: getattr(plugin, name) for name in (*names, *getattr(plugin, "__dict__", ()))})


def test_a_changed_settings_file_is_seen_at_once(tmp_path, monkeypatch):
    """The cache is asked under the file's very bytes, so that an edit counts for the next event."""
    file = tmp_path / "rules.toml"
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    for limit in (3, 4, 3):
        file.write_text(f'tool_plugins = [{{ plugin = "call_ceiling", run = {limit} }}]\n', encoding="utf-8")
        assert hook_rules.load().chain.plugins[0].run == limit
    monkeypatch.setenv("TOOLGUARD_MODE", "off")
    assert hook_rules.load().mode == "off"


@pytest.mark.parametrize(
    "text",
    ['[tools."Read"]\nenabled = false\n', '[tools."Read"]\nlimits = {repeat_guard = 3}\n'],
)
def test_what_the_cache_cannot_hold_is_read_each_time(text, place, tmp_path, monkeypatch):
    """Settings of single tools never reach the cache, and count all the same."""
    file = tmp_path / "rules.toml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    rules = hook_rules.load()
    assert rules.policy is not None
    assert not place.exists()
    call = rules.call(SIGNER, "Read", {"file_path": "/a"}, call_id="1", agent=None, where=None)
    if "enabled" in text:
        assert call is None
    else:
        theirs = Tool("Read").call({"file_path": "/a"}, Policy.from_toml(file), SIGNER, "1")
        assert call.to_plain() == theirs.to_plain()
    done = rules.ended(SIGNER, "Read", {}, "text", None, cancelled=False)(2.0)
    assert done.to_plain() == outcome(OK, "text", 0.002, SIGNER, rules.chain.needs).to_plain()
    assert rules.ended(SIGNER, "Read", {}, None, "429", cancelled=False)(None).kind == "failed"


def test_a_secret_of_the_environment_is_used_and_never_written(place, monkeypatch):
    """The key is that of the variable, before and after the cache is there, which does not hold it."""
    monkeypatch.setenv(hook_rules.SECRET, "hush-hush")
    assert [hook_rules.load().key for _ in range(2)] == [b"hush-hush"] * 2
    assert place.exists()
    assert "hush" not in place.read_text(encoding="ascii")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"KEY": 1}', '{"KEY": {}}', "[" * 100_000, "BAD"], ids=range(8)
)
def test_a_spoilt_cache_is_read_past_and_mended(text, place):
    """Whatever is in the cache instead, the rules are those of the settings, and it is right again afterwards."""
    light()
    whole = json.loads(place.read_text(encoding="ascii"))
    key = next(iter(whole))
    os.environ["TOOLGUARD_PROFILE"] = "balanced"
    bad = json.dumps({key: whole[key] | {"plugins": [["../os", "system", {}]]}})
    place.write_text(bad if text == "BAD" else text.replace("KEY", key), encoding="ascii")
    try:
        rules = hook_rules.load()
    finally:
        del os.environ["TOOLGUARD_PROFILE"]
    assert [type(plugin) for plugin in rules.chain.plugins] == [
        type(plugin) for plugin in Policy.profile("balanced").chain.plugins
    ]
    assert json.loads(place.read_text(encoding="ascii"))[key] == whole[key]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs file modes")
def test_a_cache_that_others_may_write_is_not_believed(place):
    """Who may write it decides what is judged, so one with a wide mode counts for nothing."""
    light()
    whole = json.loads(place.read_text(encoding="ascii"))
    place.write_text(json.dumps({key: entry | {"mode": "off"} for key, entry in whole.items()}), encoding="ascii")
    place.chmod(0o666)
    assert hook_rules._read(place) == {}
    assert light().mode == "enforce"


def test_a_cache_that_cannot_be_written_is_done_without(place):
    """Where its folder cannot be made the settings are read each time."""
    place.parent.write_text("in the way", encoding="ascii")
    assert hook_rules.load().mode == "enforce"
    assert hook_rules.load().mode == "enforce"


def test_the_cache_stays_small(place, monkeypatch, tmp_path):
    """Of many settings only the newest are remembered."""
    file = tmp_path / "rules.toml"
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(file))
    for limit in range(1, hook_rules.KEPT + 5):
        file.write_text(f'tool_plugins = [{{ plugin = "call_ceiling", run = {limit} }}]\n', encoding="utf-8")
        hook_rules.load()
    assert len(json.loads(place.read_text(encoding="ascii"))) == hook_rules.KEPT
    assert not list(place.parent.glob(f"{hook_rules.NAME}.*"))


def test_settings_that_cannot_be_honoured_are_said(monkeypatch):
    """An unknown profile is the same error as everywhere."""
    monkeypatch.setenv("TOOLGUARD_PROFILE", "nobody")
    with pytest.raises(SettingsError, match="nobody"):
        hook_rules.load()
