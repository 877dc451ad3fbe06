"""The memory store: what every store must do, and what is its own."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from otel_toolguard import MemoryStore
from otel_toolguard.stores import resolve
from otel_toolguard.stores.memory import shared_memory_store
from otel_toolguard.testing import FakeClock, StoreContract
from otel_toolguard.testing.store_steps import NEEDED, admit, bump, calls, forked, in_threads


class TestMemoryStore(StoreContract):
    """The contract; a step that raises is not undone, for a copy of the state at each call would cost more than it."""

    undoes = False

    def setup_method(self):
        self.clock = FakeClock()

    def make_store(self, *, ttl_s=None, max_sessions=None):
        given = {"ttl_s": ttl_s, "max_sessions": max_sessions}
        return MemoryStore(clock=self.clock, **{name: value for name, value in given.items() if value is not None})

    def let_pass(self, seconds):
        self.clock.advance(seconds)

    def count(self, store):
        return len(store)


def test_other_sessions_go_on_meanwhile():
    """A step that takes long holds up its own session only."""
    store, inside, done = MemoryStore(), threading.Event(), threading.Event()

    def step(state):
        inside.set()
        done.wait()
        state.calls = 7

    thread = threading.Thread(target=store.transact, args=("slow", step))
    thread.start()
    inside.wait()
    assert [bump(store, "other") for _ in range(3)] == [1, 2, 3]
    done.set()
    thread.join()
    assert calls(store, "slow") == 7


def test_a_finalizer_in_the_middle_of_a_step():
    """The garbage collector may close a guarded generator while its session is being worked on."""
    store = MemoryStore()

    class Finalized:
        def __init__(self):
            self.me = self

        def __del__(self):
            bump(store)

    def step(state):
        Finalized()
        gc.collect()
        return state.calls

    assert store.transact("s", step) == 1


# ------------------------------------------------------------------------------------------------ forgetting


@pytest.mark.parametrize(("wait", "left"), [(9.0, 1), (10.0, 1), (10.5, 0)])
def test_the_ttl_is_met_exactly(wait, left):
    """Up to the TTL, that second included, the state stays; after it the session starts afresh."""
    clock = FakeClock()
    store = MemoryStore(ttl_s=10.0, clock=clock)
    bump(store)
    clock.advance(wait)
    assert calls(store) == left


def test_a_call_in_flight_outlives_the_ttl():
    """A body that runs longer than the TTL finds its session when it ends."""
    clock = FakeClock()
    store = MemoryStore(ttl_s=10.0, clock=clock)
    assert admit(store) == 1
    clock.advance(100.0)
    assert store.transact("s", lambda state: state.in_flight) == 1


def kept(store, *sessions):
    """Which of the sessions still have their state."""
    return [name for name in sessions if name in store._entries]


def test_only_as_many_as_must_go():
    """Beside sessions that are needed one that is not makes the room, alone."""
    clock = FakeClock()
    store = MemoryStore(max_sessions=20, clock=clock)
    names = [f"needed{n}" for n in range(19)]
    for name in names:
        store.transact(name, NEEDED["a call in flight"])
    clock.advance(1)
    bump(store, "idle")
    clock.advance(1)
    bump(store, "new")
    assert kept(store, *names, "idle", "new") == [*names, "new"]


def test_where_all_are_needed_the_oldest_goes():
    """The maximum holds even then, at the cost of one session."""
    clock = FakeClock()
    store = MemoryStore(max_sessions=20, clock=clock)
    for n in range(21):
        clock.advance(1)
        admit(store, f"s{n}")
    assert (len(store), kept(store, "s0", "s1")) == (20, ["s1"])


def test_expired_sessions_go_first():
    """All that have expired are forgotten before any that has not, tripped ones included."""
    clock = FakeClock()
    store = MemoryStore(max_sessions=20, ttl_s=10.0, clock=clock)
    for n in range(10):
        store.transact(f"old{n}", NEEDED["a stop from outside"] if n % 2 else lambda state: state.calls)
    clock.advance(11.0)
    for n in range(11):
        bump(store, f"new{n}")
    assert len(store) == 11


def test_a_session_whose_step_is_running_is_not_forgotten():
    """Eviction passes over a session that another thread is working on."""
    store, inside, done = MemoryStore(max_sessions=1), threading.Event(), threading.Event()

    def step(state):
        inside.set()
        done.wait()
        state.calls = 7

    thread = threading.Thread(target=store.transact, args=("busy", step))
    thread.start()
    inside.wait()
    bump(store, "other")
    done.set()
    thread.join()
    assert calls(store, "busy") == 7


# ------------------------------------------------------------------------------------------------ processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_another_thread_holds_every_lock():
    """The child works on a session that another thread held in the parent, and makes one though that lock was held too."""
    store, inside, done = MemoryStore(), threading.Event(), threading.Event()
    bump(store)

    def hold(state):
        with store._lock:
            inside.set()
            done.wait()

    thread = threading.Thread(target=store.transact, args=("s", hold))
    thread.start()
    inside.wait()
    wait = forked(lambda: (bump(store), bump(store, "new")) == (2, 1))
    done.set()
    thread.join()
    assert wait()
    assert calls(store) == 1


def test_without_a_store_the_process_has_one():
    """Whoever names no store shares one, from whatever thread; a named store is taken as it is."""
    assert len({id(store) for store in in_threads(8, lambda: resolve(None))}) == 1
    assert resolve(None) is shared_memory_store()
    own = MemoryStore()
    assert resolve(own) is own
