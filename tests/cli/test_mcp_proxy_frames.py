"""Messages read and changed as text: only the bytes that are meant change."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_toolguard.cli import mcp_frames as f

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
STYLES = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}])
ENTRIES = st.dictionaries(st.sampled_from(["traceparent", "tracestate", "baggage"]), st.text(), min_size=1)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=6), VALUES), STYLES)
def test_members_are_found_where_they_stand(value, style):
    """The values of an object, however it is written, are where it is said."""
    text = json.dumps(value, **style)
    found = {name: json.loads(text[start:end]) for name, (start, end) in f.members(text).items()}
    assert found == value


@settings(deadline=None)
@given(st.lists(VALUES), STYLES)
def test_elements_are_found_where_they_stand(value, style):
    """The values of an array, however it is written, are where it is said."""
    text = json.dumps(value, **style)
    assert [json.loads(text[start:end]) for start, end in f.elements(text)] == value


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=6), VALUES),
    st.none() | st.dictionaries(st.text(max_size=6), VALUES),
    ENTRIES,
    STYLES,
)
def test_entries_are_put_in_and_nothing_else_changes(params, meta, entries, style):
    """The request reads as before but for the entries in its ``_meta``, whether there was one or not."""
    params.pop("_meta", None)
    message = {"jsonrpc": "2.0", "params": {**params, **({} if meta is None else {"_meta": meta})}, "id": 1}
    text = json.dumps(message, **style)
    told = f.with_meta(text, entries)
    message["params"]["_meta"] = {**(meta or {}), **entries}
    assert json.loads(told) == message
    kept = iter(told)
    new = not any(name in (meta or {}) for name in entries)
    assert not new or all(letter in kept for letter in text)  # every letter of before, in order


def test_what_is_no_object_is_left_alone():
    """A request whose parameters or ``_meta`` are something else is the server's to complain of."""
    for text in ('{"params":[1]}', '{"params":{"_meta":[1]}}', "{}", '{"params":null}', '{"params":{"_meta":"x"}}'):
        assert f.with_meta(text, {"a": "b"}) == text
    assert json.loads(f.with_meta('{"params":{"_meta":null}}', {"a": "b"})) == {"params": {"_meta": {"a": "b"}}}


@settings(deadline=None)
@given(st.lists(VALUES), STYLES)
def test_a_text_is_added_to_the_content(content, style):
    """A result has one more block at its end, and the others stay."""
    text = json.dumps({"id": 1, "result": {"content": content, "more": 1}}, **style)
    block = {"type": "text", "text": 'said "so"'}
    assert json.loads(f.with_block(text, 'said "so"'))["result"] == {"content": [*content, block], "more": 1}


@pytest.mark.parametrize("text", ['{"result":[]}', '{"result":{"content":"x"}}', "{}", '{"result":{}}'])
def test_other_results_are_left_alone(text):
    """What has no content gets none."""
    assert f.with_block(text, "said") == text


@settings(deadline=None)
@given(st.binary() | st.text('{}[]":,\\a0\0 ').map(str.encode))
@example(b'\x00"')
@example(b'{"a":1,"')
@example(b'{"\\u00')
def test_any_bytes_survive(data):
    """Text made of bytes gives the same bytes back, and reading it never raises."""
    text = f.text_of(data)
    assert f.bytes_of(text) == data
    f.value_of(text)
    f.members(text)
    f.elements(text)
    f.raw_id(text)


SAME = [(1, 1.0), (10**20, 1e20), ("a", "a"), (None, None), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
OTHER = [(1, "1"), (1, True), (0, False), (None, "null"), (1, 1.5), ([], {})]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_ids_that_are_one(one, other):
    """Numbers are one id whether a server writes them as whole or not."""
    assert f.key_of(one) == f.key_of(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_ids_that_are_two(one, other):
    """Ids of other types are other ids."""
    assert f.key_of(one) != f.key_of(other)
