"""Hostile values: they raise, lie, change while they are read, have no end, hold themselves, or are just very large.

``make(seed)`` makes one value, and called twice two values that nobody can tell apart.
"""

# ruff: noqa: B008, B905, PLW0108, PYI024, RUF012  (odd on purpose)
from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import itertools
import json
import math
import operator
import pathlib
import random
import re
import socket
import threading
import types
import unittest.mock
import weakref

import pydantic
import wrapt

from otel_toolguard.core.masks import MARK

ERRORS = [RuntimeError, AttributeError, KeyError, TypeError, ValueError, RecursionError, StopIteration, OSError, ZeroDivisionError,
          NotImplementedError, UnicodeError, AssertionError, LookupError, BufferError, EOFError, ReferenceError]  # fmt: skip
SPECIAL = ["__repr__", "__str__", "__hash__", "__eq__", "__iter__", "__len__", "__getattr__", "__getattribute__", "__bool__", "__lt__",
           "__format__", "__contains__", "__getitem__", "__next__", "__call__", "__int__", "__index__", "__float__", "__bytes__",
           "__fspath__", "__reduce_ex__", "__sizeof__", "__dir__", "keys", "items", "values", "isoformat", "tolist", "copy"]  # fmt: skip
BASES = [object, dict, list, tuple, set, frozenset, str, int, float, bytes, bytearray, complex, Exception, OSError, dt.datetime, dt.date,
         dt.timedelta, decimal.Decimal, fractions.Fraction, collections.OrderedDict, collections.deque, pathlib.PurePosixPath]  # fmt: skip
CONTENT = {dict: {"a": 1}, set: {1}, list: [1, 2], tuple: (1, 2), frozenset: frozenset({1}), collections.deque: [1], str: "a", int: 7,
           float: 1.5, bytes: b"a", bytearray: b"a", decimal.Decimal: "1.0", collections.OrderedDict: {"a": 1}}  # fmt: skip
MORE = {dt.datetime: (2024, 1, 2), dt.date: (2024, 1, 2), dt.timedelta: (1, 2), fractions.Fraction: (1, 3), OSError: (2, "no", "f"),
        pathlib.PurePosixPath: ("a", "b"), Exception: ("x",), complex: (1, 2)}  # fmt: skip


@functools.cache
def refusing(base, names, error):
    """A class whose given methods raise."""

    def refuse(*args, **kwargs):
        raise error("no")

    return type("Refusing", (base,), dict.fromkeys(names, refuse))


@functools.cache
def lying(base, names, answer):
    """A class whose given methods answer what nobody expects."""
    answers = {
        "none": None,
        "self": None,
        "negative": -1,
        "huge": 1 << 40,
        "true": True,
        "text": "x",
        "type": dict,
        "list": [1],
    }

    def lie(self, *args, **kwargs):
        return self if answer == "self" else answers[answer]

    return type("Lying", (base,), dict.fromkeys(names, lie))


@functools.cache
def endless(base, names):
    """A class whose given methods never come to an end, once somebody iterates what they return."""

    def forever(item):
        return lambda self, *args: itertools.repeat(item)

    return type("Endless", (base,), {name: forever(("k", "v") if name == "items" else "a") for name in names})


def instance(kind, base):
    """An instance with a little content, made without the class's own help; the class where it cannot be made at all."""
    if base is object or base in MORE:
        try:
            return kind(*MORE.get(base, ()))
        except Exception:
            return kind
    made = base.__new__(kind, CONTENT[base])
    if base in (dict, list, set, bytearray, collections.deque, collections.OrderedDict):
        base.__init__(made, CONTENT[base])
    return made


class Plain:
    def __init__(self, **said):
        self.__dict__.update(said)


class Growing(list):
    """Grows while it is read."""

    def __iter__(self):
        for item in list.__iter__(self):
            self.append(item)
            yield item


class Shrinking(dict):
    """Loses what it held while it is read."""

    def items(self):
        while self:
            yield dict.popitem(self)


class Swelling(dict):
    """A dict that gets a key with every item that is read."""

    def items(self):
        for pair in dict.items(self):
            self[len(self)] = 1
            yield pair


