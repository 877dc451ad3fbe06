"""Arguments and results as canonical text, and that text as a signature or a fingerprint.

JSON-like values become JSON with sorted keys, exactly typed: 1, 1.0, true and "1" stay apart, and a key that is no
string is written as itself ({1:2}). Everything else has a form that begins with ``!`` and its qualified type. Equal
text means an equal typed value; a decoder in the tests proves it. Nothing here ever raises, whatever the value does.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_toolguard.core.masks import MASK_LIMIT, digits, numbers, volatile
from otel_toolguard.core.typed_forms import typed_form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORM_VERSION = 1
TEXT_LIMIT = 1 << 20  # characters of canonical text that are digested in full
ENDS = 4096  # characters kept of each end of what is longer
DEPTH_LIMIT = 64
_FLAT_ITEMS = 256  # a dict of more items is written by the general way, which watches its length
_PLAIN_NAME = re.compile(r"[\w.<>]*").fullmatch  # any other is quoted: Pair[int, str] would look like items
_PLAIN_INT_BITS = 4096  # beyond it Python may refuse to write an int in decimal

Mask = "Callable[[str], str]"


class Canonical(NamedTuple):
    """Canonical text; ``whole`` is False if something was left out, so that equal text may hide a difference."""

    text: str
    whole: bool


_new = tuple.__new__  # what NamedTuple's own constructor comes to, in half its time


def canonical(value: Any, mask: Callable[[str], str] | None = None, *, mask_numbers: bool = False) -> Canonical:
    """The canonical text of any value.

    Args:
        value: Anything.
        mask: Applied to the strings inside, up to 16 KiB in all, before they are written.
        mask_numbers: True to write every number as ``#``.
    """
    kind = type(value)
    if kind is str and len(value) <= MASK_LIMIT:  # the common result
        return Canonical(encode_basestring(value if mask is None else mask(value)), True)
    if value is None:
        return Canonical("null", True)
    if kind is dict and mask is None and not mask_numbers:
        text = _flat(value)
        if text is not None:
            return _new(Canonical, (text, True))
    writer = _Writer(mask, mask_numbers=mask_numbers)
    try:
        writer.write(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a hostile object, or too deep for the interpreter
        writer.part("!unreadable")
        writer.whole = False
    text = "".join(writer.parts)
    if len(text) > TEXT_LIMIT:
        return Canonical(f"!long{len(text)}{text[:ENDS]}{text[-ENDS:]}", False)
    return Canonical(text if writer.whole else text + "!part", writer.whole)  # never the text of what is whole


def _flat(value: dict[Any, Any]) -> str | None:
    """The canonical text of a small dict of scalars, which most arguments are; None if it is anything else."""
    if len(value) > _FLAT_ITEMS:
        return None
    names = tuple(value)
    for name in names:
        if type(name) is not str:  # it may equal a text and yet be written in another way
            return None
    plan = _plans.get(names) or _plan(names)
    if plan is None:
        return None if names else "{}"
    text = ""
    room = MASK_LIMIT
    try:
        for name, start in plan:
            item = value[name]
            kind = type(item)
            if kind is str and len(item) <= room:
                room -= len(item)
                text += start + encode_basestring(item)
            elif kind is int and item.bit_length() <= _PLAIN_INT_BITS:
                text += f"{start}{item}"
            elif word := _word(item):
                text += start + word
            else:
                return None
    except KeyError:  # another thread changed it
        return None
    return text + "}"


def _word(item: Any) -> str:
    """null, true, false or a float as it is written; "" for anything else."""
    if item is None:
        return "null"
    kind = type(item)
    if kind is bool:
        return "true" if item else "false"
    return float.__repr__(item) if kind is float else ""


_plans: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}  # the names of a call's arguments, as they are written
_PLANS_KEPT = 512
_PLAN_LIMIT = 512  # characters of all its names together


def _plan(names: tuple[str, ...]) -> tuple[tuple[str, str], ...] | None:
    """For each name, in the order of what is written, what stands before its value; None if there is none to keep."""
    if not names or sum(map(len, names)) > _PLAN_LIMIT:
        return None
    # By the names as they are written, none of which is the beginning of another.
    written = sorted((encode_basestring(name) + ":", name) for name in names)
    plan = tuple((name, ("," if at else "{") + text) for at, (text, name) in enumerate(written))
    if len(_plans) >= _PLANS_KEPT:
        _plans.clear()
    _plans[names] = plan
    return plan


class _Writer:
    """Writes one value, within a budget of characters."""

    def __init__(self, mask: Callable[[str], str] | None, *, mask_numbers: bool) -> None:
        self.parts: list[str] = []
        self.whole = True
        self._mask = mask
        self._mask_room = MASK_LIMIT
        self._numbers = mask_numbers
        self._room = TEXT_LIMIT
        self._path: dict[int, int] = {}

    def part(self, text: str) -> None:
        self.parts.append(text)
        self._room -= len(text)

    def write(self, value: Any) -> None:
        kind = type(value)
        if kind is str:
            self._string(value)
        elif value is None:
            self.part("null")
        elif kind is bool:
            self.part("true" if value else "false")
        elif kind is int:
            self.part("#" if self._numbers else _integer(value))
        elif kind is float:
            self.part("#" if self._numbers else float.__repr__(value))
        elif isinstance(value, (dict, list, tuple)) or kind is set or kind is frozenset:
            self._nested(value)
        else:
            self._other(value)

    def _string(self, value: str) -> None:
        if self._mask is not None and self._mask_room > 0:
            head = value[: self._mask_room]
            self._mask_room -= len(head)
            value = self._mask(head) + value[len(head) :]
        if len(value) > self._room:
            self.whole = False
            value = f"{value[:ENDS]}…{len(value)}…{value[-ENDS:]}"
        self.part(encode_basestring(value))

    def _nested(self, value: Any) -> None:
        depth = len(self._path)
        above = self._path.get(id(value))
        if above is not None:
            self.part(f"!cycle{depth - above}")
        elif depth >= DEPTH_LIMIT:
            self.whole = False
            self.part(f"!deep{len(value)}")
        else:
            self._path[id(value)] = depth
            if isinstance(value, dict):
                self._mapping(value)
            elif isinstance(value, (list, tuple)):
                self._items("[", value, "]")
            else:
                self._set(value)
            del self._path[id(value)]

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        # Pairs, not a dict: two keys that differ may be written alike (NaN, strangers without a state).
        pairs = [(self._aside(key, mask=False), item) for key, item in self._bounded(value.items())]
        pairs.sort(key=_key_text)
        self.part("{")
        comma = ""
        for key, item in pairs:
            if self._room < 0:
                self.whole = False
                break
            self.part(comma)
            self.parts.append(key)  # its room is used up already
            self.part(":")
            self.write(item)
            comma = ","
        self.part("}")

    def _items(self, start: str, value: Any, end: str) -> None:
        self.part(start)
        comma = ""
        for item in self._bounded(value):
            self.part(comma)
            self.write(item)
            comma = ","
        self.part(end)

    def _set(self, value: Any) -> None:
        """Sets have no order of their own, so each item is written apart and the texts are sorted."""
        items = self._bounded(value)
        if self._mask is not None:  # it reaches so many characters and no further, so the order comes first
            room = self._room
            pairs = sorted(((self._aside(item, mask=False), item) for item in items), key=_key_text)
            self._room = room
            items = (item for _, item in pairs)
        texts = sorted(self._aside(item) for item in items)
        self.part(f"!{type(value).__name__}[")
        self.parts.append(",".join(texts))  # its room is used up already
        self._room -= len(texts)
        self.part("]")

    def _aside(self, value: Any, *, mask: bool = True) -> str:
        """The text of a value that is not written in place; it uses up the same budget."""
        kept, self.parts = self.parts, []
        masks = self._mask, self._numbers
        if not mask:
            self._mask, self._numbers = None, False
        try:
            self.write(value)
            return "".join(self.parts)
        finally:
            self.parts = kept
            self._mask, self._numbers = masks

    def _bounded(self, values: Any) -> Any:
        """The values, as long as there is room for more."""
        for value in values:
            if self._room < 0:
                self.whole = False
                return
            yield value

    def _other(self, value: Any) -> None:
        depth = len(self._path)
        above = self._path.get(id(value))
        if above is not None:
            self.part(f"!cycle{depth - above}")
            return
        if depth >= DEPTH_LIMIT:
            self.whole = False
            self.part("!deep")
            return
        self._path[id(value)] = depth
        name, content, known = typed_form(value)
        self.whole = self.whole and known
        self.part(f"!{name if _PLAIN_NAME(name) else encode_basestring(name)}")
        if content is not None:
            self.part("(")
            self.write(content)
            self.part(")")
        del self._path[id(value)]


def _key_text(pair: tuple[str, Any]) -> str:
    return pair[0]


def _integer(value: int) -> str:
    return int.__repr__(value) if value.bit_length() <= _PLAIN_INT_BITS else hex(value)


class Signer:
    """Makes signatures and fingerprints under one key.

    Args:
        key: Secret bytes, at most 64; without it nobody can find the arguments behind a signature by trying.
    """

    def __init__(self, key: bytes) -> None:
        self._start = hashlib.blake2b(digest_size=8, key=key[:64])
        self._copy = self._start.copy
        named = self._start.copy()
        named.update(b"key id")
        self.key_id = named.hexdigest()

    def digest(self, text: str) -> str:
        """16 hex digits."""
        state = self._copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    def signature(self, tool: str, text: str, world: str | None = None) -> str:
        """``{tool}:{16 hex}`` of canonical arguments and, where it matters, the working directory."""
        state = self._copy()
        state.update((text if world is None else text + encode_basestring(world)).encode("utf-8", "surrogatepass"))
        return f"{tool}:{state.hexdigest()}"


@lru_cache(maxsize=1024)
def signer(key: bytes) -> Signer:
    """The signer of a key."""
    return Signer(key)


class Fingerprints(NamedTuple):
    """A result's three fingerprints; None where it was too large to be compared, "" where nobody asked."""

    exact: str | None
    volatile: str | None
    digits: str | None


