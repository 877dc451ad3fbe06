"""Removing the decorator changes no schema: what each framework says of a guarded tool and of the bare one."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
import types
from pathlib import Path

import postponed
import pytest
from frameworks import MAKERS, said

from otel_toolguard import guard_tool


def evaluated():
    """The very same tools in a module whose annotations are evaluated where they stand."""
    source = Path(postponed.__file__).read_text(encoding="utf-8")
    future = "from __future__ import annotations\n"
    assert source.count(future) == 1
    module = sys.modules["evaluated"] = types.ModuleType("evaluated")
    exec(compile(source.replace(future, ""), "evaluated.py", "exec", dont_inherit=True), vars(module))
    return module


MODULES = {"postponed": postponed, "evaluated": evaluated()}
UNTAKEN = {("langchain", "no docstring"), ("openai_agents", "a model")}  # the framework itself turns them down
CASES = [(module, kind) for module in MODULES for kind in postponed.TOOLS]


@pytest.mark.parametrize(("module", "kind"), CASES)
@pytest.mark.parametrize("framework", MAKERS)
def test_the_schema_is_that_of_the_bare_function(framework, module, kind):
    """Below the framework's own decorator: name, description and schema are byte for byte those without the guard.

    Where the framework turns the bare function down, it turns the guarded one down with the same kind of error.
    """
    make, function = MAKERS[framework], MODULES[module].TOOLS[kind]
    if (framework, kind) in UNTAKEN:
        with pytest.raises(Exception) as bare_error:
            make(function)
        with pytest.raises(bare_error.type, match=re.escape(str(bare_error.value)[:80])):
            make(guard_tool(function))
        return
    bare = said(make(function))
    assert said(make(guard_tool(function))) == bare


@pytest.mark.parametrize(("module", "kind"), CASES)
@pytest.mark.parametrize("framework", MAKERS)
def test_the_schema_of_a_tool_object_is_kept(framework, module, kind):
    """Above the framework's own decorator: the copy with the guard inside is byte for byte the object it is made of."""
    make, function = MAKERS[framework], MODULES[module].TOOLS[kind]
    if (framework, kind) in UNTAKEN:
        return
    tool = make(function)
    guarded = guard_tool(tool)
    assert guarded is not tool
    assert type(guarded) is type(tool)
    assert said(guarded) == said(tool)


class Oracle:
    """Knows."""

    async def __call__(self, q: str, n: int = 2) -> str:
        """Answers."""
        return q


def spelled_out(city: str, days: int = 3) -> str:
    return postponed.plain(city, days, "C")


spelled_out.__name__, spelled_out.__doc__ = "plain", postponed.plain.__doc__


async def oracle(q: str, n: int = 2) -> str:
    return q


oracle.__name__, oracle.__doc__ = "Oracle", Oracle.__doc__

NAMELESS = {
    "partial": (functools.partial(postponed.plain, unit="C"), spelled_out),
    "partial of a partial": (functools.partial(functools.partial(postponed.plain), unit="C"), spelled_out),
    "callable object": (Oracle(), oracle),
}


@pytest.mark.parametrize("kind", NAMELESS)
@pytest.mark.parametrize("framework", MAKERS)
def test_what_has_no_name_is_told_of_like_a_function(framework, kind):
    """A guarded partial or callable object is told of like a function written for it; what was given is not told of."""
    thing, function = NAMELESS[kind]
    guarded = guard_tool(thing)
    assert (guarded.__name__, guarded.__doc__) == (function.__name__, function.__doc__)
    try:
        tool = MAKERS[framework](guarded)
    except Exception as error:  # later releases of OpenAI Agents take no partials
        assert framework.startswith("openai_agents")
        assert "functools.partial" in str(error)  # noqa: PT017
        return
    shown = json.loads(said(tool))
    assert shown == json.loads(said(MAKERS[framework](function)))


def test_a_key_that_was_given_is_in_no_schema():
    """What a partial gives by name does not stand in a schema as the default of an argument."""

    def weather(city: str, key: str) -> str:
        """The weather now."""
        return city

    guarded = guard_tool(functools.partial(weather, key="hunter2"))
    assert str(inspect.signature(guarded)) == "(city: str) -> str"
    assert guarded(city="Rome") == "Rome"
    for framework in ("langchain", "pydantic_ai", "mcp"):
        assert "hunter2" not in said(MAKERS[framework](guarded))
