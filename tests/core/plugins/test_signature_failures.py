"""One call that fails the same way: refused alone, tried again after a cooldown."""

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit, Stop
from otel_toolguard.core.plugins.signature_failures import SignatureFailures
from otel_toolguard.core.state import SessionState


class Play:
    """Plays calls such as ``a!`` (fails), ``a?`` (fails otherwise), ``a~`` (transient), ``a`` (works), ``W`` (a write)."""

    def __init__(self, **settings):
        self.chain = Chain([SignatureFailures(**settings)])
        self.state = SessionState("s")

    def admit(self, name, at=0.0):
        call = ToolCall(name[0], f"{name[0]}:1", tool_class="write" if name[0] == "W" else "exec")
        return call, self.chain.admit(self.state, "r", call, at=at)

    def settle(self, call, permit, how="", at=0.0):
        kind = {"": "ok", "c": "cancelled"}.get(how, "failed")
        outcome = Outcome(kind, failure="transient" if how == "~" else "permanent", volatile=f"error {how}")
        return self.chain.settle(self.state, "r", permit.number, call, outcome, at=at)

    def __call__(self, script):
        letters = ""
        for step in script.split():
            call, admission = self.admit(step)
            if isinstance(admission, Permit):
                letters += "."
                self.settle(call, admission, step[1:])
            else:
                assert not isinstance(admission, Stop)
                letters += "r"
        return letters


TABLE = [
    ("one short", {"limit": 3}, "a! a! a", "..."),
    ("the limit", {"limit": 3}, "a! a! a! a!", "...r"),
    ("other calls go on", {"limit": 3}, "a! a! a! b b a! b", "...." + ".r."),
    ("a success starts afresh", {"limit": 3}, "a! a! a a! a! a", "......"),
    ("cumulative: nothing does", {"limit": 3, "count": "cumulative"}, "a! a! a a! a", "....r"),
    ("another error starts afresh", {"limit": 3}, "a! a! a? a! a! a", "......"),
    ("unless errors are not told apart", {"limit": 3, "same_error": False}, "a! a! a? a", "...r"),
    ("a write that works starts all afresh", {"limit": 3}, "a! a! W a! a! a", "......"),
    ("a write that fails does not", {"limit": 3}, "a! a! W! a! a", "....r"),
    ("nor any if so told", {"limit": 3, "clear_on_write": False}, "a! a! W a! a", "....r"),
    ("three transient ones are one", {"limit": 1}, "a~ a~ a~ a", "...r"),
    ("two are not", {"limit": 1}, "a~ a~ a a", "...."),
]


@pytest.mark.parametrize(("name", "settings", "script", "expected"), TABLE)
def test_which_calls_are_refused(name, settings, script, expected):
    """The signature that failed its limit is refused, alone, from its next call on."""
    assert Play(**settings)(script) == expected


def test_calls_that_reached_no_tool_are_left_out():
    """Arguments that could not be parsed all look alike; they fill no signature's count."""
    play = Play(limit=2)
    for _ in range(5):
        call = ToolCall("t", "t:1", reached=False)
        permit = play.chain.admit(play.state, "r", call)
        assert isinstance(permit, Permit)
        play.settle(call, permit, "!")


def test_one_probe_after_the_cooldown():
    """Open until the cooldown is over; then one call is tried and others wait for it; its success closes the circuit."""
    play = Play(limit=1, cooldown=30)
    play("a!")
    refused = play.admit("a", at=10)[1]
    assert (refused.trip.retryable, refused.trip.retry_after_s) == (True, 20)
    call, probe = play.admit("a", at=31)
    assert isinstance(probe, Permit)
    assert not isinstance(play.admit("a", at=32)[1], Permit)
    play.settle(call, probe, "", at=33)
    assert play("a a") == ".."


def test_a_probe_that_fails_opens_for_twice_as_long():
    """Each failed probe doubles the cooldown."""
    play = Play(limit=1, cooldown=30)
    play("a!")
    call, probe = play.admit("a", at=31)
    play.settle(call, probe, "!", at=32)
    assert not isinstance(play.admit("a", at=91)[1], Permit)
    assert isinstance(play.admit("a", at=93)[1], Permit)


def test_a_probe_that_says_nothing_gives_its_place_back():
    """A cancelled probe lets the next call try; one that never ends holds the place for its lease only."""
    play = Play(limit=1, cooldown=30)
    play("a!")
    call, probe = play.admit("a", at=31)
    play.settle(call, probe, "c", at=32)
    assert isinstance(play.admit("a", at=33)[1], Permit)
    assert not isinstance(play.admit("a", at=34)[1], Permit)
    assert isinstance(play.admit("a", at=64)[1], Permit)


def test_results_from_before_count_for_nothing():
    """A late failure of a call admitted before the circuit closed does not open it again."""
    play = Play(limit=1, cooldown=30)
    late_call, late = play.admit("a")
    call, permit = play.admit("a")
    play.settle(call, permit, "!", at=1)
    call, probe = play.admit("b", at=2)
    play.settle(call, probe, "", at=2)
    call, probe = play.admit("a", at=40)
    play.settle(call, probe, "", at=41)
    play.settle(late_call, late, "!", at=42)
    assert play("a") == "."
