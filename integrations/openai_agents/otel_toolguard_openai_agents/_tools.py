"""Maps the calls of the SDK's tools to attempts, and refusals to the ordinary answer of a failed tool.

The guard goes on copies of the tools, below the SDK's own handling of failures: there it sees the real exception, and
whatever the SDK makes of one stays as it is. It judges only in runs of which a hook has said that they are guarded.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import types
from collections import OrderedDict
from typing import Any

from agents import FunctionTool, ToolTimeoutError

from otel_toolguard.adapter import Attempt, Ended, GuardedTool, counted, dealt_with, failed_result, stop_in
from otel_toolguard_openai_agents._runs import guard_of, kept, place_of, run_of

IMPL = "_invoke_tool_impl"  # of the SDK's invoker, which makes an answer of what this raises
MARK = "_toolguard"  # on what is guarded; on functions of tools it says by whom, or None
AHEAD = 0.1  # seconds that the SDK's timer for a tool may have run before the tool began
TIMED_OUT = 124  # as the command of that name says it
_known: OrderedDict[int, list[Any]] = OrderedDict()


def guarded(tool: Any, guard: Any = None) -> Any:
    """A guarded copy of a tool; what is guarded already, or run by the provider, is returned as it is.

    ``guard`` judges in runs of which no hook has said who guards them; None for nobody.
    """
    field = "on_invoke_tool" if hasattr(tool, "on_invoke_tool") else "executor"
    invoker: Any = getattr(tool, field, None)
    told = None
    while hasattr(type(invoker), "guarded_tool"):  # a decorator on the tool object; one guard is enough
        invoker, told = invoker.__wrapped__, told or invoker.guarded_tool
    handled = _handles(invoker)
    body = vars(invoker)[IMPL] if handled else invoker
    if guard is not None and getattr(body, MARK, guard) is None:
        body = body.__wrapped__
    if not callable(body) or hasattr(body, MARK):
        return tool
    known = kept(_known, id(tool), [])
    if not known or any(one is not was for one, was in zip((tool, body, guard), known, strict=False)):
        known[:] = tool, body, guard, _around(tool, body, told, guard)
    return _copy(tool, field, known[3], invoker if handled else None)


def with_agent(tool: Any, put: Any) -> Any:
    """A copy of a tool that is an agent, which runs what ``put`` makes of it; any other tool as it is."""
    agent, invoker = _agent_of(tool), getattr(tool, "on_invoke_tool", None)
    if agent is None or not _handles(invoker) or hasattr(type(agent), MARK):
        return tool
    copied = _copy(tool, "on_invoke_tool", _running(vars(invoker)[IMPL], put(agent)), invoker)
    copied._agent_instance = put(agent)  # noqa: SLF001  (where stored runs look for it)
    return copied


def _handles(invoker: Any) -> bool:
    """Whether it is the SDK's own invoker, and no wrapper that bears its attributes."""
    return type(invoker).__module__ == FunctionTool.__module__ and IMPL in vars(invoker)


def _copy(tool: Any, field: str, function: Any, invoker: Any) -> Any:
    copied = object.__new__(type(tool))  # a plain copy: what was worked out once stays as it is
    vars(copied).update({**vars(tool), field: function})
    if invoker is not None:
        vars(copied)[field] = copy.copy(invoker)
        setattr(vars(copied)[field], IMPL, function)
    return copied


def _around(tool: Any, body: Any, told: Any, guard: Any) -> Any:
    """The function of a tool under guard; ``told`` is what a decorator on the tool object said."""
    if isinstance(tool, FunctionTool):
        known = GuardedTool(tool.qualified_name, _function_in(body), _hints(body), _defaults(tool))
    else:
        known = GuardedTool(tool.name, hints={"kind": "shell"} if hasattr(tool, "executor") else None)
    known.tool = told.named(known.tool.name) if told is not None else known.tool
    if _agent_of(tool) is not None:
        known.tool.tool_class = known.tool.tool_class or "agent"

    @functools.wraps(body)
    async def invoke(*given: Any) -> Any:
        context, call_id, arguments = _read(tool, *given)
        place = place_of(context, calls=True) if guard_of(context, guard) is not None else None
        if place is None or counted(place.run_id, call_id):
            return await _awaited(body(*given))
        run = run_of(context)
        attempt = known.attempt(
            place, arguments, call_id=call_id, batch=f"{run.id}:{run.turn}", siblings=run.calls,
            agent=getattr(getattr(context, "agent", None), "name", None),
        )  # fmt: skip
        if attempt.refused is None:
            own = _agent_of(tool) is None or not run.guard.alone
            return await _run(attempt, tool, body if own else _running(body, run.guard.agent(_agent_of(tool))), given)
        if attempt.refused.fresh:
            run.guard.show(attempt.refused.trip)
        return attempt.error().to_tool_message()

    setattr(invoke, MARK, guard)
    return invoke


