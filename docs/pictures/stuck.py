"""Stuck agents for the pictures: LangChain's own, guarded as the README says; only what the model says is made up."""

from __future__ import annotations

import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from langchain_core.tools import ToolException, tool
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session
from otel_toolguard.cli.demo import STEPS_MOST
from otel_toolguard.cli.demo_agent import ScriptedModel, agent
from otel_toolguard.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

    Script = Callable[[], Iterator[list[tuple[str, dict[str, Any]]]]]

THINKS_S, WORKS_S = 0.02, 0.012  # as long as a very quick model and a near service take
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "scripted"}


class TracedModel(ScriptedModel):
    """A model with a span for each call, as an instrumentation of a real one has."""

    tracer: Any = None

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self.tracer.start_as_current_span("chat scripted", attributes=CHAT):
            time.sleep(THINKS_S)
            return super()._generate(*args, **kwargs)


class Office:
    """Tools of the usual kinds: one that finds nothing new, and one that cannot work."""

    def tools(self) -> list[Any]:
        """The tools, as a user of LangChain would write them."""

        @tool
        def read_page(name: str) -> str:
            """A page of the handbook."""
            time.sleep(WORKS_S)
            return f"This is page {name}."

        @tool
        def deploy(service: str) -> str:
            """Brings a service up."""
            time.sleep(WORKS_S)
            raise ToolException(f"no manifest for {service}")

        deploy.handle_tool_error = True
        return [read_page, deploy]


def loop() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The same page for ever."""
    while True:
        yield [("read_page", {"name": "leave"})]


def wandering() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Four pages, and then the same ones in no order that repeats."""
    for name in cycle(["leave", "travel", "sick", "pay", "pay", "leave", "sick", "leave", "travel", "pay", "travel"]):
        yield [("read_page", {"name": name})]


def storm() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """A page, and then one call that cannot work."""
    yield [("read_page", {"name": "deploy"})]
    while True:
        yield [("deploy", {"service": "web"})]


def watched() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The loop, of which this model tires."""
    yield from islice(loop(), 9)


RUNS: dict[str, tuple[Script, str]] = {
    "loop": (loop, "enforce"),
    "stagnation": (wandering, "enforce"),
    "storm": (storm, "enforce"),
    "observe": (watched, "observe"),
}


def run(name: str, provider: TracerProvider) -> tuple[str, CircuitOpen | None]:
    """Runs one of the agents; its trace's id, and what stopped it."""
    script, mode = RUNS[name]
    tracer = provider.get_tracer("pictures")
    about = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    with (
        tracer.start_as_current_span(f"invoke_agent {name}", attributes=about) as root,
        Session(
            f"conversation-{name}", policy=Policy(profile="balanced", mode=mode), store=MemoryStore(),
            telemetry=Telemetry(tracer_provider=provider),
        ),
    ):  # fmt: skip
        stopped = _asked(script, tracer)
    return format(root.get_span_context().trace_id, "032x"), stopped


def _asked(script: Script, tracer: Tracer) -> CircuitOpen | None:
    guarded = agent(TracedModel(script=script, tracer=tracer), Office(), ToolGuardMiddleware())
    try:
        guarded.invoke({"messages": [("user", "Get it done.")]}, {"recursion_limit": STEPS_MOST})
    except CircuitOpen as stopped:
        return stopped
    return None
