"""Zero-code: nothing in the application knows of the guard."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
from langchain import agents
from langchain.agents import create_agent, factory
from otel_toolguard_langchain import ToolGuardLangChainInstrumentor, ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session

from . import graphs as g
from . import scripted as s

HERE = Path(__file__).parent
KEPT = [create_agent]  # in a list, where no instrumentor finds it


@pytest.fixture
def instrumentor(traced):
    made = ToolGuardLangChainInstrumentor()
    made.instrument(tracer_provider=traced.provider)
    yield made
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


@pytest.mark.parametrize("run", s.WAYS)
def test_instrumented_agent_is_stopped(run, instrumentor, traced):
    """An agent made after instrument() is guarded by the default rules, and its spans go to the given provider."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    agent = agents.create_agent(model, [seen.tool])
    with pytest.raises(CircuitOpen) as caught:
        run(agent, s.ask())
    assert 2 <= seen.bodies <= 8
    assert seen.bodies == model.asked == len(traced.spans()) == caught.value.trip.at_call
    assert s.mispaired(caught.value.partial["messages"]) == ""


def test_explicit_middleware_is_left_alone(instrumentor, traced):
    """An agent that has a guard gets no second one: one span per call, and the explicit guard's rules."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    guard = ToolGuardMiddleware(s.repeat(3), telemetry=traced.telemetry)
    with pytest.raises(CircuitOpen):
        agents.create_agent(model, [seen.tool], middleware=[guard]).invoke(s.ask())
    assert (seen.bodies, len(traced.spans())) == (3, 3)


@pytest.mark.parametrize("kind", g.MODELS.values(), ids=g.MODELS)
@pytest.mark.parametrize("run", s.WAYS)
def test_instrumented_graph_is_stopped(run, kind, instrumentor, traced):
    """A graph of one's own, with a tool node that knows nothing of the guard, is stopped before its next model call."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    with pytest.raises(CircuitOpen) as caught:
        run(g.graph(model, g.ToolNode([seen.tool]), kind=kind), s.ask())
    assert seen.bodies == model.asked == len(traced.spans()) == caught.value.trip.at_call
    assert s.mispaired(caught.value.partial["messages"]) == ""


@pytest.mark.parametrize("run", s.WAYS)
def test_wrappers_of_the_user_go_on(run, instrumentor, traced):
    """What the user wrapped around the tools of a node stands around the guard, and sees refusals as answers."""
    told = []

    def wrap(request, handler):
        told.append(handler(request))
        return told[-1]

    seen, model = s.look_up(), s.model(s.for_ever("search", batch=3))
    with Session(policy=s.ceiling(5)), pytest.raises(CircuitOpen):
        run(g.graph(model, g.ToolNode([seen.tool], wrap_tool_call=wrap)), s.ask())
    assert (seen.bodies, [one.status for one in told].count("error"), len(told)) == (5, 1, 6)


