"""``otel-toolguard demo``: the agent of the README, healthy, looping, and over its ceiling."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SettingsError

if TYPE_CHECKING:
    from otel_toolguard.cli.demo_export import Providers
    from otel_toolguard.core.decision import Trip

LIMIT, PERIOD, CEILING = 8, 2, 25
PERIOD_MOST = 32
STEPS_MOST = 1_000_000  # of LangGraph: the guard ends the runs, not the framework's own cap
BATCH = 4  # calls that the over-using agent asks for in one turn
_NEEDED = {
    "langchain": "langchain", "langgraph": "langchain", "langchain_core": "langchain",
    "otel_toolguard_langchain": "langchain", "opentelemetry.sdk": "otlp", "opentelemetry.exporter": "otlp",
}  # fmt: skip


class Run:
    """One run of the demo and what is told about it."""

    def __init__(self, name: str, policy: Policy, script: Any) -> None:
        self.name = name
        self.policy = policy
        self.script = script
        self.trace_id = ""
        self.bodies = 0
        self.model_calls = 0
        self.model_calls_after_stop = 0
        self.unanswered: list[str] = []
        self.caught: CircuitOpen | None = None
        self.trip: Trip | None = None
        self.report: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        """The run as the JSON of ``--json``."""
        return {
            "name": self.name,
            "trace_id": self.trace_id,
            "bodies": self.bodies,
            "model_calls": self.model_calls,
            "model_calls_after_stop": self.model_calls_after_stop,
            "unanswered_ids": self.unanswered,
            "trip": self.trip.to_dict() if self.trip else None,
        }


def demo(limit: int | None = None, period: int | None = None, ceiling: int | None = None, as_json: bool = False) -> int:
    """Runs the three agents; returns the exit code.

    Args:
        limit: Laps after which the looping agent is stopped, at least 2; None for 8.
        period: Calls in one lap, 1 to 32; None for 2.
        ceiling: Calls after which the over-using agent is stopped, at least 1; None for 25.
        as_json: True to print nothing but JSON on standard output.
    """
    try:
        from otel_toolguard.cli import demo_agent, demo_export
    except ModuleNotFoundError as error:
        print(_missing(error), file=sys.stderr)
        return 2
    try:
        runs = _runs(
            demo_agent,
            LIMIT if limit is None else limit,
            PERIOD if period is None else period,
            CEILING if ceiling is None else ceiling,
        )
        to = demo_export.target() if _telemetry_is_on() else None
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    # The trips are told on standard output, in words; the library's own warning would say them twice.
    logging.getLogger("otel_toolguard").addHandler(logging.NullHandler())
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    providers = demo_export.Providers(to)
    for run in runs:
        _carry_out(run, providers, demo_agent)
    sent = providers.close()
    if as_json:
        print(json.dumps({"runs": [run.to_dict() for run in runs]}, ensure_ascii=False))
    else:
        _tell(runs, providers, to if sent else None)
    if to is not None and not sent:
        print("not every span could be sent to the OTLP endpoint", file=sys.stderr)
    elif to is None and not as_json:
        print(
            "Nobody took the traces: set OTEL_EXPORTER_OTLP_ENDPOINT, or start a Jaeger on localhost, and run it again."
        )
    return 0


def _runs(agents: Any, limit: int, period: int, ceiling: int) -> list[Run]:
    for option, value, least, most in (("limit", limit, 2, None), ("period", period, 1, PERIOD_MOST),
                                       ("ceiling", ceiling, 1, None)):  # fmt: skip
        if value < least or (most is not None and value > most):
            raise SettingsError(f"--{option} {value}: valid are {least} {f'to {most}' if most else 'and more'}")
    repeat = {"plugin": "repeat_guard", "limit": limit, "max_period": max(3, period)}
    stats = {"plugin": "tool_stats"}
    return [
        Run("healthy", Policy(profile="balanced", mode="enforce"), agents.healthy),
        Run("loop", Policy(plugins=[repeat, stats], mode="enforce"), agents.looping(period)),
        Run(
            "ceiling",
            Policy(plugins=[{"plugin": "call_ceiling", "run": ceiling}, stats], mode="enforce"),
            agents.over_using(BATCH),
        ),
    ]


def _telemetry_is_on() -> bool:
    from otel_toolguard.session import default_telemetry

    return default_telemetry("enforce") is not None


def _carry_out(run: Run, providers: Providers, agents: Any) -> None:
    """Does what the README tells a user to do, and counts what came of it."""
    from otel_toolguard_langchain import ToolGuardMiddleware

    from otel_toolguard.telemetry import Telemetry

    telemetry = (
        Telemetry(tracer_provider=providers.traces, meter_provider=providers.metrics, logger_provider=providers.logs)
        if _telemetry_is_on()
        else None
    )
    model = agents.ScriptedModel(script=run.script)
    asked_at_trip: list[int] = []
    with tempfile.TemporaryDirectory(prefix="toolguard-demo-") as folder:
        workshop = agents.Workshop(Path(folder))
        agent = agents.agent(model, workshop, ToolGuardMiddleware())
        tracer = providers.traces.get_tracer("otel_toolguard.demo")
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": f"demo-{run.name}"}
        with (
            tracer.start_as_current_span(f"invoke_agent demo-{run.name}", attributes=attributes) as root,
            Session(
                f"demo-{run.name}", policy=run.policy, telemetry=telemetry, store=MemoryStore(),
                on_trip=lambda _trip: asked_at_trip.append(model.asked),
            ) as session,
        ):  # fmt: skip
            run.trace_id = f"{root.get_span_context().trace_id:032x}"
            question = {"messages": [("user", "Take stock.")]}
            try:
                messages = agent.invoke(question, {"recursion_limit": STEPS_MOST})["messages"]
            except CircuitOpen as stopped:
                run.caught = stopped
                messages = stopped.partial["messages"]
            run.report = session.report()
        run.trip = run.caught.trip if run.caught else None
    run.bodies = workshop.bodies
    run.model_calls = model.asked
    run.model_calls_after_stop = model.asked - asked_at_trip[0] if asked_at_trip else 0
    run.unanswered = agents.unanswered(messages)


def _tell(runs: list[Run], providers: Providers, to: Any) -> None:
    from otel_toolguard.cli.demo_tree import tree

    for run in runs:
        print(f"── {run.name} " + "─" * (70 - len(run.name)))
        print(tree(providers.spans(), run.trace_id) or "(no spans: the OpenTelemetry SDK is disabled)")
        print()
        if run.caught is None:
            print("not stopped: the agent ended by itself")
        else:
            trip = run.caught.trip
            print(f"stopped by {trip.rule} (scope {trip.scope}): {trip.why}")
            print(f"the caller caught CircuitOpen: {run.caught}")
        print(
            f"tool bodies: {run.bodies}; model calls: {run.model_calls}, after the stop: {run.model_calls_after_stop}; "
            f"call ids without an answer: {len(run.unanswered)}"
        )
        _tell_stats(run.report)
        if to is not None and to.ui is not None:
            print(f"trace {to.ui}/trace/{run.trace_id}")
        else:
            print(f"trace {run.trace_id}")
        print()


def _tell_stats(report: dict[str, Any]) -> None:
    whole = ", ".join(f"{key} {report[key]}" for key in ("calls", "retries", "longest_fail_streak", "refused"))
    print(f"tool_stats: {whole}")
    for name, tool in report["tools"].items():
        print(f"  {name}: calls {tool['calls']}, failed {tool['failed']}, ms {tool['ms']}")
    print("  classes: " + ", ".join(f"{name} {count}" for name, count in report["classes"].items()))


def _missing(error: ModuleNotFoundError) -> str:
    name = error.name or ""
    extra = next((extra for module, extra in _NEEDED.items() if name == module or name.startswith(module + ".")), None)
    if extra is None:
        raise error
    return f'The demo needs {name}: pip install "otel-toolguard[cli,otlp,langchain]"'
