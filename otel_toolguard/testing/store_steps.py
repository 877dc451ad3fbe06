"""Steps that a store is tried with, and ways to run many of them at once."""

from __future__ import annotations

import json
import os
import threading
import traceback
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit
from otel_toolguard.core.plugins.call_ceiling import CallCeiling
from otel_toolguard.core.plugins.max_refusals import MaxRefusals
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.plugins.tool_stats import ToolStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_toolguard.core.state import SessionState
    from otel_toolguard.stores import SessionStore

T = TypeVar("T")

A, B = ToolCall("a", "a:1"), ToolCall("b", "b:1", risk="irreversible")
CEILING = Chain([CallCeiling(run=25)])
ALL = Chain([RepeatGuard(3), CallCeiling(run=8, tools={"b": 1}), MaxRefusals(3), ToolStats()])


def ok() -> Outcome:
    """A good end of a call; a new one each time, for the chain writes on it."""
    return Outcome("ok", exact="exact", volatile="volatile")


def plain(state: SessionState) -> dict[str, Any]:
    """The state as JSON brings it back."""
    found: dict[str, Any] = json.loads(json.dumps(state.to_plain()))
    return found


def bump(store: SessionStore, session: str = "s") -> int:
    """One more call of a session, counted by hand; returns how many there are."""
    return store.transact(session, count)


def count(state: SessionState) -> int:
    """The step of ``bump``."""
    state.calls += 1
    return state.calls


def calls(store: SessionStore, session: str = "s") -> int:
    """How many calls a session has."""
    return store.transact(session, lambda state: state.calls)


def admit(store: SessionStore, session: str = "s", *, times: int = 1, settles: bool = False) -> int:
    """Asks for that many calls in a run whose ceiling is 25; returns how many were permitted."""
    permitted = 0
    for _ in range(times):
        admission = store.transact(session, lambda state: CEILING.admit(state, "r", A))
        if isinstance(admission, Permit):
            permitted += 1
            number = admission.number
            if settles:
                store.transact(session, partial(CEILING.settle, run_id="r", number=number, call=A, outcome=ok()))
    return permitted


def _name(state: SessionState) -> None:
    state.key_id, state.form = "key", 1


def _hold(state: SessionState) -> None:
    state.raised.append(["run", 9, 100.5])
    state.held["tool:c"] = ["forced_open", "because", None]
    state.audit.append({"action": "hold", "reason": "because"})


def _loop(state: SessionState) -> None:
    admission = ALL.admit(state, "loop", A, link=lambda: "trace-span")
    if isinstance(admission, Permit):
        ALL.settle(state, "loop", admission.number, A, ok())


def _stopped(state: SessionState) -> None:
    for _ in range(3):
        _loop(state)


def _circuit(state: SessionState) -> None:
    for _ in range(2):
        admission = ALL.admit(state, "r", B)
        if isinstance(admission, Permit):
            ALL.settle(state, "r", admission.number, B, ok())


# One session's life; two calls are in flight at its end.
HISTORY: Sequence[Callable[[SessionState], Any]] = (
    _name,
    lambda state: ALL.admit(state, "r", A),
    lambda state: ALL.settle(state, "r", 1, A, ok()),
    lambda state: ALL.admit(state, "r", B),
    lambda state: ALL.admit(state, "r", B),
    lambda state: ALL.admit(state, "nested", A, above="r"),
    lambda state: ALL.retry(state, "r", "execution", 1),
    _hold, _loop, _loop, _loop, _loop,
    lambda state: ALL.stop(state, "enough"),
    lambda state: ALL.admit(state, "r", A),
)  # fmt: skip

# What makes a session one that is still needed.
NEEDED: Mapping[str, Callable[[SessionState], Any]] = {
    "a call in flight": lambda state: CEILING.admit(state, "r", A),
    "a stopped run": _stopped,
    "a stop from outside": lambda state: ALL.stop(state, "enough"),
    "an open circuit": _circuit,
    "a circuit held by hand": _hold,
}


def in_threads(number: int, target: Callable[[], T]) -> list[T]:
    """Runs the target in many threads that start together; returns what each one answered."""
    barrier, answers, faults = threading.Barrier(number), list[T](), list[BaseException]()

    def run() -> None:
        barrier.wait()
        try:
            answers.append(target())
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return answers


@contextmanager
def held_open(store: SessionStore) -> Iterator[None]:
    """A block during which another thread is in the middle of a step on the session ``s``."""
    inside, done = threading.Event(), threading.Event()

    def hold(_state: SessionState) -> None:
        inside.set()
        done.wait()

    thread = threading.Thread(target=store.transact, args=("s", hold))
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def forked(target: Callable[[], bool]) -> Callable[[], bool]:
    """Runs the target in a forked process; returns what waits for it and says whether it answered True."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tried
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if target() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
