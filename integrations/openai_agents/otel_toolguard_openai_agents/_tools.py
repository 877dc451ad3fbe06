"""Maps the calls of the SDK's tools to attempts, and refusals to the ordinary answer of a failed tool.

The guard goes on copies of the tools, below the SDK's own handling of failures: there it sees the real exception, and
whatever the SDK makes of one stays as it is. It judges only in runs of which a hook has said that they are guarded.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import types
from typing import Any

from agents import FunctionTool, ToolTimeoutError
from agents.tool import ShellResult

from otel_toolguard import adapter as kit
from otel_toolguard_openai_agents._runs import KEPT, place_of, run_of

IMPL = "_invoke_tool_impl"  # of the SDK's invoker, which makes an answer of what this raises
MARK = "_toolguard"  # on what is guarded
AHEAD = 0.1  # seconds that the SDK's timer for a tool may have run before the tool began
TIMED_OUT = 124  # as the command of that name says it
_known: kit.Recent[tuple[int, int], tuple[Any, Any, Any]] = kit.Recent(KEPT)


def guarded(tool: Any, put: Any = None) -> Any:
    """A guarded copy of a tool; what is guarded already, or run by the provider, is returned as it is.

    ``put`` guards the agent that is behind a tool, for stored runs look for it there.
    """
    field = "on_invoke_tool" if hasattr(tool, "on_invoke_tool") else "executor"
    invoker: Any = getattr(tool, field, None)
    told = None
    while hasattr(type(invoker), "guarded_tool"):  # a decorator on the tool object; one guard is enough
        invoker, told = invoker.__wrapped__, told or invoker.guarded_tool
    handles = type(invoker).__module__ == FunctionTool.__module__ and IMPL in vars(invoker)
    body = vars(invoker)[IMPL] if handles else invoker
    if not callable(body) or hasattr(body, MARK):
        return tool
    function = _known.of((id(tool), id(body)), lambda: (tool, body, _around(tool, body, told)))[2]
    if handles:
        invoker = copy.copy(invoker)
        setattr(invoker, IMPL, function)
    copied = object.__new__(type(tool))  # a plain copy: what was worked out once stays as it is
    vars(copied).update({**vars(tool), field: invoker if handles else function})
    if put is not None and _agent_of(tool) is not None:
        copied._agent_instance = put(_agent_of(tool))
    return copied


def _around(tool: Any, body: Any, told: Any) -> Any:
    """The function of a tool under guard; ``told`` is what a decorator on the tool object said."""
    schema = getattr(tool, "params_json_schema", {})
    known = kit.GuardedTool(
        getattr(tool, "qualified_name", tool.name), _function_in(body), _hints(tool, body),
        kit.defaults_in(schema.get("properties")),
    )  # fmt: skip
    known.tool = told.named(known.tool.name) if told is not None else known.tool
    if _agent_of(tool) is not None:
        known.tool.tool_class = known.tool.tool_class or "agent"

    @functools.wraps(body)
    async def invoke(*given: Any) -> Any:
        context, call_id, arguments = _read(tool, *given)
        place = place_of(context, calls=True)
        if place is None or kit.counted(place.run_id, call_id):
            return await _awaited(body(*given))
        run = run_of(context)
        attempt = known.attempt(
            place, arguments, call_id=call_id, batch=f"{run.id}:{run.turn}", siblings=run.calls,
            agent=getattr(getattr(context, "agent", None), "name", None),
        )  # fmt: skip
        if attempt.refused is not None and attempt.refused.fresh:
            run.guard.show(attempt.refused.trip)
        call = _Call(tool, run.guard.inside(body, _agent_of(tool)))
        return await kit.made_async(attempt, call, lambda: _awaited(call.body(*given)))

    vars(invoke).update({MARK: True, "toolguard_guards": True})  # by the second assert_guarded knows it
    return invoke


class _Call(kit.Answers):
    """One call of a tool: what the SDK says of its end, and what it does not say."""

    def __init__(self, tool: Any, body: Any) -> None:
        self.body = body
        self.failed: kit.Ended | None = None
        self._tool = tool
        self._late = asyncio.get_running_loop().time() + (getattr(tool, "timeout_seconds", None) or float("inf"))
        server = _server_of(body)
        if server is not None:
            self.body = functools.partial(body.func, _Heard(server, self), *body.args[1:], **body.keywords)

    def said(self, answer: Any) -> Any:
        """What the tool said, an exit code included."""
        if not isinstance(answer, ShellResult):
            return answer
        codes = [TIMED_OUT if part.status == "timeout" else part.exit_code or 0 for part in answer.output]
        output = [[part.stdout, part.stderr] for part in answer.output]
        return {"exit_code": next(filter(None, codes), 0), "output": output}

    def ended(self, answer: Any) -> kit.Ended | None:
        """A failure that an MCP server told; an agent without an answer waits for somebody to approve a call."""
        return kit.Ended("interrupted") if answer is None and _agent_of(self._tool) is not None else self.failed

    def failure(self, error: BaseException) -> BaseException:
        """A cancellation by the SDK's timer is a failure, and nobody's wish."""
        late = asyncio.get_running_loop().time() >= self._late - AHEAD
        if not late or not isinstance(error, asyncio.CancelledError):
            return error
        return ToolTimeoutError(tool_name=self._tool.name, timeout_seconds=self._tool.timeout_seconds)

    def advised(self, answer: Any, nudges: tuple[str, ...]) -> Any:
        """Adds to a text, or a part to what the SDK makes one of; a shell's answer has no place for it."""
        if not nudges or isinstance(answer, (str, BaseException, ShellResult)):
            return super().advised(answer, nudges)
        parts = answer if isinstance(answer, list) else [answer]
        return [*parts, {"type": "text", "text": "\n\n".join(nudges)}]


class _Heard:
    """An MCP server of which is noted whether it says that a call failed; the SDK makes a plain text of that."""

    def __init__(self, server: Any, call: _Call) -> None:
        self._server = server
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
        result = await self._server.call_tool(*args, **kwargs)
        if getattr(result, "isError", False) or getattr(result, "is_error", False):  # MCP 1, MCP 2
            self._call.failed = kit.failed_result(
                "\n".join(str(getattr(part, "text", part)) for part in result.content)
            )
        return result


def _read(tool: Any, given: Any, text: str = "") -> tuple[Any, str | None, Any]:
    """Of what a tool is given: the context, the call's id and its arguments."""
    if hasattr(given, "ctx_wrapper"):
        action = given.data.action
        commands = getattr(action, "commands", None) or [" ".join(getattr(action, "command", ()))]
        where = getattr(action, "working_directory", None)
        said = {"command": "\n".join(commands)} | ({"cwd": where} if where else {})
        return given.ctx_wrapper, given.data.call_id, said
    return (
        given,
        getattr(given, "tool_call_id", None),
        kit.asked(text) if isinstance(tool, FunctionTool) else {"input": text},
    )


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _function_in(body: Any) -> Any:
    """The user's function, from the closure in which the SDK calls it; None if it is not there."""
    names = body.__code__.co_freevars if isinstance(body, types.FunctionType) else ()
    return body.__closure__[names.index("the_func")].cell_contents if "the_func" in names else None


def running(body: Any, agent: Any) -> Any:
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


def _hints(tool: Any, body: Any) -> dict[str, Any] | None:
    """What is told of a tool beside its name: that it is a shell, or by the annotations of its MCP server."""
    if hasattr(tool, "executor"):
        return {"kind": "shell"}
    told = getattr(body.args[1], "annotations", None) if _server_of(body) is not None else None
    return told.model_dump(by_alias=True, exclude_none=True) if told is not None else None
