"""Zero-code: nothing in the application knows of the guard."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from agents import AgentBase, RunHooks, Runner, function_tool
from agents.run import AgentRunner
from otel_toolguard_openai_agents import ToolGuardOpenAIAgentsInstrumentor, guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Session, guard_tool

from . import scripted as s

HERE = Path(__file__).parent


@pytest.fixture
def instrumentor(traced):
    made = ToolGuardOpenAIAgentsInstrumentor()
    made.instrument(tracer_provider=traced.provider)
    yield made
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


@pytest.mark.parametrize("run", s.WAYS)
def test_instrumented_program_is_stopped(run, instrumentor, traced):
    """A program that knows nothing of the guard is stopped by the default rules; its spans go to the given provider."""
    seen = s.look_up()
    agent = s.agent(s.for_ever("search"), [seen.tool])
    with pytest.raises(CircuitOpen) as caught:
        run(agent, "Find the word.")
    assert 2 <= seen.bodies <= 8
    assert seen.bodies == agent.model.asked == len(traced.spans()) == caught.value.trip.at_call
    assert caught.value.partial.last_agent is agent
    assert s.mispaired(caught.value.to_input_list()) == ""


@pytest.mark.parametrize("run", s.WAYS)
def test_whole_tree_of_an_instrumented_program(run, instrumentor, traced):
    """Agents reached by hand-off, agents that are tools, and agents that a tool's function runs are one guarded tree."""
    seen = s.look_up()
    deep = s.agent(s.for_ever("search"), [seen.tool], name="deep", prefix="deep")

    @function_tool
    async def dig() -> str:
        """Runs an agent by itself."""
        return (await Runner.run(deep, "Find the word.")).final_output

    inner = s.agent(s.for_ever("dig"), [dig], name="inner", prefix="inner")
    clerk = s.agent(s.for_ever("ask", {"input": "x"}), [inner.as_tool("ask", "Asks.")], name="clerk", prefix="clerk")
    first = s.agent([[("transfer_to_clerk", {})]], handoffs=[clerk], name="first")
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen) as caught:
        run(first, "Find the word.")
    assert [agent.model.asked for agent in (deep, inner, clerk, first)] == [3, 1, 1, 1]
    assert (seen.bodies, session.report()["calls"], len(traced.spans())) == (3, 5, 5)
    assert caught.value.partial.last_agent is clerk
    assert {one.model for one in first.handoffs} == {clerk.model}


@pytest.mark.parametrize("tool", ["plain", "decorated", "decorated object"])
@pytest.mark.parametrize("agent", ["bare", "guarded"])
@pytest.mark.parametrize("hooks", ["none", "user's", "guarded"])
def test_everything_at_once_guards_once(tool, agent, hooks, instrumentor, traced):
    """Decorator, guarded agent, guarded hooks and instrumentor together count and trace each call once."""
    ran = []

    def search(q: str = "word") -> str:
        """Looks something up."""
        ran.append(q)
        return "nothing"

    given = s.bare(search if tool != "decorated" else guard_tool(search))
    given = guard_tool(given) if tool == "decorated object" else given
    bare = s.agent(s.for_ever("search", batch=2), [given])
    one = guard_agent(bare) if agent == "guarded" else bare
    more = {"none": None, "user's": RunHooks(), "guarded": guarded_hooks()}[hooks]
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        s.run(one, "Find the word.", hooks=more)
    assert (len(ran), session.report()["calls"], len(traced.spans())) == (6, 6, 6)
    assert bare.model.asked == 3


def test_an_agents_own_guard_decides(instrumentor, traced):
    """An agent that has a guard keeps to the rules of that, and is not gated by the instrumentor's as well."""
    seen = s.look_up()
    agent = guard_agent(s.agent([[("search", {})]] * 12, [seen.tool]), policy=s.ceiling(50))
    assert s.run(agent, "Find the word.", hooks=guarded_hooks(policy=s.ceiling(1))).final_output == s.DONE
    assert (seen.bodies, traced.spans()) == (12, [])


def bound():
    found = {
        (owner, name): vars(owner)[name]
        for owner in (AgentRunner, Runner)
        for name in ("run", "run_sync", "run_streamed")
    }
    return found | {(AgentBase, "get_all_tools"): vars(AgentBase)["get_all_tools"]}


