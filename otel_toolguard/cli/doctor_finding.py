"""What ``otel-toolguard doctor`` found: words of one meaning each, and nothing in them that is a secret."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from otel_toolguard.cli.check import printable
from otel_toolguard.core.shapes import SECRET_NAME, SECRET_VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

Level = Literal["ok", "note", "warn", "fail"]
TEXT_SHOWN = 300
HIDDEN = "***"
_LOOKED_AT = 4096  # characters; much more than is shown, so that no cut goes through what would be known as a secret
_USER = re.compile(r"(:/+)\S*(?=@)")  # up to the last @: passwords may hold any sign, whatever the rules say
_NO_SECRETS = ("PWD", "OLDPWD")  # whose names sound like it
_KNOWN = 8  # characters from which the value of a variable with a secret name is looked for


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        level: ``ok``; ``note``: so it is, and nobody can say whether that was meant; ``warn``: may surprise; ``fail``:
            what is set will not do what it says, which makes the exit code 1.
        name: What it is about, one word or two.
        text: What is so.
        advice: What to do about it; empty if nothing has to be done.
        data: The same for machines.
    """

    level: Level
    name: str
    text: str
    advice: str = ""
    data: Mapping[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"level": self.level, "name": self.name, "text": self.text, "advice": self.advice, **self.data}


class Section(NamedTuple):
    """What belongs together."""

    title: str
    findings: list[Finding]


def shown_url(url: str) -> str:
    """An address without the secrets that one can hold: user, password, the values of its query."""
    scheme, slashes, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    user, at, place = rest.rpartition("@")
    place, asked, _ = place.partition("#")[0].partition("?")
    return one_line(f"{scheme}{slashes}{HIDDEN if user else ''}{at}{place}{asked}{HIDDEN if asked else ''}")


def one_line(text: object, most: int = TEXT_SHOWN) -> str:
    """The words on one line that steers no terminal, without what is known as a secret, cut where they are too many."""
    flat = printable(" ".join(without_secrets(str(text)[:_LOOKED_AT]).split()))
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def without_secrets(text: str) -> str:
    """The text without credentials of addresses, what has the form of a secret, and secrets of the environment."""
    text = SECRET_VALUE.sub(HIDDEN, _USER.sub(rf"\1{HIDDEN}", text))
    for name, value in os.environ.items():
        if len(value) >= _KNOWN and value in text and _sounds_secret(name) and not value.startswith(os.sep):
            text = text.replace(value, HIDDEN)
    return text


def _sounds_secret(name: str) -> bool:
    return name not in _NO_SECRETS and (SECRET_NAME.search(name) is not None or name.endswith("_KEY"))
