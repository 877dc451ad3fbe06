import re
from re import _constants as op
from re import _parser as parser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.core import masks
from otel_toolguard.core.masks import MARK, MASK_LIMIT, NUMBER, digits, volatile

SAME = [
    ("at 10:11:12", "at 23:59:01"),
    ("done 10:11:12,345 ok", "done 10:11:13,001 ok"),
    ("[05:12] hi", "[05:13] hi"),
    ("ETA 0:07", "ETA 1:13"),
    ("2024-05-20T10:11:12.345Z ok", "2025-01-02T00:00:00Z ok"),
    ("2024-05-20 10:11:12+02:00", "2024-06-21 11:12:13+02:00"),
    ("log-20240520T101112Z", "log-20240521T111213Z"),
    ("Date: Mon, 20 May 2024 12:00:00 +0000", "Date: Tue, 21 May 2024 13:01:02 +0000"),
    ("May 20 12:00:00 host x", "Jun  1 13:00:01 host x"),
    ("Mon May 20 12:00:00 2024", "Wed Jun  5 01:02:03 2024"),
    ('- - [20/May/2024:12:00:00 +0000] "GET', '- - [21/Jun/2024:13:00:00 +0000] "GET'),
    ('"timestamp": 1712345678', '"timestamp": 1712349999'),
    ("created_at=1712345678901", "created_at=1712345679999"),
    ("startedAt: 1712345678", "startedAt: 1712345700"),
    ("3 passed in 0.12s", "3 passed in 1.34s"),
    ("took 3ms", "took 4.5 ms"),
    ("took 1.2 s", "took 0.03 seconds"),
    ("real\t0m1.234s", "real\t2m13.001s"),
    ("up 2m13s", "up 1h2m"),
    ("id 550e8400-e29b-41d4-a716-446655440000", "id 12345678-1234-1234-1234-123456789012"),
    ("etag a1b2c3d4e5", "etag ffee00112233"),
    ("commit 4f3a9c2 x", "commit 0be1d7a x"),
    ("[main 4f3a9c2] fix", "[main 1a2b3c4] fix"),
    ("<X at 0x7f3a2c1d>", "<X at 0x55d0aa10>"),
    ("pid 123", "pid 4567"),
    ("PID: 77, pid=12", "PID: 78, pid=13"),
    ("[12345] start", "[23456] start"),
    ("sshd[123]: ok", "sshd[4567]: ok"),
    ("[1] 12345", "[1] 23456"),
    ("/tmp/xyz123/a.txt", "/tmp/abc9/a.txt"),
    ("open tmpab12cd", "open tmp9x8y7z"),
    ("/tmp/tmp.AbCdEfGh", "/tmp/tmp.QwErTyUi"),
    ("In [3]: x", "In [14]: x"),
    ("In[3] Out[4]", "In[5] Out[6]"),
    ("bash: line 12: foo: not found", "bash: line 14: foo: not found"),
    (" 45%|████      | 3/10 [00:01<00:02, 1.3it/s]", " 90%|█████████ | 9/10 [00:05<00:01, 1.9it/s]"),
    ("[=====>   ]", "[=======> ]"),
    ("[=====>   ] 45%", "[=======> ] 75%"),
    ("3/10 [00:01<00:02, 1.3it/s]", "7/10 [00:03<00:02, 1.1it/s]"),
    ("GET /x?token=abcdefghijkl&p=1", "GET /x?token=mnopqrstuvwxyz&p=1"),
    ("key AbCdEfGh1234567890", "key ZyXwVuTs0987654321"),
]
KEPT = [
    "12 rows", "45%", "42", "-5", "3,200.50 EUR", "version 1.2.3", "order 12345678", "W5199551", "HAT056",
    "1.23456789e-05", "x[10:20]", "main.py:12:30: error", "http://host:8080/x", "arr[10]: 5", "2 days", "page 3/10",
    "/tmp/run/plain.txt", "mcp_template", "[abc]", "[ ]", "[-]", "0xff", "id 1712345678", "abcdefabcdef",
    "?q=short", "TestNameOfSomething_handles_2_cases", "May 20 rows", "the end.",
]  # fmt: skip
PIECES = [
    *[piece for pair in SAME for piece in pair], *KEPT, *"0123456789 :-./[]{}()=&?%|<>#+,_~\n\taAzZ\\\"'",
    "█", "━━━", "é", "٣", "tmp", "/tmp/", "pid ", "sh: ", "line ", "ms", " s", MARK, NUMBER, MARK[0], MARK[-1],
]  # fmt: skip
HOSTILE = [
    "1",
    "1:",
    "1.",
    "1,",
    "12:30",
    "[=",
    "[",
    "tmp",
    "0x",
    "af0",
    "?a=",
    "&a",
    "1e",
    "May ",
    "pid ",
    "━",
    "[a",
    "a",
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_is_volatile_is_masked(one: str, other: str) -> None:
    """Two texts that differ only in something volatile mask to the same text."""
    assert one != other
    assert MARK in volatile(one)
    assert volatile(one) == volatile(other)


@pytest.mark.parametrize("text", KEPT)
def test_plain_text_and_numbers_stay(text: str) -> None:
    """Plain numbers, versions, positions and names are never masked."""
    assert volatile(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12 rows", f"{NUMBER} rows"),
        ("-5 and +3,200.5", f"{NUMBER} and {NUMBER}"),
        ("a-5", f"a-{NUMBER}"),
        ("1.2e-05", NUMBER),
        ("item٤٢", f"item{NUMBER}"),
        ("took 3ms for 7", f"took {MARK} for {NUMBER}"),
        ("none", "none"),
    ],
)
def test_digits_fold_numbers(text: str, expected: str) -> None:
    """Every number becomes one mark, with its sign and point, on top of the volatile masks."""
    assert digits(text) == expected


