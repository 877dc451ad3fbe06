"""An agent that asks for the same search for ever, without and with the guard; offline, for its model is scripted."""

from __future__ import annotations

import asyncio
from itertools import count

from agents import Agent, MaxTurnsExceeded, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall
from otel_toolguard_openai_agents import guard_agent

from otel_toolguard import CircuitOpen, Session


class Obstinate(Model):
    """A model that never gives up."""

    turns = count(1)

    async def get_response(self, *_args, **_kwargs):
        call = ResponseFunctionToolCall(
            type="function_call", name="search", arguments='{"q": "the answer"}', call_id=f"call-{next(self.turns)}"
        )
        return ModelResponse(output=[call], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *_args, **_kwargs):
        raise NotImplementedError


searches = []


@function_tool
def search(q: str) -> str:
    """Looks something up."""
    searches.append(q)
    return "nothing found"


async def main() -> None:
    set_tracing_disabled(True)
    agent = Agent(name="assistant", model=Obstinate(), tools=[search])
    try:
        await Runner.run(agent, "Find the answer.", max_turns=50)
    except MaxTurnsExceeded as error:
        print("without the guard:", len(searches), "searches;", error)

    searches.clear()
    with Session("conversation-42") as session:
        try:
            await Runner.run(guard_agent(agent), "Find the answer.", max_turns=50)
        except CircuitOpen as stop:
            print("stopped after", len(searches), "searches:", stop.trip.why)
            print("kept:", len(stop.to_input_list()), "items, each call answered")
    print("report:", session.report()["tools"])


if __name__ == "__main__":
    asyncio.run(main())
