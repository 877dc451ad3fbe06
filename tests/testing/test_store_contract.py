"""The store contract: a store shared by processes passes it, and each kind of broken store is found out."""

from __future__ import annotations

import pickle
import time
from unittest import SkipTest

import pytest

from otel_toolguard import MemoryStore
from otel_toolguard.core.state import SessionState
from otel_toolguard.testing import FakeClock, StoreContract
from otel_toolguard.testing.store_steps import HISTORY, NEEDED


class OfMemory(StoreContract):
    undoes = False
    made = MemoryStore

    def __init__(self):
        self.clock = FakeClock()

    def make_store(self, *, ttl_s=None, max_sessions=None):
        given = {"ttl_s": ttl_s, "max_sessions": max_sessions}
        return self.made(clock=self.clock, **{name: value for name, value in given.items() if value is not None})

    def let_pass(self, seconds):
        self.clock.advance(seconds)

    def count(self, store):
        return len(store)


class TestFileStore(StoreContract):
    """A store with a second view, whose steps are undone when they raise, and which keeps any number of sessions."""

    bounded = False

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        pytest.importorskip("fcntl")
        self.clock, self.paths = FakeClock(), (tmp_path / f"{n}.json" for n in range(99))

    def make_store(self, *, ttl_s=None, max_sessions=None):
        from .file_store import FileStore

        return FileStore(next(self.paths), ttl_s=ttl_s or 60.0, clock=self.clock)

    def make_second_view(self, store):
        return store.again()

    def let_pass(self, seconds):
        self.clock.advance(seconds)


# ------------------------------------------------------------------------------------------------ broken stores


class Unlocked(MemoryStore):
    """No step waits for another."""

    def transact(self, session_id, step):
        state = self.__dict__.setdefault("states", {}).setdefault(session_id, SessionState(session_id))
        return step(state)


class Copying(MemoryStore):
    """Reads, works on a copy, writes: what others wrote meanwhile is lost."""

    def transact(self, session_id, step):
        def read(state):
            return pickle.dumps(state.to_plain())

        state = SessionState.from_plain(pickle.loads(super().transact(session_id, read)))
        answer = step(state)
        time.sleep(0)

        def write(kept):
            for name in SessionState.__slots__:
                setattr(kept, name, getattr(state, name))

        super().transact(session_id, write)
        return answer


class Forgetful(MemoryStore):
    """What is held by hand is not kept."""

    def transact(self, session_id, step):
        def forgets(state):
            state.held.clear()
            return step(state)

        return super().transact(session_id, forgets)


class Folding(MemoryStore):
    """Takes ids for one that differ in case."""

    def transact(self, session_id, step):
        return super().transact(session_id.lower(), step)


class Telling(MemoryStore):
    """Brings answers back as a wire would."""

    def transact(self, session_id, step):
        return str(super().transact(session_id, step))


class Wrapping(MemoryStore):
    """Says in its own words what a step raised."""

    def transact(self, session_id, step):
        try:
            return super().transact(session_id, step)
        except Exception as error:
            raise RuntimeError("the store failed") from error


class Retrying(MemoryStore):
    """Runs a step that raised once more."""

    def transact(self, session_id, step):
        try:
            return super().transact(session_id, step)
        except Exception:
            return super().transact(session_id, step)


class Everlasting(MemoryStore):
    """Never forgets."""

    def __init__(self, *, ttl_s=0.0, clock=None, **more):
        super().__init__(ttl_s=1e9, clock=clock, **more)


class Fading(MemoryStore):
    """Time runs from the first call on."""

    def transact(self, session_id, step):
        began = self.__dict__.setdefault("began", {}).setdefault(session_id, self._clock())
        if self._clock() - began > self._ttl:
            self._entries.pop(session_id, None)
            self.began[session_id] = self._clock()
        return super().transact(session_id, step)


class Unbounded(MemoryStore):
    """Has no maximum."""

    def _forget(self, now):
        return


class OldestFirst(MemoryStore):
    """Forgets what was used longest ago, whoever needs it."""

    def _forget(self, now):
        del self._entries[min(self._entries, key=lambda name: self._entries[name].used)]


class Rekeying(MemoryStore):
    """Draws its key anew whenever it is asked."""

    @property
    def key(self):
        import secrets

        return secrets.token_bytes(16)

    @key.setter
    def key(self, value):
        return


class CommonKey(MemoryStore):
    """Has the key of all others."""

    key = b"0123456789abcdef"

    def __setattr__(self, name, value):
        if name != "key":
            super().__setattr__(name, value)


class ShortKey(MemoryStore):
    """Has a key that can be guessed."""

    def __init__(self, **more):
        super().__init__(**more)
        self.key = self.key[:4]


class NotFresh(MemoryStore):
    """Begins sessions with something in them."""

    def transact(self, session_id, step):
        new = session_id not in self._entries

        def begun(state):
            state.calls += new
            return step(state)

        return super().transact(session_id, begun)


