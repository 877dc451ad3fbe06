"""An agent that asks for the same search for ever: without the guard, then with it; offline, its model is scripted."""

from __future__ import annotations

from itertools import count
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session

TURNS = 50


class Obstinate(BaseChatModel):
    """A model that never gives up, unless it is asked to sum up."""

    turns: Any = None

    @property
    def _llm_type(self) -> str:
        return "obstinate"

    def bind_tools(self, _tools: Any, **_kwargs: Any) -> Obstinate:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_kwargs: Any) -> ChatResult:
        call = {"name": "search", "args": {"q": "the answer"}, "id": f"call-{next(self.turns)}"}
        said = AIMessage("", tool_calls=[call])
        if messages[-1].content == "Sum up.":
            said = AIMessage("I found nothing.")
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def search(q: str) -> str:
    """Looks something up."""
    return f"nothing found about {q}"


def main() -> None:
    question = {"messages": [("user", "Find the answer.")]}
    try:
        create_agent(Obstinate(turns=count(1)), [search]).invoke(question, {"recursion_limit": 2 * TURNS})
    except GraphRecursionError:
        print(f"without the guard: still searching after {TURNS} turns")

    agent = create_agent(Obstinate(turns=count(1)), [search], middleware=[ToolGuardMiddleware()])
    with Session("conversation-42") as session:
        try:
            agent.invoke(question)
        except CircuitOpen as stop:
            print("stopped:", stop.trip.why)
            kept = stop.partial["messages"]  # each call answered
        print("report:", session.report()["tools"])
        print("next run:", agent.invoke({"messages": [*kept, ("user", "Sum up.")]})["messages"][-1].content)


if __name__ == "__main__":
    main()
