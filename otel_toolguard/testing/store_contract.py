"""What every store of sessions must do, as tests to inherit.

A test class that derives from ``StoreContract`` and makes its store runs all of it; pytest finds the tests by name.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from otel_toolguard.core.state import SessionState
from otel_toolguard.testing.expectation import expect, skip
from otel_toolguard.testing.store_steps import (
    HISTORY,
    NEEDED,
    admit,
    bump,
    calls,
    count,
    forked,
    held_open,
    in_threads,
    plain,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_toolguard.stores import SessionStore


class NoSuchLuck(Exception):
    """What a step raises."""


ODD_IDS = ("", " ", "a", "a:b", "a/b", "{a}", "A", "*", "0", "a\nb", "a\x00b", "größe", "\ud800", "x" * 5_000)


class StoreContract:
    """Derive a test class from it and implement the hooks.

    Attributes:
        ttl_s: The time to live, in seconds, that expiry is tried with.
        bounded: False for a store that keeps any number of sessions; what concerns the maximum is then skipped.
        undoes: True if a step that raises leaves the session as it was. False if what it had changed until then stays,
            which is allowed where the store says so: the library's own steps change nothing before they raise.
    """

    ttl_s: ClassVar[float] = 10.0
    bounded: ClassVar[bool] = True
    undoes: ClassVar[bool] = True

    # -------------------------------------------------------------------------------------------- hooks

    def make_store(self, *, ttl_s: float | None = None, max_sessions: int | None = None) -> SessionStore:
        """A new store that shares nothing with those made before.

        Args:
            ttl_s: Seconds without a call after which a session is forgotten; None for whatever is usual.
            max_sessions: Sessions kept; None for whatever is usual.
        """
        raise NotImplementedError

    def make_second_view(self, store: SessionStore) -> SessionStore | None:
        """Another handle on the data of a store, as another process would open it; None if it has no such thing.

        Called in a forked process too, where the handle of the parent must not be used any more.
        """
        return None

    def let_pass(self, seconds: float) -> None:
        """Lets that many seconds pass for the stores made so far, by a fake clock or by waiting."""
        raise NotImplementedError

    def count(self, store: SessionStore) -> int | None:
        """How many sessions the store keeps now; None if it cannot say."""
        return None

    # -------------------------------------------------------------------------------------------- one session

    def test_a_new_session_is_empty(self) -> None:
        """What nobody has used yet is a fresh state of that id."""
        expect(self.make_store().transact("s", plain), plain(SessionState("s")), "a new session")

    def test_the_answer_is_the_steps_own(self) -> None:
        """Whatever the step answers comes back, an object that no store could keep included."""
        store, answer = self.make_store(), object()
        expect(store.transact("s", lambda _state: answer) is answer, True, "the very object came back")
        expect(asyncio.run(store.transact_async("s", lambda _state: answer)) is answer, True, "also from async code")
        expect(store.transact("s", lambda _state: None), None, "no answer")

    def test_what_a_step_leaves_the_next_one_finds(self) -> None:
        """Runs, circuits, calls in flight, stops, what is held by hand: all of it is there again, and plain data."""
        store, local = self.make_store(), SessionState("s")
        for number, step in enumerate(HISTORY):
            left = store.transact("s", partial(_left_by, step))
            found = store.transact("s", plain)
            expect(found, left, f"what is found after step {number}")
            expect(plain(SessionState.from_plain(found)), found, f"that through plain data, after step {number}")
            local = SessionState.from_plain(left)
        expect(local.in_flight, 2, "calls in flight at the end")

    def test_sessions_are_apart(self) -> None:
        """However odd or alike their ids, sessions share nothing, and each state knows its id."""
        store = self.make_store()
        for number, name in enumerate(ODD_IDS, 1):
            for _ in range(number):
                bump(store, name)
        found = [store.transact(name, lambda state: (state.id, state.calls)) for name in ODD_IDS]
        expect(found, [(name, number) for number, name in enumerate(ODD_IDS, 1)], "ids and counts")

    def test_a_step_that_raises(self) -> None:
        """Its error comes out as it is; the session is usable, and unchanged if the store undoes such steps."""
        store, error = self.make_store(), NoSuchLuck("no")
        bump(store)

        def step(state: SessionState) -> None:
            state.calls += 10
            raise error

        for transact in (store.transact, lambda *given: asyncio.run(store.transact_async(*given))):
            before = calls(store)
            try:
                transact("s", step)
            except NoSuchLuck as raised:
                expect(raised is error, True, "the very error came out")
            else:
                expect("no error", "the error", "what came out")
            expect(calls(store) - before, 0 if self.undoes else 10, "what the step left behind")
        expect(sorted(in_threads(2, lambda: bump(store, "other"))), [1, 2], "another session, from other threads")

    def test_the_same_thread_may_come_in_again(self) -> None:
        """A signal handler or a finalizer in the middle of a step does not hang, and neither update is lost."""
        store, entered = self.make_store(), list[int]()

        def step(state: SessionState) -> None:
            if not entered:  # a store may run the step again, on a fresh copy
                entered.append(bump(store, "s"))
                bump(store, "other")
            state.calls += 1

        store.transact("s", step)
        expect((calls(store), calls(store, "other")), (2, 1), "both updates")

    # -------------------------------------------------------------------------------------------- many at once

    def test_steps_on_one_session_never_overlap(self) -> None:
        """Read, let others run, write: no update of many threads is lost."""
        store = self.make_store()

        def step(state: SessionState) -> None:
            before = state.calls
            time.sleep(0)
            state.calls = before + 1

        in_threads(8, lambda: [store.transact("s", step) for _ in range(25)])
        expect(calls(store), 200, "updates of 8 threads")

    def test_threads_that_begin_a_session_get_one_state(self) -> None:
        """The first calls of a session may come from many threads at once."""
        store = self.make_store()
        for n in range(20):
            in_threads(8, partial(bump, store, f"s{n}"))
        expect([calls(store, f"s{n}") for n in range(20)], [8] * 20, "first calls counted")

    def test_exactly_the_ceiling_is_admitted(self) -> None:
        """Of many threads that ask at once as many calls are permitted as the ceiling says, whether or not they end."""
        for settles in (False, True):
            store = self.make_store()
            permitted = in_threads(32, partial(admit, store, times=4, settles=settles))
            expect(sum(permitted), 25, f"admissions at a ceiling of 25, settled: {settles}")

    def test_tasks_and_threads_on_several_loops(self) -> None:
        """Tasks side by side, one loop after another and loops in several threads: every update counts."""
        store = self.make_store()

        async def many() -> None:
            def step(state: SessionState) -> None:
                state.calls += 1

            await asyncio.gather(*(store.transact_async("s", step) for _ in range(10)))

        asyncio.run(many())
        asyncio.run(many())
        in_threads(3, lambda: [asyncio.run(many()), bump(store)])
        expect(calls(store), 53, "updates of 50 tasks and 3 threads")

    # -------------------------------------------------------------------------------------------- forgetting

    def test_a_session_is_forgotten_after_its_time(self) -> None:
        """Within its time to live it is there; after it the session starts afresh."""
        for share, left in ((0.5, 1), (1.5, 0)):
            store = self.make_store(ttl_s=self.ttl_s)
            bump(store)
            self.let_pass(self.ttl_s * share)
            expect(calls(store), left, f"calls after {share} of the time to live")

    def test_each_call_refreshes_the_time(self) -> None:
        """A session in use never expires, while one beside it does."""
        store = self.make_store(ttl_s=self.ttl_s)
        bump(store, "idle")
        for n in range(1, 5):
            expect(bump(store), n, "calls so far")
            self.let_pass(self.ttl_s * 0.6)
        expect((calls(store), calls(store, "idle")), (4, 0), "the session in use, and the idle one")

    def test_active_and_tripped_sessions_go_last(self) -> None:
        """Where there is no more room an idle session goes, though it was used later than those that are needed."""
        self._needs_a_maximum()
        for kind, make in NEEDED.items():
            store = self.make_store(max_sessions=20)
            names = [f"needed{n}" for n in range(19)]
            for name in names:
                store.transact(name, make)
            left = [store.transact(name, plain) for name in names]
            self.let_pass(self.ttl_s / 100)
            bump(store, "idle")
            self.let_pass(self.ttl_s / 100)
            for n in range(5):
                bump(store, f"new{n}")
            lost = [name for name, was in zip(names, left, strict=True) if store.transact(name, plain) != was]
            expect(lost, [], f"lost sessions, of those with {kind}")

    def test_the_maximum_holds(self) -> None:
        """However many sessions come, no more than the maximum are kept, and the newest is among them."""
        self._needs_a_maximum()
        for make in (count, NEEDED["a call in flight"]):
            store = self.make_store(max_sessions=10)
            for n in range(50):
                store.transact(f"s{n}", make)
                kept = self.count(store)
                expect(kept is None or kept <= 10, True, f"no more than 10 sessions after {n + 1}, but {kept}")
            expect(calls(store, "s49") > 0, True, "the newest is kept")

    def _needs_a_maximum(self) -> None:
        if not self.bounded:
            skip("the store keeps any number of sessions")

    # -------------------------------------------------------------------------------------------- keys, processes

    def test_the_key_stays(self) -> None:
        """Signatures of one store can be compared as long as it lives, and nobody can guess its key."""
        store = self.make_store()
        key = store.key
        bump(store)
        expect((type(key), len(key) >= 16, store.key), (bytes, True, key), "the key: bytes, long, the same again")
        expect(self.make_store().key != key, True, "another store has another key")
        view = self.make_second_view(store)
        expect(view is None or view.key == key, True, "a second view has the same key")

    def test_a_fork_in_the_middle_of_a_step(self) -> None:
        """A child forked while another thread is in a step goes on with that session, and begins new ones."""
        if not hasattr(os, "fork"):
            skip("no fork here")
        store = self.make_store()
        bump(store)
        shared = self.make_second_view(store) is not None

        def child() -> bool:
            mine = (self.make_second_view(store) if shared else None) or store
            return (bump(mine), bump(mine, "new")) == (2, 1)

        with held_open(store):
            wait = forked(child)
        expect(wait(), True, "the child counted on, and began a session")
        expect(calls(store), 2 if shared else 1, "what the parent sees of the child's call")

    def test_a_second_view_sees_what_the_first_did(self) -> None:
        """Two handles on the same data: what one leaves the other finds, and opening one empties nothing."""
        store = self.make_store()
        for step in HISTORY:
            store.transact("s", step)
        view = self._second(store)
        expect(view.transact("s", plain), store.transact("s", plain), "the session through the second view")
        for first, second in pairwise([store, view, store, view]):
            expect(bump(second, "b") - bump(first, "b"), -1, "each view counts on from the other")

    def test_the_ceiling_holds_over_views_and_processes(self) -> None:
        """Threads on two views, and forked processes that open their own, together get what the ceiling allows."""
        store = self.make_store()
        views = [store, self._second(store)]
        permitted = in_threads(8, lambda: [admit(view, "threads", times=5) for view in views])
        expect(sum(map(sum, permitted)), 25, "admissions of threads on two views")
        if hasattr(os, "fork"):
            waits = [forked(lambda: admit(self._second(store), "forked", times=10) >= 0) for _ in range(4)]
            expect([wait() for wait in waits], [True] * 4, "processes that came through")
            expect(calls(store, "forked"), 25, "admissions of four processes")

    def _second(self, store: SessionStore) -> SessionStore:
        view = self.make_second_view(store)
        if view is None:
            skip("the store has no second view")
            raise NotImplementedError
        return view


def _left_by(step: Callable[[SessionState], Any], state: SessionState) -> dict[str, Any]:
    step(state)
    return plain(state)
