"""Scripted agents: a loop as one would write it by hand, to try tools and limits on."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from otel_toolguard import CircuitOpen, Policy, Session, SessionStopped, current_session, guard_tool
from otel_toolguard.testing import (
    DONE,
    AsyncScriptedAgent,
    ScriptedAgent,
    ScriptedModel,
    always_new,
    capture_spans,
    for_ever,
    in_turn,
    unanswered,
)

REPEAT = Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}, {"plugin": "tool_stats"}])


def ceiling(**more):
    return Policy(plugins=[{"plugin": "call_ceiling", **more}, {"plugin": "tool_stats"}])


@guard_tool
def search(q="word"):
    return f"nothing about {q}"


@guard_tool(name="search")
async def search_async(q="word"):
    await asyncio.sleep(0)
    return f"nothing about {q}"


class Awaited(AsyncScriptedAgent):
    """The async agent, run from sync code."""

    def run(self, text="Go."):
        return asyncio.run(super().run(text))


KINDS = [(ScriptedAgent, search), (Awaited, search_async), (Awaited, search)]


@pytest.mark.parametrize(("agent", "tool"), KINDS)
def test_a_loop_is_stopped(agent, tool):
    """The run ends at the limit before another model call, each call answered, the history with the exception."""
    with Session(policy=REPEAT) as session:
        made = agent([tool], for_ever("search"))
        with pytest.raises(SessionStopped) as caught:
            made.run()
    assert (made.asked, len(made.answers), session.report()["calls"]) == (3, 3, 3)
    assert caught.value.trip.rule == "repeat_guard"
    assert caught.value.partial["messages"] == made.history
    assert unanswered(made.history) == []


@pytest.mark.parametrize(("agent", "tool"), KINDS)
def test_a_batch_at_a_ceiling(agent, tool):
    """Of ten calls in one turn five run, five are answered by their refusal, and no model is asked again."""
    with Session(policy=ceiling(run=5)):
        made = agent([tool], always_new("search", batch=10))
        with pytest.raises(SessionStopped):
            made.run()
    assert (made.asked, len(made.answers), unanswered(made.history)) == (1, 10, [])
    refused = [answer for answer in made.answers if answer["refused"]]
    assert [json.loads(answer["content"])["error"] for answer in refused] == ["circuit_open"] * 5
    assert all(answer["failed"] for answer in refused)


@pytest.mark.parametrize(("agent", "tool"), KINDS)
def test_a_refusal_lets_the_run_go_on(agent, tool):
    """Where one tool is closed the model is told, and the agent comes to its own end."""
    with Session(policy=ceiling(tools={"search": 1})) as session:
        made = agent([tool], [[("search", {"q": "a"})], [("search", {"q": "b"})], "I gave up."])
        assert made.run("Find it.") == "I gave up."
    assert [answer["refused"] for answer in made.answers] == [False, True]
    assert (made.asked, session.trip) == (3, None)
    assert made.history[0] == {"role": "user", "content": "Find it."}


def test_the_turns_of_a_script():
    """A list of turns, a function of the turn's number, a text or nothing at the end; a model can be shared."""
    for script in ([[("search", {})]], lambda turn: [("search", {})] if turn == 1 else None, [[("search", {})], []]):
        made = ScriptedAgent([search], script)
        assert (made.run(), made.asked) == (DONE, 2)
    assert [turn[0][0] for turn in map(in_turn(("a", {}), ("b", {})), (1, 2, 3))] == ["a", "b", "a"]
    assert always_new("a", "url", batch=2)(7) == [("a", {"url": "7.0"}), ("a", {"url": "7.1"})]
    model = ScriptedModel(["first", "second"])
    assert (ScriptedAgent([], model).run(), ScriptedAgent([], model).run(), model.asked) == ("first", "second", 2)


def test_a_script_that_nothing_stops():
    """An agent without a guard does not hang the test: after so many turns it fails."""
    with pytest.raises(AssertionError, match="asked 1000 times"):
        ScriptedAgent([search], for_ever("search")).run()
    with pytest.raises(AssertionError, match="asked 5 times"):
        ScriptedAgent([search], ScriptedModel(for_ever("search"), max_turns=5)).run()


@pytest.mark.parametrize("agent", [ScriptedAgent, Awaited])
def test_what_goes_wrong_in_a_tool_is_answered(agent):
    """Exceptions, wrong arguments and unknown tools are failed answers, by which the run goes on."""

    @guard_tool
    def fetch(url):
        raise ConnectionError(url)

    with Session() as session:
        made = agent([fetch], [[("fetch", {"url": "x"}), ("fetch", {"uri": "x"}), ("unheard_of", {})]])
        assert made.run() == DONE
    assert [answer["failed"] for answer in made.answers] == [True] * 3
    assert [answer["content"].partition(":")[0] for answer in made.answers] == [
        "ConnectionError", "TypeError", "LookupError",
    ]  # fmt: skip
    assert session.report()["tools"]["fetch"]["failed"] >= 1


