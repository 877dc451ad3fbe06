"""Numpy's scalars and arrays: typed, whole where they are small, bounded where they are not."""

from __future__ import annotations

import decimal
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.core.canonical import TEXT_LIMIT, Signer, canonical, fingerprints
from otel_toolguard.core.typed_forms import OCTETS_LIMIT

FORM = re.compile(r'!numpy\.(\w+)\(\["([^"]+)",(.*)\]\)', re.DOTALL)
NUMBERS = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint64",
    "float16",
    "float32",
    "float64",
    ">i4",
    "<i8",
    ">f8",
]


def decoded(text):
    """The scalar or array that a text describes, by the documented form alone."""
    kind, dtype, rest = FORM.fullmatch(text).groups()
    if kind == "ndarray":
        shape, held = re.fullmatch(r'\[([\d,]*)\],"([g-v]*)"', rest).groups()
        octets = bytes.fromhex("".join("0123456789abcdef"["ghijklmnopqrstuv".index(letter)] for letter in held))
        return np.frombuffer(octets, dtype=np.dtype(dtype)).reshape([int(size) for size in shape.split(",") if size])
    return np.dtype(dtype).type({"true": True, "false": False}.get(rest, rest))


SHAPES = st.sampled_from([(), (0,), (3,), (2, 2), (1, 0, 2)])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NUMBERS), SHAPES, st.integers(0, 100), st.sampled_from("CF"))
def test_an_array_is_made_again_from_its_text(dtype, shape, start, order):
    """Dtype with byte order, shape and content of an array come back from its text, however it lies in memory."""
    array = np.asarray(np.arange(start, start + int(np.prod(shape))).reshape(shape), dtype=dtype, order=order)
    text, whole = canonical(array)
    again = decoded(text)
    assert whole
    assert (again.dtype, again.shape, again.tolist()) == (array.dtype, array.shape, array.tolist())
    assert canonical(again).text == text
    assert canonical(np.repeat(array.reshape(-1), 2)[::2].reshape(shape)).text == text


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([name for name in NUMBERS if name[0] not in "<>"]), st.integers(0, 100))
def test_a_scalar_is_made_again_from_its_text(dtype, number):
    """Type and value of a scalar come back from its text."""
    value = np.dtype(dtype).type(number)
    text, whole = canonical(value)
    assert whole
    assert (type(decoded(text)), decoded(text)) == (type(value), value)


APART = [
    1, 1.0, True, "1", np.int64(1), np.int32(1), np.uint8(1), np.float64(1), np.float32(1), np.float64(-0.0), np.float64(0.0), np.bool_(True), np.str_("1"),
    np.bytes_(b"1"), np.complex128(1), np.longdouble(1), np.longdouble(1) / 3, np.datetime64(1, "ns"), np.datetime64(1, "ps"), np.datetime64("2024-01-01", "D"),
    np.datetime64("2024-01-01", "s"), np.datetime64("NaT"), np.timedelta64(1, "Y"), np.timedelta64(1, "M"), np.array(1), np.array([1]), np.array([[1]]), np.array([1.0]),
    np.array([1], ">i4"), np.array([1], "<i4"), np.array([]), np.array([[]]), np.array(["1"]), np.array([b"1"]), np.array([1], object), np.array(["1"], object),
    np.array([[1, 2], [3, 4]]), np.array([[1, 3], [2, 4]]), np.array([[1, 2, 3, 4]]), np.array([(1, 2.0)], "i4,f8"), np.array([(1, 2.0)], "i4,f8")[0],
    np.array([1], "M8[ns]"), np.array([1], "M8[us]"), np.array([decimal.Decimal(1)], object), np.dtype("i4"),
]  # fmt: skip


def test_values_of_different_dtype_shape_or_content_are_apart():
    """No two of a table of near misses share a text: not by unit, byte order, shape or sign of zero."""
    shared = [
        (one, other) for one, other in itertools.combinations(APART, 2) if canonical(one).text == canonical(other).text
    ]
    assert shared == []
    assert all(canonical(value).whole for value in APART if not isinstance(value, np.dtype))


def test_no_address_is_written():
    """An array of objects is written by what they are, not by where they lie."""
    one, other = (np.array([[1], {"a": None}], dtype=object) for _ in range(2))
    assert canonical(one) == canonical(other)
    assert canonical(one).whole


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(OCTETS_LIMIT + 1, "u1"),
        np.zeros((1000, 1000)),
        np.broadcast_to(np.float64(1), (10**6, 10**6)),
        np.broadcast_to(np.array("x", object), (10**7,)),
        np.lib.stride_tricks.as_strided(np.zeros(1), (1 << 40,), (0,)),
    ],
    ids=lambda array: str(array.shape),
)
def test_a_large_array_is_neither_copied_nor_compared(array):
    """Whatever the size an array claims to have, its text is short, marked, and makes no fingerprint."""
    text, whole = canonical({"a": array})
    assert not whole
    assert len(text) < TEXT_LIMIT / 100
    assert set(fingerprints(Signer(b"k"), array, failed=False, needs=frozenset({"exact"}))) == {None}


def test_arrays_that_differ_in_one_byte_are_different_answers():
    """No mask takes the content of an array for an id."""
    array = np.arange(64)
    changed = array.copy()
    changed[-1] += 1
    needs = frozenset({"exact", "volatile", "digits"})
    prints = [fingerprints(Signer(b"k"), value, failed=False, needs=needs) for value in (array, changed)]
    assert not set(prints[0]) & set(prints[1])
