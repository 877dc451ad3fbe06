"""What the span of a call says."""

import enum
from types import SimpleNamespace

import pytest
from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode

from otel_toolguard._version import __version__
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.decision import Circuit, Member, Permit, Refuse, Settled, Trip
from otel_toolguard.telemetry import Telemetry

SIGNATURE = "search:0123456789abcdef"


class Named(enum.StrEnum):
    """A class name as some callers spell it: a ``str``, and not exactly one."""

    READ = "read"


@pytest.fixture
def world():
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=provider, meter_provider=MeterProvider([reader]), content=True)
    return SimpleNamespace(telemetry=telemetry, provider=provider, spans=exporter.get_finished_spans, reader=reader)


def a_call(tool="search", **more):
    given = {"tool_class": Named.READ, "call_id": "call_1", "agent": "clerk"} | more
    return ToolCall(tool, SIGNATURE, **given)


def a_trip(**more):
    members = (Member("search", "search:aa"), Member("open", "open:bb"))
    given = {
        "tool": "search",
        "signature": SIGNATURE,
        "tool_class": "read",
        "limit": 8,
        "observed": 8,
        "members": members,
    }
    return Trip(id="t1", rule="repeat_guard", scope="run", session_id="s1", run_id="r1", loop_type="exact_repeat",
                why="Eight laps.", **(given | more))  # fmt: skip


def made(world, outcome=None, *, permit=None, settled=None, call=None, message=None, **place):
    """One whole call; returns its span."""
    call = call or a_call()
    live = world.telemetry.start(call, **({"session_id": "s1", "run_id": "r1"} | place))
    token = live.attach()
    live.detach(token)
    permit = permit or Permit(1, 2, 3, 4)
    world.telemetry.end(live, call, outcome or Outcome("ok"), permit, settled, seconds=0.5, message=message)
    return world.spans()[-1]


def a_refusal(world, trip, *, fresh, link, live=None):
    call = a_call()
    live = live or world.telemetry.start(call, session_id="s1", run_id="r1")
    refuse = Refuse(Circuit(trip, link=link), fresh=fresh, nth=1, signature_calls=9, run_calls=10, session_calls=11)
    world.telemetry.refused(live, call, refuse)
    return world.spans()[-1]


def test_ok(world):
    """A call that went well has exactly the attributes of the schema, each of its exact type, and no status."""
    span = made(world)
    expected = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "clerk",
        "gen_ai.tool.call.id": "call_1",
        "toolguard.tool.class": "read",
        "toolguard.session.id": "s1",
        "toolguard.run.id": "r1",
        "toolguard.signature": SIGNATURE,
        "toolguard.signature.calls": 2,
        "toolguard.run.calls": 3,
        "toolguard.session.calls": 4,
        "toolguard.outcome": "ok",
    }
    assert dict(span.attributes) == expected
    assert {key: type(value) for key, value in span.attributes.items()} == {
        key: type(value) for key, value in expected.items()
    }
    assert (span.name, span.kind, span.events, span.links) == ("execute_tool search", trace.SpanKind.INTERNAL, (), ())
    assert span.status.status_code is StatusCode.UNSET
    scope = span.instrumentation_scope
    assert (scope.name, scope.version, scope.schema_url) == (
        "otel_toolguard",
        __version__,
        "https://opentelemetry.io/schemas/1.41.0",
    )


def test_start_attributes_reach_the_sampler(world):
    """What sampling decides on, our own names included, is there when the span starts, not only when it ends."""
    seen = {}

    class Watching(type(ALWAYS_OFF)):
        def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, *more, **even_more):
            seen.update(attributes)
            return super().should_sample(parent_context, trace_id, name, kind, attributes)

    telemetry = Telemetry(
        tracer_provider=TracerProvider(sampler=Watching(ALWAYS_OFF._decision)), meter_provider=NoOpMeterProvider()
    )
    telemetry.start(a_call(), session_id="s1", run_id="r1", conversation_id="c1", tool_type="extension")
    assert seen == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "extension",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": "c1",
        "toolguard.tool.class": "read",
        "toolguard.session.id": "s1",
        "toolguard.run.id": "r1",
    }


def test_no_session(world):
    """Without a session there are no session and run attributes and no counts of either."""
    call = ToolCall("search", SIGNATURE)
    span = made(world, call=call, session_id=None, run_id=None)
    assert set(span.attributes) == {
        "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.type", "toolguard.tool.class", "toolguard.outcome",
        "toolguard.signature", "toolguard.signature.calls",
    }  # fmt: skip


