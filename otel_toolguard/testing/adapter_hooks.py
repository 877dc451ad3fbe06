"""What an adapter's tests tell the ``AdapterContract`` about their framework, and what it keeps of each run."""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from otel_toolguard import Policy, Session, SessionStopped, Trip
from otel_toolguard.testing.expectation import skip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_toolguard.testing.capture import Captured
    from otel_toolguard.testing.scripts import Script

BARE, GUARDED = "bare", "guarded"


class Exchange(NamedTuple):
    """One call in a history, and its answer: None if it has none; ``failed`` is None where a history cannot say."""

    call_id: str
    tool: str
    answer: str | None
    failed: bool | None = None


class Figures:
    """The worst of what was measured over all checks of one adapter; None where nothing was measured yet."""

    def __init__(self) -> None:
        self.after: int | None = None  # model calls after the trip
        self.over: int | None = None  # bodies beyond the ceiling
        self.unanswered: int | None = None  # call ids without an answer
        self.exceptions: set[str] = set()  # classes that the caller caught
        self.spans: set[int] = set()  # spans of one attempt

    def worst(self, name: str, value: int) -> None:
        """Keeps the larger one."""
        known = getattr(self, name)
        setattr(self, name, value if known is None else max(known, value))

    def line(self, folder: str, version: str) -> str:
        """All of it in one line; "-" for what was not measured."""

        def shown(value: int | None) -> str:
            return "-" if value is None else str(value)

        return (
            f"CONTRACT {folder} {version} model_calls_after={shown(self.after)} over={shown(self.over)} "
            f"unanswered={shown(self.unanswered)} exception={','.join(sorted(self.exceptions)) or '-'} "
            f"spans_per_attempt={','.join(map(str, sorted(self.spans))) or '-'}"
        )


class Ran(NamedTuple):
    """What became of one run.

    Attributes:
        error: What the caller caught, None if the run came to its end.
        kept: The history in the framework's own form; None where the run failed and kept none.
        history: Its calls and answers.
        asked: Model calls of the agent.
        after: Model calls after the circuit opened; None if none did.
        trip: The session's first trip, None if there was none.
        report: ``session.report()`` at the end.
    """

    error: Exception | None
    kept: Any
    history: list[Exchange]
    asked: int
    after: int | None
    trip: Trip | None
    report: dict[str, Any]


class Away:
    """A store that is away."""

    key = b"away" * 8

    def transact(self, session_id: str, step: Callable[[Any], Any]) -> Any:
        """Fails."""
        raise OSError("the store is away")

    async def transact_async(self, session_id: str, step: Callable[[Any], Any]) -> Any:
        """Fails."""
        raise OSError("the store is away")


class Bodies:
    """A tool's function, and how often its body ran.

    Args:
        kind: "sync" or "async".
        says: Makes the result, or raises, from the argument ``q``.
    """

    def __init__(self, kind: str = "sync", says: Callable[[str], str] = "nothing about {}".format) -> None:
        self.ran = 0
        lock = threading.Lock()

        def body(q: str) -> str:
            with lock:
                self.ran += 1
            return says(q)

        def search(q: str = "word") -> str:
            """Looks something up."""
            return body(q)

        async def search_async(q: str = "word") -> str:
            """Looks something up."""
            await asyncio.sleep(0)
            return body(q)

        search_async.__name__ = search_async.__qualname__ = search.__qualname__ = "search"
        self.function: Callable[..., Any] = search_async if kind == "async" else search