def test_results_that_are_no_text():
    """Data is answered as JSON; generators of both kinds are used up."""

    def data():
        return {"hits": [1, None]}

    @guard_tool
    def numbers():
        yield from (1, 2)

    @guard_tool
    async def letters():
        for letter in "ab":
            yield letter

    ask = [[("data", {}), ("numbers", {})]]
    assert [a["content"] for a in _ran(ScriptedAgent([data, numbers], ask))] == ['{"hits": [1, null]}', "[1, 2]"]
    with Session() as session:
        found = _ran(Awaited([data, numbers, letters], [[*ask[0], ("letters", {})]]))
    assert [answer["content"] for answer in found] == ['{"hits": [1, null]}', "[1, 2]", '["a", "b"]']
    assert session.report()["in_flight"] == 0


def _ran(agent):
    agent.run()
    return agent.answers


@pytest.mark.parametrize("parallel", [True, False])
def test_calls_of_a_turn_run_side_by_side(parallel):
    """In threads, or as tasks, they overlap, in the session; with parallel=False one follows the other."""
    seen, running, most = [], [], []
    together = threading.Barrier(3 if parallel else 1)

    def look(q):
        running.append(q)
        together.wait()
        most.append(len(running))
        together.wait()
        running.remove(q)
        seen.append(current_session().id)
        return q

    with Session("s") as session:
        made = ScriptedAgent([guard_tool(look)], [[("look", {"q": q}) for q in "abc"]], parallel=parallel)
        made.run()
    assert (seen, max(most)) == ([session.id] * 3, 3 if parallel else 1)
    assert [answer["content"] for answer in made.answers] == ["a", "b", "c"]


@pytest.mark.parametrize("parallel", [True, False])
def test_tasks_of_a_turn_run_side_by_side(parallel):
    """Async calls wait for each other if they are parallel, and are awaited in order if not."""
    order = []

    async def look(q):
        order.append(q)
        await asyncio.sleep(0)
        order.append(q)
        return q

    Awaited([look], [[("look", {"q": "a"}), ("look", {"q": "b"})]], parallel=parallel).run()
    assert order == (["a", "b", "a", "b"] if parallel else ["a", "a", "b", "b"])


def test_spans_hang_below_the_callers():
    """Calls in threads are spans below the span that is current around the run."""
    with capture_spans() as captured, Session(), captured.tracer.start_as_current_span("request") as request:
        ScriptedAgent([search], [[("search", {"q": q}) for q in "abc"]]).run()
    assert {span.parent.span_id for span in captured.spans("search")} == {request.get_span_context().span_id}


def test_an_agent_inside_a_tool():
    """A loop of an inner agent ends the outer one too, with no further call of either model."""
    inner = ScriptedAgent([search], for_ever("search"))

    @guard_tool
    def delegate():
        return inner.run()

    outer = ScriptedAgent([delegate], for_ever("delegate"))
    with Session(policy=REPEAT), pytest.raises(SessionStopped):
        outer.run()
    assert (inner.asked, outer.asked, unanswered(outer.history)) == (3, 1, [])


def test_the_kept_history_works_in_the_next_run():
    """In a new block the same agent goes on with its history; in the stopped one it does not."""
    made = ScriptedAgent([search], lambda turn: [("search", {})] if turn <= 3 else None)
    with Session(policy=REPEAT) as session:
        for _ in range(2):
            with pytest.raises(CircuitOpen):
                made.run()
        assert made.asked == 3
    with session:
        assert made.run("Sum up.") == DONE
    assert [message["role"] for message in made.history].count("user") == 3


def test_the_model_rejects_a_broken_history():
    """Like a provider, the model does not answer where a call has no answer."""
    made = ScriptedAgent([search], [[("search", {})]])
    made.history = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "name": "search", "arguments": {}}]}
    ]
    with pytest.raises(ValueError, match="no answer to x"):
        made.run()


def test_names_of_tools():
    """Tools are known by the decorator's name, by their own, or by that of a mapping."""

    @guard_tool(name="find")
    def _find_anything():
        return "found"

    assert list(ScriptedAgent([_find_anything, test_names_of_tools], []).tools) == ["find", "test_names_of_tools"]
    made = ScriptedAgent({"look": _find_anything}, [[("look", {})]])
    made.run()
    assert made.answers[0]["content"] == "found"


def test_async_tools_need_the_async_agent():
    """A sync agent says at once that it cannot run an async tool."""

    async def streams():
        yield 1

    for tool in (search_async, streams):
        with pytest.raises(TypeError, match="AsyncScriptedAgent"):
            ScriptedAgent([tool], [])


def test_without_a_session_nothing_is_stopped():
    """The agent runs to its end: calls outside any session are not limited."""
    made = ScriptedAgent([search], [[("search", {})]] * 20)
    assert (made.run(), made.asked) == (DONE, 21)
