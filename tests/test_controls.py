"""What a caller tells a session: a higher ceiling for a while, what the work has cost; and what the model is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped, guard_tool
from otel_toolguard.attempt import Attempt
from otel_toolguard.telemetry import Telemetry
from otel_toolguard.tool import Tool


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(clock):
    """Makes sessions of one id over one store, under a chain of single rules."""
    kept = MemoryStore()

    def opened(*rules, name="s", **more):
        policy = Policy(plugins=rules, **{key: more.pop(key) for key in ("mode", "on_warn") if key in more})
        return Session(name, policy=policy, store=kept, clock=clock, **more)

    return opened


@guard_tool
def look(q="x"):
    return q


def letters(calls):
    said = ""
    for call in calls:
        try:
            said += "." if look(call) == call else "?"
        except SessionStopped:
            said += "S"
        except CircuitOpen:
            said += "r"
    return said


# ------------------------------------------------------------------------------------------------ raised ceilings

CEILING = {"plugin": "call_ceiling"}


def test_a_raised_ceiling_holds_over_runs_until_it_expires(opened, clock):
    """On the session's clock: the raised number until then, the old one after; other handles of the session see it too."""
    rule = CEILING | {"session": 3}
    with opened(rule) as session:
        session.raise_ceiling("session", 6, " a release ", 1060.0)
        assert letters("abcd") == "...."
    with opened(rule) as session:
        assert letters("ef") == ".."
        clock.now = 1059.0
        assert letters("g") == "S"
    clock.now = 1060.0
    with opened(rule) as session:
        assert letters("h") == "S"
        assert (session.trip.limit, session.trip.observed) == (3, 6)
    assert session.audit() == [
        {
            "action": "raise_ceiling",
            "name": "session",
            "value": 6,
            "was": 3,
            "expires_at": 1060.0,
            "reason": "a release",
        }
    ]


@pytest.mark.parametrize("zone", [UTC, None])
def test_the_expiry_may_be_a_date_and_time(opened, clock, zone):
    """With a zone or local, it is brought to the session's clock."""
    session = opened(CEILING | {"run": 3})
    session.raise_ceiling("run", 4, "why", datetime.now(zone) + timedelta(hours=1))
    assert 1000 + 3500 < session.audit()[0]["expires_at"] <= 1000 + 3600


def test_a_refused_tool_is_let_through_after_raising(opened):
    """The circuit that the ceiling opened is closed, and its refused spans are shown again."""
    with opened(CEILING | {"tools": {"l*": 1}}) as session:
        assert letters("a" + "b" * 15) == "." + "r" * 15
        assert session.guard.quiet
        session.raise_ceiling("tools.l*", 2, "why", 2000)
        assert not session.guard.quiet
        assert letters("bc") == ".r"


def test_a_stop_needs_a_reset_beside_the_raise(opened):
    """A latched stop is final for its run; with a reset the raised ceiling lets it go on."""
    with opened(CEILING | {"run": 1}) as session:
        assert letters("ab") == ".S"
        session.raise_ceiling("run", 3, "why", 2000)
        assert letters("b") == "S"
        session.reset("raised")
        assert letters("bcd") == "..S"
    assert [entry["action"] for entry in session.audit()] == ["raise_ceiling", "reset"]


