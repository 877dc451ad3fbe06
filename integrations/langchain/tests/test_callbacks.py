"""The callback handler: tools called by the user's own code, counted once and refused before their body."""

from __future__ import annotations

import asyncio
import gc
import uuid

import pytest
from langchain import agents
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import ToolException, tool
from langgraph.errors import GraphBubbleUp
from otel_toolguard_langchain import (
    LangChainStopped,
    ToolGuardCallbackHandler,
    ToolGuardLangChainInstrumentor,
    ToolGuardMiddleware,
)

from otel_toolguard import CircuitOpen, Session, SessionStopped, guard_tool

from . import graphs as g
from . import scripted as s


def call(made, arguments, config):
    return made.invoke(arguments, config)


def call_async(made, arguments, config):
    return asyncio.run(made.ainvoke(arguments, config))


def in_a_chain(made, arguments, config):
    return (RunnableLambda(lambda given: given) | made).invoke(arguments, config)


CALLS = {"invoke": call, "ainvoke": call_async, "in a chain": in_a_chain}


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("block", [True, False])
def test_ceiling(how, block, traced):
    """As many bodies as the ceiling, then a SessionStopped, also LangGraph's own; one span for each attempt."""
    seen = s.look_up()
    handler = ToolGuardCallbackHandler(s.ceiling(3), telemetry=traced.telemetry)

    def calls():
        for n in range(5):
            try:
                CALLS[how](seen.tool, {"q": str(n)}, {"callbacks": [handler]})
            except SessionStopped as error:
                yield type(error), error.trip.rule

    if block:
        with Session(policy=s.ceiling(3), telemetry=traced.telemetry) as session:
            stops = list(calls())
            assert (session.report()["calls"], session.report()["refused"]) == (3, 2)
    else:
        stops = list(calls())
    assert stops == [(LangChainStopped, "call_ceiling")] * 2
    assert issubclass(LangChainStopped, GraphBubbleUp)
    assert seen.bodies == 3
    assert traced.outcomes() == ["ok"] * 3 + ["refused"] * 2


def test_a_refusal_of_one_tool_is_no_stop():
    """A tool that is closed raises exactly CircuitOpen, and the others go on."""
    seen, other = s.look_up(), s.look_up()
    other.tool.name = "other"
    config = {"callbacks": [ToolGuardCallbackHandler(s.ceiling(tools={"search": 1}))]}
    seen.tool.invoke({}, config)
    with pytest.raises(CircuitOpen) as caught:
        seen.tool.invoke({}, config)
    assert type(caught.value) is CircuitOpen
    other.tool.invoke({}, config)
    assert (seen.bodies, other.bodies) == (1, 1)


@pytest.mark.parametrize("how", CALLS)
def test_failures(how, traced):
    """What a tool raises leaves as it is and is a failure, and so is an error that it answers with."""

    @tool
    def raises(q: str) -> str:
        """Raises."""
        raise ValueError(q)

    @tool
    def answers(q: str) -> str:
        """Raises what LangChain makes an answer."""
        raise ToolException(q)

    answers.handle_tool_error = True
    with Session(telemetry=traced.telemetry) as session:
        config = {"callbacks": [ToolGuardCallbackHandler()]}
        with pytest.raises(ValueError, match="x"):
            CALLS[how](raises, {"q": "x"}, config)
        asked = {"name": "answers", "args": {"q": "x"}, "id": "1", "type": "tool_call"}
        assert CALLS[how](answers, asked, config).status == "error"
        report = session.report()
    assert (report["calls"], report["failed"], report["in_flight"]) == (2, 2, 0)
    assert traced.outcomes() == ["failed"] * 2


async def test_cancelled_call():
    """A cancelled call gives its place back and is no failure."""
    started = asyncio.Event()

    @tool
    async def slow() -> str:
        """Takes long."""
        started.set()
        await asyncio.sleep(60)
        return "late"

    with Session() as session:
        running = asyncio.create_task(slow.ainvoke({}, {"callbacks": [ToolGuardCallbackHandler()]}))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        report = session.report()
    assert (report["in_flight"], report["tools"]["slow"]["failed"]) == (0, 0)


async def test_calls_that_overlap():
    """Calls that run at once are told apart, and each is left where it was entered."""
    seen = s.look_up_async()
    with Session(policy=s.ceiling(5)) as session:
        config = {"callbacks": [ToolGuardCallbackHandler()]}
        given = [seen.tool.ainvoke({"q": str(n)}, config) for n in range(9)]
        results = await asyncio.gather(*given, return_exceptions=True)
        report = session.report()
    assert (seen.bodies, sum(isinstance(one, CircuitOpen) for one in results), report["in_flight"]) == (5, 4, 0)


