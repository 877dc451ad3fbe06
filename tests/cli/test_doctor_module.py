"""What doctor says of the tools in a module, and of globs that match none of them."""

from __future__ import annotations

import sys
from itertools import count

import pytest
from typer.testing import CliRunner

from otel_toolguard.cli.app import app

from .doctored import SECRET, clean, page, report

_number = count()
TOOLS = """
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.tools import tool
from otel_toolguard import Policy, guard_tool
from otel_toolguard_langchain import ToolGuardMiddleware

print("noise on standard output")

@guard_tool
def search(q: str) -> str:
    return q

@guard_tool(name="web_fetch")
def fetch(url: str) -> str:
    return url

@tool
def delete_file(path: str) -> str:
    "Deletes."
    return path

@tool
@guard_tool
def read_file(path: str) -> str:
    "Reads."
    return path

class Mailbox:
    @guard_tool
    def send(self, text: str) -> str:
        return text

def make():
    @tool
    def in_agent(path: str) -> str:
        "Inside."
        return path
    return [in_agent]

def _private(): ...

MODEL = FakeListChatModel(responses=["x"])
agent = create_agent(MODEL, make(), middleware=[ToolGuardMiddleware()])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of its own name where the command runs, and perhaps a settings file; gives the name."""
    monkeypatch.chdir(tmp_path)
    made = []

    def write(code, settings=None):
        name = f"doctored_{next(_number)}"
        made.append(name)
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        clean(monkeypatch)
        if settings is not None:
            (tmp_path / "guard.toml").write_text(settings, encoding="utf-8")
            monkeypatch.setenv("TOOLGUARD_CONFIG", "guard.toml")
        return name

    path = list(sys.path)
    yield write
    assert sys.path == path
    for name in made:
        sys.modules.pop(name, None)


def test_guarded_and_unguarded_tools(module):
    """Functions, methods, tool objects and the tools of agents are told apart by what leads to a guard."""
    told = report(module(TOOLS))["module"]
    assert set(told["guarded"]["tools"]) == {"search", "web_fetch", "read_file", "send", "in_agent"}
    assert (told["unguarded"]["level"], told["unguarded"]["tools"]) == ("warn", ["delete_file"])
    assert "opentelemetry-instrument otel-toolguard-langchain" in told["unguarded"]["advice"]
    assert told["functions"]["functions"] == ["make"]


def test_a_tool_that_is_guarded_in_another_agent_alone(module):
    """What guards a tool in one agent does not hide that nothing does in another; an agent under guard is not named."""
    bare = "in_agent = make()\nguarded = create_agent(MODEL, in_agent, middleware=[ToolGuardMiddleware()])\n"
    name = module(TOOLS + bare + "bare = create_agent(MODEL, in_agent)\n")
    told = report(name)["module"]
    assert (told[f"{name}.bare"]["level"], told[f"{name}.bare"]["tools"]) == ("warn", ["in_agent"])
    assert {f"{name}.agent", f"{name}.guarded"}.isdisjoint(told)


@pytest.mark.parametrize(
    ("globs", "name", "level", "words"),
    [
        (["read_*"], "read_*", "ok", "read_file"),
        (["in_agent"], "in_agent", "ok", "in_agent"),
        (["web_fetch"], "web_fetch", "ok", "web_fetch"),
        (["serch"], "serch", "fail", "did you mean search?"),
        (["zzz*"], "zzz*", "fail", "tools here are search"),
        (["*_file", "read_*"], "read_*", "fail", "an earlier glob takes all"),
        (["*_file", "*_fetch"], "*_fetch", "ok", "web_fetch"),
        (["mak*"], "mak*", "warn", "only functions"),
        (["fetch"], "fetch", "fail", "matches no tool"),
    ],
)
def test_globs_of_tools(globs, name, level, words, module):
    """A glob that matches no tool, or only what an earlier one takes, fails with what may have been meant."""
    settings = "".join(f'[tools."{glob}"]\npoll = true\n' for glob in globs)
    found = report(module(TOOLS, settings), code=int(level == "fail"))["module"][f'tools."{name}"']
    assert found["level"] == level
    assert words in found["text"] + found["advice"]


