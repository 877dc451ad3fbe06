"""Arguments of the same names are written by a plan that is kept; it must not outlast what it is for."""

import enum

import pytest

from otel_toolguard.core import canonical as module
from otel_toolguard.core.canonical import canonical


class Name(enum.StrEnum):
    Q = "q"


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("key", [Name.Q, Text("q")])
def test_a_key_that_only_equals_a_text_is_written_as_itself(key):
    """A plan for a name is not used for what is equal to that name and yet of another type."""
    plain = canonical({"q": 1}).text
    assert canonical({key: 1}).text != plain
    assert canonical({"q": 1}).text == plain


def test_the_order_in_which_arguments_are_given_is_no_difference():
    """Each order has a plan of its own, and all write the same text, sorted by the names as they are written."""
    written = {canonical(dict(pairs)).text for pairs in ([("b", 1), ("a", 2)], [("a", 2), ("b", 1)])}
    assert written == {'{"a":2,"b":1}'}
    assert canonical({'a"': 1, "a": 2, "a!": 3}).text == '{"a!":3,"a":2,"a\\"":1}'


def test_plans_are_bounded():
    """However many sets of names there are, so many are kept, and a long one never is."""
    long = "x" * (module._PLAN_LIMIT + 1)
    for n in range(module._PLANS_KEPT + 10):
        assert canonical({f"name {n}": None}).text == f'{{"name {n}":null}}'
        assert len(module._plans) <= module._PLANS_KEPT
    assert canonical({long: 1}).text == f'{{"{long}":1}}'
    assert (long,) not in module._plans


@pytest.mark.parametrize(
    "value", [True, False, None, 1, -0.0, 1e300, float("nan"), "x", 1 << 5000, [1], {"a": 1}, b"x"]
)
def test_a_plan_writes_what_the_general_way_writes(value, monkeypatch):
    """Scalars behind a planned name, and whatever sends the dict to the general way, have one text each."""
    given = {"b": value, "a": value}
    short = canonical(given)
    monkeypatch.setattr(module, "_flat", lambda value: None)
    assert canonical(given) == short
    assert canonical({}) == ("{}", True)