@pytest.mark.parametrize("run", s.WAYS)
def test_wrappers_put_on_by_hand_are_the_only_ones(run, instrumentor, traced):
    """A node that has the wrappers gets no second ones: one span per call, and the rules given there."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    node = g.tools_in([seen.tool], s.repeat(3), telemetry=traced.telemetry)
    with pytest.raises(CircuitOpen):
        run(g.graph(model, node), s.ask())
    assert (seen.bodies, len(traced.spans())) == (3, 3)


def test_tool_node_is_restored():
    """Tool nodes are made by the very original again once the guard is off."""
    instrumentor, kind = ToolGuardLangChainInstrumentor(), g.ToolNode
    original = vars(kind)["__init__"]
    instrumentor.instrument()
    try:
        assert vars(kind)["__init__"] is not original
    finally:
        instrumentor.uninstrument()
    assert vars(kind)["__init__"] is original


def test_every_binding_is_replaced_and_restored(monkeypatch):
    """Bindings by name, old ones and those imported meanwhile, are ours while it lasts and the very original after."""
    early, late, alien = (types.ModuleType(f"application_{n}") for n in ("early", "late", "alien"))
    for module in (early, late, alien):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    early.create_agent = early.make = KEPT[0]
    instrumentor = ToolGuardLangChainInstrumentor()
    bound = (agents, factory, early, sys.modules[__name__])
    instrumentor.instrument()
    try:
        for module in bound:
            assert module.create_agent is not KEPT[0]
        assert early.make is early.create_agent is agents.create_agent
        assert agents.create_agent.__wrapped__ is KEPT[0]
        late.create_agent = agents.create_agent
        early.make = alien.create_agent = stranger = types.SimpleNamespace(wraps=agents.create_agent)
    finally:
        instrumentor.uninstrument()
    for module in (*bound, late):
        assert module.create_agent is KEPT[0]
    assert early.make is alien.create_agent is stranger


def test_instrument_twice(instrumentor, traced, caplog):
    """A second instrument() changes nothing, and one uninstrument() undoes both."""
    once = agents.create_agent
    instrumentor.instrument()
    assert agents.create_agent is once
    with pytest.raises(CircuitOpen):
        agents.create_agent(s.model(s.for_ever("search")), [s.look_up().tool]).invoke(s.ask())
    assert len({span.attributes["gen_ai.tool.call.id"] for span in traced.spans()}) == len(traced.spans())
    instrumentor.uninstrument()
    assert not hasattr(agents.create_agent, "__wrapped__")
    again = ToolGuardLangChainInstrumentor()
    again.instrument()
    again.uninstrument()
    assert not hasattr(agents.create_agent, "__wrapped__")


def test_agents_made_before_and_after(instrumentor):
    """An agent made after uninstrument() is bare again; one made before stays guarded."""
    kept = agents.create_agent(s.model(s.for_ever("search")), [s.look_up().tool])
    instrumentor.uninstrument()
    seen, model = s.look_up(), s.model(lambda turn: [("search", {})] if turn <= 30 else None)
    with Session(policy=s.repeat(3)):
        agents.create_agent(model, [seen.tool]).invoke(s.ask(), {"recursion_limit": 99})
        assert seen.bodies == 30
        with pytest.raises(CircuitOpen):
            kept.invoke(s.ask())


def test_entry_point():
    """opentelemetry-instrument finds the adapter under its name, with the extra it reads the versions from."""
    (found,) = importlib.metadata.entry_points(group="opentelemetry_instrumentor", name="toolguard_langchain")
    assert found.load() is ToolGuardLangChainInstrumentor
    requires = importlib.metadata.requires("otel-toolguard-langchain")
    assert any("langchain<2,>=1.0" in one and "instruments" in one for one in requires)


def run_python(code, *, under=(), **environment):
    """Runs code in a process of its own; returns its output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TOOLGUARD_", "PYTHONPATH"))}
    done = subprocess.run(
        [*under, sys.executable, "-c", textwrap.dedent(code)], env=kept | environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_without_langchain():
    """Where LangChain is absent the package imports, and instrument() says so instead of failing."""
    out = run_python(
        """
        import sys
        for name in ("langchain", "langchain_core", "langgraph"):
            sys.modules[name] = None
        import importlib.metadata
        import opentelemetry.instrumentation.dependencies as dependencies
        def version(name):
            raise importlib.metadata.PackageNotFoundError(name)
        dependencies.version = version
        import otel_toolguard_langchain
        made = otel_toolguard_langchain.ToolGuardLangChainInstrumentor()
        made.instrument()
        print("instrumented:", made.is_instrumented_by_opentelemetry)
        try:
            otel_toolguard_langchain.ToolGuardMiddleware
        except ImportError as error:
            print("no middleware:", error)
        try:
            otel_toolguard_langchain.Nonsense
        except AttributeError as error:
            print(error)
        """
    )
    assert "instrumented: False" in out
    assert "no middleware" in out
    assert "no attribute 'Nonsense'" in out


APPLICATION = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("scripted", {str(HERE / "scripted.py")!r})
s = sys.modules["scripted"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(s)
from langchain.agents import create_agent
model, seen = s.model(s.for_ever("search")), s.look_up()
agent = create_agent(model, [seen.tool])
try:
    agent.invoke(s.ask(), {{"recursion_limit": 60}})
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
    assert ended == "LangChainStopped"
    assert 2 <= bodies == asked <= 8
    assert out.count('"name": "execute_tool search"') == bodies
    assert out.count('"toolguard.tripped": true') == 1
    assert '"service.name": "shop"' in out


def test_command_without_a_back_end():
    """With no SDK set up the agent is guarded all the same; only the spans go nowhere."""
    (ended, bodies, asked), out = under_opentelemetry(OTEL_TRACES_EXPORTER="none")
    assert ended == "LangChainStopped"
    assert 2 <= bodies == asked <= 8
    assert "execute_tool" not in out


def test_command_with_the_adapter_disabled():
    """OpenTelemetry's own switch turns the adapter off by its entry point's name."""
    (ended, _, _), _ = under_opentelemetry(
        OTEL_TRACES_EXPORTER="none", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="toolguard_langchain"
    )
    assert ended == "GraphRecursionError"


def test_command_reads_our_settings(tmp_path):
    """Limits come from a settings file, without a line of code."""
    settings = tmp_path / "guard.toml"
    settings.write_text('[[tool_plugins]]\nplugin = "repeat_guard"\nlimit = 3\n')
    result, _ = under_opentelemetry(OTEL_TRACES_EXPORTER="none", TOOLGUARD_CONFIG=str(settings))
    assert result == ["LangChainStopped", 3, 3]


@pytest.mark.parametrize("name", ["agent.py", "own_graph.py"])
def test_example(name):
    """Each example runs as it stands: endless without the guard, stopped with it, and its history goes on."""
    done = run_python(f"import runpy; runpy.run_path({str(HERE.parent / 'examples' / name)!r}, run_name='__main__')")
    first, stopped, report, last = done.splitlines()
    assert first == "without the guard: still searching after 50 turns"
    assert stopped.startswith("stopped: ")
    calls = int(report.partition("'calls': ")[2].partition(",")[0])
    assert 2 <= calls <= 8
    assert last == "next run: I found nothing."
