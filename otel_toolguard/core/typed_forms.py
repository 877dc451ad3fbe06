"""How values that JSON does not know are written: a qualified type name and what makes two of them equal.

Builtin types are known by themselves, all others by name, so that nothing has to be imported; never by their repr,
which may hold an address. No form reads a stranger's iterator to its end, for it may have none.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OCTETS_LIMIT = 1 << 18  # bytes, or items of an array of objects, that are written in full
ENDS = 4096  # of each end of what is longer
_POINTER = tuple.__itemsize__


class _Part(list[Any]):
    """Content that leaves something out."""


def typed_form(value: Any) -> tuple[str, Any, bool]:
    """(qualified type, content or None, whether the content says all there is to know)."""
    kind = type(value)
    name = _name(kind)
    for base in _mro(kind):
        form = _BUILTIN.get(base) or _NAMED.get(_name(base))
        if form is not None:
            content = form(value)
            return name, content, type(content) is not _Part
    fields = getattr(kind, "__dataclass_fields__", None)
    if type(fields) is dict:
        return name, {field: getattr(value, field, None) for field in fields}, True
    fields = getattr(kind, "__pydantic_fields__", None)
    if type(fields) is dict:
        said, extra = _attributes(value), getattr(value, "__pydantic_extra__", None)
        said = {field: said[field] for field in fields if field in said}  # the rest are cached properties
        return name, said | extra if type(extra) is dict else said, True
    return name, _state(value), kind is not object and _shows_its_state(kind, object)


def _mro(kind: type) -> tuple[type, ...]:
    return _MRO(kind)  # type: ignore[no-any-return]  # past a metaclass that answers itself


_MRO: Any = type.__dict__["__mro__"].__get__


def _name(thing: Any) -> str:
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", None)
    if name is None:
        name = getattr(thing, "__name__", "")
    return f"{module if type(module) is str else ''}.{name if type(name) is str else ''}"


def _shows_its_state(kind: type, base: type) -> bool:
    """Whether what a class adds to a base is in attributes: a class written in C keeps its own out of sight.

    What is in sight has a known size: a pointer for each slot, for the dict and for the list of weak references.
    """
    pointers = sum(1 for each in _mro(kind) for _ in _slots(each))
    pointers += (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return not kind.__itemsize__ and kind.__basicsize__ <= base.__basicsize__ + pointers * _POINTER


def _slots(base: type) -> list[tuple[str, Any]]:
    """Name and descriptor of each slot; not by ``__slots__``, which holds private names unmangled."""
    if "__slots__" not in base.__dict__:  # what looks like a slot in a class written in C need not be a value
        return []
    return [(name, slot) for name, slot in base.__dict__.items() if type(slot) is types.MemberDescriptorType]


def _attributes(value: Any) -> dict[Any, Any]:
    found = getattr(value, "__dict__", None)
    if type(found) is dict:
        return found.copy()
    return dict(dict.items(found)) if isinstance(found, dict) else {}  # past methods of its own


def _state(value: Any) -> dict[Any, Any] | None:
    """Instance attributes, the only state of a stranger that is stable; None if it has none to show."""
    state = _attributes(value)
    for level, base in enumerate(_mro(type(value))):
        for name, slot in _slots(base):
            try:
                state[level, name] = slot.__get__(value)  # two classes of one family may have slots of one name
            except AttributeError:  # an empty slot
                continue
    return state or None


_BESIDE = {OSError: ("filename", "filename2"), ImportError: ("name", "path")}


def _error(value: Any) -> list[Any]:
    """Arguments, what some errors say beside them, and attributes."""
    kind = type(value)
    builtin = next(base for base in _mro(kind) if base.__module__ == "builtins")
    said = [getattr(value, name) for base, names in _BESIDE.items() if issubclass(kind, base) for name in names]
    content = [list(_ARGUMENTS(value)), said, _state(value)]
    return content if _shows_its_state(kind, builtin) else _Part(content)


_ARGUMENTS: Any = BaseException.__dict__["args"].__get__


def _text(value: Any) -> str:
    kind: Any = type(value)
    if kind.__str__ is object.__str__:  # it goes by the name of another; what it says holds its address
        raise TypeError(_name(kind))
    return str(value)


# Not hex: the masks for results would take it for an id, and two different pictures for one.
_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


def _letters(value: Any) -> str:
    return memoryview(value).hex().translate(_LETTERS)


def _octets(value: Any) -> str | _Part:
    view = memoryview(value)
    if view.nbytes > OCTETS_LIMIT:
        return _Part([view.nbytes, _letters(view[:ENDS]), _letters(view[-ENDS:])])
    return _letters(view)


def _view(value: memoryview) -> list[Any]:
    form = [value.format, value.shape]
    return _Part(form) if value.nbytes > OCTETS_LIMIT else [*form, _letters(value)]


def _scalar(value: Any) -> list[Any]:
    """With its dtype, since one number is many times and dates; what Python has no number for is written as text."""
    item = value.item()
    return [_text(value.dtype), _text(value) if type(item) is type(value) else item]


def _array(value: Any) -> list[Any]:
    form = [_text(value.dtype), value.shape]
    if (value.size if value.dtype.hasobject else value.nbytes) > OCTETS_LIMIT:
        return _Part(form)
    # The bytes of an array of objects are addresses.
    return [*form, value.tolist() if value.dtype.hasobject else _letters(value.tobytes())]


_BUILTIN: dict[type, Callable[[Any], Any]] = {
    bytes: _octets,
    bytearray: _octets,
    memoryview: _view,
    BaseException: _error,
    complex: complex.__repr__,
    range: lambda v: [v.start, v.stop, v.step],
    slice: lambda v: [v.start, v.stop, v.step],
    type(...): lambda _: None,
    set: frozenset,
    frozenset: frozenset,
    str: str.__str__,
    int: lambda v: int.__add__(v, 0),
    float: float.__pos__,
    type: _name,
    types.FunctionType: _name,
    types.ModuleType: _name,
    types.BuiltinFunctionType: lambda v: [_name(v), v.__self__],
}

_NAMED: dict[str, Callable[[Any], Any]] = {
    "enum.Enum": lambda v: v.name if v.name is not None else v.value,
    "pathlib.PurePath": _text,
    "pathlib._local.PurePath": _text,
    "datetime.datetime": lambda v: [v.isoformat(), v.fold],
    "datetime.date": lambda v: v.isoformat(),
    "datetime.time": lambda v: [v.isoformat(), v.fold],
    "datetime.timedelta": lambda v: [v.days, v.seconds, v.microseconds],
    "decimal.Decimal": _text,
    "fractions.Fraction": lambda v: [v.numerator, v.denominator],
    "uuid.UUID": _text,
    "re.Pattern": lambda v: [v.pattern, v.flags],
    "functools.partial": lambda v: [v.func, v.args, v.keywords],
    "pydantic_core._pydantic_core.Url": _text,
    "pydantic_core._pydantic_core.MultiHostUrl": _text,
    "numpy.generic": _scalar,
    "numpy.ndarray": _array,
}
