"""``classify``: stops nothing. Its place in the chain says that class and risk are published."""

from __future__ import annotations


class Classify:
    """Asks for the class to be computed for each call, whether or not a rule needs it."""

    name = "classify"
    needs = ("class",)
