"""The one look that spares a text all patterns: it may say no too often, never yes where a pattern would match."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.core import masks
from otel_toolguard.core.masks import digits, volatile

PARTS = st.sampled_from([
    "2024", "-", "/", "20", "T", "10", ":", "11", "12.345", "Z", "+02:00", ",", ".", "May", "Mon", "Tue,", "Jan",
    "December", "UTC", "ms", "s", "us", "h", "m", "d", "3m", "it/s", "MB/s", "min", "ago", "days", "%", "%|", "45",
    "3/10", "1,234.5", "e", "e-05", "E5", "0x", "deadbeef", "a1b2c3", "f", "commit", "HEAD", "pid", "PID=", "id:",
    "bash:", "sh:", "line", "tmp", "tmpab12", "/tmp/", "[12345]", "In[3]", "1716200000", "created", "ts=",
    "?q=abcdefghijklmno", "&", "=", '"', "'", "(", ")", "{", "}", "word", "7", "0", "99", "_", "~", "k", "G", "B",
    "i", "w", "D", "F", "J", "S", "O", "N", "AM", "pm", "20240520T101112Z", "550e8400-e29b-41d4-a716-446655440000",
    "AbCdEfGh12345678", " ", "  ", "\n", "\t", "\u00e9", masks.MARK, "\u2588\u2588\u2588\u2588",
])  # fmt: skip


def slowly(function, text):
    """What the patterns make of a text if none is ever spared them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "_is_quiet", lambda text: False)
        return function(text)


@settings(max_examples=2000, deadline=None)
@given(st.lists(PARTS, max_size=12).map("".join))
def test_the_look_changes_no_text(text):
    """Whatever is written beside whatever, the masks make the same of it with the look and without."""
    assert (volatile(text), digits(text)) == (slowly(volatile, text), slowly(digits, text))


@pytest.mark.parametrize(
    "text",
    [
        "3 rows",
        "17 of 42 found",
        '{"limit":10,"query":"3e8-query"}',
        "orders 0-3b6 of the customers",
        "v1.2.3",
        "1,234 items",
        "x2 y3",
        "page 7",
    ],
)
def test_plain_numbers_are_spared_the_patterns(text):
    """Texts whose numbers are only numbers, as most arguments are, cost one look."""
    assert masks._is_quiet(text)
    assert volatile(text) is text


@pytest.mark.parametrize(
    "text",
    [
        "12 ms",
        "took 3s",
        "10:11",
        "2024-05-20",
        "1 May 2024",
        "a1b2c3d4",
        "pid 7",
        "1.5e-05 s",
        "line 3: 77 x",
        "commit 4f3a9c2",
    ],
)
def test_what_may_be_volatile_is_looked_at(text):
    """Beside a unit, in a date, a clock, a long word or behind a telling word a number is no plain one."""
    assert not masks._is_quiet(text)


def test_ascii_digits_are_digits():
    """The quicker pattern for plain text finds what the general one finds."""
    text = "1 22 3.5 1,234 1e5 2E-7 x9y 0x1F -4 +5 6.7.8 9,"
    assert masks._ASCII_DIGITS.pattern == masks._DIGITS.pattern.replace(r"\d", "[0-9]")
    assert re.findall(masks._ASCII_DIGITS, text) == re.findall(masks._DIGITS, text)
