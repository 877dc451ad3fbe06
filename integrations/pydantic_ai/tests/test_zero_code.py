"""Zero-code: nothing in the application knows of the guard."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from otel_toolguard_pydantic_ai import ToolGuard, ToolGuardPydanticAIInstrumentor
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.capabilities import AbstractCapability

from otel_toolguard import CircuitOpen, Session, guard_tool
from otel_toolguard.testing.scripts import DONE, for_ever

from . import scripted as s

HERE = Path(__file__).parent
ORIGINAL = vars(Agent)["iter"]


@pytest.fixture
def instrumentor(traced):
    made = ToolGuardPydanticAIInstrumentor()
    made.instrument(tracer_provider=traced.provider)
    yield made
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


def an_agent(seen, **more):
    model = s.ScriptedModel(for_ever("search"))
    return Agent(model, tools=[seen.tool], **more), model


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("wrapped", [False, True], ids=["agent", "wrapped agent"])
def test_instrumented_agent_is_stopped(wrapped, run, instrumentor, traced):
    """Each way to run an agent is guarded by the default rules, and its spans go to the given provider."""
    seen = s.look_up()
    agent, model = an_agent(seen)
    with pytest.raises(CircuitOpen) as caught:
        run(WrapperAgent(agent) if wrapped else agent, "Find the word.")
    assert 2 <= seen.bodies <= 8
    assert seen.bodies == model.asked == len(traced.spans()) == caught.value.trip.at_call
    assert s.mispaired(caught.value.partial["messages"]) == ""


def test_agents_made_before_and_after(traced):
    """An agent made before instrument() is guarded while it lasts; afterwards none is."""
    agent, model = an_agent(s.look_up())
    model.script = lambda turn: [("search", {})] if turn % 40 else None
    made = ToolGuardPydanticAIInstrumentor()
    made.instrument(tracer_provider=traced.provider)
    try:
        with pytest.raises(CircuitOpen):
            s.run_sync(agent, "Find the word.")
    finally:
        made.uninstrument()
    spans = len(traced.spans())
    unlimited = UsageLimits(request_limit=None)
    assert s.run_sync(agent, "Find the word.", usage_limits=unlimited).output == DONE
    assert len(traced.spans()) == spans
    assert model.asked == 40
    assert vars(Agent)["iter"] is ORIGINAL


@pytest.mark.parametrize("where", ["agent", "run", "by a function", "twice"])
def test_one_guard_in_a_run(where, instrumentor, traced):
    """Beside a capability and a decorator each call is counted and traced once, whether it reached a tool or not."""
    guard, bodies = ToolGuard(), []

    @guard_tool
    def search(q: str = "word") -> str:
        bodies.append(q)
        return "nothing"

    given = {"agent": [guard], "by a function": [lambda ctx: guard], "twice": [guard, guard], "run": []}[where]
    model = s.ScriptedModel(lambda turn: [("search", {}), ("search", {"wrong": 1}), ("unheard_of", {})])
    agent = Agent(model, tools=[search], capabilities=given, retries=20)
    with Session(policy=s.repeat(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen) as stopped:
        s.run_sync(agent, "Find the word.", capabilities=[guard] if where == "run" else [])
    assert len(bodies) == model.asked == 3
    ids = [span.attributes["gen_ai.tool.call.id"] for span in traced.spans()]
    assert sorted(ids) == [f"call-{turn}-{n}" for turn in (1, 2, 3) for n in (0, 1, 2)]
    assert s.mispaired(stopped.value.partial["messages"]) == ""


@pytest.mark.parametrize("where", ["agent", "run"])
def test_rules_of_the_guard_by_hand(where, instrumentor, traced):
    """The rules of a guard that the application set up hold."""
    guard = ToolGuard(s.repeat(3), telemetry=traced.telemetry)
    agent, model = an_agent(s.look_up(), capabilities=[guard] if where == "agent" else [])
    with pytest.raises(CircuitOpen) as stopped:
        s.run_sync(agent, "Find the word.", capabilities=[guard] if where == "run" else [])
    assert (stopped.value.trip.rule, model.asked, len(traced.spans())) == ("repeat_guard", 3, 3)


def test_capabilities_of_the_run_stay(instrumentor):
    """What a run is given beside the guard is heard as ever."""

    class Listening(AbstractCapability):
        heard = 0

        async def before_tool_execute(self, ctx, *, call, tool_def, args):
            Listening.heard += 1
            return args

    agent, model = an_agent(s.look_up())
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.", capabilities=[Listening()])
    assert Listening.heard == model.asked == 3


def test_instrument_twice(instrumentor):
    """A second instrument() changes nothing, and one uninstrument() undoes both."""
    once = vars(Agent)["iter"]
    instrumentor.instrument()
    assert vars(Agent)["iter"] is once is not ORIGINAL
    instrumentor.uninstrument()
    assert vars(Agent)["iter"] is ORIGINAL
    again = ToolGuardPydanticAIInstrumentor()
    again.instrument()
    again.uninstrument()
    assert vars(Agent)["iter"] is ORIGINAL


def test_what_others_put_over_it_stays(instrumentor, monkeypatch):
    """A replacement made since by somebody else is left where it is."""

    def theirs(agent, *args, **kwargs):
        raise NotImplementedError

    monkeypatch.setattr(Agent, "iter", theirs)
    instrumentor.uninstrument()
    assert vars(Agent)["iter"] is theirs
    monkeypatch.setattr(Agent, "iter", ORIGINAL)


class Durable(AbstractCapability):
    """Stands in for a capability of durable execution."""


Durable.__module__ = "pydantic_ai.durable_exec.some"


def test_durable_agents_are_left_alone(instrumentor):
    """Where an agent takes no capabilities for a run, the run goes on without the guard."""
    agent, model = an_agent(s.look_up(), capabilities=[Durable()])
    model.script = lambda turn: [("search", {})] if turn < 20 else None
    assert s.run_sync(agent, "Find the word.").output == DONE


def test_entry_point():
    """opentelemetry-instrument finds the adapter under its name, with the extra it reads the versions from."""
    (found,) = importlib.metadata.entry_points(group="opentelemetry_instrumentor", name="toolguard_pydantic_ai")
    assert found.load() is ToolGuardPydanticAIInstrumentor
    requires = importlib.metadata.requires("otel-toolguard-pydantic-ai")
    assert any("pydantic-ai-slim<3,>=2.20" in one and "instruments" in one for one in requires)


def run_python(code, *, under=(), **environment):
    """Runs code in a process of its own; returns its output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TOOLGUARD_", "PYTHONPATH"))}
    done = subprocess.run(
        [*under, sys.executable, "-c", textwrap.dedent(code)], env=kept | environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_without_pydantic_ai():
    """Where Pydantic AI is absent the package imports, and instrument() says so instead of failing."""
    out = run_python(
        """
        import sys
        sys.modules["pydantic_ai"] = None
        import importlib.metadata
        import opentelemetry.instrumentation.dependencies as dependencies
        def version(name):
            raise importlib.metadata.PackageNotFoundError(name)
        dependencies.version = version
        import otel_toolguard_pydantic_ai
        made = otel_toolguard_pydantic_ai.ToolGuardPydanticAIInstrumentor()
        made.instrument()
        print("instrumented:", made.is_instrumented_by_opentelemetry)
        try:
            otel_toolguard_pydantic_ai.ToolGuard
        except ImportError as error:
            print("no capability:", error)
        try:
            otel_toolguard_pydantic_ai.Nonsense
        except AttributeError as error:
            print(error)
        """
    )
    assert "instrumented: False" in out
    assert "no capability" in out
    assert "no attribute 'Nonsense'" in out


APPLICATION = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("scripted", {str(HERE / "scripted.py")!r})
s = sys.modules["scripted"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(s)
from pydantic_ai import Agent, UsageLimits
from otel_toolguard.testing.scripts import for_ever
model, seen = s.ScriptedModel(for_ever("search")), s.look_up()
agent = Agent(model, tools=[seen.tool])
try:
    agent.run_sync("Find the word.", usage_limits=UsageLimits(request_limit=60))
    ended = "returned"
except Exception as error:
    ended = type(error).__name__
print("RESULT", json.dumps([ended, seen.bodies, model.asked]))
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
    assert ended == "PydanticAIStopped"
    assert 2 <= bodies == asked <= 8
    assert out.count('"name": "execute_tool search"') == bodies
    assert out.count('"toolguard.tripped": true') == 1
    assert '"service.name": "shop"' in out


def test_command_with_the_adapter_disabled():
    """OpenTelemetry's own switch turns the adapter off by its entry point's name."""
    (ended, _, _), _ = under_opentelemetry(
        OTEL_TRACES_EXPORTER="none", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="toolguard_pydantic_ai"
    )
    assert ended == "UsageLimitExceeded"


def test_command_reads_our_settings(tmp_path):
    """Limits come from a settings file, without a line of code and without a back end."""
    settings = tmp_path / "guard.toml"
    settings.write_text('[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\n')
    result, out = under_opentelemetry(OTEL_TRACES_EXPORTER="none", TOOLGUARD_CONFIG=str(settings))
    assert result == ["PydanticAIStopped", 3, 3]
    assert "execute_tool" not in out


def test_example():
    """The example in examples/ runs as it stands, goes on for ever without the guard, and is stopped with it."""
    done = subprocess.run(
        [sys.executable, HERE.parent / "examples" / "agent.py"], capture_output=True, text=True, check=True
    )
    out = done.stdout
    assert "without the guard: 50 model requests" in out
    assert "stopped:" in out
    assert "each call answered" in out
    assert "next run: 6 searches found nothing" in out
