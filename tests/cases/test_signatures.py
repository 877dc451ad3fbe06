"""What makes two calls the same call: told by a ceiling of one per signature, which refuses the same call and no other."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import pathlib
import unicodedata
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped, guard_tool

ONCE = {"plugin": "call_ceiling", "signature": 1}


class Opaque:
    """Has nothing to be told apart by."""


class Unspeakable:
    """Refuses whatever it is asked."""

    def __repr__(self):
        raise RuntimeError("no")

    __eq__ = __hash__ = __iter__ = __len__ = __getstate__ = __repr__


@dataclass
class Point:
    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = "red"


@pytest.fixture
def distinct(opened):
    """How many different calls these are; each is (positional, by name)."""

    def distinct(tool, *calls, **settings):
        ran, refusals = 0, []
        with opened(ONCE, name=None, **settings):
            for args, kwargs in calls:
                try:
                    tool(*args, **kwargs)
                    ran += 1
                except CircuitOpen as refused:
                    refusals.append((refused.trip.scope, type(refused)))
        assert refusals == [("signature", CircuitOpen)] * (len(calls) - ran)
        return ran

    return distinct


@pytest.fixture
def values(distinct):
    """How many different values these are, each as the only argument and once more inside a list in a dict."""

    @guard_tool
    def take(value):
        return None

    def values(*given):
        bare = distinct(take, *(((value,), {}) for value in given))
        inside = distinct(take, *(((), {"value": {"list": [value, "x"]}}) for value in given))
        assert bare == inside
        return bare

    return values


def test_one_call_has_many_spellings(distinct):
    """By position, by name in any order, a default left out or said: one call."""

    @guard_tool
    def f(a, b=2, *, c=None):
        return a

    spellings = [((1,), {}), ((1, 2), {}), ((1,), {"b": 2}), ((), {"a": 1, "b": 2}), ((), {"b": 2, "a": 1})]
    assert distinct(f, *spellings, ((1, 2), {"c": None})) == 1
    assert distinct(f, *spellings, ((2,), {}), ((1, 3), {}), ((1, 2), {"c": 0})) == 4


SAME = [
    ([1, 2], (1, 2)),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1, 2, 3}, {3, 2, 1}),
    ({"x", "y", "z"}, {"z", "y", "x"}),
    (Point(1), Point(1, 0)),
    (float("nan"), float("nan")),
    (Decimal("1.50"), Decimal("1.50")),
    (b"ab", b"ab"),
    (pathlib.PurePosixPath("a/b"), pathlib.PurePosixPath("a/b")),
    (uuid.UUID(int=5), uuid.UUID(int=5)),
    (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_equal_values_are_one_call(one, other, values):
    """Key order, set order and list or tuple say nothing; values with a typed form are compared by it."""
    assert values(one, other) == 1


DIFFERENT = [
    (1, True, "1", 1.0),
    (0, False, None, "", [], {}, 0.0, -0.0),
    ({1: 2}, {"1": 2}),
    ({1: 2, "1": 2}, {1: 2}, {"1": 2}),
    (b"ab", "ab", bytearray(b"ab")),
    ("a/", "a"),
    ("x", " x", "x ", "X"),
    (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
    (float("inf"), float("-inf"), float("nan"), "nan", "inf"),
    (10**30, 10**30 + 1, float(10**30), str(10**30)),
    ({1, 2}, frozenset({1, 2}), [1, 2]),
    (Point(1), Point(2), {"x": 1, "y": 0}),
    (Colour.RED, "red", "Colour.RED"),
    (Decimal(1), 1, "1"),
    (pathlib.PurePosixPath("a"), "a"),
    (dt.date(2024, 1, 1), dt.datetime(2024, 1, 1), "2024-01-01"),  # noqa: DTZ001
    (["a", "b"], ["a,b"], ['a","b'], "a,b"),
    ("\ud800", "\ud801", "?"),
    ([[]], [[], []], [[[]]]),
]


@pytest.mark.parametrize("given", DIFFERENT, ids=repr)
def test_different_values_are_different_calls(given, values):
    """Types stay apart, blanks and forms of letters too, and no text passes for a structure."""
    assert values(*given) == len(given)


def endless():
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep(levels):
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


STRANGE = {
    "bytes": lambda: b"\xff\xfe",
    "set of several types": lambda: {1, "a", None, (2, 3)},
    "an object": Opaque,
    "a class": lambda: Opaque,
    "a function": lambda: deep,
    "one that refuses": Unspeakable,
    "keys of several types": lambda: {1: 1, "a": 2, None: 3, (1, 2): 4},
    "a cycle": endless,
    "too deep": lambda: deep(5000),
    "not a number": lambda: [float("nan"), float("inf")],
    "a lone surrogate": lambda: "\ud800",
    "a generator": lambda: (n for n in range(3)),
    "a megabyte": lambda: "x" * 3_000_000,
}


@pytest.mark.parametrize("kind", STRANGE)
def test_nothing_is_too_strange_to_be_signed(kind, opened):
    """Whatever is passed reaches the body as it is, has a signature, and shows no address in it."""
    given, got = STRANGE[kind](), []
    take = guard_tool(name="take")(got.append)
    with opened({"plugin": "call_ceiling", "run": 1}) as session:
        take(given)
        assert got[0] is given
        with pytest.raises(SessionStopped) as caught:
            take(given)
        assert caught.value.trip.signature.startswith("take:")
        assert len(caught.value.trip.signature) == len("take:") + 16
        assert session.report()["calls"] == 1


def test_objects_without_a_state_do_not_differ_by_their_address(values):
    """Two fresh objects of one class are the same argument, whatever their place in memory."""
    assert values(Opaque(), Opaque()) == 1


def test_what_is_too_long_to_be_signed_in_full_is_no_repeat(opened):
    """Arguments beyond a mebibyte are passed on, told apart where they can be, and never taken for a loop."""

    @guard_tool
    def take(value):
        return "same"

    with opened({"plugin": "repeat_guard", "limit": 2}) as session:
        for _ in range(6):
            take("x" * 3_000_000)
        assert session.trip is None
        take("x" * 1000)
        take("x" * 1000)
        assert session.trip.observed == 2


def test_what_is_too_long_to_be_signed_in_full_meets_no_ceiling_of_another(distinct):
    """Two texts that differ only where no signature looks are not taken for one call, and neither is refused."""
    take = guard_tool(name="take")(lambda value: None)
    rest = "x" * 1_500_000
    assert distinct(take, ((f"{rest}a{rest}",), {}), ((f"{rest}b{rest}",), {})) == 2


# ------------------------------------------------------------------------------------------------ per tool


def folded(arguments):
    return {name: unicodedata.normalize("NFC", value).strip().rstrip("/") for name, value in arguments.items()}


def test_blanks_forms_of_letters_and_slashes_can_be_folded_for_one_tool(distinct):
    """A key of the tool's own makes one call of spellings that are distinct by default."""
    spellings = [((text,), {}) for text in ("café", unicodedata.normalize("NFD", "café"), " café ", "café/")]
    assert distinct(guard_tool(name="open_page")(lambda url: url), *spellings) == 4
    assert distinct(guard_tool(name="open_page", key=folded)(lambda url: url), *spellings) == 1