def fingerprints(sign: Signer, value: Any, *, failed: bool, needs: frozenset[str]) -> Fingerprints:
    """Fingerprints of a result; of a failure, pass its type and message as ``value``.

    Args:
        sign: Makes the digests.
        value: The result, or ``[type, message]``.
        failed: Part of each fingerprint.
        needs: Which of "exact", "volatile" and "digits" are asked for.
    """
    flag = "!" if failed else ""
    if type(value) is str and len(value) <= MASK_LIMIT:  # the common result
        return _of_text(sign, value, needs, flag)
    plain = canonical(value)
    if not plain.whole:
        return Fingerprints(None, None, None)
    exact = sign.digest(flag + plain.text) if "exact" in needs else ""
    if "volatile" not in needs and "digits" not in needs:
        return Fingerprints(exact, "", "")
    masked = canonical(value, volatile)
    numberless = canonical(value, digits, mask_numbers=True) if "digits" in needs else None
    first = _print(sign, flag, masked)
    if numberless is None:
        return Fingerprints(exact, first, "")
    return Fingerprints(exact, first, first if numberless == masked else _print(sign, flag, numberless))


def _of_text(sign: Signer, text: str, needs: frozenset[str], flag: str = "") -> Fingerprints:
    """``fingerprints`` of a text of at most 16 KiB, which the masks go through once; what they leave has one digest."""
    exact = sign.digest(flag + encode_basestring(text)) if "exact" in needs else ""
    if "volatile" not in needs and "digits" not in needs:
        return _new(Fingerprints, (exact, "", ""))
    words = volatile(text)
    first = exact if exact and words == text else sign.digest(flag + encode_basestring(words))
    if "digits" not in needs:
        return _new(Fingerprints, (exact, first, ""))
    bare = numbers(words)
    second = first if bare == words else sign.digest(flag + encode_basestring(bare))
    return _new(Fingerprints, (exact, first, second))


def _print(sign: Signer, flag: str, form: Canonical) -> str | None:
    """None if the marks made the text too long to be compared."""
    return sign.digest(flag + form.text) if form.whole else None
