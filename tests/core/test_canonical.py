"""Canonical text: injective where it says so, total and bounded everywhere."""

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import hashlib
import itertools
import math
import operator
import pathlib
import random
import struct
import sys
import uuid

import pydantic
import pydantic_core
import pytest

from otel_toolguard.core.canonical import DEPTH_LIMIT, TEXT_LIMIT, Signer, canonical, fingerprints
from otel_toolguard.core.masks import MASK_LIMIT, volatile

# ------------------------------------------------------------------------------------------------ typed forms


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Place:
    x: int


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: int = 0


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self, hidden):
        self.__hidden = hidden


class Plain:
    def __init__(self, x):
        self.x = x


class Problem(Exception):
    def __init__(self, code):
        super().__init__("failed")
        self.code = code


class Text(str):
    __slots__ = ()


APART = [
    1, 1.0, True, "1", b"1", bytearray(b"1"), None, "null", 0.0, -0.0, "é", "e\u0301", " a", "a", [], {}, "", (), {1: 2}, {"1": 2}, {True: 2}, {1.0: 2}, {None: 2}, {"null": 2},
    [[1], 2], [1, [2]], {1}, frozenset({1}), {"a": 1}, [["a", 1]], 1j, range(3), slice(3), Colour.RED, Colour.BLUE, Level.LOW, Point(1), Point(2), Place(1), Open(x=1), Open(x=1, y=1), Open(x=1, y=2),
    Slotted(1), Slotted(2), Plain(1), Plain(2), Text("1"), pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a"), dt.date(2020, 1, 1), dt.datetime.fromisoformat("2020-01-01"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    dt.time(1), dt.timedelta(1), decimal.Decimal("1.0"), decimal.Decimal(1), uuid.UUID(int=1), float("nan"), float("inf"), "nan", "inf",
    Problem(1), Problem(2), FileNotFoundError(2, "gone", "a"), FileNotFoundError(2, "gone", "b"), ValueError("x"), KeyError("x"), int, float, len, ..., {math.nan: 1}, [None], [[None]], "[]", "{}", "!cycle1",
]  # fmt: skip


def test_values_of_different_type_or_state_are_apart():
    """No two of a wide table of values share a text, but for the empty list and tuple."""
    texts = {}
    for index, value in enumerate(APART):
        texts.setdefault(canonical(value).text, []).append(index)
    shared = [[APART[index] for index in indices] for indices in texts.values() if len(indices) > 1]
    assert shared == [[[], ()]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, {2, 3, 1}),
        ({"b": 1, "a": {"d": 1, "c": 2}}, {"a": {"c": 2, "d": 1}, "b": 1}),
        (Point(1), Point(1)),
        (Open(x=1, y=2), Open(x=1, y=2)),
        (Slotted(1), Slotted(1)),
        (Plain([1]), Plain([1])),
        (Problem(1), Problem(1)),
        (frozenset({"a", "b"}), frozenset({"b", "a"})),
    ],
)
def test_equal_values_have_one_text(one, other):
    """Tuple and list, set order, key order and object identity make no difference."""
    assert canonical(one) == canonical(other)


def test_no_address_is_ever_written():
    """Strangers are written by type and state: neither their repr nor an address appears, even as a key."""
    for value in (object(), Plain(object()), [object()], {object(): 1}, lambda: 0, Plain(1).__init__, iter([])):
        assert "0x" not in canonical(value).text


def test_a_stranger_that_hides_its_state_is_not_whole():
    """What is written in C and shows no state may hide a difference, so that it never counts as a repeat."""
    assert not canonical(iter([1])).whole
    assert not canonical({"a": object()}).whole


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (array.array("i", [1]), array.array("i", [2])),
        (operator.itemgetter(1), operator.itemgetter(2)),
        (hashlib.sha256(b"1"), hashlib.sha256(b"2")),
        (random.Random(1), random.Random(2)),
        (struct.Struct("i"), struct.Struct("b")),
        (pydantic_core.ValidationError.from_exception_data("a", []), pydantic_core.ValidationError.from_exception_data("b", [])),
        (collections.deque([1]), collections.deque([2])),
        (type("Sub", (array.array,), {"__slots__": ("x",)})("i", [1]), type("Sub", (array.array,), {"__slots__": ("x",)})("i", [2])),
    ],
)  # fmt: skip
def test_state_that_an_extension_hides_is_never_taken_for_none(one, other):
    """Two different values of a class that keeps its state out of sight either have two texts or are both marked."""
    for value in (one, other):
        assert not canonical(value).whole
        assert not canonical({"a": [value]}).whole


