"""A stopped run tried again in a fresh one."""

from __future__ import annotations

import functools

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped, find_trip, guard_tool

LAPS = {"plugin": "repeat_guard", "limit": 3, "max_period": 1}
STATS = {"plugin": "tool_stats"}


@guard_tool
def look(at="a"):
    return "same"


def opened(*rules):
    return Session("s", policy=Policy(plugins=[LAPS, *rules, STATS]), store=MemoryStore())


class Agent:
    """Loops in its first runs, and does its work in the next."""

    def __init__(self, loops, wrap=None):
        self.loops, self.runs, self.wrap = loops, 0, wrap

    def run(self):
        self.runs += 1
        try:
            for _ in range(9 if self.runs <= self.loops else 2):
                look()
        except CircuitOpen as error:
            if self.wrap == "swallow":
                return "sorry"
            if self.wrap:
                raise RuntimeError("agent failed") from error
            raise
        return "done"

    async def run_async(self):
        return self.run()


def called(session, agent, asynchronous, attempts):
    import asyncio

    if asynchronous:
        return asyncio.run(session.run_fresh(agent.run_async, attempts=attempts))
    return session.run_fresh(agent.run, attempts=attempts)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("wrap", [None, "wrap", "swallow"])
@pytest.mark.parametrize(("loops", "attempts"), [(0, 1), (0, 2), (1, 2), (2, 3), (1, 5)])
def test_a_stopped_run_is_tried_again(loops, attempts, wrap, asynchronous):
    """Each stopped run is followed by a fresh one, whether the stop was raised, wrapped or swallowed; then the result comes."""
    session, agent = opened(), Agent(loops, wrap)
    assert called(session, agent, asynchronous, attempts) == "done"
    assert agent.runs == loops + 1
    assert session.report()["retries"] == loops
    assert session.report()["calls"] == 3 * loops + 2


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("wrap", "kind"), [(None, SessionStopped), ("wrap", RuntimeError), ("swallow", SessionStopped)]
)
def test_the_last_stop_is_raised(wrap, kind, asynchronous):
    """When no try is left, the exception that left the function is raised; a swallowed stop is not taken for success."""
    session, agent = opened(), Agent(9, wrap)
    with pytest.raises(kind) as error:
        called(session, agent, asynchronous, 3)
    assert find_trip(error.value).rule == "repeat_guard"
    assert agent.runs == 3


def test_ceilings_of_the_session_last():
    """A ceiling of the session goes on counting over the fresh runs, and ends them all."""
    session, agent = opened({"plugin": "call_ceiling", "session": 7}), Agent(9)
    with pytest.raises(SessionStopped) as error:
        session.run_fresh(agent.run, attempts=9)
    assert (error.value.trip.rule, agent.runs) == ("call_ceiling", 3)


def test_an_operators_stop_is_final():
    """A session that an operator stopped is not tried again."""
    session, agent = opened(), Agent(9)
    session.stop("enough")
    with pytest.raises(SessionStopped):
        session.run_fresh(agent.run, attempts=9)
    assert agent.runs == 1


def test_other_failures_are_not_retried():
    """An exception without a trip leaves at once, and so does what is no Exception."""
    session, runs = opened(), []

    def fails(error):
        runs.append(error)
        raise error

    for error in (LookupError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            session.run_fresh(functools.partial(fails, error), attempts=5)
    assert len(runs) == 2


def test_a_partial_of_an_async_function():
    """An async function with some arguments given is awaited like any other."""
    import asyncio

    async def run(answer):
        return answer

    assert asyncio.run(opened().run_fresh(functools.partial(run, "x"))) == "x"


@pytest.mark.parametrize("attempts", [0, -1, True, 1.0, None])
def test_a_number_of_attempts_that_means_nothing(attempts):
    """Attempts are a whole number from 1, and the function is not called otherwise."""
    agent = Agent(0)
    with pytest.raises(ValueError, match="whole number from 1"):
        opened().run_fresh(agent.run, attempts=attempts)
    assert agent.runs == 0
