"""A transport that plays Claude Code and its model by a script, and the ways to run it."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from types import SimpleNamespace

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    SdkMcpTool,
    Transport,
    create_sdk_mcp_server,
    query,
)
from otel_toolguard_claude_agent_sdk import guard_options, guarded_stream

from otel_toolguard import Policy
from otel_toolguard.testing.scripts import DONE, turn_of

MOST = 300  # turns of a run that nothing stops
END = object()


class ScriptedCLI(Transport):
    """Speaks the control protocol: hooks, permission requests, in-process servers, messages.

    Tools are those of in-process servers, named without a prefix as Claude Code does where it is told to, or with one;
    ``own`` has those that Claude Code runs itself, as async functions of the arguments; ``Agent`` hands work to the
    sub-agent of a script. Like a provider its model rejects a history in which a call has no answer.

    Args:
        script: What the model says.
        own: Claude Code's own tools by name.
        agents: Scripts of sub-agents by their type.
        batches: Whether it knows of the hook at a batch's end.
        prefixed: Whether tools of in-process servers are named with their server.
        denied: Names of tools that a permission rule denies.
        asked: Names of tools whose calls wait for a person.
        max_turns: Claude Code's own cap, None for none.
        dies: Whether it ends with an error once a hook has stopped it.
        apart: Whether each call of a turn has a message of its own.
        prefix: What ids of calls begin with.
        session_id: Its id of the session, None for a random one.
        prompt_ids: Whether hooks are told the id of the prompt.
        tells_ids: Whether in-process servers are told the id of a call.
        cwd: The directory that hooks are told.
        in_turn: Whether the calls of a turn run one after the other.
        wakes: How often it goes on by itself after a result.
    """

    def __init__(
        self, script, *, own=None, agents=None, batches=True, prefixed=False, denied=(), asked=(), max_turns=None,
        dies=False, apart=False, prefix="call",
        session_id=None, prompt_ids=False, tells_ids=True, cwd="/project", in_turn=False, wakes=0,
    ):  # fmt: skip
        self.script, self.own, self.agents = script, own or {}, agents or {}
        self.batches, self.prefixed, self.denied, self.needs_person = batches, prefixed, set(denied), set(asked)
        self.max_turns, self.dies, self.apart, self.prefix = max_turns, dies, apart, prefix
        self.session_id = session_id or str(uuid.uuid4())
        self.prompt_ids, self.tells_ids, self.cwd, self.prompt = prompt_ids, tells_ids, cwd, {}
        self.asked, self.ran, self.history, self.tools, self.hook_answers = 0, 0, [], {}, []
        self.turns, self.in_turn, self.wakes, self.worked = 0, in_turn, wakes, {}
        self._ids, self.tasks = itertools.count(1), set()

    async def connect(self):
        self.out, self.prompts, self.pending, self.hooks = asyncio.Queue(), asyncio.Queue(), {}, {}
        self.work = asyncio.create_task(self._work())

    def is_ready(self):
        return True

    async def end_input(self):
        self.prompts.put_nowait(END)

    async def close(self):
        self.work.cancel()
        self.out.put_nowait(END)

    async def read_messages(self):
        while (message := await self.out.get()) is not END:
            if isinstance(message, Exception):
                raise message
            yield message

    async def write(self, data):
        message = json.loads(data)
        kind = message["type"]
        if kind == "control_request":
            request = message["request"]
            if request["subtype"] == "initialize":
                self.hooks = request["hooks"] or {}
            answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            self.out.put_nowait({"type": "control_response", "response": answer})
        elif kind == "control_response":
            response = message["response"]
            self.pending.pop(response["request_id"]).set_result(response)
        else:
            self.prompts.put_nowait(message["message"]["content"])

    async def _ask(self, request):
        request_id = f"cli-{next(self._ids)}"
        self.pending[request_id] = waits = asyncio.get_running_loop().create_future()
        self.out.put_nowait({"type": "control_request", "request_id": request_id, "request": request})
        return await waits

    async def _hook(self, event, **given):
        """What all hooks of an event together come to, as one answer."""
        asks = []
        for matcher in self.hooks.get(event, ()):
            if matcher["matcher"] in (None, given.get("tool_name")):
                asks += [
                    {"subtype": "hook_callback", "callback_id": one, "tool_use_id": given.get("tool_use_id"), "input": {
                        "hook_event_name": event, "session_id": self.session_id, "cwd": self.cwd, **self.prompt, **given,
                    }}
                    for one in matcher["hookCallbackIds"]
                ]  # fmt: skip
        merged = SimpleNamespace(deny=None, stop=False, context=[], failed=[])
        for answer in await asyncio.gather(*map(self._ask, asks)):
            self.hook_answers.append((event, answer.get("response")))
            if answer["subtype"] == "error":
                merged.failed.append(answer["error"])  # no decision
                continue
            said = answer["response"]
            more = said.get("hookSpecificOutput", {})
            if more.get("permissionDecision") == "deny":
                merged.deny = more["permissionDecisionReason"]
            if more.get("additionalContext"):
                merged.context.append(more["additionalContext"])
            merged.stop |= said.get("continue") is False
        return merged

    async def _mcp(self, server, method, **params):
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        answer = await self._ask({"subtype": "mcp_message", "server_name": server, "message": message})
        return answer["response"]["mcp_response"]

    async def _start_servers(self):
        self.where = {}
        for server in self.servers:
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "cli", "version": "1"}}
            await self._mcp(server, "initialize", **hello)
            note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self._ask({"subtype": "mcp_message", "server_name": server, "message": note})
            for tool in (await self._mcp(server, "tools/list"))["result"]["tools"]:
                shown = f"mcp__{server}__{tool['name']}" if self.prefixed else tool["name"]
                self.where[shown] = (server, tool["name"])
                self.tools[shown] = tool

    servers = ()

    async def _work(self):
        try:
            started = False
            while (prompt := await self.prompts.get()) is not END:
                if not started:
                    await self._start_servers()
                    started = True
                self._emit("system", subtype="init", data={})
                if self.prompt_ids:
                    self.prompt = {"prompt_id": str(uuid.uuid4())}
                self.history.append(("user", prompt))
                for _ in range(1 + self.wakes):
                    reason = await self._loop(self.script, self.history)
                    text = self.history[-1][1] if reason == "completed" else None
                    self._emit(
                        "result", subtype="success", duration_ms=1, duration_api_ms=1, is_error=False, num_turns=self.asked,
                        result=text, terminal_reason=reason,
                    )  # fmt: skip
                if self.dies and reason == "hook_stopped":
                    raise RuntimeError("exit code 1")
        except Exception as error:
            self.out.put_nowait(error)
        self.out.put_nowait(END)

    def _emit(self, kind, **more):
        self.out.put_nowait({"type": kind, "session_id": self.session_id, "uuid": str(uuid.uuid4()), **more})

    async def _loop(self, script, history, agent=None, inside=None):
        """A model's turns until it is done or stopped; why it ended."""
        for turn in itertools.count(1):
            given = {entry[1] for entry in answers(history)}
            wrong = [entry[1]["id"] for entry in history if entry[0] == "call" and entry[1]["id"] not in given]
            if wrong:
                raise AssertionError(f"400: no answer to {wrong}")
            if agent is None and self.max_turns is not None and turn > self.max_turns:
                return "max_turns"
            self.asked += 1
            if self.asked > MOST:
                raise AssertionError("nothing stops the run")
            self.turns += agent is None
            number = self.turns if agent is None else turn
            asks = turn_of(script, number)
            if not asks or isinstance(asks, str):
                history.append(("assistant", asks or DONE))
                self._say([{"type": "text", "text": asks or DONE}], inside, f"m{self.asked}")
                return "completed"
            start = f"{self.prefix}-{agent['agent_id'] + '-' if agent else ''}{number}"
            calls = [{"id": f"{start}-{n}", "name": name, "input": said} for n, (name, said) in enumerate(asks)]
            history += [("call", call) for call in calls]
            blocks = [{"type": "tool_use", **call} for call in calls]
            for part in [[one] for one in blocks] if self.apart else [blocks]:
                self._say(part, inside, f"m{self.asked}")
            await asyncio.sleep(0)
            work = [self._call(call, history, agent or {}, inside) for call in calls]
            stops = [await one for one in work] if self.in_turn else await asyncio.gather(*work)
            if self.batches:
                done = dict(entry[1:] for entry in answers(history))
                listed = [
                    {"tool_name": one["name"], "tool_input": one["input"], "tool_use_id": one["id"],
                     "tool_response": done[one["id"]]["content"]}
                    for one in calls
                ]  # fmt: skip
                stops.append((await self._hook("PostToolBatch", tool_calls=listed, **(agent or {}))).stop)
            if any(stops):
                return "hook_stopped"
        return None

    def _say(self, blocks, inside, message_id):
        message = {"role": "assistant", "model": "scripted", "id": message_id, "content": blocks}
        self._emit("assistant", message=message, parent_tool_use_id=inside)

    async def _call(self, call, history, agent, inside):
        stop, answer = await self._answered(call, agent)
        history.append(("answer", call["id"], answer))
        block = {"type": "tool_result", "tool_use_id": call["id"], **answer}
        self._emit("user", message={"role": "user", "content": [block]}, parent_tool_use_id=inside)
        return stop

    async def _answered(self, call, agent):
        name, said = call["name"], call["input"]
        given = {"tool_name": name, "tool_input": said, "tool_use_id": call["id"], **agent}
        if name not in self.own and name not in self.where and name != "Agent":
            return False, {"content": f"No such tool available: {name}", "is_error": True}
        before = await self._hook("PreToolUse", **given)
        if before.deny is not None:
            return before.stop, {"content": before.deny, "is_error": True}
        if name in self.denied:
            return before.stop, {"content": "Permission to use it has been denied.", "is_error": True}
        if name in self.needs_person:
            request = {"subtype": "can_use_tool", "tool_name": name, "input": said, "tool_use_id": call["id"]}
            answer = (await self._ask(request))["response"]
            if answer["behavior"] == "deny":
                return answer.get("interrupt", False), {"content": answer["message"], "is_error": True}
        self.ran += 1
        content, failed = await self._run(call)
        if failed:
            after = await self._hook("PostToolUseFailure", error=content, **given)
        else:
            after = await self._hook("PostToolUse", tool_response=content, **given)
        told = "".join(f"\n<system-reminder>{one}</system-reminder>" for one in after.context)
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        return before.stop or after.stop, {"content": text + told, "is_error": failed}

    async def _run(self, call):
        name, said = call["name"], call["input"]
        if name == "Agent":
            agent = {"agent_id": f"a{next(self._ids)}", "agent_type": said["subagent_type"]}
            self.worked[agent["agent_id"]] = call["id"]
            for _ in range(said.get("late", 0)):
                await asyncio.sleep(0)
            history = [("user", said.get("prompt", ""))]
            await self._loop(self.agents[said["subagent_type"]], history, agent, call["id"])
            return [{"type": "text", "text": str(history[-1][1])}], False
        if name in self.own:
            try:
                return await self.own[name](said), False
            except ValueError as error:
                return str(error), True
        server, plain = self.where[name]
        more = {"_meta": {"claudecode/toolUseId": call["id"]}} if self.tells_ids else {}
        answer = (await self._mcp(server, "tools/call", name=plain, arguments=said, **more))["result"]
        if answer.get("isError"):
            return answer["content"][0]["text"], True
        return answer["content"], False


