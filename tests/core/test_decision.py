"""The record of a trip, and what the model is told."""

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_toolguard.core.decision import MESSAGE_LIMIT, SCOPES, Circuit, InFlight, Member, Refuse, Stop, Trip

FULL = Trip(
    id="t", rule="repeat_guard", scope="run", tool="a", signature="a:1", tool_class="read", period=2, limit=8, observed=8,
    members=(Member("a", "a:1", {"q": "str(3)"}), Member("b", "b:1")), in_flight=(InFlight("c", "c:1", "write", "reversible"),),
    session_id="s", run_id="r", agent="g", retryable=True, retry_after_s=1.5, loop_type="oscillation", at_call=16, why="Why.",
)  # fmt: skip
BARE = Trip(id="t", rule="session.stop", scope="session", session_id="s", loop_type="stopped_by_operator", why="Why.")


@pytest.mark.parametrize("trip", [FULL, BARE])
def test_a_trip_survives_json_pickle_and_copies(trip):
    """The record comes back equal from its JSON values, from a pickle and from copies."""
    assert Trip.from_dict(json.loads(json.dumps(trip.to_dict()))) == trip
    assert pickle.loads(pickle.dumps(trip)) == trip
    assert copy.copy(trip) == trip
    assert copy.deepcopy(trip) == trip


def test_unknown_and_missing_fields_are_errors():
    """A record of another shape is refused rather than half read."""
    for plain in (BARE.to_dict() | {"new": 1}, {name: v for name, v in BARE.to_dict().items() if name != "why"}):
        with pytest.raises(TypeError):
            Trip.from_dict(plain)


@pytest.mark.parametrize(("scope", "stops"), [("signature", False), ("tool", False), ("run", True), ("session", True)])
def test_run_and_session_stop(scope, stops):
    """Signature and tool refuse single calls, run and session end the run, and the model is told which."""
    trip = Trip(id="t", rule="r", scope=scope, session_id="s", loop_type="over_use", why="Why.")
    assert trip.stops is stops
    assert ("run has ended" in trip.to_tool_message()) is stops


def check_message(trip):
    text = trip.to_tool_message()
    body = json.loads(text)
    assert len(text) <= MESSAGE_LIMIT
    text.encode()
    assert list(body) == ["error", "executed", "tool", "rule", "scope", "why", "retryable", "retry_after_s", "instead"]
    assert (body["error"], body["executed"], body["scope"]) == ("circuit_open", False, trip.scope)
    return body


def test_the_message_of_a_short_trip_is_whole():
    """Where there is room nothing is cut, and no argument appears."""
    body = check_message(FULL)
    assert (body["tool"], body["rule"], body["why"], body["retryable"], body["retry_after_s"]) == (
        "a",
        "repeat_guard",
        "Why.",
        True,
        1.5,
    )
    assert "str(3)" not in FULL.to_tool_message()


HOSTILE = [
    "x" * 5000,
    "\x00" * 5000,
    '"\\' * 3000,
    "\ud800" * 900,
    "é" * 5000,
    "😀" * 3000,
    "\n",
    "",
    "\u2028\x1f" * 500,
]


@pytest.mark.parametrize("tool", [*HOSTILE, None])
@pytest.mark.parametrize("why", HOSTILE)
def test_hostile_names_keep_the_message_short_and_parsable(tool, why):
    """Long, escaped or broken text is cut inside the JSON: at most 600 characters, parsable, valid UTF-8."""
    check_message(
        Trip(id="t", rule=(tool or "r") * 2, scope="tool", tool=tool, session_id="s", loop_type="over_use", why=why)
    )


@given(tool=st.text(max_size=200), why=st.text(max_size=1500), scope=st.sampled_from(SCOPES))
def test_any_text_keeps_the_message_short_and_parsable(tool, why, scope):
    """The same for arbitrary text."""
    check_message(Trip(id="t", rule="r", scope=scope, tool=tool, session_id="s", loop_type="over_use", why=why))


def test_a_circuit_survives_json():
    """Trip, link and number of refusals come back."""
    back = Circuit.from_plain(json.loads(json.dumps(Circuit(FULL, link="00-1-2-01", refused=3).to_plain())))
    assert (back.trip, back.link, back.refused) == (FULL, "00-1-2-01", 3)


def test_a_refusal_links_to_the_call_that_tripped_unless_it_is_that_call():
    """The call that opens a circuit has nothing to link to; later ones link to it."""
    circuit = Circuit(FULL, link="here")
    assert Refuse(circuit, fresh=True, nth=1).link is None
    assert Stop(circuit, fresh=False, nth=2).link == "here"
    assert Stop(circuit, fresh=False, nth=2).trip is FULL