def test_attributes_of_one_run_do_not_leak_into_the_next(world):
    """Prebuilt attributes follow a change of session, run or conversation."""
    first = made(world, session_id="s1", run_id="r1", conversation_id="c1")
    second = made(world, session_id="s2", run_id=None)
    third = made(world, session_id=None, run_id=None)
    told = [
        [span.attributes.get(f"toolguard.{part}.id") for part in ("session", "run")] for span in (first, second, third)
    ]
    assert told == [["s1", "r1"], ["s2", None], [None, None]]
    assert [span.attributes.get("gen_ai.conversation.id") for span in (first, second)] == ["c1", None]


@pytest.mark.parametrize(
    ("said", "description"), [(None, None), ("NO_CONTENT", None), ("SPAN_ONLY", "No such file: /clients/4711")]
)
def test_an_error_s_words_stay_off_the_span_unless_content_is_captured(monkeypatch, said, description):
    """Words quote arguments: by default the status says only that the call failed, and error.type of what kind."""
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)
    if said is not None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", said)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=provider)
    call = a_call()
    live = telemetry.start(call, session_id="s", run_id="r")
    telemetry.end(live, call, Outcome("failed", error_type="OSError"), None, None, seconds=0.1,
                  message="No such file: /clients/4711")  # fmt: skip
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, description)
    assert span.attributes["error.type"] == "OSError"


def test_failed(world):
    """A failed call is an error with the exception's class, the kind of failure and the message."""
    span = made(world, Outcome("failed", failure="transient", error_type="builtins.TimeoutError"), message="too slow")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "too slow")
    assert span.attributes["error.type"] == "builtins.TimeoutError"
    assert span.attributes["toolguard.failure"] == "transient"
    assert span.attributes["toolguard.outcome"] == "failed"
    assert span.events == ()


def test_failed_without_a_class(world):
    """A failure that no exception told is tool_error, and needs no message."""
    span = made(world, Outcome("failed"))
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert span.attributes["error.type"] == "tool_error"
    assert "toolguard.failure" not in span.attributes


@pytest.mark.parametrize("kind", ["ok", "cancelled", "interrupted", "closed", "unknown"])
def test_no_error(world, kind):
    """Outcomes that are no failures leave the status alone and name no error."""
    span = made(world, Outcome(kind, failure="transient", error_type="X"), message="m")
    assert span.status.status_code is StatusCode.UNSET
    assert "error.type" not in span.attributes
    assert "toolguard.failure" not in span.attributes
    assert span.attributes["toolguard.outcome"] == kind


def test_rules(world):
    """Laps are told from the second on, and warnings of admission and result once each, in order."""
    settled = Settled()
    settled.repeat_length, settled.repeat_count, settled.warned = 2, 1, ("repeat_guard", "call_ceiling")
    span = made(world, permit=Permit(1, 1, 1, 1, ("call_ceiling",)), settled=settled)
    assert "toolguard.repeat.count" not in span.attributes
    assert span.attributes["toolguard.warned"] == ("call_ceiling", "repeat_guard")
    settled.repeat_count = 2
    span = made(world, settled=settled)
    assert [span.attributes[f"toolguard.repeat.{part}"] for part in ("length", "count")] == [2, 2]


@pytest.mark.parametrize(("observed_only", "mode"), [(False, "enforce"), (True, "observe")])
def test_tripped(world, observed_only, mode):
    """The call that opened a circuit, or would have, says so with rule, scope, numbers, cycle and mode."""
    call = a_call()
    live = world.telemetry.start(call, session_id="s1", run_id="r1")
    world.telemetry.opened(live, a_trip(), observed_only=observed_only)
    world.telemetry.end(live, call, Outcome("ok"), Permit(1, 8, 8, 8), None, seconds=0.1)
    (span,) = world.spans()
    told = {key: value for key, value in span.attributes.items() if key.startswith("toolguard.")}
    mark = "toolguard.would_trip" if observed_only else "toolguard.tripped"
    other = "toolguard.tripped" if observed_only else "toolguard.would_trip"
    assert told[mark] is True
    assert other not in told
    assert (told["toolguard.rule"], told["toolguard.scope"], told["toolguard.mode"]) == ("repeat_guard", "run", mode)
    assert [(type(told[f"toolguard.{name}"]), told[f"toolguard.{name}"]) for name in ("limit", "observed")] == [
        (float, 8.0)
    ] * 2
    assert told["toolguard.cycle"] == ("search:aa", "open:bb")
    assert span.status.status_code is StatusCode.UNSET, "the tripping call's own result was let through"