WRONG = [
    (("run", 5, "", 2000.0), "a reason is needed"),
    (("run", 5, "  ", 2000.0), "a reason is needed"),
    (("run", 3, "why", 2000.0), "3 would not raise it"),
    (("run", 5.0, "why", 2000.0), "whole number"),
    (("walk", 5, "why", 2000.0), "no ceiling 'walk'; it has run"),
    (("run", 5, "why", 1000.0), "a moment to come"),
    (("run", 5, "why", None), "a moment to come"),
    (("run", 5, "why", True), "a moment to come"),
    (("run", 5, "why", float("nan")), "a moment to come"),
    (("run", 5, "why", float("inf")), "a moment to come"),
    (("run", 5, "why", datetime(2020, 1, 1, tzinfo=UTC)), "a moment to come"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_what_cannot_be_raised_is_a_value_error(opened, arguments, says):
    """Empty reason, no such ceiling, no higher value, no time to come: nothing is changed or listed."""
    session = opened(CEILING | {"run": 3})
    with pytest.raises(ValueError, match=says):
        session.raise_ceiling(*arguments)
    assert session.audit() == []


def test_there_must_be_a_ceiling_to_raise(opened):
    """A policy without call_ceiling says so."""
    with pytest.raises(ValueError, match="no call_ceiling"):
        opened().raise_ceiling("run", 5, "why", 2000)


# ------------------------------------------------------------------------------------------------ costs

COST = {"plugin": "cost", "limit": 1.0}


def test_a_reported_cost_stops_before_the_next_model_call(opened, caplog):
    """Reaching the limit is told at once, to log, callback and gate, and no further body runs."""
    told = []
    with opened(COST, on_trip=told.append) as session:
        session.report_cost(0.5)
        session.raise_if_open()
        assert letters("a") == "."
        session.report_cost(0.5)
        with pytest.raises(SessionStopped):
            session.raise_if_open()
        assert letters("b") == "S"
        session.report_cost(5)
    assert [(trip.rule, trip.scope, trip.observed) for trip in told] == [("cost", "run", 1.0)]
    assert caplog.text.count("The run has cost 1 of 1 allowed") == 1
    assert session.report()["cost"] == 6.0


@pytest.mark.parametrize(("scope", "later"), [("run", "."), ("session", "S")])
def test_costs_of_a_later_run(opened, scope, later):
    """A run has its own money, the session one purse for all."""
    with opened(COST | {"scope": scope}) as session:
        session.report_cost(2.0)
    with opened(COST | {"scope": scope}):
        assert letters("a") == later
    assert session.report()["cost"] == 2.0


def test_a_cost_reported_outside_any_block_belongs_to_the_last_run(opened):
    """Whoever books costs late still finds the run they belong to."""
    with opened(COST) as session:
        letters("a")
    session.report_cost(2.0)
    assert session.trip.rule == "cost"


def test_a_nested_run_pays_from_the_purse_above(opened):
    """What a sub-agent costs stops the tree."""

    @guard_tool
    def agent():
        with opened(COST) as inner:
            inner.report_cost(2.0)

    with opened(COST) as session:
        agent()
        assert session.trip.rule == "cost"


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), True, "5", None])
def test_a_cost_is_a_number(opened, amount):
    """Anything else is a ValueError."""
    with pytest.raises(ValueError, match="a cost is a finite number"):
        opened(COST).report_cost(amount)


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_costs_stop_nothing_unless_enforced(opened, mode, caplog):
    """Off counts nothing; observe says once what it would have done."""
    with opened(COST, mode=mode) as session:
        session.report_cost(2.0)
        session.report_cost(2.0)
        assert letters("a") == "."
    assert session.trip is None
    assert caplog.text.count("would have stopped: The run has cost") == (mode == "observe")


def test_a_deadline_is_on_the_session_s_clock(opened, clock):
    """A result that comes too late is handed over, and the gate is shut behind it."""
    with opened({"plugin": "deadline", "seconds": 10.0}) as session:
        assert letters("a") == "."
        clock.now += 10
        with pytest.raises(SessionStopped):
            look("b")
        assert session.trip.rule == "deadline"


# ------------------------------------------------------------------------------------------------ nudges


def attempts(session, count, **settings):
    """What the model is told beside each of ``count`` failing calls."""
    tool, told = Tool("look"), []
    place = session.place()
    for number in range(count):
        attempt = Attempt(session.guard, place, tool, {"q": f"secret-{number}"})
        assert attempt.refused is None
        attempt.raised(ValueError("no"))
        told.append(attempt.nudges)
    return told


