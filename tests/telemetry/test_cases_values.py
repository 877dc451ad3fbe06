"""What stands on spans: types that every back end takes, bounded sizes, no false errors, few series."""

import asyncio
import decimal
import math
import sys
from types import SimpleNamespace

import langgraph.errors
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otel_toolguard import CircuitOpen, Policy, Session, guard_tool
from otel_toolguard.outcomes import CONTROL_FLOW

FAR = Policy(plugins=[{"plugin": "tool_stats"}])


class Refusing:
    def __repr__(self):
        raise ZeroDivisionError

    __str__ = __eq__ = __hash__ = __bool__ = __repr__


STRANGE = {
    "none": None,
    "dict": {"b": 1, "a": {"c": [1]}},
    "set": {1, "a"},
    "object": object(),
    "nan": math.nan,
    "infinity": -math.inf,
    "bytes": b"\xff\0",
    "too large for 64 bits": 10**30,
    "too long to be printed": 10**5000,
    "mixed list": [1, "a", None, b"x", {1}],
    "decimal": decimal.Decimal("NaN"),
    "surrogate": "\ud800",
    "nul": "a\0b",
    "refuses everything": Refusing(),
}


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_no_value_is_too_strange(told, value, capture, caplog):
    """Whatever comes and goes, attributes are texts, truths, 64-bit numbers or lists, all encoded, and nobody is warned."""

    @guard_tool
    def search(q):
        return q

    with Session(policy=FAR, telemetry=told.telemetry(content=capture)):
        search(value)
    (span,) = told.spans()
    for name, said in span.attributes.items():
        parts = said if isinstance(said, tuple) else [said]
        assert {type(part) for part in parts} <= {str, bool, int, float}, name
        assert all(-(2**63) <= part < 2**63 for part in parts if isinstance(part, int))
        assert all(math.isfinite(part) for part in parts if isinstance(part, float))
    encoded = encode_spans(told.spans()).resource_spans[0].scope_spans[0].spans[0]
    assert {attribute.key for attribute in encoded.attributes} == set(span.attributes)
    assert caplog.records == []


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("end", ["returns", "raises", "refused"])
def test_a_huge_argument_and_a_huge_result(told, end, capture, caplog):
    """With 12 MB in and out each attribute is at most 4 KiB, the span 64 KiB, and no sentence of ours holds any of it."""
    huge = "x" * 12_000_000

    @guard_tool
    def search(q):
        if end == "raises":
            raise ValueError(q)
        return q

    ceiling = Policy(plugins=[{"plugin": "call_ceiling", "signature": 1 if end == "refused" else 9}])
    said = []
    with Session(policy=ceiling, telemetry=told.telemetry(content=capture)) as session:
        for _ in range(2):
            try:
                search(huge)
            except CircuitOpen as stopped:
                said += [str(stopped), stopped.to_tool_message(), str(stopped.to_dict())]
            except ValueError:
                continue
        said.append(repr(session))
    for span in told.spans():
        texts = [span.name, span.status.description or ""]
        for value in span.attributes.values():
            texts += value if isinstance(value, tuple) else [value] if isinstance(value, str) else []
        assert max(len(text.encode()) for text in texts) <= 4096
        assert sum(len(text.encode()) for text in texts) <= 65536
    events = [str(dict(event.attributes)) + str(event.body) for event in told.events()]
    assert "xxxx" not in " ".join([*said, *events, caplog.text])


class GraphBubbleUp(Exception):
    """Stands for that of a framework which is not installed: it is known by its name."""


class GraphInterrupt(GraphBubbleUp):
    """Derived from it, as frameworks do."""


class Lookalike(Exception):
    """A user's exception of a name that sounds like control flow."""


GraphBubbleUp.__module__ = "langgraph.errors"
Lookalike.__name__ = Lookalike.__qualname__ = "GraphInterrupt"


class Approval(langgraph.errors.GraphBubbleUp):
    """A user's own, derived from the real one."""


@pytest.mark.parametrize(
    "kind", [GraphBubbleUp, GraphInterrupt, Approval, langgraph.errors.GraphInterrupt, langgraph.errors.GraphBubbleUp]
)
def test_an_approval_is_no_error(told, kind):
    """An exception by which a framework asks a person leaves the status alone and is an interruption."""
    assert "langgraph.errors.GraphBubbleUp" in CONTROL_FLOW
    span = raised(told, kind("approve?"))
    assert (span.attributes["toolguard.outcome"], span.status.is_unset, span.events) == ("interrupted", True, ())
    assert "error.type" not in span.attributes


def test_a_lookalike_is_an_error(told):
    """A user's exception that is merely called like one is a failure like any other."""
    span = raised(told, Lookalike("x"))
    assert (span.attributes["toolguard.outcome"], span.status.is_unset) == ("failed", False)
    assert span.attributes["error.type"].endswith("GraphInterrupt")


def raised(told, error):
    @guard_tool
    async def ask():
        raise error

    with Session(policy=FAR, telemetry=told.telemetry()), pytest.raises(type(error)):
        asyncio.run(ask())
    return told.spans()[0]


def test_series_do_not_grow_with_sessions_signatures_and_exceptions(told):
    """However many sessions, signatures and exception classes come along, the series stay few, and none names them."""
    telemetry = told.telemetry()

    @guard_tool
    def search(q):
        raise type(f"E{q}", (Exception,), {})

    for number in range(3000):
        with Session(f"s{number}", policy=FAR, telemetry=telemetry), pytest.raises(Exception, match=r"^$"):
            search(number)
    signatures = {span.attributes["toolguard.signature"] for span in told.spans()}
    assert len(signatures) == 3000
    points = told.points()
    assert len(points["gen_ai.execute_tool.duration"]) <= 1100
    texts = {value for found in points.values() for point in found for value in point.attributes.values()}
    assert not texts & (signatures | {f"s{number}" for number in range(3000)})


def test_names_of_ours_that_scrubbers_know(told):
    """The one name of ours that scrubbers blank out, for the word in it, is the session's; it is documented."""
    words = ("password", "passwd", "secret", "auth", "credential", "private", "api_key", "token", "session", "cookie",
             "csrf", "jwt", "ssn", "card")  # fmt: skip

    @guard_tool
    def search(q):
        return q

    with Session("s", policy=FAR, telemetry=told.telemetry(content=True)):
        search("a")
    ours = {name for span in told.spans() for name in span.attributes if name.startswith("toolguard.")}
    assert {name for name in ours if any(word in name for word in words)} == {
        "toolguard.session.id", "toolguard.session.calls",
    }  # fmt: skip


def test_a_stand_in_for_numbers_of_other_libraries(told):
    """A result that only looks like a number is told by its type, and its arithmetic is not asked for."""
    number = SimpleNamespace(__float__=lambda: sys.exit(1))

    @guard_tool
    def search(q):
        return number

    with Session(policy=FAR, telemetry=told.telemetry(content=True)):
        assert search("a") is number
    assert told.outcomes() == ["ok"]
