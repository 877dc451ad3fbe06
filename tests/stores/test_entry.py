"""What a guard of this process takes from the memory store in place of a transaction."""

from __future__ import annotations

import threading

import pytest

from otel_toolguard import MemoryStore, Policy, Session, guard_tool
from otel_toolguard.errors import CircuitOpen
from otel_toolguard.testing import FakeClock


@guard_tool
def look(n: int) -> int:
    return n


CEILING = [{"plugin": "call_ceiling", "run": 50}]


def test_an_entry_forgotten_meanwhile_is_asked_for_again():
    """A session that is forgotten between look-up and lock is found anew, and its call is counted there."""
    store = MemoryStore()
    session = Session("s", policy=Policy(plugins=CEILING), store=store)
    stale = store.entry("s")
    stale.gone = True
    del store._entries["s"]
    found = [stale]
    whole = store.entry
    session.guard._entry = lambda name: found.pop() if found else whole(name)
    with session:
        assert look(1) == 1
    assert not found
    assert (stale.state.calls, store.entry("s").state.calls) == (0, 1)


@pytest.mark.parametrize(("seconds", "kept"), [(10, True), (10.5, False)])
def test_an_expired_session_begins_anew(seconds, kept):
    """A session is kept for its whole time to live and no longer."""
    clock = FakeClock()
    store = MemoryStore(ttl_s=10, clock=clock)
    state = store.entry("s").state
    clock.advance(seconds)
    assert (store.entry("s").state is state) is kept


def test_only_the_first_of_two_threads_renews():
    """A thread that saw a session expired a moment ago leaves alone what another one has begun since."""
    clock = FakeClock()
    store = MemoryStore(ttl_s=10, clock=clock)
    store.entry("s")
    clock.advance(11)
    fresh = store.entry("s").state
    fresh.calls = 1
    store._renew(store._entries["s"], clock())
    assert store.entry("s").state is fresh


def test_a_store_with_a_step_of_its_own_is_asked_for_it():
    """A subclass that overrides the transaction sees every step."""
    steps = []

    class Watched(MemoryStore):
        def transact(self, session_id, step):
            steps.append(session_id)
            return super().transact(session_id, step)

    with Session("s", policy=Policy(plugins=CEILING), store=Watched()):
        look(1)
    assert steps[:2] == ["s", "s"]


def test_a_ceiling_is_exact_over_many_threads():
    """Of 64 threads with four calls each exactly as many run as the ceiling allows."""
    ran, refused = [], []
    session = Session("s", policy=Policy(plugins=CEILING), store=MemoryStore())

    def work():
        for n in range(4):
            try:
                ran.append(look(n))
            except CircuitOpen:
                refused.append(n)

    with session:
        threads = [threading.Thread(target=session.bind(work)) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(ran), len(refused)) == (50, 206)
