"""Hostile values: nothing raises, equal ones have equal signatures, and what was cut is never a repeat."""

from __future__ import annotations

import functools
import random

import hostile
import pytest
import run

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool
from otel_toolguard.core.canonical import TEXT_LIMIT, canonical

POLICY = Policy(mode="enforce", plugins=[{"plugin": "repeat_guard", "limit": 3}])
CALLS = 20


@pytest.mark.filterwarnings("ignore")
def test_thousands_of_hostile_values_raise_nothing_and_have_one_signature_each(capsys):
    """Made twice, each is signed and compared without an exception and like its twin; some are marked, some are whole."""
    report = run.run(3000, seed=7, large=0, huge=0)
    assert not report.failed, capsys.readouterr().out
    assert report.values == 3000
    assert len(report.slowest) > 100
    assert min(report.wholes[True], report.wholes[False]) > 500


def pool(makers):
    return [pytest.param(make, id=f"{index}") for index, make in enumerate(makers)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", pool([*hostile.STRANGE, *(lambda _, make=make: make() for make in hostile.SPOOFS)]))
def test_equal_strangers_have_equal_signatures(make):
    """Each odd kind of thing, made twice: an address, an order or a counter of reads would tell the two apart."""
    one, other = make(random.Random(1)), make(random.Random(1))
    assert run.look(one, commands=True) == run.look(other, commands=True)
    assert run.look([one], commands=True) == run.look([other], commands=True)


@pytest.mark.parametrize("make", pool(hostile.LARGE))
def test_what_is_large_has_a_bounded_text(make):
    """A value of whatever size, shape or endlessness is written within the limit, and like its twin."""
    text, whole = canonical(make(random.Random(1)))
    assert len(text) <= TEXT_LIMIT + len("!part")
    assert canonical(make(random.Random(1))) == (text, whole)


MARKED = {
    "cut text": "x" * (TEXT_LIMIT + 1),
    "cut bytes": b"x" * TEXT_LIMIT,
    "cut int": 1 << (8 * TEXT_LIMIT),
    "too many": list(range(TEXT_LIMIT)),
    "too many keys": dict.fromkeys("x" * 2000 + str(index) for index in range(1000)),
    "too deep": functools.reduce(lambda value, _: [value], range(100_000), 0),
    "unreadable": hostile.refusing(object, ("__getattribute__",), RuntimeError)(),
    "endless list": hostile.instance(hostile.endless(list, ("__iter__",)), list),
    "hidden state": iter([1]),
    "lock": hostile.LOCK,
    "spoof": hostile.SPOOFS[0](),
    "object": object(),
    "inside": {"a": [hostile.Plain(lock=hostile.LOCK)]},
}


def often(guarded, value):
    return [guarded(value) for _ in range(CALLS)]


@pytest.mark.parametrize("name", MARKED)
def test_a_marked_argument_never_counts_as_a_repeat(name):
    """Twenty calls with one value that was not written in full, and the same answer each time, trip nothing."""
    guarded = guard_tool(lambda q: "same", name="query")
    with Session("s", policy=POLICY, store=MemoryStore()) as session:
        assert often(guarded, MARKED[name]) == ["same"] * CALLS
        assert session.trip is None


@pytest.mark.parametrize("name", [name for name in MARKED if "many" not in name and "endless" not in name])
def test_a_marked_result_never_counts_as_a_repeat(name):
    """Twenty equal calls that each answer with a value that was not written in full trip nothing."""
    guarded = guard_tool(lambda q: MARKED[name], name="query")
    with Session("s", policy=POLICY, store=MemoryStore()) as session:
        often(guarded, "same")
        assert session.trip is None


WHOLE = [float("nan"), "\ud800", 1 << 20_000, hostile.Plain(a=1), [[]] * 50, hostile.Point(1), hostile.math]


@pytest.mark.parametrize("value", [pytest.param(value, id=type(value).__name__) for value in WHOLE])
def test_an_odd_value_that_is_whole_does(value):
    """The same twenty calls with a value that can be written in full are a loop, however odd it is."""
    guarded = guard_tool(lambda q: "same", name="query")
    with Session("s", policy=POLICY, store=MemoryStore()) as session:
        with pytest.raises(CircuitOpen):
            often(guarded, value)
        assert session.trip.rule == "repeat_guard"


def test_the_text_of_what_was_cut_is_never_that_of_a_whole_value():
    """A marked value cannot be refused for what a whole one did: their signatures differ."""
    for value in MARKED.values():
        text, whole = canonical(value)
        assert not whole
        assert canonical(text).text != text
        assert text.endswith("!part") or text.startswith("!long")
    many = dict.fromkeys(map(str, range(3 * 10**5)))
    assert canonical(many).text != canonical({}).text
    long = "x" * 2_000_000
    look_alike = canonical([long]).text[2:-2].removesuffix('"]!part')
    assert canonical([long]).text != canonical([look_alike]).text