@pytest.mark.filterwarnings("ignore:coroutine 'ahandle_event' was never awaited")  # of handlers after one that raises
@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_a_loop_of_the_users_own_stops_before_the_model(run):
    """Given to the model too, the handler ends a loop that tripped on a result before the next model call."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    config = {"callbacks": [ToolGuardCallbackHandler(s.repeat(3))]}
    messages = [("user", "Find it.")]

    def loop():
        while True:
            asked = run(model, messages, config)
            messages.append(asked)
            messages.extend(run(seen.tool, call, config) for call in asked.tool_calls)

    with pytest.raises(CircuitOpen) as caught:
        loop()
    assert (seen.bodies, model.asked) == (3, 3)
    assert s.mispaired(caught.value.partial["messages"]) == ""
    del caught
    gc.collect()  # what LangChain never awaits is in the stack of the exception


def test_thread_id_names_the_session():
    """Without an open session the thread in a call's metadata names one: each has ceilings of its own."""
    handler, seen = ToolGuardCallbackHandler(s.ceiling(session=2)), s.look_up()
    for name, bodies in (("a", 2), ("b", 4)):
        config = {"callbacks": [handler], "metadata": {"thread_id": f"{name}-{uuid.uuid4().hex}"}}
        for _ in range(2):
            seen.tool.invoke({}, config)
        with pytest.raises(CircuitOpen):
            seen.tool.invoke({}, config)
        assert seen.bodies == bodies


def test_a_tool_that_calls_itself():
    """A call inside a call of the same tool is a call of its own."""
    config = {"callbacks": [ToolGuardCallbackHandler()]}

    @tool
    def down(n: int) -> str:
        """Goes down."""
        return down.invoke({"n": n - 1}) if n else "bottom"

    with Session() as session:
        assert down.invoke({"n": 3}, config) == "bottom"
        assert session.report()["calls"] == 4


GUARDS = {
    "handler": (),
    "handler and decorator": ("decorator",),
    "handler and instrumentor": ("instrumentor",),
    "handler and middleware": ("middleware",),
    "all": ("decorator", "instrumentor", "middleware"),
}


@pytest.mark.parametrize("run", s.WAYS)
@pytest.mark.parametrize("guards", GUARDS)
def test_each_call_is_counted_once(guards, run, traced):
    """Whatever is put on together, each call of an agent is one span and one count, by the outermost of them."""
    seen = s.look_up()
    given = guard_tool(seen.tool) if "decorator" in GUARDS[guards] else seen.tool
    stack = [ToolGuardMiddleware()] if "middleware" in GUARDS[guards] else []
    instrumentor = ToolGuardLangChainInstrumentor()
    if "instrumentor" in GUARDS[guards]:
        instrumentor.instrument()
    try:
        agent = agents.create_agent(s.model(s.for_ever("search", batch=2)), [given], middleware=stack)
    finally:
        if "instrumentor" in GUARDS[guards]:
            instrumentor.uninstrument()
    both = [ToolGuardCallbackHandler(), ToolGuardCallbackHandler()]
    with Session(policy=s.ceiling(6), telemetry=traced.telemetry) as session:
        with pytest.raises(CircuitOpen):
            run(agent, s.ask(), {"callbacks": both, "recursion_limit": 60})
        assert session.report()["calls"] == 6
    assert (seen.bodies, traced.outcomes().count("ok")) == (6, 6)


@pytest.mark.parametrize("run", s.WAYS)
def test_each_call_of_a_tool_node_is_counted_once(run, traced):
    """Wrappers of a tool node, decorator, handler and instrumentor together: one span and one count for each call."""
    seen, model = s.look_up(), s.model(s.for_ever("search", batch=2))
    instrumentor = ToolGuardLangChainInstrumentor()
    instrumentor.instrument()
    try:
        graph = g.graph(model, g.tools_in([guard_tool(seen.tool)]))
        with Session(policy=s.ceiling(5), telemetry=traced.telemetry) as session:
            with pytest.raises(CircuitOpen) as caught:
                run(graph, s.ask(), {"callbacks": [ToolGuardCallbackHandler()], "recursion_limit": 60})
            assert (session.report()["calls"], session.report()["refused"]) == (5, 1)
    finally:
        instrumentor.uninstrument()
    assert (seen.bodies, model.asked, len(traced.spans())) == (5, 3, 6)
    assert s.mispaired(caught.value.partial["messages"]) == ""


def test_the_decorator_s_word_counts_under_the_handler(traced):
    """With decorator and handler the call is one span, and a body that the decorator sees twice is a retry."""
    seen = s.look_up()
    with Session(telemetry=traced.telemetry) as session:
        guard_tool(seen.tool).invoke({}, {"callbacks": [ToolGuardCallbackHandler()]})
        report = session.report()
    assert (report["calls"], report["retries"], len(traced.spans()), seen.bodies) == (1, 0, 1, 1)
