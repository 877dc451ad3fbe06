"""The pictures of the documents, and the part of their making that needs no server."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from pictures.rows import rows, shortened  # noqa: E402
from pictures.waterfall import LINE, MOST, WIDTH, waterfall  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [
    (text, alt, link) for text in TEXTS for alt, link in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", text.read_text())
]
SVG = "{http://www.w3.org/2000/svg}"
MS = 1_000_000


def span(span_id, parent="", start=0, end=1, name="execute_tool search", links=(), **said):
    """A span as Jaeger answers it, its times in milliseconds; ``a_b`` is the attribute ``toolguard.a_b``."""
    return {
        "spanId": span_id, "parentSpanId": parent, "name": name, "links": [{"spanId": link} for link in links],
        "startTimeUnixNano": str(start * MS), "endTimeUnixNano": str(end * MS),
        "said": {f"toolguard.{key}": value for key, value in said.items()},
    }  # fmt: skip


def drawn(spans, **how):
    """The picture of a trace, read as XML, and all its texts."""
    root = ET.fromstring(waterfall("A trace", spans, **how))
    return root, [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(("text", "alt", "link"), SHOWN)
def test_each_picture_is_there_and_described(text, alt, link):
    """A picture that a document shows exists, is not large, and has a description."""
    assert 0 < (text.parent / link).stat().st_size < 150_000
    assert len(alt.split()) > 5


def test_each_picture_is_shown():
    """No picture is left from a document that no longer shows it, and each is well-formed and of GitHub's width."""
    there = {path.resolve() for path in PICTURES.glob("*.svg")}
    assert there == {(text.parent / link).resolve() for text, _alt, link in SHOWN}
    assert {ET.parse(path).getroot().get("width") for path in there} == {str(WIDTH)}


def test_a_trace_without_spans_is_an_empty_picture():
    """Nothing to draw is no error."""
    _root, texts = drawn([])
    assert "0 spans, 0 ms" in texts


@pytest.mark.parametrize(("spans", "expected"), [
    ([span("b", "a", 2), span("a", start=1), span("c", "a", 1)], [("a", 0), ("c", 1), ("b", 1)]),
    ([span("b", "gone", 2), span("a", start=1), span("c", "b", 3)], [("a", 0), ("b", 0), ("c", 1)]),
    ([span("a", "b"), span("b", "a", 1)], [("a", 0), ("b", 1)]),
    ([span("a", "a")], [("a", 0)]),
    ([span("a", start=0, end=9), span("b", start=0, end=3)], [("a", 0), ("b", 0)]),
])  # fmt: skip
def test_children_stand_below_their_parents(spans, expected):
    """In order of their start; orphans stand as roots do, and spans that are their own ancestors are not lost."""
    assert [(row.span_id, row.depth) for row in rows(spans)] == expected


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 3)])
def test_no_time_at_all_is_drawn(start, end):
    """Spans of no length, or less, have a bar that can be seen and lies within the picture."""
    root, texts = drawn([span("a", start=start, end=end)])
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.get("rx") and float(bar.get("y")) < LINE * 4]
    assert all(float(bar.get("width")) > 0 and float(bar.get("x")) + float(bar.get("width")) < WIDTH for bar in bars)
    assert bars
    assert "0 ms" in texts


def test_bars_are_to_scale():
    """A span that lasts a quarter of the trace, from its middle on, has a quarter of the root's bar from the middle on."""
    root, _texts = drawn([span("a", end=100), span("b", "a", 50, 75)])
    whole, part = [bar for bar in root.iter(f"{SVG}rect") if bar.get("rx")][:2]
    assert float(part.get("width")) == pytest.approx(float(whole.get("width")) / 4, abs=0.2)
    middle = float(whole.get("x")) + float(whole.get("width")) / 2
    assert float(part.get("x")) == pytest.approx(middle, abs=0.2)


@pytest.mark.parametrize("name", [
    "<script>alert(1)</script>", 'a" onload="x', "&amp;]]>", "\x00\x1b[31m\ud800\ufffe", "a\u202eb", "x" * 100_000, "名" * 60,
])  # fmt: skip
def test_hostile_names_are_words(name):
    """Whatever a span is called is text that fits, in XML that can be read; nothing of it is markup."""
    root, texts = drawn([span("a", name=name, outcome=name, rule=name, failure=name, limit=name, signature=name)])
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg",
        "title",
        "rect",
        "text",
        "line",
        "path",
    }
    assert max(len(text) for text in texts) < 60
    assert not any("\u202e" in text for text in texts)


def test_a_long_trace_is_shortened_around_what_matters():
    """Of 2,000 spans the root, the tripped one in the middle and both ends are drawn, and how many are not is said."""
    spans = [span("root", end=4000), *(span(f"s{n}", "root", n, n + 1, outcome="ok") for n in range(1999))]
    spans[1000]["said"]["toolguard.tripped"] = True
    kept = shortened(rows(spans), MOST)
    ids = [row.span_id for row in kept if not isinstance(row, int)]
    assert (len(ids), ids[0], ids[-1], "s999" in ids) == (MOST, "root", "s1998", True)
    assert sum(row for row in kept if isinstance(row, int)) == 2000 - MOST
    assert len(waterfall("Long", spans)) < 100_000


def test_a_storm_is_shortened_too():
    """Where all spans matter there are no more rows than else, and a chain of 2,000 generations is no deep recursion."""
    spans = [span(f"s{n}", f"s{n - 1}", n, 3000, outcome="refused", links=["s0"] * 9) for n in range(2000)]
    assert sum(not isinstance(row, int) for row in shortened(rows(spans), MOST)) == MOST
    assert len(waterfall("Storm", spans)) < 100_000


@pytest.mark.parametrize(("said", "note"), [
    ({"tripped": True, "rule": "repeat_guard", "observed": 8.0, "limit": 8.0}, "TRIPPED repeat_guard 8 of 8"),
    ({"would_trip": True, "rule": "cost", "observed": 1.5, "limit": 1.0}, "WOULD TRIP cost 1.5 of 1"),
    ({"outcome": "refused", "rule": "stagnation", "observed": 12.0, "limit": 12.0}, "stagnation 12 of 12"),
    ({"outcome": "failed", "failure": "transient", "repeat.count": 3, "repeat.length": 2}, "transient, lap 3 of a 2-cycle"),
])  # fmt: skip
def test_what_the_guard_saw_is_said(said, note):
    """Trips, refusals, failures and laps are told in words, and a trip is marked by more than a colour."""
    assert note in drawn([span("a", **said)])[1]


def test_links_are_arrows():
    """A link to a row is a line with a head; one that leads out of the picture is the beginning of an id."""
    root, texts = drawn([span("a", tripped=True), span("b", start=1, end=2, links=["a"], outcome="refused")])
    assert len(list(root.iter(f"{SVG}path"))) == 2
    root, texts = drawn([span("b", links=["0123456789abcdef"], outcome="refused", rule="session.stop")])
    assert not list(root.iter(f"{SVG}path"))
    assert any("→ 01234567" in text for text in texts)