def test_every_binding_is_restored(instrumentor):
    """uninstrument() puts back the very objects, a second instrument() changes nothing, and it can all be done again."""
    during = bound()
    instrumentor.instrument()
    assert bound() == during
    instrumentor.uninstrument()
    bare = bound()
    assert len([key for key in bare if bare[key] is not during[key]]) == 3
    for _ in range(2):
        again = ToolGuardOpenAIAgentsInstrumentor()
        again.instrument()
        assert bound() != bare
        again.uninstrument()
        assert all(value is bare[key] for key, value in bound().items())


def everything():
    """Each attribute of each module and class of the SDK."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "agents"]
    kinds = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    return {(id(owner), name): value for owner in (*modules, *kinds) for name, value in dict(vars(owner)).items()}


@pytest.mark.parametrize("run", s.WAYS)
def test_nothing_of_the_sdk_is_changed_afterwards(run):
    """After a guarded run and uninstrument() each attribute of each module and class of the SDK is the same object."""
    instrumentor, before = ToolGuardOpenAIAgentsInstrumentor(), everything()
    instrumentor.instrument()
    agent = guard_agent(s.agent(s.for_ever("search"), [s.look_up().tool]))
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        run(agent, "Find the word.", hooks=guarded_hooks())
    instrumentor.uninstrument()
    after = everything()
    assert {key for key, value in before.items() if after.get(key, before) is not value} == set()


def test_what_others_put_there_since_stays(instrumentor):
    """A binding that somebody else has replaced meanwhile is left to them, and what is beneath it guards nothing."""
    stranger = AgentRunner.run

    async def other(self, *args, **kwargs):
        return await stranger(self, *args, **kwargs)

    AgentRunner.run = other
    instrumentor.uninstrument()
    assert vars(AgentRunner)["run"] is other
    seen = s.look_up()
    try:
        s.run(s.agent([[("search", {})]] * 20, [seen.tool]), "Find the word.")
    finally:
        AgentRunner.run = stranger.__wrapped__
    assert seen.bodies == 20


def test_before_and_after(instrumentor):
    """After uninstrument() runs are bare again, also of agents that were guarded before."""
    seen = s.look_up()
    agent = s.agent(lambda turn: [("search", {})] if turn % 21 else None, [seen.tool])
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    instrumentor.uninstrument()
    agent.model.histories.clear()
    with Session(policy=s.repeat(3)):
        s.run(agent, "Find the word.")
    assert seen.bodies == 23


def test_hooks_made_while_instrumented(instrumentor):
    """Guarded hooks that were made under the instrumentor guard when it is gone."""
    hooks, seen = guarded_hooks(), s.look_up()
    instrumentor.uninstrument()
    agent = s.agent(s.for_ever("search"), [seen.tool])
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.", hooks=hooks)
    assert seen.bodies <= 4  # where the SDK asks for the tools before its first hook, the first call is not counted


def test_wrong_hooks_are_the_sdks_affair(instrumentor):
    """Hooks of a wrong kind are refused by the SDK as they are without the guard."""
    with pytest.raises((TypeError, AttributeError)):
        s.run(s.agent([], []), "Find the word.", hooks=object())


def test_entry_point():
    """opentelemetry-instrument finds the adapter under its name, with the extra it reads the versions from."""
    (found,) = importlib.metadata.entry_points(group="opentelemetry_instrumentor", name="toolguard_openai_agents")
    assert found.load() is ToolGuardOpenAIAgentsInstrumentor
    requires = importlib.metadata.requires("otel-toolguard-openai-agents")
    assert any("openai-agents<1,>=0.12.0" in one and "instruments" in one for one in requires)


def run_python(code, *, under=(), **environment):
    """Runs code in a process of its own; returns its output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TOOLGUARD_", "PYTHONPATH"))}
    done = subprocess.run(
        [*under, sys.executable, "-c", textwrap.dedent(code)], env=kept | environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_without_the_sdk():
    """Where the SDK is absent the package imports, and instrument() says so instead of failing."""
    out = run_python(
        """
        import sys
        sys.modules["agents"] = None
        import importlib.metadata
        import opentelemetry.instrumentation.dependencies as dependencies
        def version(name):
            raise importlib.metadata.PackageNotFoundError(name)
        dependencies.version = version
        import otel_toolguard_openai_agents as package
        made = package.ToolGuardOpenAIAgentsInstrumentor()
        made.instrument()
        print("instrumented:", made.is_instrumented_by_opentelemetry)
        try:
            package.guard_agent
        except ImportError as error:
            print("no guard:", error)
        try:
            package.Nonsense
        except AttributeError as error:
            print(error)
        """
    )
    assert "instrumented: False" in out
    assert "no guard" in out
    assert "no attribute 'Nonsense'" in out


APPLICATION = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("scripted", {str(HERE / "scripted.py")!r})
s = sys.modules["scripted"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(s)
seen = s.look_up()
agent = s.agent(s.for_ever("search"), [seen.tool])
try:
    s.run(agent, "Find the word.", max_turns=50)
    ended = "returned"
except Exception as error:
    ended = type(error).__name__
print("RESULT", json.dumps([ended, seen.bodies, agent.model.asked]))
"""


@pytest.fixture
def configurator(tmp_path):
    """What opentelemetry-distro brings, where that is not installed: the entry point that sets the SDK up."""
    if importlib.metadata.entry_points(group="opentelemetry_configurator"):
        return ""
    folder = tmp_path / "configurator-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: configurator\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(
        "[opentelemetry_configurator]\nconfigurator = opentelemetry.sdk._configuration:_OTelSDKConfigurator\n"
    )
    return str(tmp_path)


def under_opentelemetry(**environment):
    """The unchanged application under opentelemetry-instrument."""
    program = Path(sys.executable).parent / "opentelemetry-instrument"
    out = run_python(
        APPLICATION, under=[str(program)], OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none", **environment
    )
    (line,) = [line for line in out.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT ")), out


def test_command_guards_an_unchanged_application(configurator):
    """opentelemetry-instrument alone guards the agent, and its spans go where OpenTelemetry's settings send them."""
    (ended, bodies, asked), out = under_opentelemetry(
        PYTHONPATH=configurator, OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="shop"
    )
    assert ended == "OpenAIAgentsStopped"
    assert 2 <= bodies == asked <= 8
    assert out.count('"name": "execute_tool search"') == bodies
    assert out.count('"toolguard.tripped": true') == 1
    assert '"service.name": "shop"' in out


def test_command_with_the_adapter_disabled():
    """OpenTelemetry's own switch turns the adapter off by its entry point's name."""
    (ended, bodies, _), _ = under_opentelemetry(
        OTEL_TRACES_EXPORTER="none", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="toolguard_openai_agents"
    )
    assert (ended, bodies) == ("MaxTurnsExceeded", 50)


def test_command_reads_our_settings(tmp_path):
    """Limits come from a settings file, and observing from the environment, without a line of code."""
    file = tmp_path / "guard.toml"
    file.write_text('[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\n')
    result, _ = under_opentelemetry(OTEL_TRACES_EXPORTER="none", TOOLGUARD_CONFIG=str(file))
    assert result == ["OpenAIAgentsStopped", 3, 3]
    result, _ = under_opentelemetry(OTEL_TRACES_EXPORTER="none", TOOLGUARD_CONFIG=str(file), TOOLGUARD_MODE="observe")
    assert result == ["MaxTurnsExceeded", 50, 50]


def test_example():
    """The example in examples/ runs as it stands, goes to the SDK's cap without the guard, is stopped with it, and goes on."""
    out = run_python(
        f"import runpy; runpy.run_path({str(HERE.parent / 'examples' / 'agent.py')!r}, run_name='__main__')"
    )
    assert "without the guard: 50 searches" in out
    assert "stopped after" in out
    assert "each call answered" in out
    searches = out.split("stopped after ")[1].split()[0]
    assert f"the next run goes on from there: {searches} searches found nothing." in out


def test_session_block_and_threads(instrumentor, traced):
    """Runs in threads of their own, each with its own loop, are runs of their own in one session."""
    import threading

    results = []
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session:

        def work():
            agent = s.agent([[("search", {})]] * 2, [s.look_up().tool])
            results.append(asyncio.run(Runner.run(agent, "Find the word.")).final_output)

        threads = [threading.Thread(target=session.bind(work)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [s.DONE] * 4
    assert session.report()["calls"] == 8