def test_urls_of_a_model_are_apart():
    """A pydantic URL, whose own state lies in an extension, is written as what it says."""
    urls = [pydantic.HttpUrl("http://a/1"), pydantic.HttpUrl("http://a/2"), pydantic.PostgresDsn("postgres://u@h/1")]
    assert len({canonical(url).text for url in urls}) == 3
    assert all(canonical(url).whole for url in urls)


def test_a_cached_property_of_a_model_changes_nothing():
    """A model has one text before and after something was worked out from it."""
    model = Cached(x=1)
    text = canonical(model)
    assert model.twice == 2
    assert canonical(model) == text


class Cached(pydantic.BaseModel):
    x: int

    @functools.cached_property
    def twice(self):
        return 2 * self.x


def test_a_class_is_known_by_itself_where_it_is_built_in():
    """A user's class that is called like a builtin is a stranger with a state of its own."""
    for name in ("module", "function", "bytes", "range", "builtin_function_or_method"):
        kind = type(name, (), {"__module__": "builtins"})
        one, other = kind(), kind()
        one.x, other.x = 1, 2
        assert canonical(one).text != canonical(other).text
    assert canonical([1].append).text != canonical([2].append).text


def test_two_slots_of_one_name_are_two():
    """A class and its base may have the same qualified name and each a slot of one name."""
    base = type("Twin", (), {"__slots__": ("x",)})
    kind = type("Twin", (base,), {"__slots__": ("x",)})
    one, other = kind(), kind()
    for value, x in ((one, 1), (other, 2)):
        base.x.__set__(value, x)
        kind.x.__set__(value, 0)
    assert canonical(one).text != canonical(other).text


def test_keys_that_are_written_alike_hide_nothing():
    """Two NaN keys, or two keys without a state, keep both their values."""
    nan, other = math.nan, -math.nan
    assert canonical({nan: 1, float("nan"): 2}) != canonical({other: 2})
    assert canonical({Key(): 1, Key(): 2}).text != canonical({Key(): 2}).text


class Key:
    pass


def test_a_cycle_is_written_by_its_length():
    """Self-reference ends, and cycles of different length stay apart."""
    one = []
    one.append(one)
    two = [[]]
    two[0].append(two)
    mapping = {}
    mapping["self"] = mapping
    assert canonical(one).text == "[!cycle1]"
    assert canonical(two).text == "[[!cycle2]]"
    assert canonical(mapping).text == '{"self":!cycle1}'
    assert canonical([one[0:0], one[0:0]]).text == "[[],[]]"


def test_masks_reach_strings_and_numbers_but_not_keys():
    """A mask is applied to each string, ``mask_numbers`` to each number, and dict keys stay as they are."""
    assert canonical({"a1": ["b2", 3]}, lambda s: s.replace("2", "#"), mask_numbers=True).text == '{"a1":["b#",#]}'
    assert canonical({"a": 1}, mask_numbers=True).text == '{"a":#}'


def test_only_the_first_16_kib_are_masked():
    """Beyond the mask's limit text is compared to the letter."""
    text = "1" * (MASK_LIMIT + 5)
    assert canonical([text], lambda s: s.replace("1", "#")).text == f'["{"#" * MASK_LIMIT}11111"]'


def test_where_a_mask_ends_does_not_depend_on_the_order_of_a_set():
    """Two equal sets whose items come in different order are masked alike, though the mask reaches only some items."""
    words = [f"10:00:{second} {'x' * 1000}" for second in range(10, 60)]
    one = set(words)
    shuffled = (set(random.Random(seed).sample(words, len(words))) for seed in range(1000))
    other = next(words for words in shuffled if list(words) != list(one))
    assert one == other
    assert canonical(one, volatile) == canonical(other, volatile)
    assert canonical([{"a": frozenset(one)}], volatile) == canonical([{"a": frozenset(other)}], volatile)


# ------------------------------------------------------------------------------------------------ hostile values


def hostile(*names, error=RuntimeError):
    """An object of a class whose given special methods raise."""

    def refuse(*args, **kwargs):
        raise error("no")

    return type("Hostile", (), dict.fromkeys(names, refuse))()


def deep(depth, wrap):
    value = 0
    for _ in range(depth):
        value = wrap(value)
    return value


class EndlessList(list):
    def __iter__(self):
        while True:
            yield 1


class EndlessDict(dict):
    def items(self):
        while True:
            yield "k", "v"

    def keys(self):
        return itertools.repeat("k")

    __iter__ = keys


class LyingClass:
    @property
    def __class__(self):
        raise RuntimeError("no")


class Chameleon:
    def __getattr__(self, name):
        return Chameleon()


