"""An agent that asks for the same search for ever, without and with the guard; offline, for its model is scripted."""

from __future__ import annotations

import asyncio
from itertools import count

from agents import Agent, MaxTurnsExceeded, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from otel_toolguard_openai_agents import guard_agent

from otel_toolguard import CircuitOpen, Session


class Obstinate(Model):
    """A model that gives up only when it is told to; like a provider it takes no call without its answer."""

    turns = count(1)

    async def get_response(self, system_instructions, input, *_args, **_kwargs):  # noqa: A002
        items = [{"content": input}] if isinstance(input, str) else input
        asked = [item["call_id"] for item in items if item.get("type") == "function_call"]
        if sorted(asked) != sorted(item["call_id"] for item in items if item.get("type") == "function_call_output"):
            raise ValueError("400: each call needs its answer")
        if items[-1].get("content") == "Give up.":
            text = ResponseOutputText(text=f"{len(asked)} searches found nothing.", type="output_text", annotations=[])
            answer = ResponseOutputMessage(
                id="message", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            answer = ResponseFunctionToolCall(
                type="function_call", name="search", arguments='{"q": "the answer"}', call_id=f"call-{next(self.turns)}"
            )
        return ModelResponse(output=[answer], usage=Usage(requests=1), response_id=None)

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
    agent = guard_agent(agent)
    with Session("conversation-42") as session:
        try:
            await Runner.run(agent, "Find the answer.", max_turns=50)
        except CircuitOpen as stop:
            print("stopped after", len(searches), "searches:", stop.trip.why)
            kept = stop.to_input_list()
        print("kept:", len(kept), "items, each call answered")
        result = await Runner.run(agent, [*kept, {"role": "user", "content": "Give up."}])
        print("the next run goes on from there:", result.final_output)
    print("report:", session.report()["tools"])


if __name__ == "__main__":
    asyncio.run(main())
