"""A hundred thousand different values, most of them near misses of each other, have as many signatures."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import itertools
import pathlib
import random
import uuid

import pytest

from otel_toolguard import Policy
from otel_toolguard.core.canonical import Signer, canonical
from otel_toolguard.core.masks import MARK, NUMBER
from otel_toolguard.tool import Tool

MANY = 100_000
SIGN = Signer(b"key")


class Level(enum.IntEnum):
    NONE, LOW = 0, 1


class Word(enum.StrEnum):
    NONE, ONE = "0", "1"


def of_number(number):
    """One number in every kind that can hold it."""
    return [
        number, -number - 1, float(number), number + 0.5, str(number), f"{number}.0", f" {number}", f"{number} ", f"0{number}", f'"{number}"',
        str(number).encode(), bytearray(str(number).encode()), complex(number), decimal.Decimal(number), decimal.Decimal(f"{number}.0"),
        fractions.Fraction(number), fractions.Fraction(2 * number + 1, 2), range(number), range(1, number), slice(number),
        dt.date(2020, 1, 1 + number), dt.datetime(2020, 1, 1 + number, tzinfo=dt.UTC), dt.time(number), dt.timedelta(number, 1),
        dt.timedelta(number, 2), uuid.UUID(int=number), pathlib.PurePosixPath(str(number)), pathlib.PureWindowsPath(str(number)),
        f"2020-01-0{1 + number}", frozenset({number}), frozenset({str(number)}), ValueError(number), KeyError(number), ValueError(str(number)),
    ]  # fmt: skip


STRINGS = [
    "", " ", "\n", "\t", "\x00", "a", " a", "a ", "a\n", "A", "aa", "a,b", 'a","b', "a b", "b", "é", "e\u0301", "\uff41", "a\u200b", "a\u00a0", "\ud800",
    "\\", '"', "\\\\", '\\"', "null", "true", "false", "nan", "inf", "[]", "{}", "()", '["a"]', '{"a":1}', "!cycle1", "!set[]", "a:b", MARK, NUMBER, "\u2028",
]  # fmt: skip
# An empty container is a leaf like others here: what stands around the leaves is never empty.
LEAVES = [
    *STRINGS, None, True, False, -0.0, float("nan"), float("inf"), -float("inf"), 1 << 64, 1 << 5000, [], {}, set(), frozenset(), ..., int, float, len,
    *Level, *Word, b"", b"\0", bytearray(), *of_number(0), *of_number(1), *of_number(12),
]  # fmt: skip
# Trees of different shape, so that two values are different if a leaf or the shape is.
SHAPES = (
    lambda x, y: [x, y],
    lambda x, y: [[x], y],
    lambda x, y: [x, [y]],
    lambda x, y: [[x, y]],
    lambda x, y: {"a": x, "b": y},
    lambda x, y: {"a": {"b": x}, "c": y},
    lambda x, y: {"a": [x], "b": y},
)


def different():
    """So many values, no two of them equal with their types."""
    trees = [shape(x, y) for x, y in itertools.product(LEAVES, repeat=2) for shape in SHAPES]
    return LEAVES + random.Random(1).sample(trees, MANY - len(LEAVES))


def test_the_leaves_are_different():
    """No two leaves are one value twice: they differ in type or in repr."""
    assert len({(type(leaf), repr(leaf)) for leaf in LEAVES}) == len(LEAVES)


def test_a_hundred_thousand_values_have_as_many_signatures():
    """No two different values share a signature, neither by themselves nor as an argument of a call."""
    values = different()
    assert len(values) == MANY
    tool, policy = Tool("query"), Policy(plugins=[{"plugin": "repeat_guard", "limit": 3}])
    assert len({SIGN.signature("query", canonical(value).text) for value in values}) == MANY
    calls = [tool.call({"q": value}, policy, SIGN) for value in values]
    assert len({call.signature for call in calls}) == MANY
    assert all(call.whole for call in calls)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a", "b"], ["a,b"]), (["a", "b"], ['a","b']), (["a", "b"], [["a"], "b"]), (["a", "b"], ["b", "a"]), ({"a": {}}, {"a": []}), ({"a": None}, {}),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}), ({"a": 1, "b": 2}, {"a": 2, "b": 1}), ({1: 2}, {"1": 2}), ({1: 2}, {True: 2}), ({1: 2}, {1.0: 2}),
        ({None: 1}, {"null": 1}), ({"a": [1], "b": []}, {"a": [], "b": [1]}), ([[], [[]]], [[[]], []]), ([1, [2, 3]], [[1, 2], 3]), ({"a": "b"}, {"b": "a"}),
        ({"é": 1}, {"e\u0301": 1}), ({"a": 1}, {"a ": 1}), ({"a": 1}, {"A": 1}), ({(1, 2): 3}, {"[1,2]": 3}), ({"a": "1"}, {"a": 1}), ({"a": 1}, '{"a":1}'),
    ],
)  # fmt: skip
def test_near_misses_are_apart(one, other):
    """What moves from one place to another, or changes its type alone, is another call."""
    tool, policy = Tool("query"), Policy(plugins=[])
    assert tool.call({"q": one}, policy, SIGN).signature != tool.call({"q": other}, policy, SIGN).signature
    if isinstance(one, dict) and all(isinstance(key, str) for key in one):
        assert tool.call(one, policy, SIGN).signature != tool.call(other, policy, SIGN).signature
