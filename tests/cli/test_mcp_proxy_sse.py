"""Streams of events, whatever they are cut into."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.cli.mcp_sse import events

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12).map(str.encode)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def arriving(*pieces):
    """Reads these pieces, then the end."""
    left = iter([*pieces, b""])
    return lambda _: next(left)


@st.composite
def streams(draw):
    """The bytes of a stream, what its events say, and the pieces in which it arrives."""
    end = draw(ENDS)
    said, raw = [], b""
    for lines in draw(st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5)):
        said.append(b"\n".join(lines))
        raw += draw(st.sampled_from([b"", b": note" + end, b"event: message" + end, b"id: 5" + end]))
        raw += b"".join(b"data: " + line + end for line in lines) + end
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    return raw, said, [piece for piece in pieces if piece]


@settings(deadline=None)
@given(streams())
def test_events_are_the_same_however_they_arrive(stream):
    """No byte is lost, and every event's data is read, with each kind of line end and cut anywhere."""
    raw, said, pieces = stream
    found = list(events(arriving(*pieces)))
    assert b"".join(event.raw for event in found) == raw
    assert [event.data for event in found if event.data is not None] == said


def test_a_changed_event_keeps_its_other_lines():
    """Where something else is said, id and name of the event stay; where the same is said, every byte does."""
    raw = b"id: 3\r\nevent: message\r\ndata: {}\r\n\r\n"
    (event,) = events(arriving(raw))
    assert (event.id, event.saying(b"{}")) == ("3", raw)
    assert event.saying(b"[]") == b"id: 3\nevent: message\ndata: []\n\n"


def test_an_event_without_an_end_is_passed_on_at_the_end():
    """What is left when a stream breaks off is not kept back."""
    found = list(events(arriving(b"data: 1\n\ndata: 2")))
    assert [event.raw for event in found] == [b"data: 1\n\n", b"data: 2"]


def test_retry_is_read_if_it_is_a_number():
    """The server's own wish how long to wait is taken, nonsense is not."""
    raw = b"retry: 1500\ndata: 1\n\nretry: soon\ndata: 2\n\n"
    assert [event.retry for event in events(arriving(raw))] == [1.5, None]