def test_pages_are_different_calls_unless_the_offset_is_ignored(distinct):
    """Paging on is work; a tool that is told to leave the offset out sees one call."""
    pages = [((), {"q": "x", "offset": offset}) for offset in range(0, 500, 50)]
    assert distinct(guard_tool(name="find")(lambda q, offset: q), *pages) == 10
    assert distinct(guard_tool(name="find", ignore=["offset"])(lambda q, offset: q), *pages) == 1


@pytest.mark.parametrize("where", ["decorator", "settings"])
def test_a_request_id_hides_no_loop_once_it_is_ignored(where, opened):
    """With fresh ids and times nothing repeats; ignored, by the decorator or in the settings, three calls are a loop."""

    def fetch(q, request_id, ts):
        return "nothing"

    names = ["request_id", "ts"]
    for ignored in (False, True):
        told = {"ignore": names} if ignored and where == "decorator" else {}
        tools = {"fe*": {"ignore": names}} if ignored and where == "settings" else {}
        tool = guard_tool(**told)(fetch)
        with opened({"plugin": "repeat_guard", "limit": 3}, name=str(ignored), tools=tools) as session:
            for n in range(3):
                tool("x", request_id=f"r{n}", ts=n)
            assert (session.trip is not None) == ignored


def test_the_same_command_in_another_directory_is_another_call(distinct, tmp_path, monkeypatch):
    """For a shell the working directory counts, said or found; for other tools it is no part of the call."""
    run, load = (guard_tool(name=name)(lambda command, cwd=None: command) for name in ("bash", "load"))
    here = ((), {"command": "make", "cwd": "/a"})
    assert distinct(run, here, ((), {"command": "make", "cwd": "/b"}), here) == 2
    seen = []
    for tool in (run, load):

        def moving(command, tool=tool):
            (tmp_path / command).mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / command)
            return tool("make")

        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            seen.append(distinct(moving, (("one",), {}), (("two",), {})))
    assert seen == [2, 1]


