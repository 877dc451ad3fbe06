"""The guard beside the framework's own caps, retries and error handling, beside callbacks, and beside itself."""

from __future__ import annotations

import uuid

import pytest
from langchain import agents
from langchain.agents import create_agent, middleware
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import tool
from otel_toolguard_langchain import ToolGuardLangChainInstrumentor, ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session, guard_tool

from . import scripted as s


class Second(ToolGuardMiddleware):
    """Another guard: LangChain itself refuses two of one class."""


def failing(times):
    """A tool whose first executions raise."""
    seen = s.look_up()

    def search(q: str = "word") -> str:
        """Looks something up."""
        seen.bodies += 1
        if seen.bodies <= times:
            raise ConnectionError("reset")
        return "found"

    seen.function = search
    seen.tool = tool(search)
    return seen


RETRY = {  # order -> (attempts counted, failed among them)
    "guard innermost": (3, 2),
    "guard outermost": (1, 0),
}


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("order", RETRY)
@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_retry_middleware(run, order, decorated, traced):
    """Innermost, each retried execution is an attempt; outermost, all of them are one."""
    seen = failing(2)
    given = tool(guard_tool(seen.function)) if decorated else seen.tool
    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0)
    guard = ToolGuardMiddleware()
    with Session(telemetry=traced.telemetry) as session:
        stack = [retry, guard] if order == "guard innermost" else [guard, retry]
        run(create_agent(s.model([[("search", {})]]), [given], middleware=stack), s.ask())
    counted, failed = RETRY[order]
    assert seen.bodies == 3
    stats = session.report()["tools"]["search"]
    assert (stats["calls"], stats["failed"], len(traced.spans())) == (counted, failed, counted)


def test_retry_middleware_does_not_retry_a_refusal():
    """A refused call is an answer, not an error: it is asked once, and the stop goes through the retry untouched."""
    seen, model = s.look_up(), s.model(s.always_new("search"))
    stack = [ToolRetryMiddleware(max_retries=5, initial_delay=0), ToolGuardMiddleware()]
    agent = create_agent(model, [seen.tool], middleware=stack)
    with Session(policy=s.ceiling(3)) as session, pytest.raises(CircuitOpen):
        agent.invoke(s.ask())
    assert (seen.bodies, model.asked, session.report()["refused"]) == (3, 4, 1)


def swallows_errors():
    """LangChain's own error middleware where it exists, told to answer everything; else one like it."""
    if hasattr(middleware, "ToolErrorMiddleware"):
        return middleware.ToolErrorMiddleware(on_error=lambda error, request: f"failed: {error}")

    from langchain_core.messages import ToolMessage

    class Swallows(AgentMiddleware):
        def wrap_tool_call(self, request, handler):
            try:
                return handler(request)
            except Exception as error:
                return ToolMessage(f"failed: {error}", tool_call_id=request.tool_call["id"], status="error")

    return Swallows()


@pytest.mark.parametrize("order", ["guard inside", "guard outside"])
def test_errors_that_are_made_answers(order):
    """A middleware that turns every exception into an answer hides no failure from the guard and does not eat the stop."""
    seen, model = failing(99), s.model(s.for_ever("search"))
    stack = [swallows_errors(), ToolGuardMiddleware()]
    with Session(policy=s.repeat(3)) as session, pytest.raises(CircuitOpen) as caught:
        create_agent(model, [seen.tool], middleware=stack if order == "guard inside" else stack[::-1]).invoke(s.ask())
    assert (seen.bodies, model.asked) == (3, 3)
    assert session.report()["tools"]["search"]["failed"] == 3
    assert s.mispaired(caught.value.partial["messages"]) == ""


def model_retry():
    return (
        [middleware.ModelRetryMiddleware(max_retries=3, initial_delay=0)]
        if hasattr(middleware, "ModelRetryMiddleware")
        else []
    )