def test_an_attempt_has_the_sentences_for_the_model(opened):
    """Plain strings, none before the limit, at most 300 characters, no argument values."""
    session = opened({"plugin": "failure_streak", "limit": 3, "on_limit": "nudge"})
    told = attempts(session, 6)
    assert [len(said) for said in told] == [0, 0, 1, 0, 0, 1]
    (sentence,) = told[2]
    assert type(sentence) is str
    assert len(sentence) <= 300
    assert "secret" not in sentence
    assert session.report()["nudges"] == {"failure_streak": 2}
    json.dumps(session.report())


def test_warnings_reach_the_attempt_from_admission_too(opened):
    """A ceiling that is half used is told where the call begins, a streak where it ends."""
    rules = [{"plugin": "failure_streak", "limit": 5}, CEILING | {"run": 6}]
    told = attempts(opened(*rules, on_warn="nudge"), 4)
    assert [len(said) for said in told] == [0, 0, 1, 2]
    assert [len(said) for said in attempts(opened(*rules, name="quiet"), 4)] == [0, 0, 0, 0]


def test_the_span_names_the_rule_that_nudged(opened):
    """toolguard.warned, like any warning."""
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    session = opened(
        {"plugin": "failure_streak", "limit": 2, "on_limit": "nudge"}, telemetry=Telemetry(tracer_provider=provider)
    )
    attempts(session, 2)
    said = [span.attributes.get("toolguard.warned") for span in spans.get_finished_spans()]
    assert said == [("failure_streak",), ("failure_streak",)]
    assert "toolguard.tripped" not in spans.get_finished_spans()[-1].attributes


# ------------------------------------------------------------------------------------------------ other guards' profiles


def played(profile, calls):
    """One letter a call, ``a`` works and ``a1``, ``a2`` fail with that text: n nudged, S stopped after, x/r refused."""
    session = Session("p", policy=Policy.profile(profile), store=MemoryStore())
    place, said = session.place(), ""
    for name, *failure in calls.split():
        attempt = Attempt(session.guard, place, Tool("run"), {"q": name})
        if attempt.refused is not None:
            said += "x" if attempt.refused.trip.stops else "r"
            continue
        attempt.raised(ValueError(*failure)) if failure else attempt.returned(name)
        said += "S" if session.trip_of(place.run_id) else "n" if attempt.nudges else "."
    return said


PLAYED = [
    ("openhands", "a a a a a", "...Sx"),
    ("openhands", "a1 a2 a3 a4 a5", "..nSx"),
    ("openhands", "a b a b a b a", ".....Sx"),
    ("openhands", "a b c a b c a b c a b c a b c", "." * 15),
    ("skill", "a1 a2 b a3 a a b1", "....rr."),
    ("skill", "a " * 26, "." * 25 + "x"),
    ("skill", "a1 a1 a1" + " a" * 30, "..." + "r" * 30),
    ("cmdc", "a a a a a a", "..n..n"),
    ("cmdc", "a1 b1 c1 d1 e1 f1 g1 h1", "...n...n"),
    ("cmdc", "a1 b1 c1 d e1 f1 g1 h1", ".......n"),
]


@pytest.mark.parametrize(("profile", "calls", "letters"), PLAYED)
def test_the_profiles_do_what_their_originals_do(profile, calls, letters):
    """From arguments and exceptions to what is refused, stopped and told."""
    assert played(profile, calls) == letters


def test_cmdc_counts_the_edits_of_a_file():
    """The edit after the 20th is nudged, and the next overrun of that file ends the run."""
    session = Session("p", policy=Policy.profile("cmdc"), store=MemoryStore())
    place, said = session.place(), ""
    for number in range(43):
        attempt = Attempt(session.guard, place, Tool("edit_file"), {"path": "f.py", "text": f"line {number}"})
        if attempt.refused is None:
            attempt.returned("ok")
            said += "n" if attempt.nudges else "S" if session.trip_of(place.run_id) else "."
    assert said == "." * 20 + "n" + "." * 20 + "S"
