"""An independent decoder makes each value again from its canonical text alone, whatever kind of value it is."""

from __future__ import annotations

import builtins
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import operator
import pathlib
import re
import types
import uuid
from typing import Generic, TypeVar

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_toolguard.core.canonical import canonical

T = TypeVar("T")

# ------------------------------------------------------------------------------------------- kinds of a user's own


class Colour(enum.Enum):
    RED = 1
    BLUE = "1"


class Word(enum.StrEnum):
    ONE = "1"
    TWO = "2"


class Mixed(str, enum.Enum):  # noqa: UP042  (the older way is about)
    ONE = "1"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Bits(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: object
    y: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    x: object
    unseen: object = dataclasses.field(default=0, repr=False, compare=False)


class Model(pydantic.BaseModel):
    x: object = None
    y: object = 0


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: object = None


class Box(pydantic.BaseModel, Generic[T]):
    x: T


class Plain:
    def __init__(self, **said):
        self.__dict__.update(said)


class Slotted:
    __slots__ = ("__private", "shown")

    def __init__(self, private, shown):
        self.__private = private
        if shown is not None:
            self.shown = shown


class Both(Slotted):
    """Slots, one of a name that a base has too, and a dict."""

    __slots__ = ("__dict__", "shown")

    def __init__(self, private, shown, **said):
        super().__init__(private, shown)
        Slotted.shown.__set__(self, shown)
        self.__dict__.update(said)


class Problem(Exception):
    def __init__(self, *args, **said):
        super().__init__(*args)
        self.__dict__.update(said)


class Text(str):
    __slots__ = ()


class Count(int):
    pass


class Ratio(float):
    pass


class Octets(bytes):
    pass


class Tags(frozenset):
    pass


# ---------------------------------------------------------------------------------------------------- the decoder


class Decoder:
    """Reads canonical text back; written from the documented form alone."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def whole(self):
        value = self.value()
        assert self.at == len(self.text), self.text[self.at :]
        return value

    def value(self):
        start = self.text[self.at]
        if start == '"':
            return self.string()
        if start == "[":
            return self.items("]", self.value)
        if start == "{":
            return dict(self.items("}", self.pair))
        return self.form() if start == "!" else self.word()

    def items(self, end, read):
        self.at += 1
        found = []
        while self.text[self.at] != end:
            found.append(read())
            if self.text[self.at] == ",":
                self.at += 1
        self.at += 1
        return found

    def pair(self):
        key = hashable(self.value())
        assert self.text[self.at] == ":"
        self.at += 1
        return key, self.value()

    def string(self):
        # JSON's own grammar: a quote ends it unless an odd number of backslashes precedes.
        end = self.at + 1
        while self.text[end] != '"':
            end += 2 if self.text[end] == "\\" else 1
        literal, self.at = self.text[self.at : end + 1], end + 1
        return json.loads(literal, strict=False)

    def form(self):
        self.at += 1
        if self.text[self.at] == '"':  # a name that could be taken for something else
            name = self.string()
        else:
            found = re.compile(r"[\w.<>]*").match(self.text, self.at)
            name, self.at = found[0], found.end()
        if name in ("set", "frozenset"):
            return (set if name == "set" else frozenset)(map(hashable, self.items("]", self.value)))
        content = None
        if self.text[self.at : self.at + 1] == "(":
            self.at += 1
            content = self.value()
            assert self.text[self.at] == ")"
            self.at += 1
        return MAKE[name](content)

    def word(self):
        end = self.at
        while end < len(self.text) and self.text[end] not in ",:]})":
            end += 1
        word, self.at = self.text[self.at : end], end
        if word in ("null", "true", "false"):
            return {"null": None, "true": True, "false": False}[word]
        digits = word.lstrip("-")
        return int(word, 0) if digits.isdigit() or digits.startswith("0x") else float(word)


def hashable(value):
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def letters(text):
    """Bytes are hex in the letters g to v."""
    return bytes.fromhex("".join("0123456789abcdef"["ghijklmnopqrstuv".index(letter)] for letter in text))


def view(content):
    form, shape, held = content
    flat = memoryview(letters(held))
    return flat.cast(form, shape) if form != "B" or len(shape) != 1 else flat


def fresh(kind, attributes):
    """An instance without __init__, with the attributes and slots that the text names."""
    made = kind.__new__(kind)
    for key, item in (attributes or {}).items():
        if isinstance(key, tuple):
            level, name = key
            kind.__mro__[level].__dict__[name].__set__(made, item)
        else:
            made.__dict__[key] = item
    return made


def error(kind, content):
    arguments, beside, attributes = content
    made = kind(*arguments)
    names = [name for base, of in {OSError: ("filename", "filename2"), ImportError: ("name", "path")}.items()
             if issubclass(kind, base) for name in of]  # fmt: skip
    for name, item in zip(names, beside, strict=True):
        setattr(made, name, item)
    made.__dict__.clear()
    made.__dict__.update(attributes or {})
    return made


def flag(kind, content):
    if isinstance(content, int):
        return kind(content)
    return functools.reduce(operator.or_, [kind[name] for name in content.split("|")])


def model(kind, content):
    fields = kind.__pydantic_fields__
    made = kind.model_construct()
    made.__dict__.clear()
    made.__dict__.update({name: item for name, item in content.items() if name in fields})
    if made.__pydantic_extra__ is not None:
        made.__pydantic_extra__.update({name: item for name, item in content.items() if name not in fields})
    return made


def made_of(kind):
    return lambda content: kind(*content)


def kinds(make, *classes):
    return {f"{kind.__module__}.{kind.__qualname__}": functools.partial(make, kind) for kind in classes}


def pure(name):
    return {f"pathlib.{name}": getattr(pathlib, name), f"pathlib._local.{name}": getattr(pathlib, name)}


ERRORS = (
    ValueError,
    KeyError,
    FileNotFoundError,
    OSError,
    ImportError,
    ExceptionGroup,
    UnicodeDecodeError,
    StopIteration,
)

MAKE = {
    "builtins.bytes": letters,
    "builtins.bytearray": lambda content: bytearray(letters(content)),
    "builtins.memoryview": view,
    "builtins.complex": complex,
    "builtins.range": made_of(range),
    "builtins.slice": made_of(slice),
    "builtins.ellipsis": lambda _: ...,
    "datetime.datetime": lambda content: dt.datetime.fromisoformat(content[0]).replace(fold=content[1]),
    "datetime.time": lambda content: dt.time.fromisoformat(content[0]).replace(fold=content[1]),
    "datetime.date": dt.date.fromisoformat,
    "datetime.timedelta": made_of(dt.timedelta),
    "decimal.Decimal": decimal.Decimal,
    "fractions.Fraction": made_of(fractions.Fraction),
    "uuid.UUID": uuid.UUID,
    "re.Pattern": made_of(re.compile),
    "functools.partial": lambda content: functools.partial(content[0], *content[1], **content[2]),
    "pydantic_core._pydantic_core.Url": lambda content: pydantic.HttpUrl(content)._url,
    "builtins.type": {"builtins.int": int, "builtins.dict": dict, "decimal.Decimal": decimal.Decimal}.get,
    "builtins.module": {".json": json, ".re": re, ".math": math, ".builtins": builtins}.get,
    "builtins.function": {"json.dumps": json.dumps, "re.compile": re.compile}.get,
    "builtins.builtin_function_or_method": lambda content: getattr(content[1], content[0].rpartition(".")[2]),
    "types.SimpleNamespace": lambda content: types.SimpleNamespace(**(content or {})),
    **pure("PurePosixPath"), **pure("PureWindowsPath"), **pure("PosixPath"),
    **kinds(lambda kind, content: kind[content], Colour),
    **kinds(lambda kind, content: kind(content), Word, Mixed, Level, Bits, Text, Count, Ratio, Tags),
    **kinds(lambda kind, content: kind(letters(content)), Octets),
    **kinds(flag, Mode),
    **kinds(lambda kind, content: kind(**content), Point, Place),
    **kinds(model, Model, Open, Box[int], Box[str]),
    **kinds(fresh, Plain, Slotted, Both, pydantic.HttpUrl),
    **kinds(error, Problem, *ERRORS),
}  # fmt: skip


def typed(value):
    """What makes a value equal to another, with its type beside it: 1, 1.0 and True differ; lists and tuples are one."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if value is None or kind is bool:
        return name, repr(value)
    if isinstance(value, (list, tuple)):
        return "list", tuple(map(typed, value))
    if isinstance(value, dict):
        return "dict", frozenset((typed(key), typed(item)) for key, item in value.items())
    return name, state(value)


def state(value):  # noqa: C901, PLR0911, PLR0912  (one case for each kind)
    match value:
        case enum.Enum():
            return typed(value.value)
        case float():
            return float.hex(value)
        case int():
            return int(value)
        case str():
            return str.__str__(value)
        case bytes() | bytearray():
            return bytes(value)
        case set() | frozenset():
            return frozenset(map(typed, value))
        case memoryview():
            return value.format, value.shape, value.tobytes()
        case complex():
            return value.real.hex(), value.imag.hex()
        case range() | slice():
            return value.start, value.stop, value.step
        case dt.datetime() | dt.time():
            return value.replace(tzinfo=None).isoformat(), value.utcoffset(), value.fold
        case decimal.Decimal():
            return value.as_tuple()
        case BaseException():
            beside = [getattr(value, each, None) for each in ("filename", "filename2", "name", "path")]
            return typed([value.args, beside, value.__dict__])
        case functools.partial():
            return typed([value.func, value.args, value.keywords])
        case re.Pattern():
            return typed([value.pattern, value.flags])
        case pydantic.BaseModel():
            return typed([value.__dict__, value.__pydantic_extra__ or {}])
        case pydantic.HttpUrl():
            return str(value)
        case Plain() | types.SimpleNamespace():
            return typed(value.__dict__)
        case Slotted():
            slots = [
                value._Slotted__private,
                getattr(value, "shown", None),
                Slotted.shown,
                type(value).shown,
            ]
            slots[2:] = [slot.__get__(value) if hasattr(value, "shown") else None for slot in slots[2:]]
            return typed([*slots, getattr(value, "__dict__", {})])
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return typed({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        case _:  # equal to themselves and their copies: dates, differences, paths, ids, fractions, types, functions
            return value


# ------------------------------------------------------------------------------------------------- generated values

STRINGS = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates and controls included
FLOATS = st.floats(allow_nan=False)
OFFSETS = st.integers(-86_399, 86_399).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
PLAIN = st.none() | st.booleans() | st.integers() | FLOATS | STRINGS
KEYS = (  # may be keys and members of sets
    PLAIN
    | st.binary(max_size=8)
    | st.sampled_from([*Colour, *Word, *Mixed, *Level, *Bits, Mode(0), Mode.READ, Mode.READ | Mode.RUN, Mode(7), ...])
    | st.builds(Text, STRINGS) | st.builds(Count, st.integers()) | st.builds(Ratio, FLOATS)
    | st.builds(Octets, st.binary(max_size=4))
    | st.builds(pathlib.PurePosixPath, st.text("ab./ ", max_size=5)) | st.builds(pathlib.PureWindowsPath, st.just("a\\b"))
    | st.dates() | st.datetimes(timezones=st.none() | OFFSETS) | st.datetimes().map(lambda d: d.replace(fold=1))
    | st.times(timezones=st.none() | OFFSETS) | st.times().map(lambda t: t.replace(fold=1)) | st.timedeltas()
    | st.decimals(allow_nan=False) | st.fractions() | st.uuids() | st.complex_numbers(allow_nan=False)
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
    | st.sampled_from([int, dict, decimal.Decimal, json.dumps, json, len, math.sqrt, re.compile("a"), re.compile("a", re.IGNORECASE)])
    | st.sampled_from(["http://a/b", "http://a/c?d=1"]).map(pydantic.HttpUrl)
)  # fmt: skip


def nested(inner):
    held = st.lists(inner, max_size=4)
    names = st.dictionaries(st.sampled_from(["a", "b", "c d", "é"]), inner, max_size=3)
    return (
        held | held.map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(Point, inner, inner) | st.builds(Place, inner, inner)
        | st.builds(Model, x=inner, y=inner) | names.map(lambda said: Open(**said))
        | st.builds(Box[int], x=st.integers()) | st.builds(Box[str], x=STRINGS)
        | names.map(lambda said: Plain(**said)) | names.map(lambda said: types.SimpleNamespace(**said))
        | st.builds(Slotted, inner, inner) | st.builds(Both, inner, inner, z=inner)
        | held.map(lambda said: ValueError(*said)) | st.builds(Problem, inner, code=inner)
        | st.builds(OSError, st.just(2), inner, inner, st.none(), inner) | st.builds(ImportError, inner, name=STRINGS)
        | st.builds(lambda item: functools.partial(json.dumps, item, default=item), inner)
    )  # fmt: skip


UNORDERED = st.recursive(KEYS, lambda inner: st.frozensets(inner, max_size=3) | st.tuples(inner, inner), max_leaves=5)
LEAVES = (
    KEYS
    | st.frozensets(UNORDERED, max_size=3) | st.sets(UNORDERED, max_size=4) | st.frozensets(KEYS, max_size=2).map(Tags)
    | st.dictionaries(UNORDERED, KEYS, max_size=3)
    | st.binary(max_size=8).map(bytearray) | st.binary(max_size=8).map(memoryview)
    | st.binary(min_size=8, max_size=8).map(lambda b: memoryview(b).cast("H", (2, 2)))
    | st.builds(slice, st.none() | st.integers(), st.integers(), st.none() | st.integers())
)  # fmt: skip
VALUES = st.recursive(LEAVES, nested, max_leaves=8)

# A universe so small that equal pairs are as common as near misses.
FEW = st.sampled_from([0, 1, True, None, 1.0, -0.0, 0.0, "1", "", b"1", b"", Level.LOW, Text("1"), Count(1), Ratio(-0.0), Ratio(0.0)])  # fmt: skip
SMALL = st.recursive(
    FEW,
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(FEW, inner, max_size=2)
        | st.sets(FEW, max_size=2) | st.frozensets(FEW, max_size=2) | st.builds(Point, inner) | st.builds(Place, inner)
        | st.builds(Plain, a=inner) | st.builds(ValueError, inner)
    ),
    max_leaves=3,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(VALUES)
def test_a_value_is_made_again_from_its_text(value):
    """A decoder that knows only the text makes an equal typed value, so no two typed values share a text."""
    text, whole = canonical(value)
    assert whole
    assert typed(Decoder(text).whole()) == typed(value)


@settings(max_examples=1000, deadline=None)
@given(SMALL, SMALL)
def test_text_is_equal_exactly_where_typed_values_are(one, other):
    """Two values have one text if and only if they are equal with their types."""
    assert (canonical(one) == canonical(other)) == (typed(one) == typed(other))


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_was_made_again_has_the_same_text(value):
    """Text to value to text is the identity: nothing of a text is lost on the way."""
    text = canonical(value).text
    assert canonical(Decoder(text).whole()).text == text


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.randoms())
def test_key_order_is_irrelevant(value, random):
    """A dict and its reordered twin, nested or not, have one text."""
    pairs = list(value.items())
    random.shuffle(pairs)
    assert canonical(dict(pairs)) == canonical(value)
    assert canonical([dict(pairs)]) == canonical([value])


def is_hashable(value):
    try:
        hash(value)
    except (TypeError, ValueError):
        return False
    return True


ONE_OF_EACH = [
    None, True, 1, 1.5, "a", [1], (1,), {"a": 1}, {1: 2, "1": 2, None: 0, (1, b"1"): 0}, {1}, frozenset({(1,)}), Tags({1}),
    b"a", bytearray(b"a"), memoryview(b"a"), memoryview(b"abcd").cast("H"), memoryview(b"abcd")[::2], Octets(b"a"), Point(1), Place(1, 2),
    Model(x=Model()), Open(x=1, y=2), Box[int](x=1), Box[str](x="1"), Colour.RED, Word.ONE, Mixed.ONE, Level.LOW, Mode.READ | Mode.RUN, Mode(0),
    Bits.READ | Bits.WRITE, Text("a"), Count(1), Ratio(-0.0), pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a"), pathlib.Path("a"),
    dt.datetime.fromisoformat("2024-01-02T03:04:05.000006"), dt.datetime(2024, 1, 2, tzinfo=dt.UTC), dt.datetime.fromisoformat("2024-10-27T02:30").replace(fold=1),
    dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(minutes=-90, seconds=1))), dt.date(2024, 1, 2), dt.time(1, 2, fold=1),
    dt.time(1, tzinfo=dt.UTC), dt.timedelta(-1, 2, 3), decimal.Decimal("1.00"), decimal.Decimal("-0"), decimal.Decimal("sNaN7"),
    decimal.Decimal("1E+999999"), uuid.UUID(int=1), fractions.Fraction(-1, 3), fractions.Fraction(1 << 20_000, 3), 1j, complex(-0.0, -0.0),
    range(1, 9, 3), slice(1, None), ..., ValueError("x", [1]), Problem("x", code=1), OSError(2, "gone", "a", None, "b"), OSError("x"),
    FileNotFoundError(2, "gone"), ImportError("x", name="a", path="b"), ExceptionGroup("x", [ValueError(1)]), StopIteration(1),
    UnicodeDecodeError("utf-8", b"a", 0, 1, "no"), Plain(a=1), Slotted(1, 2), Slotted(1, None), Both(1, 2, z=3), re.compile("a", re.IGNORECASE),
    types.SimpleNamespace(a=1), functools.partial(json.dumps, 1, indent=2), pydantic.HttpUrl("http://a/b"), int, json.dumps, json, len,
]  # fmt: skip