BROKEN = [
    (Unlocked, "test_steps_on_one_session_never_overlap"),
    (Copying, "test_steps_on_one_session_never_overlap"),
    (Copying, "test_exactly_the_ceiling_is_admitted"),
    (Copying, "test_tasks_and_threads_on_several_loops"),
    (Copying, "test_the_same_thread_may_come_in_again"),
    (Forgetful, "test_what_a_step_leaves_the_next_one_finds"),
    (Folding, "test_sessions_are_apart"),
    (Telling, "test_the_answer_is_the_steps_own"),
    (Wrapping, "test_a_step_that_raises"),
    (Retrying, "test_a_step_that_raises"),
    (Everlasting, "test_a_session_is_forgotten_after_its_time"),
    (Fading, "test_each_call_refreshes_the_time"),
    (Unbounded, "test_the_maximum_holds"),
    (OldestFirst, "test_active_and_tripped_sessions_go_last"),
    (Rekeying, "test_the_key_stays"),
    (CommonKey, "test_the_key_stays"),
    (ShortKey, "test_the_key_stays"),
    (NotFresh, "test_a_new_session_is_empty"),
]


@pytest.mark.parametrize(("store", "check"), BROKEN)
def test_a_broken_store_is_found_out(store, check):
    """The check that is there for this fault fails on a store that has it, and passes on one that has not."""
    broken = type("Broken", (OfMemory,), {"made": store})()
    getattr(OfMemory(), check)()
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        getattr(broken, check)()
    assert isinstance(caught.value, AssertionError) or str(caught.value) == "the store failed"


def test_a_store_that_says_that_it_undoes():
    """A store is held to what it says about steps that raise."""
    claims = type("Claims", (OfMemory,), {"undoes": True})()
    with pytest.raises(AssertionError, match="what the step left behind: expected 0, saw 10"):
        claims.test_a_step_that_raises()


class TwoViews(OfMemory):
    """Views that are the same store, or only look like it."""

    def __init__(self, second):
        super().__init__()
        self.make_second_view = second


def test_a_second_view_of_something_else_is_found_out():
    """A handle on other data, or one with another key, is no second view."""
    other = TwoViews(lambda store: MemoryStore())
    for check in (other.test_the_key_stays, other.test_a_second_view_sees_what_the_first_did):
        with pytest.raises(AssertionError):
            check()
    with pytest.raises(AssertionError, match="admissions of threads on two views"):
        other.test_the_ceiling_holds_over_views_and_processes()
    private = TwoViews(lambda store: store)  # in a forked process this is a copy
    with pytest.raises(AssertionError, match="admissions of four processes"):
        private.test_the_ceiling_holds_over_views_and_processes()
    with pytest.raises(AssertionError, match="what the parent sees"):
        private.test_a_fork_in_the_middle_of_a_step()


def test_what_a_store_has_not_is_skipped():
    """Without a second view, or without a maximum, those checks are skipped and say so."""
    with pytest.raises(SkipTest, match="no second view"):
        OfMemory().test_a_second_view_sees_what_the_first_did()
    with pytest.raises(SkipTest, match="any number"):
        type("Unbounded", (OfMemory,), {"bounded": False})().test_the_maximum_holds()


def test_the_hooks_must_be_there():
    """A contract without a store says which hook is missing by failing in it."""
    with pytest.raises(NotImplementedError):
        StoreContract().test_a_new_session_is_empty()
    with pytest.raises(NotImplementedError):
        StoreContract().let_pass(1.0)
    assert StoreContract().count(MemoryStore()) is None


def test_the_sessions_that_are_needed_are():
    """What the contract takes for a session that is needed is one: a call in flight, a stop, a circuit."""
    found = {}
    for kind, step in NEEDED.items():
        state = SessionState("s")
        step(state)
        runs = state.runs.values()
        found[kind] = (
            state.in_flight, any(run.stop for run in runs), bool(state.stop), any(run.circuits for run in runs),
            bool(state.held),
        )  # fmt: skip
    assert found == {
        "a call in flight": (1, False, False, False, False),
        "a stopped run": (0, True, False, False, False),
        "a stop from outside": (0, False, True, False, False),
        "an open circuit": (0, False, False, True, False),
        "a circuit held by hand": (0, False, False, False, True),
    }


def test_the_history_holds_what_states_hold():
    """The life that the contract plays leaves a stop, a circuit, calls in flight, a nested run and entries by hand."""
    state = SessionState("s")
    for step in HISTORY:
        step(state)
    assert state.stop is not None
    assert state.runs["loop"].stop is not None
    assert state.runs["r"].circuits
    assert state.runs["nested"].above is state.runs["r"]
    assert (state.in_flight, bool(state.raised), bool(state.held), len(state.audit)) == (2, True, True, 1)
