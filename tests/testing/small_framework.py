"""A framework of one sync loop, and an adapter for it: what the adapter contract is tried on."""

from __future__ import annotations

import json
import secrets
import sys
from typing import ClassVar

from otel_toolguard import SessionStopped
from otel_toolguard.adapter import FrameworkRuns, GuardedTool, Patches, at_model, dealt_with, stop_in
from otel_toolguard.testing import AdapterContract, Exchange, ScriptedAgent
from otel_toolguard.testing.agents import _answer, _failure

CAP = 4  # turns, where it is set


class Agent(ScriptedAgent):
    """The framework: it answers what tools raise, can wait for a person, and can be capped."""

    asks = capped = approved = False
    heard = None

    def begin(self):
        """Where an adapter may begin a run."""

    def _gate(self):
        """Where an adapter may end it: the framework itself knows of no guard."""

    def run(self, text="Go."):
        self._say(text)
        self.begin()
        return self._loop(self._turn())

    def resume(self):
        self.approved = True
        return self._loop(self.waiting)

    def _loop(self, calls):
        while calls:
            if self.asks and not self.approved:
                self.waiting = calls
                return "waiting"
            self.approved = False
            self.history += self._together(calls)
            calls = self._turn()
        return self._text

    def _turn(self):
        if self.capped and self.asked >= CAP:
            raise RuntimeError("too many turns")
        self.shown = json.dumps({name: str(tool.__annotations__) for name, tool in self.tools.items()})
        return super()._turn()

    def execute(self, call):
        if self.heard is not None:
            self.heard.append(call["id"])
        return self._tool(call)(**call["arguments"])

    def _call(self, call):
        try:
            return _answer(call, self.execute(call))
        except Exception as error:
            return _failure(call, error)


class Guarded(Agent):
    """The adapter."""

    def begin(self):
        self.place = FrameworkRuns().place(secrets.token_hex(8), None)

    def _gate(self):
        trip = at_model(self.place)
        if trip is not None:
            raise SessionStopped(trip, {"messages": list(self.history)})

    def _turn(self):
        self.batch = secrets.token_hex(4)
        return super()._turn()

    def admit(self, call):
        body = self.tools.get(call["name"])
        siblings = len(self.history[-1]["tool_calls"])
        return GuardedTool(call["name"], body).attempt(
            self.place, call["arguments"], call_id=call["id"], batch=self.batch, siblings=siblings
        )

    def _call(self, call):
        attempt = self.admit(call)
        if attempt.refused is not None:
            return self.refused(call, attempt)
        attempt.enter()
        try:
            result = self.execute(call)
        except Exception as error:
            attempt.leave()
            return self.failed(call, attempt, error)
        attempt.leave()
        attempt.returned(result)
        return _answer(call, result)

    def refused(self, call, attempt):
        return _failure(call, attempt.error())

    def failed(self, call, attempt, error):
        opened = stop_in(error)
        attempt.raised(opened or error)
        if opened is not None and not dealt_with(attempt, opened):
            raise error
        return _failure(call, error)


make_agent = Agent


def _guarded(*args, **more):
    return Guarded(*args, **more)


class Instrumentor:
    """Replaces ``make_agent`` wherever it is bound."""

    patches = Patches()
    on = False

    def instrument(self):
        if not self.on:
            self.patches.replace(Agent, _guarded)
        self.on = True

    def uninstrument(self):
        self.patches.restore()
        self.on = False


class Small(AdapterContract):
    """The contract's hooks for it."""

    folder, distribution = "small", "pytest"
    sync_ways = ("run",)
    besides, caps, approvals = ("hooks",), ("cap",), ("approval",)
    missing: ClassVar = {"f": "it has no async code and no streams", "j": "it has one way to put the guard on"}
    guarded = Guarded

    def tool(self, function):
        return function

    failing_tool = tool

    def agent(self, tools, script, *, guard="guarded", beside="", prefix="call"):
        make = self.guarded if guard == "guarded" else sys.modules[__name__].make_agent
        made = make(tools, script, prefix=prefix)
        made.capped, made.heard = beside == "cap", [] if beside == "hooks" else None
        return made

    def agent_tool(self, name, inner, way):
        def delegate():
            return inner.run()

        return delegate

    def run(self, agent, way, text, kept=None):
        agent.history = list(kept or ())
        agent.run(text)
        return agent.history

    def kept(self, agent, error):
        return error.partial["messages"]

    def exchanges(self, kept):
        answers = {message["tool_call_id"]: message for message in kept if message["role"] == "tool"}
        found = []
        for call in (call for message in kept for call in message.get("tool_calls", ())):
            answer = answers.pop(call["id"], None)
            found.append(Exchange(call["id"], call["name"], answer and answer["content"], answer and answer["failed"]))
        return found + [Exchange(call_id, "", answer["content"]) for call_id, answer in answers.items()]

    def text(self, kept):
        return kept[-1]["content"]

    def asked(self, agent):
        return agent.asked

    def shown(self, agent):
        return agent.shown

    def heard(self, agent):
        return None if agent.heard is None else len(agent.heard)

    def approval_agent(self, function, script, approval):
        made = self.agent([function], script)
        made.asks = True
        return made

    def pause(self, agent, way):
        assert agent.run() == "waiting"

    def approve(self, agent, way):
        agent.resume()
        return agent.history

    def instrumentor(self):
        return Instrumentor()

    def bindings(self):
        return {"make_agent": sys.modules[__name__].make_agent}