class AdapterHooks:
    """What is different from framework to framework.

    Attributes:
        folder: The adapter's folder under ``integrations/``.
        distribution: The framework's distribution, whose installed version is reported.
        sync_ways: Names of the ways to run an agent from sync code, streaming included.
        async_ways: The same from async code; ``run`` brings the event loop.
        guards: Further ways to put the guard on, each of which must guard once: twice, on a tool object, zero-code.
        besides: Names of the framework's retry and error middleware, caps that are not reached, hooks of the user.
        caps: Names of the framework's own caps, set so that they end ``always_new`` before ten calls.
        approvals: Names of the ways in which a call can wait for a person.
        missing: Why a check, named by its letter, cannot be made with this framework.
    """

    folder: ClassVar[str]
    distribution: ClassVar[str]
    sync_ways: ClassVar[tuple[str, ...]] = ()
    async_ways: ClassVar[tuple[str, ...]] = ()
    guards: ClassVar[tuple[str, ...]] = ()
    besides: ClassVar[tuple[str, ...]] = ()
    caps: ClassVar[tuple[str, ...]] = ()
    approvals: ClassVar[tuple[str, ...]] = ()
    missing: ClassVar[Mapping[str, str]] = {}
    figures: ClassVar[Figures] = Figures()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.figures = Figures()

    # -------------------------------------------------------------------------------------------- to implement

    def tool(self, function: Callable[..., Any]) -> Any:
        """The framework's tool of a function, sync or async, guarded by the decorator or not; named like it."""
        raise NotImplementedError

    def failing_tool(self, function: Callable[..., Any]) -> Any:
        """The tool of a function that raises ``ValueError``, made so that the framework answers that to the model."""
        raise NotImplementedError

    def agent(
        self, tools: Sequence[Any], script: Script, *, guard: str = GUARDED, beside: str = "", prefix: str = "call"
    ) -> Any:
        """An agent with a scripted offline model, which must reject a history in which a call has no answer.

        Args:
            tools: Made by ``tool``, ``failing_tool`` or ``agent_tool``.
            script: What the model says (see ``ScriptedModel``); at its end it says ``DONE``.
            guard: "bare" for none, "guarded" for the usual way, or one of ``guards``.
            beside: One of ``besides`` or ``caps``, set up next to the guard.
            prefix: What call ids begin with.
        """
        raise NotImplementedError

    def agent_tool(self, name: str, inner: Any, way: str) -> Any:
        """A tool without arguments that has another agent do the work, as the framework's users write it."""
        raise NotImplementedError

    def run(self, agent: Any, way: str, text: str, kept: Any = None) -> Any:
        """Runs the agent in one of the ways, after a kept history if there is one; returns the whole history.

        An agent that is run again is the same conversation where the framework knows such a thing. What the framework
        raises passes.
        """
        raise NotImplementedError

    def kept(self, agent: Any, error: Exception) -> Any:
        """The history that a caller has after a stop, in the form that ``run`` takes."""
        raise NotImplementedError

    def exchanges(self, kept: Any) -> list[Exchange]:
        """The calls of a history in order; an answer without a call is one with the tool ""."""
        raise NotImplementedError

    def text(self, kept: Any) -> str:
        """The model's last text in a history."""
        raise NotImplementedError

    def asked(self, agent: Any) -> int:
        """How often the agent's model was called."""
        raise NotImplementedError

    def shown(self, agent: Any) -> str:
        """The tool schemas that the model was shown last, as text."""
        raise NotImplementedError

    def heard(self, agent: Any) -> int | None:
        """How many executions of tools the user's own hooks were told of; None if there are no such hooks."""
        return None

    def approval_agent(self, function: Callable[..., Any], script: Script, approval: str) -> Any:
        """A guarded agent whose calls of the function wait for a person in that way before the body runs."""
        raise NotImplementedError

    def pause(self, agent: Any, way: str) -> None:
        """Runs an agent of ``approval_agent`` until it waits for the person."""
        raise NotImplementedError

    def approve(self, agent: Any, way: str) -> Any:
        """Approves the waiting call and runs on, to the next pause or to the end; returns the whole history."""
        raise NotImplementedError

    def instrumentor(self) -> Any:
        """The zero-code instrumentor."""
        raise NotImplementedError

    def bindings(self) -> Mapping[str, Any]:
        """What is bound now where ``instrument()`` replaces something, by a name for it."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------- made of them

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Runs each check for every way, kind of tool, guard, approval and neighbour that it asks for."""
        wanted = metafunc.fixturenames
        ways = (*self.sync_ways, *self.async_ways)
        if "way" in wanted and "kind" in wanted:
            both = [(way, "sync") for way in ways] + [(way, "async") for way in self.async_ways]
            metafunc.parametrize(("way", "kind"), both)
        elif "way" in wanted:
            metafunc.parametrize("way", ways)
        for name in ("guard", "beside", "cap", "approval"):
            if name in wanted:
                metafunc.parametrize(name, getattr(self, f"{name}s"))

    @classmethod
    def teardown_class(cls) -> None:
        """Prints the line of figures; pytest shows it with ``-s``."""
        print(f"\n{cls.figures.line(cls.folder, importlib.metadata.version(cls.distribution))}")  # noqa: T201

    def possible(self, letter: str) -> None:
        """Skips a check that the framework has no part for."""
        if letter in self.missing:
            skip(f"({letter}) {self.missing[letter]}")

    def go(
        self, agent: Any, way: str, policy: Policy, *, within: Captured | None = None, agents: Sequence[Any] = ()
    ) -> Ran:
        """Runs an agent in a session of its own, and gathers what can be known of the run.

        Args:
            agent: The agent.
            way: How it is run.
            policy: The session's rules.
            within: Where the spans go; None for wherever they go by default.
            agents: Others whose model calls count too, such as a nested one.
        """
        counted, at_trip, trips = (agent, *agents), list[int](), list[Trip]()

        def tripped(trip: Trip) -> None:
            trips.append(trip)
            at_trip.append(sum(map(self.asked, counted)))

        error: Exception | None = None
        telemetry = within.telemetry if within is not None else None
        with Session(policy=policy, on_trip=tripped, telemetry=telemetry) as session:
            try:
                kept = self.run(agent, way, "Find the word.")
            except Exception as raised:
                error = raised
                kept = self.kept(agent, raised) if isinstance(raised, SessionStopped) else None
            report = session.report()
        after = sum(map(self.asked, counted)) - at_trip[0] if at_trip else None
        history = self.exchanges(kept) if kept is not None else []
        return Ran(error, kept, history, self.asked(agent), after, trips[0] if trips else None, report)


def repeat(limit: int) -> Policy:
    """One rule: the same call, or cycle of calls, with the same results."""
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit}, {"plugin": "tool_stats"}])


def ceiling(run: int | None = None, **more: Any) -> Policy:
    """One rule: a number of calls."""
    given = {"run": run} if run is not None else {}
    return Policy(plugins=[{"plugin": "call_ceiling", **given, **more}, {"plugin": "tool_stats"}])