def test_refused(world):
    """A refused call is an error that names the circuit and links to the span that opened it."""
    call = a_call()
    live = world.telemetry.start(call, session_id="s1", run_id="r1")
    link = live.link()
    world.telemetry.end(live, call, Outcome("ok"), None, None, seconds=0.1)
    tripping = world.spans()[-1]
    span = a_refusal(world, a_trip(), fresh=False, link=link)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "Eight laps.")
    told = dict(span.attributes)
    assert {key: told[key] for key in ("error.type", "toolguard.outcome", "toolguard.rule", "toolguard.scope", "toolguard.limit",
                                       "toolguard.observed", "toolguard.signature.calls", "toolguard.run.calls",
                                       "toolguard.session.calls", "gen_ai.tool.call.id")} == {
        "error.type": "otel_toolguard.CircuitOpen", "toolguard.outcome": "refused", "toolguard.rule": "repeat_guard",
        "toolguard.scope": "run", "toolguard.limit": 8.0, "toolguard.observed": 8.0, "toolguard.signature.calls": 9,
        "toolguard.run.calls": 10, "toolguard.session.calls": 11, "gen_ai.tool.call.id": "call_1",
    }  # fmt: skip
    assert not {"toolguard.tripped", "toolguard.mode", "toolguard.cycle"} & set(told)
    (to,) = span.links
    assert (to.context.trace_id, to.context.span_id) == (tripping.context.trace_id, tripping.context.span_id)
    assert to.context.trace_flags == tripping.context.trace_flags


def test_no_link_to_itself(world):
    """The refusal that opened the circuit links to nothing, even if it is handed its own link."""
    for fresh in (True, False):
        live = world.telemetry.start(a_call(), session_id="s1", run_id="r1")
        world.telemetry.opened(live, a_trip())
        span = a_refusal(world, a_trip(), fresh=fresh, link=live.link(), live=live)
        assert span.links == ()
        assert span.attributes["toolguard.tripped"] is True


@pytest.mark.parametrize("link", [None, "", "x", "1-2-3", f"{0:032x}-{0:016x}-01", "g" * 32 + "-" + "1" * 16 + "-01"])
def test_useless_links(world, link):
    """A link text that names no span, as a store may hand back, is left out and the span is told all the same."""
    span = a_refusal(world, a_trip(), fresh=False, link=link)
    assert span.links == ()
    assert span.attributes["toolguard.outcome"] == "refused"


def test_numbers_that_are_not_there(world):
    """A trip without limit, count and cycle, such as an operator's stop, has no attributes for them."""
    span = a_refusal(world, a_trip(limit=None, observed=None, members=()), fresh=False, link=None)
    assert not {"toolguard.limit", "toolguard.observed", "toolguard.cycle"} & set(span.attributes)


def test_a_second_end_is_harmless(world, caplog):
    """Ending a call twice exports one span and makes the SDK complain about nothing."""
    call = a_call()
    live = world.telemetry.start(call, session_id="s1", run_id="r1")
    for _ in range(2):
        world.telemetry.end(live, call, Outcome("ok"), None, None, seconds=0.1)
    assert len(world.spans()) == 1
    assert caplog.records == []


def test_unsampled(world):
    """An unsampled call is current like any other, so that what the tool does is unsampled too, and has a link."""
    telemetry = Telemetry(
        tracer_provider=TracerProvider(sampler=ParentBased(ALWAYS_OFF)), meter_provider=NoOpMeterProvider()
    )
    live = telemetry.start(a_call(), session_id="s1", run_id="r1")
    token = live.attach()
    inner = world.provider.get_tracer("http").start_span("GET")
    live.detach(token)
    assert live.link().endswith("-00") or live.link().endswith("-02")
    assert f"{inner.get_span_context().trace_id:032x}" == live.link()[:32]
    telemetry.end(live, a_call(), Outcome("ok"), None, None, seconds=0.1)


def test_a_tracer_that_is_switched_off_hides_nothing(world):
    """A tracer that gives no span of its own leaves the span around the call current."""
    telemetry = Telemetry(tracer_provider=trace.NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
    with world.provider.get_tracer("app").start_as_current_span("agent") as around:
        live = telemetry.start(a_call(), session_id="s1", run_id="r1")
        token = live.attach()
        assert trace.get_current_span() is around
        live.detach(token)
        assert live.link() is None
        telemetry.end(live, a_call(), Outcome("ok"), None, None, seconds=0.1)


def test_explicit_parent(world):
    """A call from a bare thread is a child of the span it was bound to."""
    around = world.provider.get_tracer("app").start_span("agent")
    live = world.telemetry.start(a_call(), session_id="s1", run_id="r1", parent=trace.set_span_in_context(around))
    world.telemetry.end(live, a_call(), Outcome("ok"), None, None, seconds=0.1)
    assert world.spans()[0].parent.span_id == around.get_span_context().span_id


def test_attach_and_detach_restore(world):
    """What was current before the call is current after it."""
    before = get_current()
    made(world)
    assert get_current() is before
