"""A LangGraph of one's own, whose model asks for the same search for ever: without the guard, then with it; offline."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from otel_toolguard_langchain import tool_node_wrappers

from otel_toolguard import CircuitOpen, Session

TURNS = 50


@tool
def search(q: str) -> str:
    """Looks something up."""
    return f"nothing found about {q}"


def obstinate(state: MessagesState) -> dict[str, Any]:
    """In place of a model: it never gives up, unless it is asked to sum up."""
    messages = state["messages"]
    if messages[-1].content == "Sum up.":
        return {"messages": [AIMessage("I found nothing.")]}
    call = {"name": "search", "args": {"q": "the answer"}, "id": f"call-{len(messages)}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def graph_of(tools: ToolNode) -> Any:
    """The usual loop of model and tools."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", obstinate)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile()


def main() -> None:
    question = {"messages": [("user", "Find the answer.")]}
    try:
        graph_of(ToolNode([search])).invoke(question, {"recursion_limit": 2 * TURNS})
    except GraphRecursionError:
        print(f"without the guard: still searching after {TURNS} turns")

    graph = graph_of(ToolNode([search], **tool_node_wrappers()))
    with Session("conversation-42") as session:
        try:
            graph.invoke(question)
        except CircuitOpen as stop:
            print("stopped:", stop.trip.why)
            kept = stop.partial["messages"]
        print("report:", session.report()["tools"])
        print("next run:", graph.invoke({"messages": [*kept, ("user", "Sum up.")]})["messages"][-1].content)


if __name__ == "__main__":
    main()
