"""Which session and which run calls belong to."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from agents import RunConfig, set_tracing_disabled, trace
from agents.tracing import set_trace_processors
from otel_toolguard_openai_agents import ToolGuardOpenAIAgentsInstrumentor, guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.telemetry import attributes as names

from . import scripted as s


@pytest.fixture
def tracing():
    """The SDK's own tracing, kept in memory; the spans that ended."""
    from agents.tracing import TracingProcessor

    class Keeping(TracingProcessor):
        def __init__(self):
            self.ended = []

        def on_span_end(self, span):
            self.ended.append(span)

        def on_trace_start(self, trace):
            pass

        on_trace_end = on_span_start = on_trace_start

        def shutdown(self):
            pass

        force_flush = shutdown

    keeping = Keeping()
    set_trace_processors([keeping])
    set_tracing_disabled(False)
    yield keeping.ended
    set_tracing_disabled(True)
    set_trace_processors([])


@pytest.fixture
def instrumented():
    """The time under the instrumentor."""
    instrumentor = ToolGuardOpenAIAgentsInstrumentor()
    instrumentor.instrument()
    yield
    instrumentor.uninstrument()


def sessions(traced):
    """Sessions and conversations on the spans."""
    return {
        (span.attributes["toolguard.session.id"], span.attributes.get("gen_ai.conversation.id"))
        for span in traced.spans()
    }


NAMED = {
    "an object": ({"context": SimpleNamespace(session_id="one")}, "one"),
    "a mapping": ({"context": {"conversation_id": "two"}}, "two"),
    "a number": ({"context": {"thread_id": 3}}, "3"),
    "the group": ({"run_config": RunConfig(group_id="four")}, "four"),
    "both": ({"context": {"session_id": "one"}, "run_config": RunConfig(group_id="four")}, "one"),
}


@pytest.mark.parametrize("case", NAMED)
@pytest.mark.parametrize("traces", [False, True])
@pytest.mark.parametrize("run", s.WAYS)
def test_the_caller_names_the_session(run, traces, case, traced, request):
    """Context object, then group: runs that name the same session share its ceiling, with and without tracing."""
    if traces:
        request.getfixturevalue("tracing")
    more, name = NAMED[case]
    seen = s.look_up()
    agent = guard_agent(
        s.agent(lambda turn: [("search", {"q": str(turn)})] if turn % 4 else None, [seen.tool]),
        policy=s.ceiling(session=5), telemetry=traced.telemetry,
    )  # fmt: skip
    name_here = f"{name}-{run.__name__}-{traces}-{case}"
    more = dict(more)
    if "context" in more:
        kept = more["context"]
        more["context"] = dict.fromkeys(kept if isinstance(kept, dict) else vars(kept), name_here)
    else:
        more["run_config"] = RunConfig(group_id=name_here)
    assert run(agent, "Find the word.", **more).final_output == s.DONE
    with pytest.raises(CircuitOpen):
        run(agent, "Find the word.", **more)
    assert seen.bodies == 5
    assert sessions(traced) == {(name_here, name_here)}


def test_context_object_that_refuses_to_be_looked_at(traced):
    """A context object that raises when asked names no session, and the run is not disturbed."""

    class Hostile:
        @property
        def session_id(self):
            raise RuntimeError("not now")

    agent = guard_agent(s.agent([[("search", {})]], [s.look_up().tool]), telemetry=traced.telemetry)
    assert s.run(agent, "Find the word.", context=Hostile()).final_output == s.DONE
    assert traced.outcomes() == ["ok"]


def test_nobody_names_the_session(traced, tracing):
    """Without a name the trace is the session, and nobody's conversation: its runs share ceilings, not loops."""
    seen = s.look_up()
    agent = guard_agent(
        s.agent(lambda turn: [("search", {})] if turn % 3 else None, [seen.tool]), policy=s.repeat(3),
        telemetry=traced.telemetry,
    )  # fmt: skip
    with trace("workflow") as whole:
        for _ in range(3):
            s.run(agent, "Find the word.")
    assert sessions(traced) == {(whole.trace_id, None)}
    assert len({span.attributes[names.RUN_ID] for span in traced.spans()}) == 3
    assert seen.bodies == 6


def test_without_tracing_each_run_is_its_own_session(traced):
    """With neither name nor trace each run is a session of its own."""
    agent = guard_agent(
        s.agent(lambda turn: [("search", {})] if turn % 2 else None, [s.look_up().tool]), telemetry=traced.telemetry
    )
    for _ in range(2):
        s.run(agent, "Find the word.")
    assert len(sessions(traced)) == 2
    assert {conversation for _, conversation in sessions(traced)} == {None}


@pytest.mark.parametrize("run", s.WAYS)
def test_open_session_decides(run, traced):
    """An open block wins over every name, and its on_trip is told."""
    trips = []
    agent = guard_agent(s.agent(s.for_ever("search"), [s.look_up().tool]))
    with Session("block", policy=s.repeat(3), on_trip=trips.append, telemetry=traced.telemetry) as session:
        with pytest.raises(CircuitOpen) as caught:
            run(agent, "Find the word.", context={"session_id": "other"})
        assert session.trip == caught.value.trip == trips[0]
    assert sessions(traced) == {("block", "block")}


