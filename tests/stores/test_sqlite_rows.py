"""How the SQLite store takes a session apart: nothing is lost, and a call costs the same however many came before."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_toolguard import MemoryStore, Policy, Session, guard_tool
from otel_toolguard.core.state import SessionState
from otel_toolguard.stores.sqlite import SQLiteStore
from otel_toolguard.stores.sqlite_file import ENTRIES, SESSIONS
from otel_toolguard.stores.sqlite_long import LONG, Long
from otel_toolguard.testing.store_steps import plain

KEYS = st.sampled_from("abcdef")
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
        st.tuples(st.just("del"), KEYS),
        st.tuples(st.just("pop"), KEYS),
        st.tuples(st.just("setdefault"), KEYS, st.integers(0, 9)),
        st.tuples(st.just("end"), KEYS, st.booleans()),
        st.tuples(st.just("popitem"), st.booleans()),
        st.tuples(st.just("update"), st.dictionaries(KEYS, st.integers(0, 9))),
        st.tuples(st.just("clear")),
        st.tuples(st.just("write")),
    ),
    max_size=25,
)


def change(entries, what, *given):
    """Does one thing to a dictionary, if it can be done."""
    if what == "set":
        entries[given[0]] = given[1]
    elif what == "del":
        if given[0] in entries:
            del entries[given[0]]
    elif what == "pop":
        entries.pop(given[0], None)
    elif what == "end":
        if given[0] in entries:
            entries.move_to_end(*given)
    elif what == "popitem":
        if entries:
            entries.popitem(*given)
    elif what != "write":
        getattr(entries, what)(*given)


class Written:
    """What the table has of a long dictionary under its place."""

    def __init__(self):
        self.rows = {}

    def write(self, entries):
        for key in entries.gone:
            self.rows.pop(key, None)
        for key, seq, value in entries.rows():
            self.rows[key] = (self.rows[key][0] if key in self.rows else seq, value)
        entries.written()

    def read(self):
        return [(key, json.loads(value)) for key, (_, value) in sorted(self.rows.items(), key=lambda row: row[1][0])]


@given(CHANGES)
def test_a_long_dictionary_is_one(changes):
    """Whatever is done to it, it is as an ordered dictionary would be, and so is what was written of it, in order."""
    expected, found, file = OrderedDict(), Long(1), Written()
    for what, *more in changes:
        change(expected, what, *more)
        change(found, what, *more)
        assert list(found.items()) == list(expected.items())
        if not found.place:  # it needs another place, where nothing is yet
            found, file = Long.made_of(1, found), Written()
        if what == "write":
            file.write(found)
            assert not found.changed
    file.write(found)
    assert file.read() == list(expected.items())


def test_values_that_change_inside():
    """A list or dictionary among the values is written each time, for nobody tells when it changes."""
    entries, file = Long(1), Written()
    entries["a"], entries["b"] = [1], 2
    file.write(entries)
    entries["a"].append(2)
    assert entries.changed
    file.write(entries)
    assert file.read() == [("a", [1, 2]), ("b", 2)]
    del entries["a"]
    entries.written()
    assert not entries.changed


@guard_tool
def look(n: int) -> str:
    return f"page {n * 7919} " + "abcdefgh"[n % 8] * 3


ALL = [
    {"plugin": "classify"},
    {"plugin": "repeat_guard", "limit": 8},
    {"plugin": "stagnation", "limit": 12},
    {"plugin": "same_answer", "limit": 25},
    {"plugin": "failure_streak", "limit": 20},
    {"plugin": "signature_failures", "limit": 6},
    {"plugin": "call_ceiling", "run": 1_000_000},
    {"plugin": "max_refusals", "limit": 2},
    {"plugin": "tool_stats"},
]


@pytest.mark.parametrize("reopen", [False, True])
def test_a_session_is_what_it_is_in_memory(reopen, tmp_path):
    """After hundreds of calls, through all rules, reopened at each call or never, the file has what memory has."""
    path = tmp_path / "a.sqlite3"
    store = SQLiteStore(path)
    memory, left = MemoryStore(), []
    memory.key = store.key
    calls = [*range(150), *range(40), *range(150)]
    for each in (memory, store):
        session = Session("s", policy=Policy(plugins=ALL), store=each)
        place = session.place("r")
        for n in calls:
            session.guard.store = SQLiteStore(path) if reopen and each is store else each
            admission = session.guard.transact(session.policy.chain.admit, place.run_id, _call(n))
            session.guard.transact(session.policy.chain.settle, place.run_id, admission.number, _call(n), _ended(n))
        left.append((SQLiteStore(path) if each is store else each).transact("s", plain))
    assert left[1] == left[0]
    assert list(left[1]["runs"][0][1]["signatures"]) == list(left[0]["runs"][0][1]["signatures"])
    assert len(left[0]["runs"][0][1]["signatures"]) > LONG


def _call(n):
    from otel_toolguard.core.call import ToolCall

    return ToolCall("look", f"look:{n:016x}", tool_class="read")


def _ended(n):
    from otel_toolguard.core.call import Outcome

    return Outcome("ok" if n % 5 else "failed", exact=f"e{n}", volatile=f"v{n}", digits=f"d{n}")


def test_no_call_writes_more_than_the_first_hundred_did(tmp_path):
    """After thousands of different calls one call changes as few rows, and as short a text, as it did early on."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    size = f"SELECT length(state) FROM {SESSIONS}"

    def cost():
        before = store._file._connection.total_changes
        look(cost.n)
        cost.n += 1
        changed = store._file._connection.total_changes - before
        return changed, store._file._connection.execute(size).fetchone()[0]

    cost.n = 0
    with Session("s", policy=Policy(plugins=ALL), store=store):
        early = [cost() for _ in range(300)][200:]
        for n in range(1_000, 6_000):
            look(n)
        late = [cost() for _ in range(100)]
    assert max(rows for rows, _ in late) <= max(rows for rows, _ in early) + 5 <= 30
    assert max(length for _, length in late) <= max(length for _, length in early) + 100 <= 4_000
    assert store._file._connection.execute(f"SELECT count(*) FROM {ENTRIES}").fetchone()[0] < 10_000


