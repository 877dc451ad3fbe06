"""The memory store: atomic, bounded, fork-safe, independent of threads and loops."""

import asyncio
import gc
import os
import threading

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.stores import resolve
from otel_toolguard.stores.memory import MemoryStore, shared_memory_store

CALL = ToolCall("a", "a:1")
CHAIN = Chain([CallCeiling(run=25)])


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def admit(store, session="s", chain=CHAIN):
    return store.transact(session, lambda state: chain.admit(state, "r", CALL))


def bump(store, session="s"):
    def step(state):
        state.calls += 1
        return state.calls

    return store.transact(session, step)


def calls(store, session="s"):
    return store.transact(session, lambda state: state.calls)


def in_threads(number, target):
    """Runs the target in many threads that start together; returns what each one answered."""
    barrier, answers = threading.Barrier(number), []

    def run():
        barrier.wait()
        answers.append(target())

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_exactly_the_ceiling_is_permitted_under_threads():
    """Of 64 threads that ask at once, ten times each, 25 calls are permitted, whether or not they end."""
    for settles in (False, True):
        store = MemoryStore()

        def ask(store=store, settles=settles):
            permitted = 0
            for _ in range(10):
                admission = admit(store)
                if isinstance(admission, Permit):
                    permitted += 1
                    if settles:
                        store.transact(
                            "s", lambda state, n=admission.number: CHAIN.settle(state, "r", n, CALL, Outcome("ok"))
                        )
            return permitted

        assert sum(in_threads(64, ask)) == 25


def test_steps_on_one_session_never_overlap():
    """Read, wait for others, write: no update is lost, and other sessions go on meanwhile."""
    store = MemoryStore()

    def step(state):
        before = state.calls
        bump(store, "elsewhere")
        state.calls = before + 1

    in_threads(16, lambda: [store.transact("s", step) for _ in range(50)])
    assert (calls(store), calls(store, "elsewhere")) == (800, 800)


def test_threads_that_make_one_session_get_one_state():
    """The first calls of a session may come from many threads at once."""
    store = MemoryStore()
    for n in range(50):
        in_threads(8, lambda n=n: bump(store, f"s{n}"))
    assert [calls(store, f"s{n}") for n in range(50)] == [8] * 50


def test_a_step_that_raises_leaves_the_session_usable():
    """The error comes out and the lock is free again."""
    store = MemoryStore()
    with pytest.raises(ZeroDivisionError):
        store.transact("s", lambda state: 1 / 0)
    assert bump(store) == 1


def test_the_same_thread_may_come_in_again():
    """A signal handler, or a finalizer run by the garbage collector, in the middle of a step does not hang."""
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


def test_async_steps_work_on_any_loop():
    """The same session from one event loop after another, and from tasks side by side."""
    store = MemoryStore()

    async def many():
        def step(state):
            state.calls += 1

        await asyncio.gather(*(store.transact_async("s", step) for _ in range(20)))

    asyncio.run(many())
    asyncio.run(many())
    assert calls(store) == 40


# ------------------------------------------------------------------------------------------------ forgetting


@pytest.mark.parametrize(("wait", "left"), [(9.0, 1), (10.0, 1), (10.5, 0)])
def test_a_session_is_forgotten_after_its_ttl_without_a_call(wait, left):
    """Up to the TTL the state stays, after it the session starts afresh."""
    clock = Clock()
    store = MemoryStore(ttl_s=10.0, clock=clock)
    bump(store)
    clock.now = wait
    assert calls(store) == left


def test_each_call_refreshes_the_ttl():
    """A session in use never expires."""
    clock = Clock()
    store = MemoryStore(ttl_s=10.0, clock=clock)
    for n in range(1, 6):
        clock.now += 9.0
        assert bump(store) == n


def test_no_more_sessions_than_the_maximum():
    """However many sessions come, so many are kept: the newest."""
    clock = Clock()
    store = MemoryStore(max_sessions=10, clock=clock)
    for n in range(1000):
        clock.now += 1
        bump(store, f"s{n}")
        assert len(store) <= 10
    assert calls(store, "s999") == 1


def kept(store, *sessions):
    """Which of the sessions still have their state."""
    return [name for name in sessions if name in store._entries]


def active(store, name):
    store.transact(name, lambda state: CHAIN.admit(state, "r", CALL))


def tripped(store, name):
    store.transact(name, lambda state: CHAIN.stop(state, "reason"))


def circuit(store, name):
    chain = Chain([CallCeiling(tools={"a": 1})])
    for _ in range(2):
        admission = admit(store, name, chain)
        if isinstance(admission, Permit):
            store.transact(name, lambda state, n=admission.number: chain.settle(state, "r", n, CALL, Outcome("ok")))


@pytest.mark.parametrize("make", [active, tripped, circuit])
def test_active_and_tripped_sessions_go_last(make):
    """An idle session goes before older ones that are needed, and only it."""
    clock = Clock()
    store = MemoryStore(max_sessions=20, clock=clock)
    names = [f"needed{n}" for n in range(19)]
    for name in names:
        make(store, name)
    clock.now = 1.0
    bump(store, "idle")
    clock.now = 2.0
    bump(store, "new")
    assert kept(store, *names, "idle", "new") == [*names, "new"]


def test_where_all_are_needed_the_oldest_goes():
    """The maximum holds even then, at the cost of one session."""
    clock = Clock()
    store = MemoryStore(max_sessions=20, clock=clock)
    for n in range(21):
        clock.now += 1
        active(store, f"s{n}")
    assert (len(store), kept(store, "s0", "s1")) == (20, ["s1"])


def test_expired_sessions_go_first():
    """All that have expired are forgotten before any that has not, tripped ones included."""
    clock = Clock()
    store = MemoryStore(max_sessions=20, ttl_s=10.0, clock=clock)
    for n in range(10):
        (tripped if n % 2 else bump)(store, f"old{n}")
    clock.now = 11.0
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
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_holds_the_locks_does_not_hang_the_child():
    """The child works on the session that another thread was working on in the parent, and makes new ones."""
    store, inside, done = MemoryStore(), threading.Event(), threading.Event()
    bump(store)

    def hold(state):
        with store._lock:
            inside.set()
            done.wait()

    thread = threading.Thread(target=store.transact, args=("s", hold))
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        try:
            ok = bump(store) == 2 and bump(store, "new") == 1
        finally:
            os._exit(0 if ok else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert calls(store) == 1


def test_without_a_store_the_process_has_one():
    """Whoever names no store shares one, from whatever thread; a named store is taken as it is."""
    assert len({id(store) for store in in_threads(8, lambda: resolve(None))}) == 1
    assert resolve(None) is shared_memory_store()
    own = MemoryStore()
    assert resolve(own) is own


def test_each_store_has_a_key_of_its_own():
    """Signatures of two stores cannot be compared unless the settings name a key."""
    assert MemoryStore().key != MemoryStore().key
