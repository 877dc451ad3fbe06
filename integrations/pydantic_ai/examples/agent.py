"""An agent that asks for the same search for ever, and what its caller gets; offline, for its model is scripted."""

from __future__ import annotations

from itertools import count

from otel_toolguard_pydantic_ai import ToolGuard
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from otel_toolguard import CircuitOpen, Session

TURNS = 50  # after which the unguarded agent is stopped, so that this example ends


def obstinate() -> FunctionModel:
    """A model that never gives up."""
    ids = count(1)
    return FunctionModel(
        lambda _messages, _info: ModelResponse([ToolCallPart("search", {"q": "the answer"}, f"call-{next(ids)}")])
    )


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
            print("kept:", len(stop.partial["messages"]), "messages, each call answered")
        print("report:", session.report()["tools"])


if __name__ == "__main__":
    main()
