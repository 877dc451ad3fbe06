"""The test's end of a guarded program: asks it for steps and reads what came of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.program import LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

LOOP_SPANS = LIMIT + 2  # the agent's own, and the refused call
LIFE_S = 150


class Agent:
    """A running program; a context manager that leaves no process behind, whatever became of it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """``env`` is its whole environment."""
        self._folder = tempfile.TemporaryDirectory(prefix="agent-")
        self._errors = Path(self._folder.name) / "errors.txt"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agents.program"], env=env, cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._end_of_life = threading.Timer(LIFE_S, self._process.kill)
        self._end_of_life.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_of_life.cancel()
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._folder.cleanup()

    def ask(self, step: str, **how: Any) -> Any:
        """What a step came to; see the methods of the program's ``Agent``."""
        self._process.stdin.write(json.dumps({"step": step, **how}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the program ended:\n{self.said()}"
        return json.loads(answer)

    def end(self) -> dict[str, int]:
        """Its own end, with all shut down: what became of its spans, as it says."""
        account = self.ask("end")
        self._process.stdin.close()  # the program reads to the end of its input
        assert self._process.wait(LIFE_S) == 0, self.said()
        return account

    def said(self) -> str:
        """What it and its SDK wrote to standard error."""
        return self._errors.read_text(encoding="utf-8", errors="replace")


def delivered(spans: int) -> dict[str, int]:
    """The account of a program that has delivered all its spans."""
    return {"ended": spans, "tried": spans, "delivered": spans, "failed": 0}


def failed(spans: int) -> dict[str, int]:
    """The account of a program that could deliver none."""
    return {"ended": spans, "tried": spans, "delivered": 0, "failed": spans}


def stopped_in_time(loop: dict[str, Any]) -> bool:
    """Whether a loop ended by its limit, after just as many bodies."""
    return loop["bodies"] == LIMIT and loop["stopped"] == {"rule": "repeat_guard", "limit": LIMIT}