async def _run(attempt: Attempt, tool: Any, body: Any, given: tuple[Any, ...]) -> Any:
    """Runs an admitted call."""
    heard, now = _Heard(_server_of(body)), asyncio.get_running_loop().time
    late = now() + (getattr(tool, "timeout_seconds", None) or float("inf")) - AHEAD
    if heard.server is not None:
        body = functools.partial(body.func, heard, *body.args[1:], **body.keywords)
    attempt.enter()
    try:
        result = await _awaited(body(*given))
    except BaseException as error:
        attempt.leave()
        opened, ended = stop_in(error), error
        if isinstance(error, asyncio.CancelledError) and now() >= late:  # by the SDK: a failure, and nobody's wish
            ended = ToolTimeoutError(tool_name=tool.name, timeout_seconds=tool.timeout_seconds)
        attempt.raised(opened or ended)
        if opened is None or not dealt_with(attempt, opened):
            raise
        return opened.to_tool_message()
    attempt.leave()
    waits = result is None and _agent_of(tool) is not None  # for somebody to approve a call of its own
    attempt.returned(_said(result), Ended("interrupted") if waits else heard.failure)
    told = "\n\n".join(attempt.nudges)
    if told and isinstance(result, str):
        return f"{result}\n\n{told}"
    return [*result, {"type": "text", "text": told}] if told and isinstance(result, list) else result


class _Heard:
    """An MCP server of which is noted whether it says that a call failed; the SDK makes a plain text of that."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.failure: Ended | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
        result = await self.server.call_tool(*args, **kwargs)
        if getattr(result, "isError", False) or getattr(result, "is_error", False):  # MCP 1, MCP 2
            self.failure = failed_result("\n".join(str(getattr(part, "text", part)) for part in result.content))
        return result


def _read(tool: Any, given: Any, text: str = "") -> tuple[Any, str | None, Any]:
    """Of what a tool is given: the context, the call's id and its arguments."""
    if hasattr(given, "ctx_wrapper"):
        action = given.data.action
        commands = getattr(action, "commands", None) or [" ".join(getattr(action, "command", ()))]
        where = getattr(action, "working_directory", None)
        said = {"command": "\n".join(commands)} | ({"cwd": where} if where else {})
        return given.ctx_wrapper, given.data.call_id, said
    call_id = getattr(given, "tool_call_id", None)
    if not isinstance(tool, FunctionTool):
        return given, call_id, {"input": text}
    try:
        parsed = json.loads(text) if text else {}
    except ValueError:
        parsed = text
    return given, call_id, parsed if isinstance(parsed, dict) else text


def _said(result: Any) -> Any:
    """What a tool said, an exit code included."""
    parts = getattr(result, "output", None)
    if type(result).__name__ != "ShellResult" or not isinstance(parts, list):
        return result
    codes = [TIMED_OUT if part.status == "timeout" else part.exit_code or 0 for part in parts]
    return {"exit_code": next(filter(None, codes), 0), "output": [[part.stdout, part.stderr] for part in parts]}


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _function_in(body: Any) -> Any:
    """The user's function, from the closure in which the SDK calls it; None if it is not there."""
    names = body.__code__.co_freevars if isinstance(body, types.FunctionType) else ()
    return body.__closure__[names.index("the_func")].cell_contents if "the_func" in names else None


def _running(body: Any, agent: Any) -> Any:
    """The function of an agent that is a tool, made to run another agent; its closure is all that knows which."""
    names = body.__code__.co_freevars if isinstance(body, types.FunctionType) else ()
    cells = tuple(types.CellType(agent) if each == "self" else body.__closure__[n] for n, each in enumerate(names))
    if "self" not in names:
        return body
    return types.FunctionType(body.__code__, body.__globals__, body.__name__, None, cells)


def _agent_of(tool: Any) -> Any:
    return getattr(tool, "_agent_instance", None)


def _server_of(body: Any) -> Any:
    server = body.args[0] if isinstance(body, functools.partial) and body.args else None
    return server if hasattr(server, "call_tool") else None


def _hints(body: Any) -> dict[str, Any] | None:
    told = getattr(body.args[1], "annotations", None) if _server_of(body) is not None else None
    return told.model_dump(by_alias=True, exclude_none=True) if told is not None else None


def _defaults(tool: FunctionTool) -> dict[str, Any]:
    parts = tool.params_json_schema.get("properties", {})
    return {name: part["default"] for name, part in parts.items() if isinstance(part, dict) and "default" in part}