def test_a_rule_whose_own_state_grows_long(tmp_path):
    """A rule that keeps all it has in one dictionary, and works on it directly, goes on after it was taken apart."""
    store = SQLiteStore(tmp_path / "a.sqlite3")

    def step(state, n):
        mine = state.run("r").rules.setdefault("own", {})
        mine[f"k{n}"] = n
        if n >= 100:
            del mine[f"k{n - 100}"]
        state.rules.setdefault("lasting", {}).setdefault("seen", {})[f"\ud800{n}"] = None

    for n in range(200):
        (store if n % 3 else SQLiteStore(store.path)).transact("s", lambda state, n=n: step(state, n))
    found = SQLiteStore(store.path).transact("s", plain)
    assert found["runs"][0][1]["rules"]["own"] == {f"k{n}": n for n in range(100, 200)}
    assert list(found["rules"]["lasting"]["seen"]) == [f"\ud800{n}" for n in range(200)]


def test_many_runs_cost_no_more_than_one(tmp_path):
    """A call of the fortieth run writes as little as one of the first, and of ended runs one row each is left."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    session = Session("s", policy=Policy(plugins=ALL), store=store)
    costs = []
    for run in range(40):
        with session:
            for n in range(99):
                look(1_000 * run + n)
            before = store._file._connection.total_changes
            look(1_000 * run + 99)
            costs.append(store._file._connection.total_changes - before)
    assert max(costs[1:]) <= costs[0] + 5
    entries = store._file._connection.execute(f"SELECT count(*) FROM {ENTRIES}").fetchone()[0]
    kept = store.transact("s", lambda state: (len(state.runs), sum(len(r.signatures) for r in state.runs.values())))
    assert kept == (32, 3_200)
    assert entries <= 32 + 4_096  # beside the runs only what the session itself counts
    assert SQLiteStore(store.path).transact("s", plain) == store.transact("s", plain)


def test_a_run_is_forgotten_with_its_entries(tmp_path):
    """What only a run that is gone had, or a dictionary that a rule has replaced, is gone from the file."""
    store = SQLiteStore(tmp_path / "a.sqlite3")

    def fill(state):
        run = state.run("r")
        run.signatures.update((str(n), n) for n in range(100))
        run.rules["own"] = {"seen": {str(n): n for n in range(100)}}

    store.transact("s", fill)
    count = f"SELECT count(*) FROM {ENTRIES}"
    seen = [store._file._connection.execute(count).fetchone()[0]]
    for step in (lambda state: state.runs["r"].rules.update(own={"seen": {}}), lambda state: state.runs.pop("r")):
        store.transact("s", step)
        seen.append(store._file._connection.execute(count).fetchone()[0])
    assert seen == [201, 101, 0]
    assert SQLiteStore(store.path).transact("s", lambda state: list(state.runs)) == []


def test_a_nested_run_counts_in_the_one_above(tmp_path):
    """A call of a nested run changes the runs above it in the file, though nobody asked for these by name."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    chain = Policy(plugins=ALL).chain
    store.transact("s", lambda state: chain.admit(state, "outer", _call(0)))
    store.transact("s", lambda state: chain.admit(state, "inner", _call(1), above="outer"))
    store.transact("s", lambda state: chain.admit(state, "inner", _call(2)))
    found = SQLiteStore(store.path).transact("s", lambda state: {run.id: run.calls for run in state.runs.values()})
    assert found == {"outer": 3, "inner": 2}


def test_a_step_that_raises_after_it_changed_a_long_dictionary(tmp_path):
    """It is undone there, too."""
    store = SQLiteStore(tmp_path / "a.sqlite3")
    store.transact("s", lambda state: state.run("r").signatures.update((str(n), n) for n in range(100)))
    before = store.transact("s", plain)

    def step(state):
        state.runs["r"].signatures["new"] = 1
        raise KeyError

    with pytest.raises(KeyError):
        store.transact("s", step)
    assert store.transact("s", plain) == SQLiteStore(store.path).transact("s", plain) == before
    assert isinstance(SessionState.from_plain(before), SessionState)
