"""Tools of every kind: what is one call, and what is one answer."""

from __future__ import annotations

from typing import Any

import agents as sdk
import pytest
from agents import Agent, LocalShellTool, RunContextWrapper, ShellTool, function_tool
from agents.mcp import MCPServer
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellResult
from agents.tool_context import ToolContext  # noqa: TC002  (the SDK reads the annotation)
from mcp import types as mcp
from openai.types.responses.response_output_item import LocalShellCall
from otel_toolguard_openai_agents import guard_agent, guarded_hooks

from otel_toolguard import CircuitOpen, Policy, Session, ToolGuardError, assert_guarded, guard_tool
from otel_toolguard.telemetry import attributes as names

from . import scripted as s


class Server(MCPServer):
    """An MCP server in this process, with one tool that answers, one that fails and one that breaks."""

    name = "words"

    def __init__(self):
        super().__init__()
        self.called = []

    async def connect(self):
        pass

    async def cleanup(self):
        pass

    async def list_prompts(self, *args, **kwargs):
        return []

    async def get_prompt(self, *args, **kwargs):
        return None

    async def list_tools(self, *args, **kwargs):
        schema = {"type": "object", "properties": {"q": {"type": "string", "default": "word"}}}
        hints = mcp.ToolAnnotations.model_validate({"readOnlyHint": True})
        return [
            mcp.Tool.model_validate(
                {"name": name, "inputSchema": schema, "annotations": hints, "description": "Looks."}
            )
            for name in ("lookup", "faulty", "breaks")
        ]

    async def call_tool(self, tool_name, arguments, *args, **kwargs):
        self.called.append((tool_name, arguments))
        if tool_name == "breaks":
            raise ConnectionError("no line")
        text = f"nothing about {arguments}"
        return mcp.CallToolResult.model_validate(
            {"content": [{"type": "text", "text": text}], "isError": tool_name == "faulty"}
        )