HOSTILE = {
    "repr": lambda: hostile("__repr__", "__str__"),
    "eq": lambda: hostile("__eq__"),
    "getattr": lambda: hostile("__getattribute__"),
    "getattr attribute error": lambda: hostile("__getattribute__", error=AttributeError),
    "recursion": lambda: hostile("__getattribute__", error=RecursionError),
    "iter": lambda: hostile("__iter__", "__len__"),
    "bool": lambda: hostile("__bool__", "__len__"),
    "class": LyingClass,
    "chameleon": Chameleon,
    "less than as key": lambda: {hostile("__lt__"): 1, hostile("__lt__"): 2},
    "hash fails later": lambda: {FickleHash(): 1},
    "list that raises": lambda: type("L", (list,), {"__iter__": lambda self: 1 / 0})([1]),
    "dict that raises": lambda: type("D", (dict,), {"items": lambda self: 1 / 0})(a=1),
    "str that raises": lambda: type("S", (str,), {"__len__": lambda self: 1 / 0})("a"),
    "endless list": EndlessList,
    "endless dict": EndlessDict,
    "mixed keys": lambda: {1: 1, "1": 2, None: 3, (1, 2): 4, 1.5: 5, b"1": 6},
    "nan keys": lambda: {float("nan"): 1, math.nan: 2},
    "deep list": lambda: deep(10**5, lambda v: [v]),
    "deep dict": lambda: deep(10**5, lambda v: {"a": v}),
    "deep tuple": lambda: deep(10**5, lambda v: (v,)),
    "deep frozenset": lambda: deep(500, lambda v: frozenset([v])),
    "deep objects": lambda: deep(10**4, Plain),
    "doubling": lambda: deep(70, lambda v: [v, v]),
    "many items": lambda: list(range(10**6)),
    "many keys": lambda: {str(i): i for i in range(3 * 10**5)},
    "many set items": lambda: set(range(10**6)),
    "many strings": lambda: ["x" * 10**5] * 1000,
    "long string": lambda: "x" * 20_000_000,
    "long string inside": lambda: {"a": ["\x00" * 20_000_000]},
    "long key": lambda: {"x" * 20_000_000: 1},
    "long bytes": lambda: b"x" * 20_000_000,
    "huge int": lambda: 1 << 10_000_000,
    "huge ints": lambda: {"a": 1 << 10_000_000, "b": -(1 << 10_000_000)},
    "many keys, long values": lambda: dict.fromkeys(map(str, range(3 * 10**5)), "x" * 10_000),
    "large view": lambda: memoryview(bytes(20_000_000)).cast("d"),
    "endless frozenset": lambda: type("F", (frozenset,), {"__iter__": lambda self: itertools.count()})([1]),
    "endless arguments": type("E", (Exception,), {"args": property(lambda self: itertools.count())}),
    "endless attributes": type("A", (), {"__dict__": EndlessDict(a=1)}),
    "endless fields": type("D", (), {"__dataclass_fields__": itertools.count()}),
    "endless bases": type("M", (type,), {"__mro__": property(lambda cls: itertools.count())})("B", (), {}),
    "endless array": type("ndarray", (), {"__module__": "numpy", "shape": itertools.count(), "dtype": "i"}),
    "surrogates": lambda: {"\ud800": ["\udfff", "\x00", "\u2028"]},
}


class FickleHash:
    asked = 0

    def __hash__(self):
        type(self).asked += 1
        if type(self).asked > 1:
            raise RuntimeError("no")
        return 1


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_raises_and_everything_is_bounded(name):
    """Whatever the value does, there is a text of bounded length that can be signed, with masks and without."""
    FickleHash.asked = 0
    value = HOSTILE[name]()
    for mask in (None, str.upper):
        text, _ = canonical(value, mask, mask_numbers=mask is not None)
        assert len(text) <= TEXT_LIMIT
        assert len(Signer(b"k").signature("t", text, "/w")) == len("t:") + 16


@pytest.mark.parametrize(
    "name",
    [
        "deep list",
        "deep objects",
        "many items",
        "many keys",
        "long string",
        "long key",
        "huge ints",
        "many strings",
        "endless list",
    ],
)
def test_what_was_cut_says_so(name):
    """A value that was not written in full is marked, and marked values of different length differ."""
    assert not canonical(HOSTILE[name]()).whole


def test_no_value_is_looked_at_once_there_is_no_room():
    """Where the keys alone are too long, not one of the values is written: a thousand long ones cost nothing."""

    class Counted:
        looks = 0

        @property
        def __dict__(self):
            Counted.looks += 1
            return {}

    assert not canonical(dict.fromkeys(map(str, range(3 * 10**5)), Counted())).whole
    assert Counted.looks == 0


def test_large_views_are_measured_in_bytes():
    """What counts is the size of a view in memory, not the number of its rows."""
    for view in (
        memoryview(bytes(10**6)).cast("d"),
        memoryview(bytes(10**6)).cast("B", (10, 10**5)),
        memoryview(bytes(10**6))[::2],
    ):
        text, whole = canonical(view)
        assert not whole
        assert len(text) < 100
    assert canonical(memoryview(bytes(800)).cast("d")).whole


