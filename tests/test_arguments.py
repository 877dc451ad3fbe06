"""From a Python call to what the model said, for every kind of callable."""

from __future__ import annotations

import functools
from typing import Annotated

import pytest

from otel_toolguard import MemoryStore, Policy, Session, guard_tool
from otel_toolguard.arguments import Binder

EVERY = Policy(plugins=[{"plugin": "call_ceiling", "run": 1000}])


class RunContext:
    """Named like one of the classes by which frameworks inject what the model did not say."""


Renamed = RunContext  # as by ``import ... as``


class Hostile:
    """Refuses whatever it is asked."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError("eq")

    def __bool__(self):
        raise RuntimeError("bool")

    def __hash__(self):
        raise RuntimeError("hash")

    def __repr__(self):
        raise RuntimeError("repr")


HOSTILE = Hostile()


def plain(a, b=2):
    pass


def positional_only(a, b=2, /, **more):
    pass


def keyword_only(*, a, b=2):
    pass


def everything(a, *args, b=2, **kwargs):
    pass


def awkward(function, wrapped, instance, args, kwargs):
    pass


def words(*args, **kwargs):
    pass


def receiver(self, other):
    pass


def context(ctx: RunContext, q):
    pass


def renamed(ctx: Renamed, q):
    pass


def renamed_in_a_text(ctx: Renamed | None, q):
    pass


def nowhere(ctx: Nowhere, q: RunContext):  # noqa: F821
    pass


def annotated(q, state: Annotated[dict, "InjectedState"], run_manager=None):
    pass


def hostile_default(q, thing=HOSTILE):
    pass


TABLE = [
    (plain, (1,), {}, {"a": 1, "b": 2}),
    (plain, (), {"b": 3, "a": 1}, {"a": 1, "b": 3}),
    (plain, (1, 2, 3), {}, {"*": [1, 2, 3]}),
    (plain, (1,), {"c": 3}, {"a": 1, "b": 2, "c": 3}),
    (positional_only, (1,), {}, {"a": 1, "b": 2}),
    (positional_only, (1,), {"a": 5}, {"a": 1, "b": 2, "**a": 5}),
    (keyword_only, (), {"a": 1}, {"a": 1, "b": 2}),
    (everything, (1, 2, 3), {"c": 4}, {"a": 1, "args": (2, 3), "b": 2, "c": 4}),
    (everything, (1,), {"args": 4, "kwargs": 5}, {"a": 1, "args": (), "b": 2, "**args": 4, "kwargs": 5}),
    (everything, (), {"b": 1}, {"*": [], "b": 1}),
    (awkward, (1, 2), {"instance": 3, "args": 4, "kwargs": 5},
     {"function": 1, "wrapped": 2, "instance": 3, "args": 4, "kwargs": 5}),
    (words, (1,), {"self": 2, "cls": 3}, {"args": (1,), "self": 2, "cls": 3}),
    (receiver, (1, 2), {}, {"self": 1, "other": 2}),
    (context, (object(), "x"), {}, {"q": "x"}),
    (annotated, ("x", {}), {}, {"q": "x"}),
    (hostile_default, ("x",), {}, {"q": "x", "thing": HOSTILE}),
    (lambda self: None, (1,), {}, {"self": 1}),
    (len, ([1],), {}, {"obj": [1]}),
    (str.upper, ("a",), {}, {"self": "a"}),
    ("a".join, (["b"],), {}, {"iterable": ["b"]}),
    (dict, (), {"a": 1}, {"*": [], "a": 1}),
    (functools.partial(plain, 1), (), {}, {"b": 2}),
    (functools.partial(plain, b=9), (1,), {}, {"a": 1}),  # the host said b
    (functools.partial(plain, b=9), (1,), {"b": 9}, {"a": 1}),
    (functools.partial(plain, b=9), (1,), {"b": 8}, {"a": 1, "b": 8}),
    (functools.partial(functools.partial(plain, b=9), b=8), (1,), {}, {"a": 1}),
]  # fmt: skip


def same(left, right):
    return left.keys() == right.keys() and all(left[name] is right[name] or left[name] == right[name] for name in left)


@pytest.mark.parametrize(("function", "args", "kwargs", "expected"), TABLE)
def test_a_call_is_bound_to_names(function, args, kwargs, expected):
    """Whatever the kind of parameter, arguments get their names, defaults apply and nothing that was said is lost."""
    assert same(Binder(function).bind(None, args, kwargs), expected)


class Desk:
    """Every kind of method; the recorded arguments are what the model said."""

    def look(self, q, n=1):
        pass

    def odd(this, q):
        pass

    def loose(*args, **kwargs):
        pass

    def mixed(self, q, *more):
        pass

    def strict(self, /, q, *, n=1):
        pass

    cached = functools.lru_cache(look)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"),
    [
        ("look", ("x",), {}, {"q": "x", "n": 1}),
        ("look", (), {"q": "x"}, {"q": "x", "n": 1}),
        ("odd", ("x",), {}, {"q": "x"}),
        ("loose", ("x",), {"k": 1}, {"args": ("x",), "k": 1}),
        ("mixed", ("x", 2, 3), {}, {"q": "x", "more": (2, 3)}),
        ("strict", ("x",), {"n": 2}, {"q": "x", "n": 2}),
        ("cached", ("x",), {}, {"q": "x", "n": 1}),
    ],
)
def test_the_receiver_is_no_argument(name, args, kwargs, expected):
    """A method's receiver is left out whatever it is called, whether the method is bound late or was bound before."""
    desk = Desk()
    function = Desk.__dict__[name]
    assert Binder(function).bind(desk, args, kwargs) == expected
    if name != "cached":
        assert Binder(getattr(desk, name)).bind(desk, args, kwargs) == expected