def test_zero_code_knows_the_sdks_memory(traced):
    """Under the instrumentor the id of the SDK's memory names the session where nothing else does."""
    instrumentor = ToolGuardOpenAIAgentsInstrumentor()
    instrumentor.instrument(tracer_provider=traced.provider)
    try:
        s.run(s.agent([[("search", {})]], [s.look_up().tool]), "Find the word.", session=s.Memory("chat-7"))
    finally:
        instrumentor.uninstrument()
    assert sessions(traced) == {("chat-7", "chat-7")}


@pytest.mark.parametrize("traces", [False, True])
@pytest.mark.parametrize("through_json", [False, True])
@pytest.mark.parametrize("put", ["agent", "hooks"])
@pytest.mark.parametrize("run", s.WAYS)
def test_approved_run_goes_on(run, put, through_json, traces, traced, request):
    """A run that waits for approvals is one run, also where it was stored in between; each call counts once."""
    if traces:
        request.getfixturevalue("tracing")

    def search(q: str) -> str:
        """Looks something up."""
        return "nothing"

    bare = s.agent([[("search", {"q": "a"})]] * 4, [s.bare(search, needs_approval=True)])
    agent, more = (guard_agent(bare), {}) if put == "agent" else (bare, {"hooks": guarded_hooks()})
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen):
        s.approved(agent, run, through_json=through_json, **more)
    assert len({span.attributes[names.RUN_ID] for span in traced.spans()}) == 1
    assert (session.report()["calls"], traced.outcomes(), bare.model.asked) == (3, ["ok"] * 3, 3)


@pytest.mark.parametrize("traces", [False, True])
@pytest.mark.parametrize("put", ["agent", "zero-code"])
@pytest.mark.parametrize("through_json", [False, True])
@pytest.mark.parametrize("run", s.WAYS)
def test_approval_inside_an_agent_that_is_a_tool(run, through_json, put, traces, traced, request):
    """A call of an inner agent that waits for approval pauses the outer call; both count once when they have run."""
    if traces:
        request.getfixturevalue("tracing")

    def search(q: str) -> str:
        """Looks something up."""
        return "nothing"

    inner = s.agent([[("search", {"q": "a"})]], [s.bare(search, needs_approval=True)], name="inner", prefix="inner")
    prefix = f"{run.__name__}-{through_json}-{put}-{traces}"  # the SDK finds paused agents by the ids of calls
    agent = s.agent([[("ask", {"input": "word"})]], [inner.as_tool("ask", "Asks.")], prefix=prefix)
    if put == "agent":
        agent = guard_agent(agent)
    else:
        request.getfixturevalue("instrumented")
    with Session(policy=s.ceiling(2), telemetry=traced.telemetry) as session:
        assert s.approved(agent, run, through_json=through_json).final_output == s.DONE
    report = session.report()
    assert (report["calls"], report["failed"], report["in_flight"]) == (2, 0, 0)
    assert sorted(traced.outcomes()) == ["interrupted", "ok", "ok"]


def test_calls_that_the_provider_makes_name_no_run(traced):
    """Calls that the provider makes itself, which bear no id for an answer, do not make one run of several."""
    from openai.types.responses import ResponseFunctionWebSearch

    item = {"id": "web-1", "type": "web_search_call", "status": "completed"}
    hosted = ResponseFunctionWebSearch.model_validate({**item, "action": {"type": "search", "query": "word"}})
    bare = s.agent(lambda turn: [hosted, ("search", {})] if turn % 2 else None, [s.look_up().tool])
    bare.model.keeps_history = False
    agent = guard_agent(bare)
    with Session(policy=s.repeat(3), telemetry=traced.telemetry):
        for _ in range(4):
            assert s.run(agent, "Find the word.").final_output == s.DONE
    assert len({span.attributes[names.RUN_ID] for span in traced.spans()}) == 4


def test_stored_run_goes_on_elsewhere(tracing, traced):
    """A stored run is the same run in a process that knows nothing of it, for its trace names it."""
    from otel_toolguard_openai_agents import _runs

    bare = s.agent([[("search", {"q": "a"})]] * 4, [s.bare(lambda q: "nothing", name_override="search")])
    bare.tools[0].needs_approval = True
    agent = guard_agent(bare)

    def forget():
        for known in (_runs._asked, _runs._begun, _runs._runs):
            for key in known:
                known.pop(key)

    with Session(policy=s.repeat(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen):
        s.approved(agent, s.run, through_json=True, between=forget)
    assert len({span.attributes[names.RUN_ID] for span in traced.spans()}) == 1


def test_trip_is_a_span_in_the_sdks_tracing(tracing):
    """A stop, and a refusal of one tool, is one custom span in the SDK's own trace, with the record as its data."""
    for policy, rule in ((s.repeat(3), "repeat_guard"), (s.ceiling(tools={"search": 2}), "call_ceiling")):
        tracing.clear()
        agent = guard_agent(
            s.agent(lambda turn: [("search", {})] if turn < 6 else None, [s.look_up().tool]), policy=policy
        )
        with contextlib.suppress(CircuitOpen):
            s.run(agent, "Find the word.")
        (span,) = [one for one in tracing if one.span_data.type == "custom"]
        assert (span.span_data.name, span.span_data.data["rule"]) == ("toolguard.trip", rule)
        assert span.parent_id in {one.span_id for one in tracing}