def test_globs_of_ceilings(module):
    """The globs of a ceiling's tools are looked at like those of settings."""
    chain = '[[tool_plugins]]\nplugin = "call_ceiling"\nrun = 90\ntools = { "send*" = 3, "sned" = 2 }\n'
    told = report(module(TOOLS, chain), code=1)["module"]
    assert told['call_ceiling tools."send*"']["level"] == "ok"
    assert told['call_ceiling tools."sned"']["advice"] == "did you mean send?"


def test_globs_without_a_module_are_a_note(module):
    """Without a module nobody can say what globs match, which is said."""
    module("", '[tools."x"]\npoll = true\n')
    assert "doctor MODULE" in report()["policy"]["globs"]["text"]


def test_a_policy_of_code(module):
    """A policy that the module makes is named with what it says otherwise than the environment; its globs count."""
    name = module(TOOLS + 'P = Policy("strict", tools={"gone*": {"poll": True}})\n')
    told = report(name, code=1)["module"]
    assert set(told[f"{name}.P"]["from_code"]) == {"profile", "tool_plugins", "tools"}
    assert told[f'{name}.P: tools."gone*"']["level"] == "fail"


def test_globs_over_several_modules(module):
    """A glob may match in any of the modules that are named."""
    first = module(TOOLS)
    second = module(
        "from otel_toolguard import guard_tool\n@guard_tool\ndef wait(): ...\n", '[tools."wait"]\npoll = true\n'
    )
    assert report(first, second)["module"]['tools."wait"']["level"] == "ok"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_thing_at_all", "ModuleNotFoundError: No module named 'no_such_thing_at_all'"),
        ("raise ValueError('broken\\nin two lines')", "ValueError: broken in two lines"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise BaseExceptionGroup('x', [ValueError()])", "ExceptionGroup"),
    ],
)
def test_an_import_that_fails(code, words, module):
    """A module that cannot be imported is one failing line with the exception; the rest of the page is there."""
    name = module(code)
    told = report(name, code=1)
    assert (told["module"][name]["level"], told["policy"]["mode"]["level"]) == ("fail", "ok")
    assert words in told["module"][name]["error"]


def test_a_module_that_is_not_there(module):
    """A name that nothing is found under says where to run."""
    module("")
    assert "python -m no_such_module" in report("no_such_module", code=1)["module"]["no_such_module"]["advice"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("my_agent/tools.py", "my_agent.tools"),
        ("./lc", "lc"),
        ("lc.py", "lc"),
        ("a-b", "a-b"),
        ("", "my_agent.tools"),
        ("a..b", "a..b"),
        ("-m", "-m"),
    ],
)
def test_what_is_no_name_of_a_module(name, meant, tmp_path, monkeypatch):
    """A path, a file, or a word that no module can have, is a usage error that says how a name is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lc.py").touch()
    clean(monkeypatch)
    done = CliRunner().invoke(app, ["doctor", "--", name])
    assert done.exit_code == 2
    assert done.stderr.endswith(f"such as {meant}\n")


def test_a_file_that_is_not_here(module):
    """The name of a file that is not there says how a name is written."""
    module("")
    assert "such as gone" in report("gone.py", code=1)["module"]["gone.py"]["advice"]


HOSTILE = """
class Liar:
    def __getattr__(self, name): raise OSError("no")
    @property
    def __class__(self): raise RuntimeError("no")
liar, more = Liar(), [[[[[Liar()]]]]]
loop = []
loop.append(loop)
"""


def test_hostile_objects_are_survived(module):
    """Objects that raise when they are looked at, and lists inside themselves, do no harm; no tool is a warning."""
    assert report(module(HOSTILE))["module"]["tools"]["level"] == "warn"


def test_what_a_module_prints_is_no_part_of_the_report(module):
    """A module's own words on standard output do not spoil the JSON, nor the page."""
    assert "noise" not in page(module(TOOLS))


def test_defaults_of_tools_are_not_shown(module):
    """Nothing of what the module's values say is printed, only names."""
    name = module(f"from otel_toolguard import guard_tool\nKEY = '{SECRET}'\n@guard_tool\ndef t(k='{SECRET}'): ...\n")
    assert SECRET not in page(name) + page(name, "--json")
