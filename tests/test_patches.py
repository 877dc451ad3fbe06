"""What an instrumentor replaces, and puts back."""

from __future__ import annotations

from otel_toolguard.adapter import Patches


class Base:
    def run(self):
        return "bare"


class Derived(Base):
    def run(self):
        return "derived"


def by(word):
    return lambda self: word


def test_an_attribute_of_a_class_is_put_back_object_by_object():
    """Methods, constructors and wrapped descriptors come back as the very objects that were there."""
    before, patches = dict(vars(Base)), Patches()
    patches.replace_attribute(Base, "run", by("ours"))
    patches.replace_attribute(Derived, "run", by("ours too"))
    assert (Base().run(), Derived().run()) == ("ours", "ours too")
    patches.restore()
    assert all(vars(Base)[name] is value for name, value in before.items())
    assert (Base().run(), Derived().run()) == ("bare", "derived")


def test_what_others_put_over_it_stays():
    """Restoring takes back ours alone: a wrapper that somebody put over it since is theirs."""
    original, patches = vars(Base)["run"], Patches()
    patches.replace_attribute(Base, "run", by("ours"))
    theirs = by("theirs")
    Base.run = theirs
    patches.restore()
    assert vars(Base)["run"] is theirs
    Base.run = original


def test_replacing_twice_ends_with_the_first():
    """Two replacements of one name are taken back newest first, down to the original."""
    original, patches = vars(Base)["run"], Patches()
    for word in ("one", "two"):
        patches.replace_attribute(Base, "run", by(word))
    assert Base().run() == "two"
    patches.restore()
    assert vars(Base)["run"] is original
    patches.restore()
    assert vars(Base)["run"] is original
