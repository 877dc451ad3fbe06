"""What becomes of a function that is guarded: names, hints, schemas, kinds, copies, other decorators."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import subprocess
import sys
import textwrap
from typing import Annotated, Any, Literal, get_type_hints

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from otel_toolguard import CircuitOpen, SessionStopped, SettingsError, find_trip, guard_tool

REPEAT = {"plugin": "repeat_guard"}
CEILING = {"plugin": "call_ceiling"}
STATS = {"plugin": "tool_stats"}


class Unit(BaseModel):
    """A type that only this module knows."""

    name: Literal["C", "F"] = "C"


def forecast(city: Annotated[str, Field(min_length=1)], unit: Unit, days: Literal[1, 3] = 1) -> list[Unit]:
    """What the weather will be."""
    return [unit]


async def forecast_later(city: Annotated[str, Field(min_length=1)], *, unit: Unit | None = None) -> Unit | None:
    """What the weather will be, in a moment."""
    return unit


def stream(city: Annotated[str, Field(min_length=1)], days: int = 3):
    """One day after the other."""
    yield from range(days)


@pytest.mark.parametrize("function", [forecast, forecast_later, stream])
def test_hints_that_only_the_tool_s_own_module_knows_are_found_there(function):
    """Postponed annotations, signature and schema of the guarded function are byte for byte those of the bare one."""
    guarded = guard_tool(function)
    assert str(get_type_hints(guarded, include_extras=True)) == str(get_type_hints(function, include_extras=True))
    for evaluated in (True, False):
        seen = [str(inspect.signature(each, eval_str=evaluated)) for each in (function, guarded)]
        assert seen[0] == seen[1]
    schemas = [TypeAdapter(each).json_schema() for each in (function, guarded)]
    assert str(schemas[0]) == str(schemas[1])
    assert TypeAdapter(guarded).core_schema["type"] == TypeAdapter(function).core_schema["type"]
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__defaults__", "__code__"):
        assert getattr(guarded, name) == getattr(function, name)


# ------------------------------------------------------------------------------------------------ partials


def get_weather(city, key):
    """The weather now."""
    return f"sun in {city}"


def get_forecast(city, key):
    """The weather to come."""
    return f"rain in {city}"


class Oracle:
    """Knows the weather."""

    def __call__(self, city):
        return f"sun in {city}"


def test_partials_keep_their_functions_apart(opened, tried):
    """Two partials are two tools under the names of their functions, with counters of their own; a given name wins."""
    weather, later = (guard_tool(functools.partial(function, key="k")) for function in (get_weather, get_forecast))
    assert (weather("Rome"), later("Rome")) == ("sun in Rome", "rain in Rome")
    with opened(CEILING | {"tools": {"get_*": 2}}) as session:
        assert tried(weather, "abc") + tried(later, "abc") == "..r..r"
        assert [trip["tool"] for trip in session.report()["trips"]] == ["get_weather", "get_forecast"]
    with opened(REPEAT | {"limit": 2}, name="named") as session:
        named = guard_tool(name="sky")(functools.partial(functools.partial(get_weather), key="k"))
        assert tried(named, ["a", "a", "a"]) == "..S"
        assert session.trip.tool == "sky"


def test_a_callable_object_is_a_tool_under_its_class_s_name(opened, tried):
    """An instance with a call of its own is guarded like a function."""
    with opened(REPEAT | {"limit": 2}) as session:
        assert tried(guard_tool(Oracle()), ["a", "a", "a"]) == "..S"
        assert session.trip.tool == "Oracle"


def test_a_bound_secret_is_not_shown(opened):
    """What a partial gives by name was never said by the model: neither name nor preview is on the record."""
    tool = guard_tool(functools.partial(get_weather, key="hunter2"))
    with opened(REPEAT | {"limit": 2}, capture_arguments=True) as session:
        tool("a")
        tool("a")
        assert [member.arguments for member in session.trip.members] == [{"city": "str(1) = a"}]


# ------------------------------------------------------------------------------------------------ kinds


async def asynchronous(q):
    await asyncio.sleep(0)
    if q == "bad":
        raise ValueError(q)
    return q


def returns_a_coroutine(q):
    return asynchronous(q)


def synchronous(q):
    if q == "bad":
        raise ValueError(q)
    return q


@pytest.mark.parametrize("function", [asynchronous, returns_a_coroutine, synchronous])
async def test_every_kind_of_function_stays_what_it_is_and_runs_once(function, opened):
    """Coroutine function, function returning a coroutine, plain function: kind, result, failure and end are its own."""
    bodies = []

    @functools.wraps(function)
    def counting(q):
        bodies.append(q)
        return function(q)

    @functools.wraps(function)
    async def counting_async(q):
        bodies.append(q)
        return await function(q)

    inner = counting_async if inspect.iscoroutinefunction(function) else counting
    tool = guard_tool(inner)
    assert inspect.iscoroutinefunction(tool) == inspect.iscoroutinefunction(inner)
    with opened(STATS) as session:

        async def call(q):
            made = tool(q)
            if not inspect.isawaitable(made):
                return made
            assert session.report()["in_flight"] == (0 if inspect.iscoroutinefunction(tool) else 1)
            return await made

        assert await call("good") == "good"
        with pytest.raises(ValueError, match="bad"):
            await call("bad")
        report = session.report()
        assert (report["calls"], report["failed"], report["in_flight"], bodies) == (2, 1, 0, ["good", "bad"])


def counts(session):
    report = session.report()
    return report["calls"], report["failed"], report["in_flight"]


# ------------------------------------------------------------------------------------------------ copies


@guard_tool
def copied(q):
    """A tool that agents take along."""
    return q


class Agent(BaseModel):
    """Frameworks keep tools in models, and copy those deep."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    tools: list[Any]


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda tool: pickle.loads(pickle.dumps(tool)),
    "a model's deep copy": lambda tool: Agent(tools=[tool]).model_copy(deep=True).tools[0],
    "in a deep structure": lambda tool: copy.deepcopy({"agent": [{"tool": tool}]})["agent"][0]["tool"],
    "of a partial": lambda tool: copy.deepcopy(functools.partial(tool)),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_draws_from_the_same_session(how, opened, tried, monkeypatch):
    """However an agent takes its tools along, the copy is guarded, looks the same, and has no counter of its own."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or inspect.getmodule(copied))
    other = COPIES[how](copied)
    assert getattr(other, "func", other).__doc__ == copied.__doc__
    with opened(CEILING | {"run": 4}):
        assert tried(copied, "ab") + tried(other, "cdef") == "....SS"


def test_other_processes_get_a_guarded_tool(tmp_path):
    """A pool of freshly started processes runs the tool, guarded there too, and a trip comes back as itself."""
    (tmp_path / "its_tools.py").write_text(
        textwrap.dedent("""
        from otel_toolguard import MemoryStore, Policy, Session, guard_tool

        @guard_tool
        def look(q):
            return q

        def loop(q):
            with Session("child", policy=Policy(plugins=[{"plugin": "repeat_guard", "limit": 2}]), store=MemoryStore()):
                return [look(q) for _ in range(5)]
    """)
    )
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import multiprocessing, warnings
        from its_tools import look, loop
        from otel_toolguard import SessionStopped

        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(look, ["a", "b"]))
                try:
                    pool.apply(loop, ["x"])
                except SessionStopped as stop:
                    print(type(stop).__name__, stop.trip.rule, stop.trip.session_id, stop.trip.observed)
    """)
    )
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["['a', 'b']", "SessionStopped repeat_guard child 2"], done.stderr


