"""Short ways of writing and the general one: the text does not depend on which path wrote it."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_toolguard.core import canonical as module
from otel_toolguard.core.canonical import Signer, canonical, fingerprints
from otel_toolguard.core.masks import MARK, MASK_LIMIT, NUMBER, digits, volatile

ALL = frozenset({"exact", "volatile", "digits"})
SIGN = Signer(b"k")


class _General(module._Writer):
    """The general writer, whose mask has the usual room though the short ways see none."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._mask_room = MASK_LIMIT


@contextlib.contextmanager
def general():
    """Switches every short way off: none of them takes a string, a dict or a result with no room for strings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MASK_LIMIT", -1)
        patch.setattr(module, "_Writer", _General)
        patch.setattr(module, "_flat", lambda value: None)
        yield


CHARACTERS = st.characters(exclude_categories=())  # lone surrogates and controls included
VOLATILE = st.sampled_from(
    ["10:11:12", "3 ms", "12 rows", "0xdeadbeef", "/tmp/tmpa1b2c3d4", "pid 17", "1,234.5", "-7", "2024-05-20T10:11Z", MARK, NUMBER]
)  # fmt: skip
FULL = st.builds(lambda word, more: word * (MASK_LIMIT // len(word)) + more, VOLATILE, st.text(max_size=9))
STRINGS = (
    st.text(CHARACTERS, max_size=12)
    | st.lists(VOLATILE | st.text(CHARACTERS, max_size=3), max_size=5).map(" ".join)
    | FULL
)  # fmt: skip
# Keys of which one begins another, and what follows sorts before the quote that ends the shorter one.
KEYS = st.text(st.sampled_from('a !"\\\x00é\ud800#'), max_size=3) | st.text(CHARACTERS, max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | STRINGS | st.just(1 << 5000)
FLAT = st.dictionaries(KEYS, SCALARS, max_size=6) | st.dictionaries(KEYS | SCALARS, SCALARS, max_size=3)
WIDE = st.integers(250, 260).map(lambda size: {f"k{index}": index for index in range(size)})
MASKS = st.sampled_from([(None, False), (None, True), (str.upper, False), (volatile, False), (digits, True)])


@settings(max_examples=400, deadline=None)
@given(STRINGS | FLAT | WIDE | st.none(), MASKS)
@example({"a": 1, "a ": 2}, (None, False))
@example({"a": 1, "a!": 2, "a\x00": 3, 'a"': 4, "a\\": 5}, (None, False))
def test_the_text_does_not_depend_on_which_path_wrote_it(value, masks):
    """Strings, dicts and None have one text by the short way and by the general one, alone and inside, masked or not."""
    mask, mask_numbers = masks
    short = canonical(value, mask, mask_numbers=mask_numbers)
    inside = canonical([value], mask, mask_numbers=mask_numbers)
    with general():
        assert canonical(value, mask, mask_numbers=mask_numbers) == short
        assert canonical([value], mask, mask_numbers=mask_numbers) == inside
    assert inside.text == f"[{short.text}]"


@settings(max_examples=200, deadline=None)
@given(STRINGS | FLAT, st.booleans(), st.sampled_from([ALL, ALL - {"digits"}, ALL - {"exact"}, frozenset({"digits"})]))
def test_fingerprints_do_not_depend_on_the_path(value, failed, needs):
    """A string that is masked once for both forms has the fingerprints that masking it for each would give."""
    short = fingerprints(SIGN, value, failed=failed, needs=needs)
    with general():
        assert fingerprints(SIGN, value, failed=failed, needs=needs) == short


def test_the_short_ways_can_be_switched_off():
    """The comparison above compares two things: a small dict and a string take the short way, and here they do not."""
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_Writer", lambda *args, **options: taken.append(args))
        canonical({"a": 1})
        canonical("a")
    assert taken == []
    with general():
        module._Writer.write, write = lambda self, value: taken.append(value), module._Writer.write
        try:
            canonical({"a": 1})
            canonical("a")
        finally:
            module._Writer.write = write
    assert taken == [{"a": 1}, "a"]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 300])
def test_a_dict_has_one_text_however_many_items_it_has(size):
    """On both sides of the size at which the short way ends, text is that of the general way."""
    value = {f"k{index} "[: 3 + index % 3]: math.sqrt(index) for index in range(size)}
    short = canonical(value)
    with general():
        assert canonical(value) == short