# ------------------------------------------------------------------------------------------------ what the host adds


class ToolRuntime:
    """Stands for what a framework passes in: name and module of such types differ, the word is known."""


class RunContext:
    """Likewise, in front of all other arguments."""


class InjectedState:
    """Likewise, as a mark on an annotation."""


class InjectedToolCallId:
    """Likewise."""


def by_mark(q: str, state: Annotated[dict[str, Any], InjectedState], call: Annotated[str, InjectedToolCallId]):
    return "same"


def by_type(q: str, runtime: ToolRuntime):
    return "same"


def in_front(context: RunContext, q: str):
    return "same"


def by_name(q, tool_call_id=None, run_manager=None):
    return "same"


HOSTS = [
    (by_mark, lambda n: (("x", {"messages": [n]}, f"call_{n}"), {})),
    (by_type, lambda n: (("x",), {"runtime": ToolRuntime()})),
    (in_front, lambda n: ((RunContext(), "x"), {})),
    (by_name, lambda n: (("x",), {"tool_call_id": f"call_{n}", "run_manager": object()})),
]


@pytest.mark.parametrize(("function", "made"), HOSTS, ids=lambda each: getattr(each, "__name__", ""))
def test_what_the_host_passes_in_is_no_part_of_the_call(function, made, opened, distinct):
    """Calls that differ in state, ids and contexts only are one, and the record of a trip knows the model's words."""
    tool = guard_tool(function)
    assert distinct(tool, made(1), made(2), made(3)) == 1
    with opened({"plugin": "repeat_guard", "limit": 3}, capture_arguments=True) as session:
        for n in range(3):
            args, kwargs = made(n)
            tool(*args, **kwargs)
        assert [member.arguments for member in session.trip.members] == [{"q": "str(1) = x"}]


class Desk:
    """A tool set with a state of its own."""

    def __init__(self, name):
        self.name = name

    @guard_tool
    def look(self, q):
        return self.name

    @classmethod
    @guard_tool
    def count(cls, q):
        return 1


def test_the_receiver_of_a_method_is_no_part_of_the_call(distinct):
    """Two desks, or their class, asked the same are one call made twice."""
    desks = [Desk("left"), Desk("right")]
    for method in ("look", "count"):
        assert distinct(lambda at, q, method=method: getattr(desks[at], method)(q), ((0, "x"), {}), ((1, "x"), {})) == 1


def test_what_was_bound_in_front_is_no_part_of_the_call(distinct):
    """Like a receiver, an argument that a partial gives in front was never said by the model."""

    def ask(server, q):
        return q

    left, right = (guard_tool(functools.partial(ask, server)) for server in ("a", "b"))
    assert distinct(lambda which, q: (left, right)[which](q), ((0, "x"), {}), ((1, "x"), {}), ((1, "y"), {})) == 2


@pytest.mark.parametrize("key", ["one", "another"])
def test_short_arguments_cannot_be_guessed_from_a_signature(key, opened):
    """Under another key the same call has another signature; under the same key it is the same everywhere."""

    def signature(key):
        with Session("s", policy=Policy(plugins=[ONCE], signature_key=key), store=MemoryStore()) as session:
            take = guard_tool(name="take")(lambda pin: None)
            take("1234")
            with pytest.raises(CircuitOpen) as caught:
                take("1234")
        assert session.trip is None
        return caught.value.trip.signature

    assert signature(key) == signature(key)
    assert (signature(key) == signature("one")) == (key == "one")
