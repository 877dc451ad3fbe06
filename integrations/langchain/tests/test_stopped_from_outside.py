"""An agent that is at work is stopped from another shell, through the store that both share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from otel_toolguard_langchain import LangChainStopped, ToolGuardMiddleware

from otel_toolguard import CircuitOpen, Session, find_trip

from . import scripted as s

COMMAND = [sys.executable, "-c", "from otel_toolguard.cli import main; main()"]
BATCH = 3
STEPS = 60  # of the graph: an agent that nobody stops ends in an error, not never


@pytest.fixture
def operator(tmp_path, monkeypatch):
    """Runs the command in a process of its own, on the store that this process has from its environment."""
    pytest.importorskip("typer")
    for name in ("CONFIG", "PROFILE", "MODE", "SIGNATURE_KEY"):
        monkeypatch.delenv("TOOLGUARD_" + name, raising=False)
    monkeypatch.setenv("TOOLGUARD_STORE", f"sqlite://{tmp_path}/sessions.sqlite3")

    def run(*arguments):
        done = subprocess.run([*COMMAND, *arguments], env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    return run


class Agent:
    """An agent that asks for ever for calls that it never made before, in a thread of its own.

    Each body says that it began, and the first one of ``held_turn`` waits until it is let go on, so that a test knows
    where the agent is without asking the clock.
    """

    def __init__(self, run, held_turn):
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.bodies, self.error, self._run = 0, None, run
        lock = threading.Lock()

        @tool
        def search(q: str) -> str:
            """Looks something up."""
            with lock:
                self.bodies += 1
            if q == f"{held_turn}.0":
                self.reached.set()
                self.go_on.wait()
            return f"nothing about {q}"

        self.model = s.model(s.always_new("search", batch=BATCH))
        self.agent = create_agent(self.model, [search], middleware=[ToolGuardMiddleware()])
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self):
        try:
            with Session("conversation-42"):
                self._run(self.agent, s.ask(), {"recursion_limit": STEPS})
        except BaseException as error:
            self.error = error
        finally:
            self.reached.set()

    @contextmanager
    def held(self):
        """Starts the agent; inside the block it is in the turn in which it waits, after it it has ended."""
        self.thread.start()
        try:
            self.reached.wait()
            assert self.error is None, self.error
            yield
        finally:
            self.go_on.set()
            self.thread.join()


@pytest.mark.parametrize("run", s.WAYS)
def test_a_stop_from_another_shell_ends_a_running_agent_at_its_next_model_boundary(run, operator):
    """The agent ends in one CircuitOpen after the turn it was in: no further model call, every id answered."""
    agent = Agent(run, held_turn=2)
    with agent.held():
        asked = agent.model.asked
        said = operator("stop", "conversation-42", "--reason", "wrong customer")

    assert type(agent.error) is LangChainStopped
    assert isinstance(agent.error, CircuitOpen)
    trip = find_trip(agent.error)
    assert (trip.rule, trip.scope, trip.loop_type) == ("session.stop", "session", "stopped_by_operator")
    assert "wrong customer" in trip.why
    assert said.stdout.startswith("conversation-42 is stopped")
    assert agent.model.asked == asked == 2
    messages = agent.error.partial["messages"]
    assert s.mispaired(messages) == ""
    assert len(s.answers(messages)) == 2 * BATCH
    assert BATCH < agent.bodies <= 2 * BATCH


def test_a_reset_from_another_shell_lets_the_next_run_go_on(operator):
    """Until then each new run ends before its first model call; afterwards the kept history is gone on with."""
    agent = Agent(s.invoke, held_turn=1)
    with agent.held():
        operator("stop", "conversation-42", "--reason", "look first")
    kept = agent.error.partial["messages"]

    model = s.model([[("search", {"q": "later"})]], prefix="later")
    later = create_agent(model, [s.look_up().tool], middleware=[ToolGuardMiddleware()])
    with Session("conversation-42"), pytest.raises(CircuitOpen):
        later.invoke({"messages": [*kept, ("user", "Go on.")]})
    assert model.asked == 0
    operator("reset", "conversation-42", "--reason", "it was right")
    with Session("conversation-42"):
        assert later.invoke({"messages": [*kept, ("user", "Go on.")]})["messages"][-1].content == "Done."
    assert model.asked == 2
