"""The commands inspect and check, and what stands around all of them."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from otel_toolguard import cli
from otel_toolguard.cli.app import app


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("CONFIG", "PROFILE", "MODE", "SIGNATURE_KEY"):
        monkeypatch.delenv("TOOLGUARD_" + name, raising=False)


def run(*arguments, code=0):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done


def inspected(*arguments):
    return json.loads(run("inspect", *arguments, "--json").stdout)


def test_inspect_tells_what_the_rules_see():
    """Class, risk, programs, signature, masked result and the reason of the class are told."""
    answer = inspected("--tool", "bash", "--args", '{"command": "cd x && make"}', "--result", "built at 10:11:12")
    assert list(answer) == ["class", "risk", "programs", "signature", "masked_result", "why"]
    assert (answer["class"], answer["programs"]) == ("build", ["cd", "make"])
    assert answer["signature"].startswith("bash:")
    assert "10:11:12" not in answer["masked_result"]
    assert inspected("--tool", "bash")["masked_result"] is None


def test_inspect_signs_under_the_set_key(monkeypatch):
    """Key order does not change a signature, the key from the environment does."""
    first = inspected("--tool", "t", "--args", '{"a": 1, "b": 2}')["signature"]
    assert inspected("--tool", "t", "--args", '{"b": 2, "a": 1}')["signature"] == first
    monkeypatch.setenv("TOOLGUARD_SIGNATURE_KEY", "mine")
    assert inspected("--tool", "t", "--args", '{"a": 1, "b": 2}')["signature"] != first


def test_inspect_in_words():
    """Without --json the same is told one line each."""
    text = run("inspect", "--tool", "read_file").stdout
    assert "class          read\n" in text
    assert "masked" not in text


@pytest.mark.parametrize(
    ("args", "said"),
    [('{"a": }', "line 1, column 7"), ("[1]", "must be a JSON object"), ("[" * 200_000, "cannot be read")],
)
def test_inspect_names_what_is_wrong_with_arguments(args, said):
    """Arguments that are no JSON object are a usage error that says where."""
    assert said in run("inspect", "--tool", "t", "--args", args, code=2).stderr


@pytest.fixture
def settings(tmp_path):
    def write(text):
        path = tmp_path / "guard.toml"
        path.write_text(text)
        return str(path)

    return write


def test_check_prints_the_effective_chain(settings):
    """A good file gives its chain, with the limits that count, and ok."""
    path = settings('profile = "strict"\n[tools."search_*"]\nclass = "network"\n')
    text = run("check", path).stdout
    assert "repeat_guard  limit = 7" in text
    assert "search_*" in text
    assert text.endswith("\nok\n")
    answer = json.loads(run("check", path, "--json").stdout)
    assert answer["ok"] is True
    assert answer["policy"]["profile"] == "strict"


def test_check_names_file_line_and_choices(settings):
    """A wrong parameter is told with file, line and the valid ones, and exits with 2."""
    path = settings('[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\nlimits_ = 3\n')
    said = run("check", path, code=2).stderr
    assert f"{path}:4: " in said
    assert "valid parameters are limit" in said
    answer = json.loads(run("check", path, "--json", code=2).stdout)
    assert answer["ok"] is False
    assert f"{path}:4: " in answer["error"]


def test_check_prints_warnings_and_passes(settings):
    """What is merely hard to reach is printed and does not fail the check."""
    path = settings(
        '[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 9\n[[tool_plugins]]\nplugin = "call_ceiling"\nrun = 20\n'
    )
    assert "warning: " in run("check", path).stdout
    assert json.loads(run("check", path, "--json").stdout)["warnings"]


def test_check_ignores_the_environment(settings, monkeypatch):
    """A file is judged by itself, whatever TOOLGUARD_PROFILE says where the check runs."""
    monkeypatch.setenv("TOOLGUARD_PROFILE", "strict")
    assert json.loads(run("check", settings('profile = "conservative"\n'), "--json").stdout)["policy"]["profile"] == (
        "conservative"
    )


def test_without_the_extra_one_sentence(monkeypatch, capsys):
    """Without typer or rich the command says what to install and exits with 2."""
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert 'pip install "otel-toolguard[cli]"' in capsys.readouterr().err


def test_version_and_help():
    """--version prints the version, no command prints the help, an unknown one is a usage error."""
    assert run("--version").stdout.strip()
    assert "replay" in run("--help").stdout
    run("no-such-command", code=2)


def test_inspect_imports_nothing_heavy():
    """Looking at one call starts without settings, OpenTelemetry and rich."""
    code = ("import sys; from otel_toolguard.cli.app import app; app(['inspect', '--tool', 't'], standalone_mode=False);"
            "print(sorted({'otel_toolguard.settings', 'opentelemetry', 'rich', 'wrapt'} & set(sys.modules)))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr
