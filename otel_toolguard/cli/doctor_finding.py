"""What ``otel-toolguard doctor`` found: words of one meaning each, and nothing in them that is a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from otel_toolguard.cli.check import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

Level = Literal["ok", "note", "warn", "fail"]
TEXT_SHOWN = 300
HIDDEN = "***"


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
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return HIDDEN
    if not parts.netloc and "@" in url:  # no address at all, so that nobody knows what stands before the @
        return f"{HIDDEN}@{one_line(url.rpartition('@')[2].partition('?')[0])}"
    shown = parts._replace(
        netloc=f"{HIDDEN}@{host}" if host != parts.netloc else host,
        query=HIDDEN if parts.query else "",
        fragment="",
    )
    return one_line(shown.geturl())


def one_line(text: object, most: int = TEXT_SHOWN) -> str:
    """The words on one line that steers no terminal, cut where they are too many."""
    flat = printable(" ".join(str(text).split()))
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
