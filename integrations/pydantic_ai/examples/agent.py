"""An agent that asks for the same search for ever, and what its caller gets; offline, for its model is scripted."""

from __future__ import annotations

from itertools import count

from otel_toolguard_pydantic_ai import ToolGuard
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from otel_toolguard import CircuitOpen, Session

TURNS = 50  # after which the unguarded agent is stopped, so that this example ends


def obstinate() -> FunctionModel:
    """A model that never gives up."""
    ids = count(1)
    return FunctionModel(
        lambda _messages, _info: ModelResponse([ToolCallPart("search", {"q": "the answer"}, f"call-{next(ids)}")])
    )


def sums_up(messages: list[ModelMessage], _info: object) -> ModelResponse:
    """A model that, like a provider, takes no history in which a call has no answer."""
    parts = [part for message in messages for part in message.parts]
    asked = {part.tool_call_id for part in parts if isinstance(part, ToolCallPart)}
    answered = {part.tool_call_id for part in parts if isinstance(part, ToolReturnPart)}
    if asked != answered:
        raise ValueError(f"400: no answer to {asked - answered}")
    return ModelResponse([TextPart(f"{len(asked)} searches found nothing")])


def search(q: str) -> str:
    """Looks something up."""
    return f"nothing found about {q}"


def main() -> None:
    bare = Agent(obstinate(), tools=[search])
    try:
        bare.run_sync("Find the answer.", usage_limits=UsageLimits(request_limit=TURNS))
    except UsageLimitExceeded:
        print("without the guard:", TURNS, "model requests, and it would go on")

    agent = Agent(obstinate(), tools=[search], capabilities=[ToolGuard()])
    with Session("conversation-42") as session:
        try:
            agent.run_sync("Find the answer.")
        except CircuitOpen as stop:
            print("stopped:", stop.trip.why)
            kept = stop.partial["messages"]
            print("kept:", len(kept), "messages, each call answered")
            told = Agent(FunctionModel(sums_up), tools=[search], capabilities=[ToolGuard()])
            print("next run:", told.run_sync("Sum up.", message_history=kept).output)
        print("report:", session.report()["tools"])


if __name__ == "__main__":
    main()