class Claims:
    """Says that it is of another class."""

    def __init__(self, kind):
        self.kind = kind

    @property
    def __class__(self):
        if self.kind is None:
            raise RuntimeError("no")
        return self.kind


class OtherDict:
    """Its ``__dict__`` is whatever it wants."""

    def __init__(self, state):
        object.__setattr__(self, "_state", state)

    @property
    def __dict__(self):
        if self._state is None:
            raise RuntimeError("no")
        return self._state


class Chameleon:
    __slots__ = ()

    def __getattr__(self, name):
        return Chameleon()


class Deepening:
    """Has a fresh one of its kind in every attribute, for ever."""

    @property
    def __dict__(self):
        return {"a": Deepening(), "b": Deepening()}


class Lazy:
    """Becomes what it stands for when it is first looked at."""

    def __init__(self):
        self.__dict__["loaded"] = 0

    def __getattr__(self, name):
        self.__dict__["loaded"] += 1
        raise AttributeError(name)

    @property
    def size(self):
        self.__dict__["loaded"] += 1
        return self.loaded


class Meta(type):
    def __eq__(cls, other):
        raise RuntimeError("no")

    def __hash__(cls):
        raise RuntimeError("no")


class Unnamed(type):
    def __getattribute__(cls, name):
        return object() if name in ("__module__", "__qualname__") else super().__getattribute__(name)


class Boundless(type):
    __mro__ = property(lambda cls: itertools.cycle([cls]))
    __dataclass_fields__ = property(lambda cls: itertools.count())
    __basicsize__ = property(lambda cls: "many")


class Denying(type):
    def __getattribute__(cls, name):
        raise RuntimeError(name)

    def __instancecheck__(cls, other):
        raise RuntimeError("no")


class OddModule:
    __module__ = object()


class Fields:
    __dataclass_fields__ = collections.defaultdict(list, a=1)
    __pydantic_fields__ = {"a": 1}
    __pydantic_fields_set__ = None
    __pydantic_extra__ = endless(dict, ("keys", "__iter__", "items"))()


@dataclasses.dataclass
class Point:
    x: object = None
    y: object = dataclasses.field(default=None, repr=False)

    @property
    def z(self):
        raise RuntimeError("no")


class Raising:
    """A dataclass whose field is a property that raises."""

    __dataclass_fields__ = {"x": 1}
    x = property(lambda self: 1 / 0)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: object = None


class Odd(enum.Enum):
    ONE = object()
    TWO = [1]


class Bits(enum.IntFlag, boundary=enum.KEEP):
    ONE = 1


Pair = collections.namedtuple("Pair", "a b")


class Struct(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_double)]


class Zone(dt.tzinfo):
    def utcoffset(self, when):
        raise RuntimeError("no")


def spoof(module, name, /, **more):
    """A class that goes by another's name."""
    return type(name, (), {"__module__": module, "__qualname__": name, **more})()


NO_END = property(lambda self: itertools.cycle([1]))
SPOOFS = [
    lambda: spoof("numpy", "ndarray", shape=NO_END, dtype=Plain(hasobject=True), size=1, tolist=lambda self: endless(list, ("__iter__",))()),
    lambda: spoof("numpy", "ndarray", shape=NO_END, dtype=Plain(hasobject=False), nbytes=1, tobytes=lambda self: itertools.count()),
    lambda: spoof("numpy", "generic", dtype=1, item=lambda self: self),
    lambda: spoof("builtins", "range"), lambda: spoof("builtins", "set", __iter__=lambda self: itertools.count()),
    lambda: spoof("builtins", "bytes", __len__=lambda self: 1 << 40, __bytes__=lambda self: 1), lambda: spoof("builtins", "function"),
    lambda: spoof("builtins", "dict", items=lambda self: itertools.count()), lambda: spoof("builtins", "BaseException", args=NO_END),
    lambda: spoof("decimal", "Decimal", __str__=lambda self: 1), lambda: spoof("datetime", "date", isoformat=lambda self: self),
    lambda: spoof("enum", "Enum", name=NO_END), lambda: spoof("a(b", '"],"'), lambda: spoof("fractions", "Fraction", numerator=NO_END),
    lambda: spoof("re", "Pattern", pattern=NO_END, flags=None), lambda: spoof("functools", "partial", func=1, args=NO_END, keywords=NO_END),
]  # fmt: skip
CLOSED = socket.socket()
CLOSED.close()
LOCK = threading.Lock()
ALIVE = Plain(a=1)
MOCKS = [unittest.mock.Mock, unittest.mock.MagicMock, unittest.mock.NonCallableMock, unittest.mock.AsyncMock]
SPECCED = [unittest.mock.create_autospec(kind, instance=True) for kind in (dict, Point, Model, dt.datetime, str)]


