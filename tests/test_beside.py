"""An adapter that stands around another instrumentation's span of a call."""

import asyncio
import sys
import types

import pytest
from langchain_core.tools import StructuredTool

from otel_toolguard import Policy, Session
from otel_toolguard.adapter import Answers, FrameworkRuns, GuardedTool, instrumented_by, made, made_async, traced_within
from otel_toolguard.testing import capture_spans


class Instrumentor:
    is_instrumented_by_opentelemetry = True


class Broken:
    def __init__(self):
        raise RuntimeError("another release")


@pytest.mark.parametrize(("classes", "answer"), [
    ({}, False),
    ({"One": Instrumentor}, True),
    ({"One": type("Off", (), {"is_instrumented_by_opentelemetry": False})}, False),
    ({"One": Broken}, False),
    ({"Two": Instrumentor}, False),
])  # fmt: skip
def test_instrumentor_in_use_is_found(monkeypatch, classes, answer):
    """An instrumentor counts where its module is loaded and says that it is on; one that cannot say so does not."""
    module = types.ModuleType("others")
    vars(module).update(classes)
    monkeypatch.setitem(sys.modules, "others", module)
    assert instrumented_by({"others": "One", "never.loaded": "One"}) is answer


def search(q: str) -> str:
    """Looks something up."""
    if q == "bad":
        raise LookupError(q)
    return f"found {q}"


async def search_later(q: str) -> str:
    """Looks something up."""
    return search(q)


def call(tool, q, captured):
    """Calls a tool through an adapter, within another's span of the call; returns what came out and the report."""
    awaited = tool.coroutine is not None

    def within(attempt):
        copied = traced_within(tool, attempt, Answers())
        with captured.tracer.start_as_current_span("theirs", attributes={"gen_ai.operation.name": "execute_tool",
                                                                         "gen_ai.tool.name": "search"}):  # fmt: skip
            return asyncio.run(copied.ainvoke({"q": q})) if awaited else copied.invoke({"q": q})

    with Session(telemetry=captured.telemetry) as session:
        attempt = GuardedTool("search").attempt(FrameworkRuns().place("run", None), {"q": q}, call_id="1", traced=False)
        try:
            answer = made(attempt, Answers(), lambda: within(attempt))
        except LookupError as error:
            answer = error
        return answer, session.report()


TOOLS = [
    StructuredTool.from_function(search, name="search"),
    StructuredTool.from_function(None, search_later, name="search", description="Looks up."),
]


@pytest.mark.parametrize("tool", TOOLS, ids=["sync", "async"])
@pytest.mark.parametrize(("q", "outcome", "failed"), [("a", "ok", 0), ("bad", "failed", 1)])
def test_call_is_told_on_their_span(tool, q, outcome, failed):
    """The call is settled within their span, once, and no span of ours stands beside it."""
    with capture_spans() as captured:
        answer, report = call(tool, q, captured)
    assert (str(answer), report["calls"], report["failed"]) == ("found a" if q == "a" else "bad", 1, failed)
    assert [(span.name, span.attributes["toolguard.outcome"]) for span in captured.all_spans()] == [("theirs", outcome)]


def test_refused_call_has_a_span_of_ours():
    """A call that is not run never comes to their span: ours tells of it."""
    policy = Policy(plugins=[{"plugin": "call_ceiling", "tools": {"search": 1}}])
    with capture_spans() as captured, Session(policy=policy, telemetry=captured.telemetry):
        place, tool = FrameworkRuns().place("run", None), GuardedTool("search")
        for _ in range(2):
            answer = made(tool.attempt(place, {}, call_id=None, traced=False), Answers(), lambda: "found")
    assert "circuit_open" in answer
    assert captured.outcomes() == ["ok", "refused"]


def test_call_that_never_reached_the_function_has_a_span_of_ours():
    """A call that ends before its function began, such as by arguments that do not fit, is told all the same."""
    with capture_spans() as captured, Session(telemetry=captured.telemetry):
        place = FrameworkRuns().place("run", None)

        async def fails():
            raise TypeError("does not fit")

        attempt = GuardedTool("search").attempt(place, {}, call_id=None, traced=False)
        with pytest.raises(TypeError):
            asyncio.run(made_async(attempt, Answers(), fails))
    assert captured.outcomes() == ["failed"]


@pytest.mark.parametrize("tool", [object(), None])
def test_what_is_no_tool_object_stays_as_it_is(tool):
    """Something whose function is not known is called as it is."""
    assert traced_within(tool, None, Answers()) is tool
