"""Other methods for one object, and the caller's trace: pieces that adapters share."""

from __future__ import annotations

import asyncio
import copy
import inspect

import pytest
from opentelemetry import baggage
from opentelemetry.trace import get_current_span

from otel_toolguard.adapter import continued, overlay
from otel_toolguard.testing import capture_spans

TRACE, SPAN = "1" * 32, "2" * 16


class Client:
    """A client."""

    def __init__(self, name):
        self.name = name

    @property
    def inner(self):
        return self.name

    async def call(self, what: str, times: int = 1) -> str:
        """Says it."""
        return f"{self.name} {what * times}"


class Slotted:
    __slots__ = ()

    async def call(self):
        return "bare"


async def louder(inner, client, *args, **kwargs):
    return f"{client.name}: {(await inner(*args, **kwargs)).upper()}"


def test_object_gets_other_methods():
    """One object, and its copies, have the given methods around their own; the class and other objects stay."""
    client, other, before = Client("ann"), Client("bob"), dict(vars(Client))
    overlay(client, {"call": louder, "inner": lambda value, client: [value, client.name]})
    copied = copy.copy(client)
    copied.name = "eve"
    assert asyncio.run(client.call("x", times=2)) == "ann: ANN XX"
    assert asyncio.run(copied.call("x")) == "eve: EVE X"
    assert asyncio.run(other.call("x")) == "bob x"
    assert (client.inner, other.inner) == (["ann", "ann"], "bob")
    assert dict(vars(Client)) == before
    assert type(other) is Client


def test_object_looks_as_before():
    """Names, documentation, signatures and kinds say what they said, and a class is made once for all objects."""
    one, two = Client("ann"), Client("bob")
    for client in (one, two):
        overlay(client, {"call": louder})
    kind = type(one)
    assert type(two) is kind
    assert isinstance(one, Client)
    assert (kind.__name__, kind.__qualname__, kind.__module__, kind.__doc__) == (
        Client.__name__, Client.__qualname__, Client.__module__, Client.__doc__,
    )  # fmt: skip
    assert inspect.signature(one.call) == inspect.signature(Client("x").call)
    assert inspect.iscoroutinefunction(one.call)
    assert kind.call.__doc__ == "Says it."


def test_object_that_takes_no_other_class():
    """An object of fixed layout is refused, and is what it was."""
    thing = Slotted()
    with pytest.raises(TypeError):
        overlay(thing, {"call": louder})
    assert asyncio.run(thing.call()) == "bare"


def test_trace_and_baggage_of_the_caller():
    """A span begun meanwhile is in the caller's trace, and its baggage holds; afterwards everything is as before."""
    carrier = {"traceparent": f"00-{TRACE}-{SPAN}-01", "baggage": "session.id=job-1", "other": 7}
    with capture_spans() as captured:
        with continued(carrier):
            assert baggage.get_baggage("session.id") == "job-1"
            captured.tracer.start_span("inside").end()
        (span,) = captured.all_spans()
    assert (span.context.trace_id, span.parent.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert baggage.get_baggage("session.id") is None
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("traceparent", ["", "00-zz", "x" * 10_000, 7, None])
def test_baggage_alone(traceparent, traced):
    """Where the caller names no trace, or the current span is the request's already, the trace stays as it is."""
    given = f"00-{TRACE}-{SPAN}-01" if traced else traceparent
    with capture_spans() as captured, captured.tracer.start_as_current_span("current") as current:
        with continued({"traceparent": given, "baggage": "session.id=job-1"}, traced=traced):
            assert get_current_span() is current
            assert baggage.get_baggage("session.id") == "job-1"
        assert get_current_span() is current
