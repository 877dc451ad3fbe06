"""Programs as users write them, with a model of their own, made up at random: whatever they are, the limit holds."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter

import agents
import pytest
from agents import Agent, ModelResponse, RunConfig, Usage, function_tool
from agents.exceptions import AgentsException
from agents.models.interface import Model
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFunctionToolCall
from otel_toolguard_openai_agents import ToolGuardOpenAIAgentsInstrumentor, guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Session, SessionStopped, guard_tool
from otel_toolguard.telemetry import attributes as names

from . import scripted as s

PLACES = ("agent", "hooks", "both", "zero-code", "everything")


class Restless(Model):
    """Asks for some of its tools in each turn, for ever; it counts what it is asked, and sees what it is told."""

    def __init__(self, chance, tools, sizes):
        self.chance, self.tools, self.sizes = chance, tools, sizes
        self.turns, self.heard = 0, []

    def output(self, given):
        self.heard.append(given)
        self.turns += 1
        return [
            ResponseFunctionToolCall(
                type="function_call", name=self.chance.choice(self.tools), call_id=f"id-{self.turns}-{n}",
                arguments=json.dumps({"q": f"{self.turns}.{n}"}),
            )
            for n in range(self.chance.choice(self.sizes))
        ]  # fmt: skip

    async def get_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002
        return ModelResponse(output=self.output(input), usage=Usage(), response_id=None)

    async def stream_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002
        response = Response(
            id="response", created_at=0, model="restless", object="response", output=self.output(input),
            parallel_tool_calls=True, tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=self.turns)


class Program:
    """An agent with tools of several kinds, and what they did."""

    def __init__(self, seed):
        chance = self.chance = random.Random(seed)
        self.ran = Counter()
        self._lock = threading.Lock()
        decorated = chance.random() < 0.3

        def quick(q: str) -> str:
            """Answers at once."""
            return self.done("quick", q)

        def slow(q: str) -> str:
            """Holds its thread for a moment."""
            time.sleep(random.Random(q).random() / 500)
            return self.done("slow", q)

        async def waits(q: str) -> str:
            """Lets the others go first."""
            for _ in range(random.Random(q).randrange(5)):
                await asyncio.sleep(0)
            return self.done("waits", q)

        def fails(q: str) -> str:
            """Fails, which the SDK hides from everybody but the model."""
            self.done("fails", q)
            raise OSError(f"no {q}")

        chosen = chance.sample([quick, slow, waits, fails], chance.randrange(1, 5))
        self.tools = [function_tool(guard_tool(one) if decorated else one) for one in chosen]
        self.sizes = [chance.randrange(1, 11) for _ in range(3)]
        self.model = Restless(chance, [tool.name for tool in self.tools], self.sizes)
        self.agent = Agent(name="restless", model=self.model, tools=self.tools)

    def done(self, name, q):
        with self._lock:
            self.ran[name] += 1
        return f"{name} {q}"


def put(where, agent):
    """The agent and the options of a run that is guarded there."""
    one = guard_agent(agent) if where in ("agent", "both", "everything") else agent
    return one, {"hooks": guarded_hooks()} if where in ("hooks", "both", "everything") else {}


def one_by_one(most):
    """The option by which the SDK runs no more calls of a turn at once, where it has that."""
    if most is None or not hasattr(agents, "ToolExecutionConfig"):
        return {}
    return {"run_config": RunConfig(tool_execution=agents.ToolExecutionConfig(max_function_tool_concurrency=most))}


@pytest.fixture
def zero_code(request):
    """Turns the instrumentor on where a place asks for it."""
    made = ToolGuardOpenAIAgentsInstrumentor()
    yield made.instrument
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("run", s.WAYS)
def test_whatever_the_program(run, where, seed, zero_code, traced):
    """Bodies are the ceiling exactly, no model call follows, every id is answered, each attempt is one span below."""
    program = Program(f"{run.__name__}-{where}-{seed}")
    limit = program.chance.randrange(1, 16)
    if where in ("zero-code", "everything"):
        zero_code()
    agent, more = put(where, program.agent)
    more |= one_by_one(program.chance.choice([None, 1, 2, 5]))
    policy = program.chance.choice([s.ceiling(limit), s.ceiling(session=limit)])
    with (
        traced.tracer.start_as_current_span("request") as request,
        Session(policy=policy, telemetry=traced.telemetry) as session,
        pytest.raises(CircuitOpen) as caught,
    ):
        run(agent, "Go on.", max_turns=50, **more)
    assert isinstance(caught.value, AgentsException)
    assert isinstance(caught.value, SessionStopped)
    kept = caught.value.to_input_list()
    asked = [item["call_id"] for item in kept if item.get("type") == "function_call"]
    answers = s.answers(kept)
    assert (sum(program.ran.values()), session.report()["calls"]) == (limit, limit)
    assert s.mispaired(kept) == ""
    assert sorted(answers) == sorted(asked)
    refused = [call_id for call_id, answer in answers.items() if "circuit_open" in answer]
    assert len(refused) == len(asked) - limit
    first = min(int(call_id.split("-")[1]) for call_id in refused)
    assert program.model.turns == first == max(int(call_id.split("-")[1]) for call_id in asked)
    assert Counter(span.attributes[names.CALL_ID] for span in traced.spans()) == Counter(asked)
    assert {span.parent.span_id for span in traced.spans()} == {request.get_span_context().span_id}
    assert session.report()["failed"] == program.ran["fails"] == traced.outcomes().count("failed")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("run", s.WAYS)
def test_whatever_tree_of_agents(run, where, seed, zero_code, traced):
    """A random tree of agents that are tools and hand-offs shares one ceiling, to the call, and ends as one run."""
    programs = [Program(f"{run.__name__}-{where}-{seed}-{n}") for n in range(3)]
    inner, clerk, first = (program.agent for program in programs)
    inner.name, clerk.name, first.name = "inner", "clerk", "first"
    owner = programs[0].chance.choice([clerk, first])
    tool = inner.as_tool("ask", "Asks.", max_turns=50)
    owner.tools = [*owner.tools, tool]
    owner.model.tools = [*owner.model.tools, "ask"]
    first.handoffs = [clerk]
    first.model.tools = [*first.model.tools, "transfer_to_clerk"]
    for n, program in enumerate(programs):  # ids are unique among all, as a provider's are
        program.model.output = _with_ids(program.model.output, f"{n}-")
    limit = programs[0].chance.randrange(1, 31)
    if where in ("zero-code", "everything"):
        zero_code()
    agent, more = put(where, first)
    with Session(policy=s.ceiling(session=limit), telemetry=traced.telemetry) as session:
        with pytest.raises(CircuitOpen) as caught:
            run(agent, "Go on.", max_turns=50, run_config=RunConfig(), **more)
        turns = [program.model.turns for program in programs]
        assert session.trip == caught.value.trip
    ended = Counter(traced.outcomes())
    assert ended["refused"] + limit == sum(ended.values())
    assert session.report()["calls"] == limit
    assert session.report()["in_flight"] == 0
    bodies = sum(sum(program.ran.values()) for program in programs)
    assert bodies == sum(1 for span in traced.spans() if span.name != "execute_tool ask" and _began(span))
    assert s.mispaired(caught.value.to_input_list()) == ""
    assert [program.model.turns for program in programs] == turns
    for program in programs:
        for given in program.model.heard:  # had the run been stopped before, no model would have been told so
            assert "circuit_open" not in json.dumps(given, default=str)


def _began(span):
    return span.attributes[names.OUTCOME] != "refused"


def _with_ids(output, prefix):
    def call(given):
        made = output(given)
        for one in made:
            one.call_id = prefix + one.call_id
        return made

    return call