PUTS = {
    "agent": lambda agent: (guard_agent(agent), {}),
    "hooks": lambda agent: (agent, {"hooks": guarded_hooks()}),
}


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("run", s.WAYS)
def test_mcp_tool_is_guarded(run, put, traced):
    """The tools of an MCP server are counted and stopped like others, with their ids; the server itself is untouched."""
    server = Server()
    before = dict(vars(server))
    agent, more = PUTS[put](s.agent(s.for_ever("lookup", {"q": "a"}), mcp_servers=[server]))
    with Session(policy=s.repeat(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen) as caught:
        run(agent, "Find the word.", **more)
    assert (len(server.called), agent.model.asked, traced.outcomes()) == (3, 3, ["ok"] * 3)
    assert s.mispaired(caught.value.to_input_list()) == ""
    assert [span.attributes[names.CALL_ID] for span in traced.spans()] == ["call-1-0", "call-2-0", "call-3-0"]
    assert {span.attributes["toolguard.tool.class"] for span in traced.spans()} == {"read"}
    assert vars(server) | {"called": None} == before | {"called": None}


@pytest.mark.parametrize(("name", "error"), [("faulty", "tool_error"), ("breaks", None)])
def test_mcp_failure_is_a_failure(name, error, traced):
    """An error result, which the SDK shows the model as any text, and a broken line are failures of the tool."""
    ends = []
    for put in (lambda agent: agent, guard_agent):
        agent = put(s.agent([[(name, {"q": "a"})]], mcp_servers=[Server()]))
        with Session(telemetry=traced.telemetry) as session:
            ends.append(s.run(agent, "Find the word.").to_input_list())
    assert ends[0] == ends[1]
    (span,) = traced.spans()
    assert (span.attributes[names.OUTCOME], session.report()["failed"]) == ("failed", 1)
    assert error in (None, span.attributes["error.type"])


def asks_of(agent, traced, more):
    """Signatures of the calls of a run."""
    with Session(telemetry=traced.telemetry):
        s.run(agent, "Find the word.", **more)
    return [span.attributes["toolguard.signature"] for span in traced.spans()]


def plain(q: str, n: int = 3) -> str:
    """Looks something up."""
    return q


def with_context(context: RunContextWrapper[Any], q: str, n: int = 3) -> str:
    """Looks something up."""
    assert context.usage is not None
    return q


def with_tool_context(context: ToolContext[Any], q: str, n: int = 3) -> str:
    """Looks something up."""
    assert context.tool_call_id
    return q


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("function", [plain, with_context, with_tool_context])
def test_default_said_or_left_out(function, decorated, put, traced):
    """A default said or left out, and any order, are one call; the context is no argument; another value is another."""
    name = function.__name__
    asks = [[(name, said)] for said in ({"q": "a"}, {"q": "a", "n": 3}, {"n": 3, "q": "a"}, {"q": "a", "n": 4})]
    tool = s.bare(guard_tool(function) if decorated else function)
    agent, more = PUTS[put](s.agent(asks, [tool]))
    signatures = asks_of(agent, traced, more)
    assert (len(signatures), len(set(signatures[:3])), len(set(signatures))) == (4, 1, 2)


@pytest.mark.parametrize("annotated", [True, False])
def test_tool_with_an_invoker_of_its_own(annotated, traced):
    """A FunctionTool that somebody wrote by hand is guarded, and gets what it got without."""
    got = []

    async def narrow(context: RunContextWrapper[Any], text: str) -> str:
        got.append((type(context).__name__, text))
        return "nothing"

    async def wide(context, text):
        got.append((type(context).__name__, text))
        return "nothing"

    tool = sdk.FunctionTool(
        name="own", description="Looks.", params_json_schema={"type": "object", "properties": {}},
        on_invoke_tool=narrow if annotated else wide, strict_json_schema=False,
    )  # fmt: skip
    bare = s.agent([[("own", {})]] * 2, [tool])
    s.run(bare, "Find the word.")
    expected, got[:] = list(got), []
    bare.model.histories.clear()
    assert len(set(asks_of(guard_agent(bare), traced, {}))) == 1
    assert got == expected
    assert tool.on_invoke_tool in (narrow, wide)


@pytest.mark.parametrize("put", PUTS)
def test_what_the_decorator_on_a_tool_object_says(put, traced):
    """guard_tool on a tool object tells the guard of the run about the tool, which is guarded once."""
    tool = guard_tool(tool_class="network", poll=True)(s.bare(plain))
    agent, more = PUTS[put](s.agent([[("plain", {"q": "a"})]] * 6, [tool]))
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session:
        assert s.run(agent, "Find the word.", **more).final_output == s.DONE
    assert {span.attributes["toolguard.tool.class"] for span in traced.spans()} == {"network"}
    assert (session.report()["calls"], len(traced.spans())) == (6, 6)


def test_result_key_sees_what_the_function_returned():
    """A result_key on the decorator compares the function's own value, not the text that the SDK makes of it."""
    words = iter(["alder", "birch", "cedar", "elder", "hazel"])

    @guard_tool(result_key=lambda result: result["total"])
    def search(q: str = "a") -> dict[str, Any]:
        """Looks something up."""
        return {"total": 0, "note": next(words)}

    agent = guard_agent(s.agent(s.for_ever("search"), [s.bare(search)]), policy=s.repeat(3))
    with pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert agent.model.asked == 3


@pytest.mark.parametrize("as_list", [False, True])
def test_nudge_stands_beside_the_answer(as_list):
    """A rule that advises adds its sentence to the answer that the model reads."""

    def search() -> Any:
        """Looks something up."""
        return [sdk.ToolOutputText(text="nothing")] if as_list else "nothing"

    policy = Policy(plugins=[{"plugin": "repeat_guard", "limit": 2, "on_limit": "nudge"}])
    agent = guard_agent(s.agent([[("search", {})]] * 3, [function_tool(search)]), policy=policy)
    answers = list(s.answers(s.run(agent, "Find the word.").to_input_list()).values())
    assert "nothing" in str(answers[1])
    assert [len(str(answer)) > 80 for answer in answers[:2]] == [False, True]


def test_tool_that_changes_between_turns():
    """What a program changes on its tool while the agent runs holds from the next turn on, as it does without guard."""
    seen = s.look_up()

    async def other(context, text):
        return "replaced"

    def turn(number):
        if number == 1:
            seen.tool.on_invoke_tool = other
        return [("search", {})] if number < 3 else None

    answers = s.answers(s.run(s.agent(turn, [seen.tool]), "Find the word.", hooks=guarded_hooks()).to_input_list())
    assert list(answers.values()) == ["nothing about word", "replaced"]


def shell(codes, calls):
    """A shell that ends with these exit codes; None stands for a command that takes too long."""

    def execute(request):
        calls.append(request.data.action.commands)
        code = next(codes)
        outcome = ShellCallOutcome("timeout") if code is None else ShellCallOutcome("exit", code)
        return ShellResult(output=[ShellCommandOutput(stdout="", stderr="no", outcome=outcome)])

    return ShellTool(executor=execute)


class ShellModel(s.ScriptedModel):
    """Asks for shell commands."""

    def __init__(self, make):
        super().__init__(lambda turn: [make(turn)] if turn < 9 else None)


def _shell_item(turn):
    from openai.types.responses import ResponseFunctionShellToolCall

    action = {"commands": ["grep word notes.txt"], "timeout_ms": None, "max_output_length": None}
    return ResponseFunctionShellToolCall.model_validate({
        "id": f"sh-{turn}", "call_id": f"shell-{turn}", "type": "shell_call", "status": "completed", "action": action,
        "environment": None,
    })  # fmt: skip


def _local_item(turn):
    action = {"type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": "/srv"}
    return LocalShellCall.model_validate(
        {
            "id": f"sh-{turn}",
            "call_id": f"shell-{turn}",
            "type": "local_shell_call",
            "status": "completed",
            "action": action,
        }
    )


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("run", s.WAYS)
def test_shell_is_guarded(run, put, traced):
    """Commands of a shell tool are counted, failures by their exit code, and a loop of them is ended."""
    calls = []
    agent, more = PUTS[put](Agent(name="a", model=ShellModel(_shell_item), tools=[shell(iter([2] * 9), calls)]))
    with Session(policy=s.repeat(3), telemetry=traced.telemetry) as session, pytest.raises(CircuitOpen) as caught:
        run(agent, "Find the word.", **more)
    assert (calls, session.report()["failed"]) == ([["grep word notes.txt"]] * 3, 3)
    assert [span.attributes[names.CALL_ID] for span in traced.spans()] == ["shell-1", "shell-2", "shell-3"]
    assert s.mispaired(caught.value.to_input_list()) == ""


@pytest.mark.parametrize(("code", "outcome"), [(0, "ok"), (1, "ok"), (2, "failed"), (None, "failed")])
def test_exit_code_of_a_shell(code, outcome, traced):
    """An exit code is a failure, but for a grep that found nothing; a command that took too long has failed."""
    model = ShellModel(_shell_item)
    model.script = lambda turn: [_shell_item(turn)] if turn == 1 else None
    agent = guard_agent(Agent(name="a", model=model, tools=[shell(iter([code]), [])]), telemetry=traced.telemetry)
    s.run(agent, "Find the word.")
    assert traced.outcomes() == [outcome]


def test_refused_shell_command_is_answered():
    """A shell command past a ceiling is not run, and the model is told so in the shell's own form of answer."""
    calls = []
    agent = guard_agent(Agent(name="a", model=ShellModel(_shell_item), tools=[shell(iter([0] * 9), calls)]))
    with Session(policy=s.ceiling(run=2)), pytest.raises(CircuitOpen) as caught:
        s.run(agent, "Find the word.")
    assert len(calls) == 2
    answers = list(s.answers(caught.value.to_input_list()).values())
    assert "circuit_open" in str(answers[2])
    assert s.mispaired(caught.value.to_input_list()) == ""


@pytest.mark.parametrize("put", PUTS)
def test_local_shell_is_guarded(put, traced):
    """The older shell tool is guarded too, and its working directory is part of the call."""
    done = []

    async def execute(request):
        done.append(request.data.action.command)
        return "nothing"

    agent, more = PUTS[put](Agent(name="a", model=ShellModel(_local_item), tools=[LocalShellTool(executor=execute)]))
    with Session(policy=s.repeat(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.", **more)
    assert (done, traced.outcomes()) == ([["ls", "-l"]] * 3, ["ok"] * 3)


@pytest.mark.skipif(not hasattr(sdk, "CustomTool"), reason="came later")
def test_custom_tool_is_guarded(traced):
    """A tool that takes a plain text is guarded by that text."""
    from openai.types.responses import ResponseCustomToolCall

    done = []

    async def invoke(context, text):
        done.append(text)
        return "nothing"

    def item(turn):
        return ResponseCustomToolCall(call_id=f"custom-{turn}", type="custom_tool_call", name="note", input="remember")

    tool = sdk.CustomTool(name="note", description="Notes.", on_invoke_tool=invoke)
    agent = guard_agent(Agent(name="a", model=ShellModel(item), tools=[tool]))
    with Session(policy=s.repeat(3), telemetry=traced.telemetry), pytest.raises(CircuitOpen):
        s.run(agent, "Find the word.")
    assert (done, traced.outcomes()) == (["remember"] * 3, ["ok"] * 3)
    assert traced.spans()[0].attributes[names.CALL_ID] == "custom-1"


def test_tools_of_the_provider_are_left_alone():
    """Tools without a function here are handed to the model as they are."""
    from otel_toolguard_openai_agents._tools import guarded

    for tool in (
        sdk.WebSearchTool(),
        sdk.FileSearchTool(vector_store_ids=["v"]),
        ShellTool(environment={"type": "container_auto"}),
    ):
        assert guarded(tool) is tool


def test_assert_guarded_knows_the_guard():
    """The check for start-up passes a guarded agent, and names the tools of the same one without."""
    made = Agent(name="agent", tools=[function_tool(lambda q: q, name_override="search")])
    assert_guarded(guard_agent(made))
    with pytest.raises(ToolGuardError, match="search"):
        assert_guarded(made)
