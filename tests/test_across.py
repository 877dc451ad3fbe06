"""A session opened inside a guarded call of another: one tree, with the ceilings of both and one stop."""

from __future__ import annotations

import contextlib
import threading

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped, guard_tool

STATS = {"plugin": "tool_stats"}


class Agents:
    """An outer agent that delegates to an inner one, which opens a session of its own."""

    def __init__(self, outer, inner, *, swallow=False):
        self.store = MemoryStore()
        self.outer = self.session("outer", outer)
        self.inner = self.session("inner", inner)
        self.swallow, self.leaves, self.subs = swallow, [], []
        self.leaf = guard_tool(name="leaf")(self._leaf)
        self.sub = guard_tool(name="sub")(self._sub)

    def session(self, name, rule):
        return Session(name, policy=Policy(plugins=[rule, STATS] if rule else [STATS]), store=self.store)

    def _leaf(self, n):
        self.leaves.append(n)
        return "same"

    def _sub(self, times, same=False):
        self.subs.append(times)
        try:
            with self.inner:
                for _ in range(times):
                    self.leaf("x" if same else len(self.leaves))
        except CircuitOpen:
            if not self.swallow:
                raise
        return f"done {len(self.leaves)}"


def counted(session):
    """Admissions that the session has counted."""
    return session.guard.transact(lambda state: state.calls)


@pytest.mark.parametrize("swallow", [False, True])
def test_the_ceiling_of_the_outer_run_holds_for_the_inner(swallow):
    """Calls of an inner session draw on the ceiling of the outer run, and when it is used up the tree is stopped."""
    agents = Agents({"plugin": "call_ceiling", "run": 6}, None, swallow=swallow)
    with agents.outer:
        agents.sub(3)
        with contextlib.suppress(SessionStopped):
            agents.sub(3)
        with pytest.raises(SessionStopped) as error:
            agents.sub(3)
        assert error.value.trip.rule == "call_ceiling"
        assert agents.outer.trip.session_id == "outer"
        assert counted(agents.outer) == 6
    assert len(agents.leaves) == 4
    assert agents.inner.report()["in_flight"] == agents.outer.report()["in_flight"] == 0


def test_what_the_inner_session_refuses_costs_the_outer_nothing():
    """A call refused further in is taken back from the ceilings above."""
    agents = Agents({"plugin": "call_ceiling", "run": 50}, {"plugin": "call_ceiling", "tools": {"leaf": 2}})
    with agents.outer:
        for _ in range(3):
            with pytest.raises(CircuitOpen):
                agents.sub(5)
        assert counted(agents.outer) == 3 + 3 * 2
        run = agents.outer.guard.transact(lambda state: next(iter(state.runs.values())))
        assert (run.calls, run.tools) == (9, {"sub": 3, "leaf": 6})


@pytest.mark.parametrize("swallow", [False, True])
def test_a_stop_further_in_stops_the_outer_run(swallow):
    """An inner run that is stopped stops the run in whose call it is, even if the call makes an answer of it."""
    agents = Agents(None, {"plugin": "repeat_guard", "limit": 3}, swallow=swallow)
    with agents.outer:
        try:
            agents.sub(9, same=True)
        except SessionStopped:
            assert not swallow
        assert agents.outer.trip.rule == "repeat_guard"
        with pytest.raises(SessionStopped):
            agents.sub(1)
    assert len(agents.leaves) == 3


def test_a_stop_of_the_outer_session_is_met_further_in():
    """What an operator stops outside stops the calls inside that are made after it."""
    agents = Agents(None, None)

    @guard_tool(name="stopper")
    def stopper():
        with agents.inner:
            agents.leaf(1)
            agents.outer.stop("enough")
            with pytest.raises(SessionStopped) as error:
                agents.leaf(2)
            assert error.value.trip.rule == "session.stop"

    with agents.outer:
        stopper()
    assert agents.leaves == [1]


def test_a_block_that_is_in_no_call_is_a_tree_of_its_own():
    """A session opened beside another, not inside one of its calls, neither draws on it nor is stopped with it."""
    agents = Agents({"plugin": "call_ceiling", "run": 2}, None)
    with agents.outer, agents.inner:
        for n in range(5):
            agents.leaf(n)
    assert (len(agents.leaves), counted(agents.outer)) == (5, 0)


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_an_outer_session_that_only_looks_stops_nobody(mode):
    """Observing or off, the outer session lets the inner one run past its ceiling."""
    agents = Agents(None, None)
    agents.outer = Session(
        "outer", policy=Policy(plugins=[{"plugin": "call_ceiling", "run": 2}], mode=mode), store=agents.store
    )
    with agents.outer:
        agents.sub(5)
    assert len(agents.leaves) == 5


def test_threads_of_inner_sessions_meet_the_outer_ceiling_to_the_call():
    """Many inner agents at once have exactly as many bodies as the outer session allows."""
    agents = Agents({"plugin": "call_ceiling", "session": 40}, None, swallow=True)
    with agents.outer as session:

        def ask():
            with contextlib.suppress(CircuitOpen):
                agents.sub(20)

        work = session.bind(ask)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted(session) == 40
    assert len(agents.leaves) + len(agents.subs) == 40


def test_three_sessions_deep():
    """The ceiling of the outermost holds for the innermost."""
    agents = Agents({"plugin": "call_ceiling", "run": 5}, None)

    @guard_tool(name="middle")
    def middle():
        with Session("middle", policy=Policy(plugins=[STATS]), store=agents.store):
            return agents.sub(9)

    with agents.outer, pytest.raises(SessionStopped):
        middle()
    assert len(agents.leaves) == 3