def dead():
    return weakref.proxy(Plain())


def released():
    view = memoryview(b"a")
    view.release()
    return view


def mocked(draw):
    mock = draw.choice(MOCKS)(name="m")
    mock.a.b.c = 1
    return mock


def caught():
    try:
        raise ValueError("x") from KeyError("y")
    except ValueError as error:
        return error


STRANGE = [
    lambda d: (item for item in [1, 2]), lambda d: iter([1]), lambda d: map(str, [1]), lambda d: zip([1], [2]), lambda d: itertools.count(), lambda d: LOCK,
    lambda d: threading.RLock(), lambda d: CLOSED, lambda d: weakref.proxy(ALIVE), lambda d: weakref.ref(ALIVE), lambda d: dead(), mocked,
    lambda d: d.choice(SPECCED), lambda d: wrapt.ObjectProxy({"a": [1]}), lambda d: wrapt.ObjectProxy("a"), lambda d: wrapt.ObjectProxy(Plain(a=1)),
    lambda d: collections.deque([1, [2]]), lambda d: collections.ChainMap({"a": 1}, {"b": 2}), lambda d: collections.UserDict(a=1),
    lambda d: collections.UserList([1]), lambda d: collections.UserString("a"), lambda d: types.MappingProxyType({"a": 1}), lambda d: Pair(1, [2]),
    lambda d: ctypes.c_int(1), lambda d: Struct(1, 2), lambda d: (ctypes.c_char * 4)(), lambda d: ctypes.pointer(ctypes.c_int(1)),
    lambda d: array.array("d", [1, 2]), lambda d: re.compile("a+"), lambda d: re.match("a", "a"), lambda d: math, lambda d: json, lambda d: [].append,
    lambda d: Plain(a=1).__init__, lambda d: Plain.__init__, lambda d: functools.partial(print, 1, end=""), lambda d: functools.partial(Plain, a=Plain()),
    lambda d: released(), lambda d: memoryview(b"abcd").cast("H"), lambda d: memoryview(bytearray(8))[::-2], lambda d: range(1 << 80, 1 << 90),
    lambda d: slice(Plain(), [], None), lambda d: NotImplemented, lambda d: ..., lambda d: {}.keys(), lambda d: {"a": 1}.items(), lambda d: io.BytesIO(b"a"),
    lambda d: io.StringIO("a"), lambda d: (lambda: 0).__code__, lambda d: lambda x=Plain(): x, lambda d: operator.itemgetter(1), lambda d: caught(),
    lambda d: ExceptionGroup("g", [ValueError(object()), OSError(2, "x", "y")]), lambda d: dt.datetime(2024, 1, 1, tzinfo=Zone()), lambda d: Odd.ONE, lambda d: Odd.TWO,
    lambda d: Bits(8), lambda d: Model.model_construct(x=d.choice([math.nan, Plain()]), y=[Chameleon()]), lambda d: Model, lambda d: Meta("M", (), {})(),
    lambda d: Unnamed("U", (), {})(), lambda d: Boundless("B", (), {})(), lambda d: Denying("D", (), {})(), lambda d: Denying("D", (dict,), {})(a=1),
    lambda d: Unnamed("U", (), {}), lambda d: Denying("D", (), {}), lambda d: OddModule(), lambda d: OddModule, lambda d: Fields(), lambda d: Raising(), lambda d: Lazy(),
    lambda d: Chameleon(), lambda d: Shrinking(a=1, b=2), lambda d: Swelling(a=1), lambda d: object(),
    lambda d: types.SimpleNamespace(a=1), lambda d: types.ModuleType("m"), lambda d: type("Made", (), {"__slots__": ("a", "b")})(), lambda d: decimal.Decimal("sNaN"),
    lambda d: property(len), lambda d: classmethod(len), lambda d: super(Plain, Plain()), lambda d: types.CellType(1), lambda d: list[int], lambda d: int | None,
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------ by the dozen


def raising(draw):
    base, count = draw.choice(BASES), draw.randint(1, 3)
    names = tuple(sorted(draw.sample(SPECIAL, count)))
    return instance(refusing(base, names, draw.choice(ERRORS)), base)


def liar(draw):
    base = draw.choice(BASES)
    names = tuple(sorted(draw.sample(SPECIAL, draw.randint(1, 3))))
    return instance(
        lying(base, names, draw.choice(["none", "self", "negative", "huge", "true", "text", "type", "list"])), base
    )


def without_end(draw):
    base = draw.choice(
        [object, dict, list, tuple, set, frozenset, str, bytes, Exception, collections.deque, collections.OrderedDict]
    )
    return instance(endless(base, tuple(draw.sample(["__iter__", "keys", "items", "values", "__reversed__"], 2))), base)


def claiming(draw):
    return Claims(draw.choice([None, dict, list, tuple, str, int, set, type, bool, pydantic.BaseModel, 7]))


def other_dict(draw):
    keys = endless(dict, ("keys", "__iter__", "items"))
    return OtherDict(
        draw.choice([None, 1, [1], {"a": 1}, {1: 2}, Claims(dict), keys(), Growing([("a", 1)]), Swelling(a=1)])
    )


def number(draw):
    return draw.choice([
        math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, complex(math.nan, -0.0), decimal.Decimal("NaN123"), decimal.Decimal("-Infinity"),
        decimal.Decimal("1E+999999"), fractions.Fraction(1 << 20_000, 7), 1 << draw.randint(1, 20_000), -(1 << draw.randint(1, 20_000)), True,
    ])  # fmt: skip


def text(draw):
    letters = draw.choice(
        [
            "a",
            "\ud800",
            "\udfff\ud800",
            "\x00",
            '"\\',
            "é",
            "e\u0301",
            "\u2028",
            "12:30:01 ",
            "\U0010ffff",
            MARK + "1",
            "a1b2c3d4e5f60718 ",
        ]
    )
    return letters * int(10 ** draw.uniform(0, 4.3) / len(letters))


def cycle(draw):
    kind, length = draw.randrange(9), draw.randint(1, 70)
    first: list = []
    inner = first
    for _ in range(length - 1):
        inner = draw.choice(
            [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: Plain(a=v), lambda v: Point(v)]
        )(inner)
    wrapped = [
        lambda v: v, lambda v: {"self": v}, lambda v: collections.deque([v]), lambda v: Plain(me=v), Point, ValueError, lambda v: Model.model_construct(x=v),
        lambda v: functools.partial(print, v), lambda v: {(1, Plain(a=v)): 1},
    ][kind](inner)  # fmt: skip
    first.append(wrapped)
    return wrapped


def deep(draw, most=300):
    depth, value = int(10 ** draw.uniform(0, math.log10(most))), draw.choice([0, "x", [], Plain()])
    wrap = draw.choice(
        [
            lambda v: [v],
            lambda v: {"a": v},
            lambda v: (v,),
            lambda v: Plain(a=v),
            lambda v: {"a": 1, "b": [v, 2]},
            lambda v: Point(v, 1),
        ]
    )
    for _ in range(depth):
        value = wrap(value)
    return value


def unordered(draw):
    items = [
        draw.choice([1, 1.5, "a", None, b"1", (1, "1"), Odd.ONE, int, math.nan, frozenset({1}), draw.random()])
        for _ in range(draw.randint(0, 6))
    ]
    draw.shuffle(items)
    return draw.choice([set, frozenset, dict.fromkeys])(items)


def strange(draw):
    return draw.choice(STRANGE)(draw)


def spoofed(draw):
    return draw.choice(SPOOFS)()


COMMON = [raising, liar, claiming, other_dict, number, text, cycle, deep, unordered, strange, strange, spoofed]


def shared(draw):
    value = draw.choice(["x", [], Plain(a=1), "x" * 3000])
    wrap = draw.choice(
        [
            lambda v: [v] * 10,
            lambda v: {"a": v, "b": v, "c": v},
            lambda v: (v, v),
            lambda v: Plain(a=v, b=v),
            lambda v: [{"k": v}] * 4,
        ]
    )
    for _ in range(draw.randint(5, 100)):
        value = wrap(value)
    return value


# What has no end, or is larger than what is written: each of them costs what a mebibyte of text does.
LARGE = [
    shared, shared, without_end, without_end, lambda d: Growing([1]), lambda d: Deepening(), lambda d: deep(d, 100_000), lambda d: deep(d, 100_000), lambda d: list(range(d.choice([10**4, 10**6]))),
    lambda d: {str(index): index for index in range(d.choice([10**4, 10**6]))}, lambda d: dict.fromkeys(range(10**5), "x" * 10_000),
    lambda d: dict.fromkeys(map(str, range(3 * 10**5)), "x" * 10_000), lambda d: set(range(10**6)), lambda d: 1 << 10**6, lambda d: [1 << 10**6] * 10**4,
    lambda d: {"x" * 1000 + str(index): [] for index in range(5000)}, lambda d: ["x" * 10**6] * 1000, lambda d: [b"x" * 200_000] * 1000, lambda d: [Plain(a=1)] * 10**5,
    lambda d: Plain(**{f"a{index}": index for index in range(10**5)}), lambda d: [Plain(**{f"a{index}": 1 for index in range(10**4)})] * 1000,
    lambda d: frozenset(str(index) for index in range(10**5)), lambda d: [frozenset(range(1000))] * 1000, lambda d: b"x" * 10**7, lambda d: memoryview(bytes(10**7)),
    lambda d: array.array("q", bytes(8 * 10**6)), lambda d: decimal.Decimal("1" * 10**6), lambda d: ValueError("x" * 10**6, *range(10**5)),
    lambda d: [[list(range(1000))] * 100] * 100, lambda d: [{str(k): k for k in range(1000)}] * 1000, lambda d: "1 " * 500_000,
    lambda d: fractions.Fraction(1 << 10**6, 3), lambda d: {("x" * 100, index): None for index in range(10**5)}, lambda d: [dt.date(2024, 1, 1)] * 10**5,
    lambda d: [Point(1, 2)] * 10**5, lambda d: [Model.model_construct(x=1)] * 10**5, lambda d: [Deepening(), *[[Chameleon()] * 1000] * 1000],
]  # fmt: skip
HUGE = [lambda d: "x" * 50_000_000, lambda d: {"a": ["\x00" * 50_000_000]}, lambda d: {"\ud800" * 20_000_000: 1}, lambda d: "12:30:01 " * 5_000_000,
        lambda d: b"x" * 50_000_000, lambda d: 1 << 10**8]  # fmt: skip


def wrapped(draw, value):
    """The value as it is, or somewhere inside of something harmless."""
    return draw.choice([
        lambda v: v, lambda v: v, lambda v: [v], lambda v: {"a": v, "b": 1}, lambda v: (1, v, 2), lambda v: {"z": [{"y": v}]}, lambda v: Plain(a=v),
        lambda v: Point(v, [v]), lambda v: [v, v], lambda v: ValueError("m", v), lambda v: Model.model_construct(x=v), lambda v: collections.OrderedDict(b=1, a=v),
    ])(value)  # fmt: skip


NAME = type.__dict__["__name__"].__get__  # past a metaclass that answers itself


def make(seed: int, large: float = 1 / 4000, huge: float = 1 / 100_000) -> tuple[str, object]:
    """The kind and the value of a seed.

    Args:
        seed: The same one makes the same value again, of other objects.
        large: Share of values that are large.
        huge: Share of values of tens of megabytes.
    """
    draw = random.Random(seed)
    lot = draw.random()
    pool = HUGE if lot < huge else LARGE if lot < huge + large else COMMON
    chosen = draw.randrange(len(pool))
    value = pool[chosen](draw)
    name = pool[chosen].__name__
    kind = f"{'huge' if pool is HUGE else 'large'} {chosen}" if pool is not COMMON else f"{name} {NAME(type(value))}"
    return kind, value if pool is not COMMON else wrapped(draw, value)
