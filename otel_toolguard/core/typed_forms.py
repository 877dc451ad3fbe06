"""How values that JSON does not know are written: a qualified type name and what makes two of them equal.

Classes are recognised by name, so that nothing has to be imported, and never by their repr, which may hold an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OCTETS_LIMIT = 1 << 18  # bytes that are written in full
ENDS = 4096  # bytes kept of each end of what is longer
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or by an extension that imitates one


def typed_form(value: Any) -> tuple[str, Any, bool]:
    """(qualified type, content or None, whether the content says all there is to know)."""
    kind = type(value)
    name = _name(kind)
    for base in kind.__mro__:
        form = _FORMS.get(f"{base.__module__}.{base.__qualname__}")
        if form is _octets and len(value) > OCTETS_LIMIT:
            return name, [len(value), *map(_octets, (value[:ENDS], value[-ENDS:]))], False
        if form is not None:
            return name, form(value), True
    if isinstance(value, type) or kind.__name__ in ("function", "builtin_function_or_method", "module"):
        return name, _name(value), True
    if hasattr(kind, "__dataclass_fields__"):
        return name, {field: getattr(value, field, None) for field in kind.__dataclass_fields__}, True
    if hasattr(kind, "model_fields") and hasattr(value, "__pydantic_fields_set__"):
        return name, {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}, True
    return name, _state(value), _shows_its_state(kind)


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"


def _shows_its_state(kind: type) -> bool:
    """Whether all of a stranger's state is in attributes: a class written in C keeps its own out of sight."""
    return kind is not object and all(base.__flags__ & _HEAP_TYPE for base in kind.__mro__[:-1])


def _state(value: Any) -> Any:
    """Instance attributes, the only state of a stranger that is stable; None if it has none to show."""
    state = dict(getattr(value, "__dict__", None) or {})
    for base in type(value).__mro__:
        for slot, descriptor in base.__dict__.items():  # not __slots__: it holds private names unmangled
            if type(descriptor).__name__ == "member_descriptor":
                try:
                    state[f"{base.__qualname__}.{slot}"] = descriptor.__get__(value)
                except AttributeError:  # an empty slot
                    continue
    return state or None


def _error(value: Any) -> list[Any]:
    """The file name of an OSError is not among its arguments, and other errors carry attributes."""
    return [*value.args, getattr(value, "filename", None), dict(vars(value)) or None]


def _text(value: Any) -> str:
    return str(value)


# Not hex: the masks for results would take it for an id, and two different pictures for one.
_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


def _octets(value: Any) -> str:
    return bytes(value).hex().translate(_LETTERS)


def _array(value: Any) -> list[Any]:
    # The bytes of an array of objects are addresses.
    return [str(value.dtype), list(value.shape), value.tolist() if value.dtype.hasobject else _octets(value.tobytes())]


_FORMS: dict[str, Callable[[Any], Any]] = {
    "builtins.bytes": _octets,
    "builtins.bytearray": _octets,
    "builtins.memoryview": lambda v: [v.format, list(v.shape), _octets(v.tobytes())],
    "builtins.BaseException": _error,
    "builtins.complex": complex.__repr__,
    "builtins.range": lambda v: [v.start, v.stop, v.step],
    "builtins.slice": lambda v: [v.start, v.stop, v.step],
    "builtins.ellipsis": lambda _: None,
    "builtins.set": frozenset,
    "builtins.frozenset": lambda v: frozenset(iter(v)),
    "enum.Enum": lambda v: v.name if v.name is not None else v.value,
    "builtins.str": str.__str__,
    "builtins.int": lambda v: int.__add__(v, 0),
    "builtins.float": lambda v: float.__add__(v, 0.0),
    "pathlib.PurePath": _text,
    "pathlib._local.PurePath": _text,
    "datetime.datetime": lambda v: [v.isoformat(), v.fold],
    "datetime.date": lambda v: v.isoformat(),
    "datetime.time": lambda v: [v.isoformat(), v.fold],
    "datetime.timedelta": lambda v: [v.days, v.seconds, v.microseconds],
    "decimal.Decimal": _text,
    "fractions.Fraction": _text,
    "uuid.UUID": _text,
    "numpy.generic": lambda v: v.item(),
    "numpy.ndarray": _array,
}