class Swallows(AgentMiddleware):
    """A retry of the user's own around each model call."""

    def wrap_model_call(self, request, handler):
        for _ in range(3):
            try:
                return handler(request)
            except Exception:
                continue
        raise RuntimeError("the model does not work")


CAPS = {
    "tool calls": lambda: [ToolCallLimitMiddleware(run_limit=50)],
    "model calls": lambda: [ModelCallLimitMiddleware(run_limit=50)],
    "model retry": model_retry,
    "model fallback": lambda: [ModelFallbackMiddleware(s.model(s.for_ever("search")))],
    "own model retry": lambda: [Swallows()],
    "all": lambda: [
        ToolCallLimitMiddleware(run_limit=50), ModelCallLimitMiddleware(run_limit=50), *model_retry(), Swallows(),
        ToolRetryMiddleware(max_retries=2, initial_delay=0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", CAPS)
def test_stop_beside_other_middleware(case):
    """None of the framework's caps and retries swallows the stop or pays for another model call."""
    seen, model = s.look_up(), s.model(s.for_ever("search", batch=2))
    agent = create_agent(model, [seen.tool], middleware=[*CAPS[case](), ToolGuardMiddleware(s.ceiling(5))])
    with pytest.raises(CircuitOpen) as caught:
        agent.invoke(s.ask())
    assert (seen.bodies, model.asked) == (5, 3)
    assert s.mispaired(caught.value.partial["messages"]) == ""


def test_framework_cap_that_is_reached_first():
    """A lower cap of the framework does what it does without the guard; calls it blocks are none of ours."""
    ends = []
    for guards in ([], [ToolGuardMiddleware()]):
        seen, model = s.look_up(), s.model(s.always_new("search", batch=2))
        cap = ToolCallLimitMiddleware(run_limit=4, exit_behavior="end")
        with Session() as session:
            result = create_agent(model, [seen.tool], middleware=[cap, *guards]).invoke(s.ask())
        ends.append((seen.bodies, model.asked, [message.content for message in result["messages"]]))
        assert session.report().get("calls", 0) == (seen.bodies if guards else 0)
    assert ends[0] == ends[1]


@pytest.mark.parametrize("zero_code", [False, True])
def test_summary_is_not_paid_for_after_the_stop(zero_code):
    """Placed ahead of a summary middleware, by hand or by the instrumentor, the gate stops that model call too."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    writer = s.model(lambda turn: None)
    summary = SummarizationMiddleware(writer, **_after_messages(7))
    if zero_code:
        instrumentor = ToolGuardLangChainInstrumentor()
        instrumentor.instrument()
        try:
            agent = agents.create_agent(model, [seen.tool], middleware=[_Wraps(), summary])
        finally:
            instrumentor.uninstrument()
    else:
        agent = create_agent(model, [seen.tool], middleware=[_Wraps(), ToolGuardMiddleware(), summary])
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        agent.invoke(s.ask())
    assert (model.asked, writer.asked) == (3, 0)


class _Wraps(AgentMiddleware):
    """Any middleware around tool calls."""

    def wrap_tool_call(self, request, handler):
        return handler(request)


def _after_messages(count):
    """Arguments of a summary after that many messages, in the words of each release."""
    import inspect

    if "trigger" in inspect.signature(SummarizationMiddleware).parameters:
        return {"trigger": ("messages", count), "keep": ("messages", 1)}
    return {
        "max_tokens_before_summary": 1,
        "messages_to_keep": 1,
        "token_counter": lambda messages: len(messages) >= count and 9,
    }


class Listening(BaseCallbackHandler):
    def __init__(self):
        self.started, self.ended = [], []

    def on_tool_start(self, serialized, input_str, **kwargs):
        self.started.append(input_str)

    def on_tool_end(self, output, **kwargs):
        self.ended.append(output)


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_callbacks_of_the_user(run):
    """The user's callbacks hear of every execution and of no refused call."""
    seen, heard = s.look_up(), Listening()
    agent = create_agent(
        s.model(s.always_new("search", batch=8)), [seen.tool], middleware=[ToolGuardMiddleware(s.ceiling(5))]
    )
    with pytest.raises(CircuitOpen):
        run(agent, s.ask(), {"callbacks": [heard]})
    assert (len(heard.started), len(heard.ended), seen.bodies) == (5, 5, 5)


def test_two_guards_of_one_class():
    """LangChain refuses the same middleware twice, and says so."""
    with pytest.raises(AssertionError, match="duplicate middleware"):
        create_agent(s.model([]), [], middleware=[ToolGuardMiddleware(), ToolGuardMiddleware()])


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_two_guards_guard_once(run, between, traced):
    """Of two guards in one list the inner one lets pass what the outer one counts: one span, one count, one stop."""
    seen, model = s.look_up(), s.model(s.for_ever("search"))
    retry = [ToolRetryMiddleware(max_retries=2, initial_delay=0)] if between else []
    with Session(policy=s.repeat(4), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        run(create_agent(model, [seen.tool], middleware=[ToolGuardMiddleware(), *retry, Second()]), s.ask())
    assert (seen.bodies, model.asked, len(traced.spans())) == (4, 4, 4)
    assert session.report()["calls"] == 4


def test_equal_call_ids_in_nested_agents(traced):
    """A sub-agent whose model numbers its calls like the outer one's is guarded all the same."""
    seen = s.look_up()
    inner = create_agent(s.model(s.for_ever("search")), [seen.tool], middleware=[ToolGuardMiddleware()])

    @tool
    def delegate() -> str:
        """Has another agent do it."""
        return inner.invoke(s.ask())["messages"][-1].content

    outer = create_agent(s.model(s.for_ever("delegate")), [delegate], middleware=[ToolGuardMiddleware()])
    with Session(policy=s.repeat(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen):
        outer.invoke(s.ask())
    assert seen.bodies == 3
    assert sorted(span.name for span in traced.spans()) == ["execute_tool delegate"] + ["execute_tool search"] * 3


def test_tool_replaced_by_another_middleware():
    """A tool that another middleware puts into the request is the one that is guarded."""
    seen = s.look_up()

    class Brings(AgentMiddleware):
        def wrap_tool_call(self, request, handler):
            return handler(
                request.override(tool=seen.tool) if hasattr(request, "override") else _with(request, seen.tool)
            )

    @tool
    def search(q: str = "word") -> str:
        """A place holder."""
        raise NotImplementedError

    agent = create_agent(
        s.model(s.for_ever("search")), [search], middleware=[Brings(), ToolGuardMiddleware(s.repeat(3))]
    )
    with pytest.raises(CircuitOpen):
        agent.invoke(s.ask())
    assert seen.bodies == 3


def _with(request, given):
    request.tool = given
    return request


def test_many_tools_are_not_kept_for_ever():
    """A guard shared by agents whose tools are made anew for each request remembers a bounded number of them."""
    guard = ToolGuardMiddleware()
    for _ in range(300):
        guard._tools.of(uuid.uuid4().hex, s.look_up().tool, asynchronous=False)
    assert len(guard._tools._known) <= 256


@pytest.mark.parametrize("run", [s.invoke, s.ainvoke])
def test_executions_below_the_guard_are_reported_as_retries(run):
    """With a retry middleware inside ours a body that runs three times is one call of the model, and two retries."""
    bodies = []

    @tool
    @guard_tool
    def search(q: str) -> str:
        """Looks something up."""
        bodies.append(q)
        if len(bodies) < 3:
            raise ValueError(q)
        return "found"

    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    model = s.model(lambda turn: [("search", {"q": "x"})] if turn == 1 else None)
    with Session(policy=s.ceiling(5)) as session:
        run(create_agent(model, [search], middleware=[ToolGuardMiddleware(), retry]), s.ask())
        report = session.report()
    assert (len(bodies), report["calls"], report["retries"], report["failed"]) == (3, 1, 2, 0)
