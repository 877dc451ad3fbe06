"""The demo's agent: LangChain's own, with real tools on real files; only its model is scripted."""

from __future__ import annotations

import shlex
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

FILES, LINES = 12, 50
TIMEOUT_S = 20  # for one shell command

Ask = tuple[str, dict[str, Any]]  # a tool and its arguments


class ScriptedModel(BaseChatModel):
    """A model that says what the script says; counts how often it is asked."""

    script: Any
    asked: int = 0
    _turns: Any = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_kwargs: Any) -> ScriptedModel:
        """A script needs no tool schemas."""
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_kwargs: Any) -> ChatResult:
        if self._turns is None:
            self._turns = self.script()
        self.asked += 1
        asks = next(self._turns, None)
        if asks is None:
            message = AIMessage(content="Done.")
        else:
            calls = [
                {"name": name, "args": arguments, "id": f"call-{self.asked}-{index}"}
                for index, (name, arguments) in enumerate(asks)
            ]
            message = AIMessage(content="", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Workshop:
    """A folder of real files and four tools on it; counts the tool bodies that run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bodies = 0
        self._lock = threading.Lock()
        for n in range(FILES):
            rows = (f"{n:02d}-{row:02d} {'amber' if row % 7 else 'copper'}" for row in range(LINES))
            (folder / f"stock-{n}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")

    def tools(self) -> list[Any]:
        """The tools, as a user of LangChain would write them."""
        folder = self.folder

        @tool
        def list_files() -> str:
            """The files in the folder."""
            self._count()
            return "\n".join(sorted(path.name for path in folder.iterdir()))

        @tool
        def read_file(path: str, start: int = 0, lines: int = 5) -> str:
            """Lines of a file, from line `start` on."""
            self._count()
            return "\n".join((folder / path).read_text(encoding="utf-8").splitlines()[start : start + lines])

        @tool
        def write_file(path: str, text: str) -> str:
            """Writes a file; answers with what it holds now."""
            self._count()
            (folder / path).write_text(text, encoding="utf-8")
            return f"{path} now holds {len(text)} characters"

        @tool
        def run_shell(command: str) -> str:
            """Runs a command without a shell's expansions; answers with what it prints."""
            self._count()
            done = subprocess.run(  # noqa: S603  (the script's own commands)
                shlex.split(command), cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            return done.stdout + done.stderr

        return [list_files, read_file, write_file, run_shell]

    def _count(self) -> None:
        with self._lock:  # the calls of one turn run in threads
            self.bodies += 1


def healthy() -> Iterator[Sequence[Ask]]:
    """A short, sensible piece of work."""
    yield [("list_files", {})]
    yield [("read_file", {"path": "stock-0.txt"}), ("read_file", {"path": "stock-1.txt"})]
    yield [("run_shell", {"command": "grep -c copper stock-0.txt stock-1.txt"})]
    yield [("write_file", {"path": "summary.txt", "text": "stock-0: 8 copper\nstock-1: 8 copper\n"})]
    yield [("read_file", {"path": "summary.txt"})]


def looping(period: int) -> Callable[[], Iterator[Sequence[Ask]]]:
    """The same ``period`` calls, one a turn, for ever."""
    cycle: list[Ask] = []
    for n in range(period):
        name = f"stock-{n % FILES}.txt"
        if n % 2 == 0:
            cycle.append(("run_shell", {"command": f"grep -n copper {name} -m {n + 1}"}))
        else:
            cycle.append(("read_file", {"path": name, "start": n}))

    def script() -> Iterator[Sequence[Ask]]:
        while True:
            for ask in cycle:
                yield [ask]

    return script


def over_using(batch: int) -> Callable[[], Iterator[Sequence[Ask]]]:
    """``batch`` calls a turn, none of them made before, for ever."""

    def script() -> Iterator[Sequence[Ask]]:
        n = 0
        while True:
            turn: list[Ask] = []
            for _ in range(batch):
                path, start = f"stock-{n % FILES}.txt", n // FILES
                turn.append(("read_file", {"path": path, "start": start % LINES, "lines": 1 + start // LINES}))
                n += 1
            yield turn

    return script


def agent(model: ScriptedModel, workshop: Workshop, middleware: Any) -> Any:
    """LangChain's agent with the guard as its innermost middleware."""
    return create_agent(model, workshop.tools(), middleware=[middleware])


def unanswered(messages: Sequence[Any]) -> list[str]:
    """Ids of tool calls that have no answer in the history."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    asked = [str(call["id"]) for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return [call_id for call_id in asked if call_id not in answered]
