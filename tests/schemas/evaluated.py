"""The same tools, their annotations evaluated where they stand."""

import functools
from typing import Annotated, Literal

from pydantic import BaseModel, Field


class Place(BaseModel):
    """Where something is.

    Attributes:
        city: Its name.
        country: Two letters.
    """

    city: str = Field(description="The city's name.")
    country: Literal["IT", "FR"] | None = None


def plain(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> str:
    """Says what the weather will be.

    Args:
        city: Where.
        days: How far ahead.
        unit: Of temperatures.
    """
    return f"{city} {days} {unit}"


async def later(
    city: Annotated[str, Field(description="Where.", min_length=1)], places: list[Place] | None = None
) -> str:
    """Says it later."""
    return f"{city} {places}"


def model(place: Place, tags: dict[str, int] | None = None) -> list[str]:
    """Takes a model."""
    return [place.city]


def without_words(q: str) -> str:
    return q


def keyword_only(*, q: str, n: float = 0.5) -> str:
    """Takes its arguments by name."""
    return q * int(n)


def returns_a_coroutine(q: str):
    """Is plain, and returns a coroutine."""
    return later(q)


def stream(q: str, n: int = 3):
    """Yields."""
    yield from (q for _ in range(n))


async def stream_later(q: str, n: int = 3):
    """Yields, later."""
    for _ in range(n):
        yield q


@functools.wraps(plain)
def decorated(*args, **kwargs):
    return plain(*args, **kwargs)


class Desk:
    """Tools that are methods."""

    def method(self, q: str, place: Place | None = None) -> str:
        """Looks."""
        return q

    async def method_later(self, q: str) -> str:
        """Looks, later."""
        return q

    @classmethod
    def of_class(cls, q: str) -> str:
        """Looks in general."""
        return q

    @staticmethod
    def static(q: Annotated[str, Field(description="What.")]) -> str:
        """Looks in public."""
        return q


class Heir(Desk):
    """Tools that are inherited, and one that overrides."""

    def method(self, q: str, place: Place | None = None) -> str:
        """Looks better."""
        return super().method(q, place)


TOOLS = {
    "plain": plain,
    "async": later,
    "a model": model,
    "no docstring": without_words,
    "keywords": keyword_only,
    "returns a coroutine": returns_a_coroutine,
    "generator": stream,
    "async generator": stream_later,
    "decorated": decorated,
    "method": Desk().method,
    "async method": Desk().method_later,
    "classmethod": Desk.of_class,
    "staticmethod": Desk.static,
    "inherited": Heir().method_later,
    "overriding": Heir().method,
}
