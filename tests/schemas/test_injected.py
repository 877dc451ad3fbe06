"""What frameworks inject is never what the model said: no part of the signature, by whatever name its class is known."""

from __future__ import annotations

import json
import typing

import agents
import agents.tool_context
import langchain.tools
import langchain_core.runnables
import langchain_core.tools
import langgraph.prebuilt
import pydantic_ai
import pytest
from frameworks import MAKERS, Context, said

from otel_toolguard import MemoryStore, Policy, Session, guard_tool

STATS = Policy(plugins=[{"plugin": "repeat_guard", "limit": 2}])
CLASSES = {
    "RunContext": pydantic_ai.RunContext,
    "RunContextWrapper": agents.RunContextWrapper,
    "ToolContext": agents.tool_context.ToolContext,
    "ToolRuntime": langchain.tools.ToolRuntime,
    "RunnableConfig": langchain_core.runnables.RunnableConfig,
    "Context": Context,
}
MARKERS = {
    "InjectedState": langgraph.prebuilt.InjectedState,
    "InjectedStore": langgraph.prebuilt.InjectedStore,
    "InjectedToolCallId": langchain_core.tools.InjectedToolCallId,
    "InjectedToolArg": langchain_core.tools.InjectedToolArg,
}
SPELLINGS = {
    "plain": "{0}",
    "quoted": "'{0}'",
    "or None": "{0} | None",
    "Optional": "typing.Optional[{0}]",
    "Optional, quoted": "typing.Optional['{0}']",
    "Annotated": "typing.Annotated[{0}, 'by the host']",
    "through a module": "home.{0}",
    "under another name": "Other",
    "under another name, quoted": "'Other'",
}
MARKED = {
    "a class": "typing.Annotated[dict, {0}]",
    "an object": "typing.Annotated[dict, {0}()]",
    "or None": "typing.Annotated[dict | None, {0}]",
    "quoted": "'typing.Annotated[dict, {0}]'",
    "within an Optional": "typing.Optional[typing.Annotated[dict, {0}]]",
    "under another name": "typing.Annotated[dict, Other]",
    "through a module": "typing.Annotated[dict, home.{0}]",
}


def cases(kinds, spellings):
    """Each class in each spelling, with postponed annotations and without."""
    for name in kinds:
        for spelling in spellings:
            for postponed in (False, True):
                label = f"{name}, {spelling}, {'postponed' if postponed else 'evaluated'}"
                yield pytest.param(name, spelling, postponed, id=label)


class Home:
    """Stands for a module through which a name is reached."""


def tool(name, kind, spelling, postponed):
    """A function whose parameter ``given`` is annotated so, in a module with or without postponed annotations."""
    future = "from __future__ import annotations\n" if postponed else ""
    source = f"{future}def look(given: {spelling.format(name)}, q: str) -> str:\n    return q\n"
    home = Home()
    setattr(home, name, kind)
    names = {name: kind, "Other": kind, "typing": typing, "home": home, "__name__": "elsewhere"}
    exec(compile(source, "elsewhere.py", "exec", dont_inherit=True), names)
    return names["look"]


def asked_with(function):
    """The arguments on the record after two calls of which the host gave each something else."""
    with Session("s", policy=STATS, store=MemoryStore()) as session:
        guarded = guard_tool(function)
        guarded({"turn": 1}, "x")
        guarded(given={"turn": 2}, q="x")
        return session.trip and dict(session.trip.members[0].arguments)


@pytest.mark.parametrize(("name", "spelling", "postponed"), list(cases(CLASSES, SPELLINGS)))
def test_a_context_is_no_argument(name, spelling, postponed):
    """Two calls with other contexts are one call asked twice, and only what the model said is on its record."""
    assert asked_with(tool(name, CLASSES[name], SPELLINGS[spelling], postponed)) == {"q": "str(1)"}


@pytest.mark.parametrize(("name", "spelling", "postponed"), list(cases(MARKERS, MARKED)))
def test_what_is_marked_as_injected_is_no_argument(name, spelling, postponed):
    """The same for values that are marked as injected."""
    assert asked_with(tool(name, MARKERS[name], MARKED[spelling], postponed)) == {"q": "str(1)"}


HOSTS = {
    "langchain": ("ToolRuntime", "RunnableConfig"),
    "openai_agents": ("RunContextWrapper", "ToolContext"),
    "pydantic_ai": ("RunContext",),
    "mcp": ("Context",),
}


@pytest.mark.parametrize(
    ("framework", "name"), [(framework, name) for framework, names in HOSTS.items() for name in names]
)
@pytest.mark.parametrize("postponed", [False, True], ids=["evaluated", "postponed"])
def test_the_framework_finds_its_context_below_the_guard(framework, name, postponed):
    """The schema of a guarded function with a context is that of the bare one, and the context is not in it."""
    function = tool(name, CLASSES[name], "{0}", postponed)
    function.__doc__ = "Looks."
    make = MAKERS[framework]
    shown = said(make(guard_tool(function)))
    assert shown == said(make(function))
    assert "given" not in json.dumps([part for part in json.loads(shown) if isinstance(part, dict)])