class Tools:
    """Methods under guard in every order of decorators."""

    def __init__(self, log):
        self.log = log

    @guard_tool
    def method(self, q):
        return q

    @guard_tool
    @classmethod
    def outer_class(cls, q):
        return q

    @classmethod
    @guard_tool
    def inner_class(cls, q):
        return q

    @guard_tool
    @staticmethod
    def outer_static(q):
        return q

    @staticmethod
    @guard_tool
    def inner_static(q):
        return q

    @property
    @guard_tool
    def attribute(self):
        return "x"

    @property
    def made(self):
        return self.method

    @guard_tool
    def __call__(self, q):
        return q


class Heir(Tools):
    def inherited(self, q):
        return super().method(q)

    @guard_tool(name="overridden")
    def method(self, q):
        return super().method(q)


def signatures(run):
    def step(state):
        return [(call, count) for each in state.runs.values() for call, count in each.signatures.items()]

    return run.guard.transact(step)


WAYS = {
    "instance": lambda a, b: (a.method("x"), b.method(q="x")),
    "class and instance": lambda a, b: (Tools.method(a, "x"), b.method("x")),
    "classmethod outside": lambda a, b: (Tools.outer_class("x"), b.outer_class(q="x")),
    "classmethod inside": lambda a, b: (Tools.inner_class("x"), b.inner_class(q="x")),
    "staticmethod outside": lambda a, b: (Tools.outer_static("x"), b.outer_static(q="x")),
    "staticmethod inside": lambda a, b: (Tools.inner_static("x"), b.inner_static(q="x")),
    "property": lambda a, b: (a.attribute, b.attribute),
    "property of a method": lambda a, b: (a.made("x"), b.made(q="x")),
    "callable instance": lambda a, b: (a("x"), b(q="x")),
    "super": lambda a, b: (Heir([]).inherited("x"), Heir([]).inherited(q="x")),
    "partial of a method": lambda a, b: (functools.partial(a.method, "x")(), functools.partial(b.method, q="x")()),
    "partial of the function": lambda a, b: (functools.partial(Tools.method, a)("x"), b.method("x")),
}


@pytest.mark.parametrize("way", WAYS)
def test_two_ways_to_the_same_call_have_one_signature(way):
    """Through instance or class, by position or by name, on different receivers: one call, made twice."""
    with Session("s", policy=EVERY, store=MemoryStore()) as run:
        assert WAYS[way](Tools([]), Tools([1])) == ("x", "x")
        assert [count for _, count in signatures(run)] == [2]


def test_an_overriding_method_and_the_one_it_calls_are_two_tools():
    """super() inside a guarded method reaches the guarded method above; each is counted under its own name."""
    with Session("s", policy=Policy(plugins=[{"plugin": "tool_stats"}]), store=MemoryStore()) as run:
        assert Heir([]).method("x") == "x"
        assert {name: row["calls"] for name, row in run.report()["tools"].items()} == {"overridden": 1, "method": 1}


def test_a_parameter_called_self_tells_calls_of_a_plain_function_apart():
    """Only a method has a receiver: f(1, 2) and f(2, 2) of a plain function differ."""
    guarded = guard_tool(receiver)
    with Session("s", policy=EVERY, store=MemoryStore()) as run:
        guarded(1, 2)
        guarded(2, 2)
        assert [count for _, count in signatures(run)] == [1, 1]


def test_a_hostile_annotation_or_signature_does_not_make_the_guard_fail():
    """Annotations that refuse repr and objects that refuse a signature are worked round at definition time."""

    class Meta(type):
        def __repr__(cls):
            raise RuntimeError("repr")

    class Odd(metaclass=Meta):
        pass

    def take(q):
        return q

    take.__annotations__["q"] = Odd
    assert Binder(take).bind(None, ("x",), {}) == {"q": "x"}
    take.__signature__ = 5
    assert Binder(take).bind(None, ("x",), {"k": 1}) == {"*": ["x"], "k": 1}
    assert Binder(HOSTILE).bind(None, ("x",), {}) == {"*": ["x"]}


@pytest.mark.parametrize("function", [renamed, renamed_in_a_text])
def test_a_context_is_known_by_its_class_and_not_by_its_name(function):
    """Postponed annotations are texts; under another name too they stand for a class that is injected."""
    assert Binder(function).bind(None, (object(), "x"), {}) == {"q": "x"}


def test_a_context_without_annotation_is_known_by_its_class():
    """Where the first parameter is not annotated, what it is given tells whether a framework injected it."""
    binder = Binder(lambda ctx, q: None)
    assert binder.bind(None, (RunContext(), "x"), {}) == {"q": "x"}
    assert binder.bind(None, (), {"ctx": RunContext(), "q": "x"}) == {"q": "x"}
    assert binder.bind(None, ("a", "x"), {}) == {"ctx": "a", "q": "x"}
    assert same(binder.bind(None, (HOSTILE, "x"), {}), {"ctx": HOSTILE, "q": "x"})


def test_annotations_that_cannot_be_resolved_are_read_as_they_are():
    """A name that exists for type checkers only does not hide what is injected beside it."""
    assert Binder(nowhere).bind(None, ("a", object()), {}) == {"ctx": "a"}
