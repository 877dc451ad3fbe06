"""What a module of the user's has in it: tools with and without a guard, and globs of the settings that match none."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from otel_toolguard.cli.doctor_finding import Finding, one_line
from otel_toolguard.cli.doctor_providers import installed
from otel_toolguard.cli.doctor_tools import ModuleTools
from otel_toolguard.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from otel_toolguard.settings import Policy

_ADAPTERS = {
    "langchain_core.": "otel-toolguard-langchain",
    "agents.": "otel-toolguard-openai-agents",
    "pydantic_ai.": "otel-toolguard-pydantic-ai",
    "mcp.": "otel-toolguard-mcp",
    "claude_agent_sdk.": "otel-toolguard-claude-agent-sdk",
}
_SHOWN = 200  # names


def names_of(given: Iterable[str]) -> list[str]:
    """The names of modules that were given.

    Raises:
        SettingsError: One is none.
    """
    names = list(given)
    for name in names:
        a_file = name.endswith(".py") and os.path.isfile(name)  # noqa: PTH113
        if a_file or not all(part.isidentifier() for part in name.split(".")):
            raise SettingsError(f"{one_line(name, 80)!r} is no name of a module; {_as_python_takes_it(name)}")
    return names


def _as_python_takes_it(name: str) -> str:
    said = one_line(name.removesuffix(".py").strip("./").replace(os.sep, "."), 80)
    return f"write it as python -m takes it, such as {said or 'my_agent.tools'}"


def imported(names: Iterable[str]) -> tuple[list[ModuleType], list[Finding]]:
    """The modules, as ``python -m`` would find them; a finding for each that cannot be imported."""
    modules: list[ModuleType] = []
    findings: list[Finding] = []
    with _here():
        for name in names:
            try:
                modules.append(importlib.import_module(name))
            except KeyboardInterrupt:
                raise
            except BaseException as fault:  # SystemExit, or a class of the module's own
                findings.append(_fault(name, fault))
    return modules, findings


def left_running(threads: list[str]) -> Iterator[Finding]:
    """What an import has started and not ended."""
    if threads:
        text = f"{_list(threads)}: started by the import, and still running; doctor ends without waiting for them"
        advice = "start threads when the program runs, not when the module is imported"
        yield Finding("note", "threads", text, advice, {"threads": threads})


@contextmanager
def _here() -> Iterator[None]:
    """The working directory comes first, as it does for ``python -m``."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except OSError:  # it is gone
        here = ""
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _fault(name: str, fault: BaseException) -> Finding:
    said = one_line(f"{type(fault).__name__}: {_words(fault)}".rstrip(": "))
    lacking = getattr(fault, "name", None)
    absent = isinstance(fault, ModuleNotFoundError) and (name == lacking or name.startswith(f"{lacking}."))
    advice = f"run this where python -m {name} would find it" if absent else "correct it; nothing is known of its tools"
    if absent and name.endswith(".py"):
        advice = _as_python_takes_it(name)
    return Finding("fail", name, f"cannot be imported: {said}", advice, {"error": said})


def _words(fault: BaseException) -> str:
    try:
        return str(fault)
    except Exception:
        return "it cannot be told"


def module_findings(modules: Iterable[ModuleType], policy: Policy | None) -> list[Finding]:
    """Tools and globs of all the modules together."""
    found = ModuleTools()
    for module in modules:
        found.module(module)
    findings = [*_tools(found)]
    policies = {} if policy is None else {"": policy}
    for where, made in found.policies.items():
        findings.append(_made(where, made, policy))
        policies[f"{where}: "] = made
    for where, judging in policies.items():
        findings += _globs(where, judging, found)
    return findings


def _tools(found: ModuleTools) -> Iterator[Finding]:
    if found.guarded:
        yield Finding("ok", "guarded", _list(found.guarded), "", {"tools": list(found.guarded)})
    if found.bare:
        zero = sorted(
            {dist for start, dist in _ADAPTERS.items() if any(kind.startswith(start) for kind in found.kinds)}
        )
        there = [dist for dist in zero if installed(dist)]
        advice = "unless an adapter guards the agent that uses them, put @guard_tool below the framework's decorator"
        if there:
            advice += f"; under opentelemetry-instrument {' and '.join(there)} guards the agent"
        text = f"{_list(found.bare)}: nothing here leads to a guard"
        yield Finding("warn", "unguarded", text, advice, {"tools": list(found.bare)})
    for where, names in found.open_agents.items():
        text = f"{_list(names)}: nothing guards it in this agent, though a tool of that name elsewhere"
        advice = "guard the agent, or take its place by the guarded one, unless it is guarded when it is run"
        yield Finding("warn", where, text, advice, {"agent": where, "tools": names})
    if found.functions:
        text = f"{_list(found.functions)}: public functions without a guard; are they tools?"
        yield Finding("note", "functions", text, "", {"functions": list(found.functions)})
    if found.veiled:
        text = f"{_list(found.veiled)}: not looked into"
        yield Finding("note", "hidden", text, "", {"things": list(found.veiled)})
    if not (found.guarded or found.bare):
        yield Finding("warn", "tools", "no tool was found", "name the module in which the tools or the agent are made")


def _made(where: str, made: Policy, policy: Policy | None) -> Finding:
    """A policy that code makes: what it says otherwise than the environment."""
    theirs, ours = made.to_dict(), policy.to_dict() if policy else {}
    changed = [key for key, value in theirs.items() if ours.get(key) != value]
    text = (
        f"code makes a policy; from code: {', '.join(changed)}"
        if changed
        else "code makes a policy, as the environment"
    )
    return Finding("note", where, text, "", {"from_code": changed})


def _globs(where: str, policy: Policy, found: ModuleTools) -> Iterator[Finding]:
    """Each glob of the policy: the tools it matches, and whether an earlier one has taken them all."""
    ceilings: list[str] = [glob for _, settings in policy.plugins for glob in getattr(settings, "tools", None) or ()]
    for table, globs in (("tools", list(policy.tools)), ("call_ceiling tools", ceilings)):
        for index, glob in enumerate(globs):
            yield _glob(f'{where}{table}."{one_line(glob, 40)}"', glob, globs[:index], found)


def _glob(name: str, glob: str, earlier: list[str], found: ModuleTools) -> Finding:
    matched = [tool for tool in found.names() if fnmatchcase(tool, glob)]
    left = [tool for tool in matched if not any(fnmatchcase(tool, other) for other in earlier)]
    data: dict[str, Any] = {"glob": glob, "tools": left}
    if left:
        return Finding("ok", name, f"matches {_list(left)}", "", data)
    if matched:
        text = f"has no effect: an earlier glob takes all it matches ({_list(matched)})"
        return Finding("fail", name, text, "the first match counts: put this one before the wider one", data)
    if found.veiled:
        return Finding("warn", name, "matches no tool that can be seen here", "look at its spelling", data)
    functions = [function for function in found.functions if fnmatchcase(function, glob)]
    if functions:
        text = f"matches only functions that nothing here guards ({_list(functions)})"
        return Finding("warn", name, text, "put @guard_tool on them, unless they are guarded elsewhere", data)
    near = get_close_matches(glob, found.names(), 1)
    advice = f"did you mean {near[0]}?" if near else f"tools here are {_list(found.names()) or 'none'}"
    return Finding("fail", name, "matches no tool of this module", advice, data)


def _list(names: Iterable[str]) -> str:
    return one_line(", ".join(names), _SHOWN)
