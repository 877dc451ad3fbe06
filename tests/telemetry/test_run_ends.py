"""What a session tells of itself at its end, and of a call beside its outcome, through the decorator."""

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, guard_tool
from otel_toolguard.telemetry import Telemetry

ENDED, WARNED = "toolguard.session.ended", "toolguard.circuit.warned"


@guard_tool
def search(q):
    if q == "bad":
        raise ValueError("no bad words")
    return f"found {q}"


def repeat(limit):
    return Policy(plugins=[{"plugin": "repeat_guard", "limit": limit}, {"plugin": "tool_stats"}])


def counts(told, name):
    return {tuple(point.attributes.values()): (point.count, point.sum) for point in told.points().get(name, ())}


def test_a_run_s_numbers(told):
    """When a block ends its calls and most laps are measured, by whether it was stopped, and the session's calls too."""
    telemetry = told.telemetry()
    for words in ("abbbc", "aaaa"):
        with Session(policy=repeat(4), telemetry=telemetry):
            for q in words:
                search(q)
    assert counts(told, "toolguard.run.calls") == {("completed",): (1, 5), ("tripped",): (1, 4)}
    assert counts(told, "toolguard.session.calls") == {("completed",): (1, 5), ("tripped",): (1, 4)}
    assert counts(told, "toolguard.run.peak_repeats") == {(): (2, 7)}


def test_runs_of_one_session(told):
    """Each block is a run of its own; the session's calls are those so far, each time a block of it ends."""
    session = Session("conversation", policy=repeat(9), store=MemoryStore(), telemetry=told.telemetry())
    for _ in range(3):
        with session:
            search("a")
    assert counts(told, "toolguard.run.calls") == {("completed",): (3, 3)}
    assert counts(told, "toolguard.session.calls") == {("completed",): (3, session.report()["calls"] * 2)}


def test_a_block_without_calls_measures_nothing(told):
    """A block in which nothing was called is no run."""
    with Session(policy=repeat(9), telemetry=told.telemetry(events=[ENDED])):
        pass
    assert told.events() == []
    assert {"toolguard.run.calls", "toolguard.session.calls"}.isdisjoint(told.points())


def test_an_end_is_told_once(told):
    """A run that is ended by hand and by its block is told once."""
    with Session(policy=repeat(9), telemetry=told.telemetry()) as session:
        search("a")
        session.end_run(session._current_run())
    assert counts(told, "toolguard.run.calls") == {("completed",): (1, 1)}


def test_the_event_of_a_session_s_end(told):
    """With the event asked for, a session's end says what its report says."""
    policy = Policy(plugins=[{"plugin": "call_ceiling", "run": 3}, {"plugin": "tool_stats"}])
    with Session("s9", policy=policy, store=MemoryStore(), telemetry=told.telemetry(events=[ENDED])):
        for q in ("a", "bad", "b", "c"):
            try:
                search(q)
            except (CircuitOpen, ValueError):
                continue
    event = told.events()[-1]
    assert event.event_name == ENDED
    names = ("calls", "failed", "refused", "longest_fail_streak", "classes.read")
    assert [event.attributes[f"toolguard.report.{name}"] for name in names] == [3, 1, 1, 1, 3]
    assert (event.attributes["toolguard.session.id"], event.attributes["toolguard.outcome"]) == ("s9", "tripped")


def test_warnings_as_events(told):
    """A rule that comes near its limit is told at a half and at three quarters, with its share."""
    with Session(policy=repeat(8), telemetry=told.telemetry(events=[WARNED])):
        for _ in range(7):
            search("a")
    assert [event.attributes["toolguard.share"] for event in told.events()] == [0.5, 0.75]


@pytest.mark.parametrize("mode", ["enforce", "off"])
def test_content_through_the_decorator(told, mode):
    """Where content may be told a call's arguments and result are; a call that raised has no result."""
    policy = Policy(plugins=[{"plugin": "tool_stats"}], mode=mode)
    with Session(policy=policy, telemetry=told.telemetry(content=True)):
        search("a")
        with pytest.raises(ValueError, match="bad"):
            search("bad")
    ok, failed = told.spans()
    assert ok.attributes["gen_ai.tool.call.arguments"] == '{"q": "a"}'
    assert ok.attributes["gen_ai.tool.call.result"] == "found a"
    assert "gen_ai.tool.call.result" not in failed.attributes
    assert failed.status.description == "no bad words"


def test_without_telemetry_an_end_is_none(monkeypatch):
    """A session that tells nobody ends as quietly."""
    monkeypatch.setenv("TOOLGUARD_TELEMETRY", "off")
    with Session(policy=repeat(9)) as session:
        search("a")
    assert session.guard.telemetry is None


def test_telemetry_that_fails_at_the_end(monkeypatch):
    """A failure at the end of a block is not felt."""
    telemetry = Telemetry()
    monkeypatch.setattr(telemetry, "run_ended", lambda **_: 1 / 0)
    with Session(policy=repeat(9), telemetry=telemetry):
        search("a")


def test_a_refused_call_that_opens_the_next_circuit(told):
    """Each tripping span has the rule of the trip that it is, also where another rule had refused that call."""
    rules = [{"plugin": "call_ceiling", "tools": {"search": 1}}, {"plugin": "max_refusals", "limit": 2}]
    with Session(policy=Policy(plugins=rules), telemetry=told.telemetry()):
        search("a")
        for _ in range(2):
            with pytest.raises(CircuitOpen, match="call_ceiling"):
                search("a")
    found = [
        (span.attributes.get("toolguard.tripped", False), span.attributes.get("toolguard.rule"))
        for span in told.spans()
    ]
    opened = [event.attributes["toolguard.rule"] for event in told.events()]
    assert [rule for tripped, rule in found if tripped] == opened == ["call_ceiling", "max_refusals"]
    assert told.spans()[2].attributes["toolguard.limit"] == 2
