"""An agent that asks for the same search for ever, and what its caller gets; offline, for its model is scripted."""

from __future__ import annotations

from itertools import count
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from otel_toolguard_langchain import ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session


class Obstinate(BaseChatModel):
    """A model that never gives up."""

    turns: Any = None

    @property
    def _llm_type(self) -> str:
        return "obstinate"

    def bind_tools(self, _tools: Any, **_kwargs: Any) -> Obstinate:
        return self

    def _generate(self, _messages: Any, stop: Any = None, run_manager: Any = None, **_kwargs: Any) -> ChatResult:
        call = {"name": "search", "args": {"q": "the answer"}, "id": f"call-{next(self.turns)}"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content="", tool_calls=[call]))])


@tool
def search(q: str) -> str:
    """Looks something up."""
    print("searching for", q)
    return "nothing found"


def main() -> None:
    agent = create_agent(Obstinate(turns=count(1)), [search], middleware=[ToolGuardMiddleware()])
    with Session("conversation-42") as session:
        try:
            agent.invoke({"messages": [("user", "Find the answer.")]})
        except CircuitOpen as stop:
            print("stopped:", stop.trip.why)
            print("kept:", len(stop.partial["messages"]), "messages, each call answered")
        print("report:", session.report()["tools"])


if __name__ == "__main__":
    main()