@pytest.mark.parametrize("value", ONE_OF_EACH, ids=lambda value: type(value).__name__)
def test_each_kind_is_made_again_from_its_text(value):
    """One value of each kind that has a form of its own: alone, as an item, and where it can be hashed as a key."""
    assert typed(Decoder(canonical(value).text).whole()) == typed(value)
    assert typed(Decoder(canonical([value, {"a": value}]).text).whole()) == typed([value, {"a": value}])
    if is_hashable(value):
        assert typed(Decoder(canonical({value: 1}).text).whole()) == typed({value: 1})


def test_values_of_different_kinds_are_apart():
    """No two values of the table share a text, but for the list and the tuple."""
    shared = [
        [one, other]
        for one, other in itertools.combinations(ONE_OF_EACH, 2)
        if canonical(one).text == canonical(other).text
    ]
    assert shared == [[[1], (1,)]]


def test_integers_of_every_size_are_exact():
    """Huge integers, positive or not, are written in full and apart from their neighbours."""
    for bits in (64, 4095, 4096, 4097, 200_000):
        for value in (1 << bits, -(1 << bits), (1 << bits) + 1):
            assert Decoder(canonical([value]).text).whole() == [value]


@pytest.mark.parametrize("name", ["A,1", "A]", "A(1)", 'A("x")', "A[int, str]", "A:1", "A}", 'A"', "A b", "!A", ""])
def test_the_name_of_a_class_cannot_be_taken_for_content(name):
    """A class whose name holds the signs of the form, as those of generic models do, is quoted."""
    odd, plain = type(name, (), {})(), type("A", (), {})()
    texts = {canonical(value).text for value in ([odd], [plain], [plain, 1], [[plain]], {"a": odd}, {"a": plain})}
    assert len(texts) == 6
    if name:
        assert json.dumps(f"{__name__}.{name}") in canonical(odd).text
