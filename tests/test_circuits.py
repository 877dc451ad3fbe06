"""Circuits that somebody holds: forced open, only observed, disabled, closed again; by settings and by hand."""

from __future__ import annotations

import pytest

from otel_toolguard import CircuitOpen, MemoryStore, Policy, Session, SessionStopped, guard_tool
from otel_toolguard.core.state import SessionState

FAILURES = {"plugin": "signature_failures", "limit": 2}
CEILING = {"plugin": "call_ceiling", "tools": {"send": 2}}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@guard_tool
def send(to="a"):
    if to == "nobody":
        raise LookupError(to)
    return "sent"


@guard_tool
def look():
    return "seen"


def opened(*plugins, clock=None, mode=None, on_trip=None, **tools):
    policy = Policy(plugins=list(plugins), tools=tools, mode=mode)
    return Session("s", policy=policy, store=MemoryStore(), on_trip=on_trip, clock=clock or Clock())


def refused(call, *args):
    with pytest.raises(CircuitOpen) as error:
        call(*args)
    return error.value


def test_settings_force_a_circuit_open():
    """A tool that the settings force open is refused, one trip a run, and every other tool runs."""
    told = []
    session = opened(send={"circuit": "forced_open"}, on_trip=told.append)
    for _ in range(2):
        with session:
            first, second = refused(send), refused(send, "b")
            assert look() == "seen"
            assert first.trip.id == second.trip.id
    assert (type(first), first.trip.rule, first.trip.scope, first.trip.loop_type) == (
        CircuitOpen, "forced_open", "tool", "stopped_by_operator")  # fmt: skip
    assert first.trip.why.endswith('[tools."send"] circuit = "closed" would have allowed it.')
    assert len({trip.id for trip in told}) == len(told) == 2
    assert session.report()["refused"] == 4
    assert session.report()["calls"] == 2


def test_a_circuit_is_forced_open_by_hand_and_closed_again():
    """By hand a circuit is forced open for all runs, with the reason on trip and audit, until it is closed."""
    session = opened()
    with session:
        assert send() == "sent"
        session.set_circuit("forced_open", "mail server in repair", tool="send")
        error = refused(send)
        assert "mail server in repair" in error.trip.why
        assert (error.trip.retryable, error.trip.retry_after_s) == (False, None)
    with session:
        assert refused(send).trip.id != error.trip.id
        session.set_circuit("closed", "repaired", tool="send")
        assert send() == "sent"
    assert [(entry["action"], entry["circuit"], entry["state"], entry["reason"]) for entry in session.audit()] == [
        ("set_circuit", "tool:send", "forced_open", "mail server in repair"),
        ("set_circuit", "tool:send", "closed", "repaired")]  # fmt: skip


def test_a_hold_ends_by_itself():
    """With a time a hold ends then, and the refusal says how long that is."""
    clock = Clock()
    with opened(clock=clock) as session:
        session.set_circuit("forced_open", "pause", tool="send", expires_at=130.0)
        assert (refused(send).trip.retryable, refused(send).trip.retry_after_s) == (True, 30.0)
        clock.now = 120.0
        assert refused(send).trip.retry_after_s == 10.0
        clock.now = 130.0
        assert send() == "sent"


def test_what_is_said_by_hand_goes_before_the_settings():
    """A circuit closed by hand is open to calls although the settings force it open, until that ends."""
    clock = Clock()
    with opened(clock=clock, send={"circuit": "forced_open"}) as session:
        session.set_circuit("closed", "trial", tool="send", expires_at=110.0)
        assert send() == "sent"
        clock.now = 111.0
        assert "settings" in refused(send).trip.why


