"""One call through several guards, by the pieces that adapters share."""

import asyncio
import contextvars
import secrets

import pytest

from otel_toolguard import Policy, Session, SessionStopped, guard_tool
from otel_toolguard.adapter import Answers, AnyOf, FrameworkRuns, GuardedTool, here, once, telling
from otel_toolguard.testing import capture_spans

POLICY = Policy(plugins=[{"plugin": "call_ceiling", "run": 9}, {"plugin": "tool_stats"}])


class Unlike:
    """A value that refuses to be compared."""

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


class Layer:
    """A guard of one layer, which counts what nothing further out counts."""

    def __init__(self, body=None):
        self.runs, self.run, self.body = FrameworkRuns(), secrets.token_hex(4), body

    async def call(self, name, arguments, inner, token=None):
        def admit():
            attempt = GuardedTool(name).attempt(self.runs.place(self.run, None), arguments or {}, call_id=None)
            attempt.body = self.body
            return attempt

        return await once(id(self), name, arguments, token=token, admit=admit, answers=lambda _: Answers(), send=inner)


async def said(_attempt):
    return "said"


def counts(work):
    """What a session counts while something is done in it, by tool."""
    with Session(policy=POLICY) as session:
        asyncio.run(work())
        return {name: row["calls"] for name, row in session.report()["tools"].items()}


@pytest.mark.parametrize(
    ("outer", "inner", "together"),
    [
        (("search", {"q": 1}), ("search", {"q": 1}), True),
        (("server__search", {"q": 1}), ("search", {"q": 1}), True),
        (("server__search", {"q": 1, "lang": "en"}), ("search", {"q": 1}), True),
        (("search", {"q": 1}), ("search", None), True),
        (("research", {"q": 1}), ("search", {"q": 1}), False),
        (("search", {"q": 1}), ("search", {"q": 2}), False),
        (("search", {"q": 1}), ("search", {"q": Unlike()}), False),
        (("search", {"q": 1}), ("", {"q": 1}), False),
        (("search", {"q": 1}), ("look", {"q": 1}), False),
    ],
)
def test_layers_recognise_a_call_by_tool_and_arguments(outer, inner, together):
    """The same tool, perhaps known by a prefix further out, asked with the same arguments is one call through layers."""
    far, near = Layer(), Layer()

    async def work():
        assert await far.call(*outer, lambda _: near.call(*inner, said)) == "said"

    assert sum(counts(work).values()) == (1 if together else 2)


def test_call_within_the_same_call_is_another():
    """What comes through a layer again, while on its way through it, is a call of its own; a retry after it is none."""
    layer, outer = Layer(), Layer()

    async def again(_attempt):
        return await layer.call("search", {}, said)

    async def tries(_attempt):
        return [await layer.call("search", {}, said) for _ in range(2)]

    assert counts(lambda: layer.call("search", {}, again)) == {"search": 2}
    assert counts(lambda: outer.call("search", {}, tries)) == {"search": 1}


@pytest.mark.parametrize(("token", "together"), [("t", True), ("other", False), (7, False), (["t"], False)])
def test_token_is_known_in_another_task(token, together):
    """A layer that works in another task, with another context, knows a call by the token that its request carries."""
    far, near, empty, seen = Layer(), Layer(), contextvars.Context(), []

    async def handled():
        async def body(attempt):
            seen.append(here.get().inside is attempt)
            return "said"

        return await near.call("search", {}, body, token=token)

    async def send(attempt):
        with telling("t", attempt):
            return await asyncio.create_task(handled(), context=empty)

    assert counts(lambda: far.call("search", {}, send)) == {"search": 1}  # the other, if any, is outside the block
    assert seen == [True]
    assert near.runs.place(near.run, None).session.report()["calls"] == (0 if together else 1)


def test_any_guarded_function_of_the_name_is_the_body():
    """With AnyOf for a body the decorator of that tool only enriches; it knows functions of other tools apart."""

    @guard_tool
    def search(q):
        return q

    @guard_tool
    async def look():
        return search("x")

    async def body(_attempt):
        return search("x"), await look()

    with capture_spans() as captured:
        assert counts(lambda: Layer(AnyOf("server__search")).call("server__search", {}, body)) == {
            "server__search": 1, "look": 1, "search": 1,
        }  # fmt: skip
    assert len(captured.spans()) == 3


@pytest.mark.parametrize(
    ("known", "name", "covers"),
    [("search", "search", True), ("a.search", "search", True), ("research", "search", False), ("search", "", False),
     ("search", "a.search", False)],
)  # fmt: skip
def test_name_of_any_body(known, name, covers):
    """A name is covered by itself and by one that ends in it behind a mark that is no letter or digit."""
    assert AnyOf(known).covers(name) is covers


def test_dropped_call_leaves_nothing_behind():
    """A call that is closed half-way, from another context, is no longer on its way through the layer."""
    layer, outer = Layer(), Layer()

    async def waits(_attempt):
        await asyncio.sleep(0)

    async def through(_attempt):
        return await layer.call("search", {}, waits)

    with Session(policy=POLICY) as session:
        call = outer.call("search", {}, through)
        contextvars.copy_context().run(call.send, None)
        call.close()
        assert (session.report()["calls"], session.report()["in_flight"]) == (1, 0)
        asyncio.run(layer.call("search", {}, said))
        assert session.report()["calls"] == 2


def test_refused_call_is_answered_and_not_sent():
    """A layer that refuses answers by what it was given for that."""

    class Raising(Answers):
        def refusal(self, error):
            raise error

    def admit():
        return GuardedTool("search").attempt(FrameworkRuns().place("run", None), {}, call_id=None)

    async def work():
        return await once("layer", "search", {}, admit=admit, answers=lambda _: Raising(), send=said)

    with Session(policy=Policy(plugins=[{"plugin": "call_ceiling", "session": 1}])):
        assert asyncio.run(work()) == "said"
        with pytest.raises(SessionStopped):
            asyncio.run(work())