def test_text_up_to_the_limit_is_whole_wherever_its_characters_are():
    """Keys and items of sets use up room once: with what follows them they are whole up to the same limit."""
    for value in ({"x" * 900_000: 1}, {"x" * 900_000}, {frozenset({"x" * 900_000})}, {("x" * 900_000,): {"y" * 9: 1}}):
        assert canonical([value, [1, {"a": 2}]]).whole
        assert not canonical([value, [1, {"a": "x" * 150_000}]]).whole


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda n: ["x" * (n - 4)], TEXT_LIMIT),
        (lambda n: deep(n, lambda v: [v]), DEPTH_LIMIT),
    ],
)
def test_limits_are_met_exactly(make, limit):
    """The last value that fits is whole, the first that does not is marked."""
    assert canonical(make(limit)).whole
    assert not canonical(make(limit + 1)).whole


def test_a_flat_dict_and_its_general_writing_agree():
    """The fast way for small dicts writes what the general way writes."""
    for value in ({"b": 1, "a": None}, {"x": 1.5, "y": True, "z": "t\n"}, {}, {"é": "\ud800"}):
        assert canonical([value]).text == f"[{canonical(value).text}]"


def test_recursion_limit_is_no_obstacle():
    """Close to the interpreter's recursion limit there still is an answer."""

    def dive(left):
        return dive(left - 1) if left else canonical({"a": [[1]]})

    text, _ = dive(sys.getrecursionlimit() - 150)
    assert text


# ------------------------------------------------------------------------------------------------ signatures


def test_the_key_decides_the_digest():
    """Signatures of two keys have nothing in common, those of one key are stable."""
    one, other = Signer(b"a"), Signer(b"b")
    assert one.signature("t", "{}") == Signer(b"a").signature("t", "{}")
    assert one.signature("t", "{}") != other.signature("t", "{}")
    assert one.key_id != other.key_id


def test_the_world_is_part_of_the_signature():
    """Another directory is another call, and no directory is a third."""
    sign = Signer(b"k")
    assert len({sign.signature("sh", "{}", world) for world in (None, "", "/a", "/b")}) == 4


def _prints(value, *, failed=False, needs=frozenset({"exact", "volatile", "digits"})):
    return fingerprints(Signer(b"k"), value, failed=failed, needs=needs)


def test_a_failure_never_equals_a_success():
    """The failed flag is part of every fingerprint."""
    assert not set(_prints(["E", "m"])) & set(_prints(["E", "m"], failed=True))


def test_what_nobody_asked_for_is_empty_and_what_is_too_large_is_none():
    """An empty print says that no rule asked, None that the result cannot be compared."""
    assert _prints("x", needs=frozenset())[0] == ""
    assert _prints("x", needs=frozenset({"volatile"})).exact == ""
    assert _prints("x" * (TEXT_LIMIT + 1)) == (None, None, None)


def test_what_its_marks_make_too_long_is_not_compared():
    """A result that is whole, and whose masked text is not, has an exact fingerprint and no other."""
    one, other = (["7 " * (MASK_LIMIT // 2), "x" * (TEXT_LIMIT - MASK_LIMIT - 100) + end] for end in "ab")
    assert canonical(one).whole
    assert _prints(one).exact != _prints(other).exact
    assert _prints(one).digits is None


def test_numbers_in_results_count_unless_digits_are_masked():
    """12 rows and 13 rows differ in the volatile form and agree in the digits form."""
    one, other = _prints({"rows": 12}), _prints({"rows": 13})
    assert one.volatile != other.volatile
    assert one.digits == other.digits


def test_binary_results_that_differ_have_different_fingerprints():
    """No mask mistakes bytes for an id: two pictures are two answers, whatever digits their bytes spell."""
    pictures = [b"hello world, 12345 abc", b"hello world, 99999 xyz", bytes(range(40)), bytes(range(1, 41)), b"", b"\0"]
    for wrap in (lambda picture: picture, lambda picture: [picture], lambda picture: {"png": picture}):
        assert len({_prints(wrap(picture)).volatile for picture in pictures}) == len(pictures)


def test_huge_bytes_are_cut_and_never_compared():
    """Fifty megabytes are neither copied nor compared."""
    text, whole = canonical(b"\0" * 50_000_000)
    assert not whole
    assert len(text) < 50_000


class Cancelling:
    """Raises what is no Exception, whatever it is asked for."""

    def __getattribute__(self, name):
        raise GeneratorExit(name)


def test_what_is_no_exception_is_not_felt_either():
    """A value that raises a cancellation when it is looked at has a marked signature."""
    assert canonical({"a": Cancelling()}).whole is False