def test_a_signature_goes_before_its_tool():
    """One signature may be forced open alone, or be let through where its tool is forced open."""
    with opened(FAILURES) as session:
        for _ in range(2):
            with pytest.raises(LookupError):
                send("nobody")
        signature = refused(send, "nobody").trip.signature
        session.set_circuit("closed", "mended", signature=signature)
        with pytest.raises(LookupError):
            send("nobody")
        session.set_circuit("forced_open", "never again", signature=signature)
        error = refused(send, "nobody")
        assert (error.trip.scope, error.trip.signature) == ("signature", signature)
        assert error.trip.why.startswith("This very call is forced open: never again")
        assert send("somebody") == "sent"
        session.set_circuit("forced_open", "all of it", tool="send")
        session.set_circuit("closed", "but this", signature=signature)
        refused(send, "somebody")
        with pytest.raises(LookupError):
            send("nobody")


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize(("state", "would"), [("observe", 1), ("disabled", 0)])
@pytest.mark.parametrize("rule", [FAILURES, CEILING], ids=["signature", "tool"])
def test_observed_and_disabled_circuits_refuse_nothing(state, would, rule, by_hand, caplog):
    """No rule of scope signature or tool refuses; observing, what it would have refused is said once."""
    tools = {} if by_hand else {"send": {"circuit": state}}
    with opened(rule, **tools) as session:
        if by_hand:
            session.set_circuit(state, "trial", tool="send")
        for _ in range(5):
            with pytest.raises(LookupError):
                send("nobody")
        assert session.report()["refused"] == 0
    said = [record.message for record in caplog.records if record.message.startswith("would have stopped")]
    assert len(said) == would


@pytest.mark.parametrize("state", ["observe", "disabled"])
def test_the_run_is_stopped_all_the_same(state):
    """What stops the run is no circuit of the tool, so it stops calls whose circuit is disabled too."""
    with opened({"plugin": "repeat_guard", "limit": 3}, send={"circuit": state}):
        for _ in range(3):
            send()
        with pytest.raises(SessionStopped):
            send()


def test_an_open_circuit_is_closed_by_disabling_it():
    """Disabling by hand lets through what was refused a moment before."""
    with opened(CEILING) as session:
        send(), send()
        refused(send)
        session.set_circuit("disabled", "needed now", tool="send")
        assert send() == "sent"


def test_asking_again_and_again_for_a_forced_circuit_ends_the_run():
    """Refusals by a forced circuit count for max_refusals like any others."""
    with opened({"plugin": "max_refusals", "limit": 3}, send={"circuit": "forced_open"}) as session:
        for _ in range(3):
            refused(send)
        assert session.trip.rule == "max_refusals"
        with pytest.raises(SessionStopped):
            look()


def test_observe_mode_runs_what_is_forced_open(caplog):
    """In observe mode a forced circuit refuses nothing, and once a run it is said that it would."""
    with opened(mode="observe", send={"circuit": "forced_open"}):
        assert [send(), send()] == ["sent", "sent"]
    (said,) = [record.message for record in caplog.records if "would have stopped" in record.message]
    assert said.startswith("would have stopped: Tool send is forced open by the settings; ")


def test_a_reset_keeps_what_is_held():
    """A hold is somebody's will with a reason; only setting the circuit again ends it."""
    with opened() as session:
        session.set_circuit("forced_open", "repair", tool="send")
        session.reset("new try")
        refused(send)


def test_holds_are_plain_state():
    """What is held survives being written as JSON values and read back."""
    session = opened()
    session.set_circuit("forced_open", "repair", tool="send", expires_at=1e9)
    plain = session.guard.transact(SessionState.to_plain)
    again = SessionState.from_plain(plain)
    assert again.held == {"tool:send": ["forced_open", "repair", 1e9]}


def test_a_session_that_is_held_is_not_forgotten_first():
    """A full store forgets idle sessions before one in which a circuit is held."""
    store = MemoryStore(max_sessions=2)
    sessions = [Session(name, policy=Policy(plugins=[]), store=store) for name in "abc"]
    sessions[0].set_circuit("forced_open", "repair", tool="send")
    for session in sessions:
        with session:
            look()
    with sessions[0]:
        refused(send)


@pytest.mark.parametrize(("given", "said"), [
    ({"state": "open", "reason": "x", "tool": "a"}, "valid are closed, forced_open, observe, disabled"),
    ({"state": "closed", "reason": " ", "tool": "a"}, "a reason is needed"),
    ({"state": "closed", "reason": "x"}, "either a tool or a signature"),
    ({"state": "closed", "reason": "x", "tool": "a", "signature": "b"}, "either a tool or a signature"),
    ({"state": "closed", "reason": "x", "tool": 5}, "either a tool or a signature"),
    ({"state": "closed", "reason": "x", "tool": "a", "expires_at": 1.0}, "a moment to come"),
])  # fmt: skip
def test_a_hold_that_says_nothing_is_an_error(given, said):
    """What cannot be held is refused with what is valid, and nothing is listed."""
    session = opened()
    with pytest.raises(ValueError, match=said):
        session.set_circuit(given.pop("state"), given.pop("reason"), **given)
    assert session.audit() == []