def answers(history):
    return [entry for entry in history if entry[0] == "answer"]


def tool_of(function, name=None):
    """The SDK's tool of a function of one text, sync or async."""

    async def handler(args):
        result = function(**args)
        if asyncio.iscoroutine(result):
            result = await result
        return {"content": [{"type": "text", "text": str(result)}]}

    return SdkMcpTool(name or function.__name__, "Looks something up.", SCHEMA, handler)


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def serve(cli, tools, server="tools"):
    """Options with an in-process server of these tools, known to the scripted CLI."""
    cli.servers = (server,)
    return {"mcp_servers": {server: create_sdk_mcp_server(server, tools=list(tools))}}


async def by_query(cli, options, text="Find it.", wrap=guarded_stream):
    """The messages of one ``query``."""
    return [one async for one in wrap(query(prompt=text, options=options, transport=cli))]


async def by_client(cli, options, text="Find it.", wrap=guarded_stream):
    """The messages of one ``receive_response``."""
    async with ClaudeSDKClient(options, transport=cli) as client:
        await client.query(text)
        return [one async for one in wrap(client.receive_response())]


async def by_client_stream(cli, options, text="Find it.", wrap=guarded_stream):
    """The messages of ``receive_messages`` up to the first result, as a reader that never stops by itself."""
    found = []
    async with ClaudeSDKClient(options, transport=cli) as client:
        await client.query(text)
        async for one in wrap(client.receive_messages()):
            if found and isinstance(found[-1], ResultMessage):
                break
            found.append(one)
            if isinstance(one, ResultMessage) and one.terminal_reason in ("completed", "max_turns"):
                break
    return found


WAYS = {"query": by_query, "client": by_client, "client_stream": by_client_stream}


def run(cli, way="query", *, guard=guard_options, wrap=guarded_stream, text="Find it.", **options):
    """Runs a scripted CLI under guarded options; its messages."""
    return asyncio.run(WAYS[way](cli, guard(ClaudeAgentOptions(**options)), text, wrap))


def repeat(limit):
    """A policy of one rule: the same call with the same result."""
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit}, {"plugin": "tool_stats"}])


def ceiling(run=None, **more):
    """A policy of one rule: a number of calls."""
    given = {"run": run} if run is not None else {}
    return Policy(plugins=[{"plugin": "call_ceiling", **given, **more}, {"plugin": "tool_stats"}])