# ------------------------------------------------------------------------------------------------ other decorators


@guard_tool
def travels(q):
    return q


def test_a_tool_rebuilt_from_its_source_is_guarded_or_says_so():
    """The source that a framework ships elsewhere has the decorator in it: there it guards again, or is an error."""
    source = inspect.getsource(travels)
    assert source.startswith("@guard_tool\ndef travels(q):")
    there: dict[str, Any] = {"guard_tool": guard_tool}
    exec(compile(source, "elsewhere", "exec"), there)
    assert type(there["travels"]) is type(travels)
    with pytest.raises(NameError, match="guard_tool"):
        exec(compile(source, "elsewhere", "exec"), {})


def test_a_framework_s_tool_object_is_refused_with_advice():
    """What a framework would call past the guard is an error that says where the decorator belongs."""

    class ToolObject:
        def __init__(self):
            self.args_schema = None

        def __call__(self, q):
            return q

    with pytest.raises(SettingsError, match="below the framework's own decorator"):
        guard_tool(ToolObject())


def retried(function, bodies=3):
    """A generic retry: on any Exception, as often as told."""

    @functools.wraps(function)
    def retrying(*args, **kwargs):
        for left in reversed(range(bodies)):
            try:
                return function(*args, **kwargs)
            except Exception:
                if not left:
                    raise
        return None

    return retrying


@pytest.mark.parametrize(("guard_outside", "calls", "failed"), [(True, 1, 0), (False, 3, 2)])
def test_who_is_outside_decides_what_one_call_is(guard_outside, calls, failed, opened):
    """Around a retry one call is counted, whatever it took; inside it, each try is one."""
    tries = []

    def flaky(q):
        tries.append(q)
        if len(tries) < 3:
            raise OSError("again")
        return "at last"

    tool = guard_tool(retried(flaky)) if guard_outside else retried(guard_tool(flaky))
    with opened(STATS) as session:
        assert (tool("x"), len(tries)) == ("at last", 3)
        assert counts(session) == (calls, failed, 0)


def test_a_retry_cannot_get_past_an_open_circuit(opened):
    """A loop that tries again on any exception runs no body more, and by asking again it ends the run."""
    bodies = []

    @guard_tool
    def fetch(q):
        bodies.append(q)
        raise ValueError("no")

    rules = {"plugin": "signature_failures", "limit": 2}, {"plugin": "max_refusals", "limit": 2}
    with opened(*rules) as session:
        with pytest.raises(CircuitOpen) as caught:
            retried(fetch, 3)("x")
        assert (type(caught.value), caught.value.trip.retryable, len(bodies)) == (CircuitOpen, False, 2)
        with pytest.raises(SessionStopped) as stopped:
            retried(fetch, 3)("x")
        assert (len(bodies), session.trip.rule, find_trip(stopped.value).retryable) == (2, "max_refusals", False)