@settings(max_examples=500)
@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
def test_masking_twice_changes_nothing(text: str) -> None:
    """Both masks are idempotent on any text."""
    assert volatile(volatile(text)) == volatile(text)
    assert digits(digits(text)) == digits(text)


@given(st.text(alphabet="0123456789 ,.abcxyz", max_size=60))
def test_digits_leaves_no_digit(text: str) -> None:
    """No decimal digit is left in the text of the digit mask."""
    assert not any(char.isdecimal() for char in digits(text))


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_of_full_length_is_masked(piece: str) -> None:
    """Text at the limit that begins a pattern again and again comes back, idempotent."""
    text = (piece * MASK_LIMIT)[:MASK_LIMIT]
    assert volatile(volatile(text)) == volatile(text)


PATTERNS = sorted((name, value) for name, value in vars(masks).items() if isinstance(value, re.Pattern))


def _repeats(tree: object, inside: bool = False) -> "list[str]":
    """The open-ended repeats that could be tried anew for each length or inside another repeat."""
    found: list[str] = []
    for kind, value in tree:  # type: ignore[attr-defined]
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            low, high, body = value
            unbounded = high is op.MAXREPEAT
            if unbounded and kind is not op.POSSESSIVE_REPEAT:
                found.append(f"{kind} {low}")
            if unbounded and inside:
                found.append("nested")
            found += _repeats(body, inside or (high is not op.MAXREPEAT and high > 4 and len(body) > 1))
        elif kind is op.SUBPATTERN:
            found += _repeats(value[3], inside)
        elif kind is op.ATOMIC_GROUP:
            found += _repeats(value, inside)
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            found += _repeats(value[1], inside)
        elif kind is op.BRANCH:
            for branch in value[1]:
                found += _repeats(branch, inside)
    return found


@pytest.mark.parametrize(("name", "pattern"), PATTERNS)
def test_patterns_are_linear_by_structure(name: str, pattern: "re.Pattern[str]") -> None:
    """Each open-ended repeat of a mask is possessive, so nothing is tried a second time."""
    assert _repeats(parser.parse(pattern.pattern, pattern.flags)) == []
