"""What is raised: it travels, it names itself as users import it, and its trip is found wherever it is wrapped."""

import copy
import json
import pickle
import subprocess
import sys

import pytest

import otel_toolguard
from otel_toolguard.core.decision import InFlight, Member, Trip
from otel_toolguard.errors import (
    CircuitOpen,
    SessionMissing,
    SessionStopped,
    SettingsError,
    SettingsWarning,
    ToolGuardError,
    find_trip,
)
from otel_toolguard.records import ReportModel, TripModel

TRIP = Trip(
    id="t", rule="repeat_guard", scope="run", tool="a", signature="a:1", tool_class="read", period=2, limit=8, observed=8,
    members=(Member("a", "a:1", {"q": "str(3)"}),), in_flight=(InFlight("c", "c:1", "write", "reversible"),),
    session_id="s", run_id="r", loop_type="oscillation", at_call=16, why="Why.",
)  # fmt: skip


class Foreign(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.message = message


class Both(SessionStopped, Foreign):
    """What an integration raises through its framework."""

    def __init__(self, trip):
        SessionStopped.__init__(self, trip)


@pytest.mark.parametrize("kind", [CircuitOpen, SessionStopped])
@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_errors_travel(kind, travel):
    """Pickle, copy and deepcopy keep type, trip, text and partial."""
    back = travel(kind(TRIP, partial={"kept": [1]}))
    assert (type(back), back.trip, str(back), back.partial) == (kind, TRIP, "Why.", {"kept": [1]})


def test_what_cannot_travel_is_left_behind():
    """A partial that cannot be pickled becomes None; a framework's own subclass becomes what every process knows."""
    assert pickle.loads(pickle.dumps(CircuitOpen(TRIP, partial=lambda: 0))).partial is None
    back = pickle.loads(pickle.dumps(Both(TRIP)))
    assert (type(back), back.trip) == (SessionStopped, TRIP)


def test_a_pickled_error_is_read_in_another_process():
    """A fresh interpreter that has imported nothing reads the pickle."""
    code = "import pickle, sys; e = pickle.load(sys.stdin.buffer); print(type(e).__module__, type(e).__name__, e.trip.rule, e)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(SessionStopped(TRIP)), capture_output=True, check=True
    )
    assert done.stdout.decode().split() == ["otel_toolguard", "SessionStopped", "repeat_guard", "Why."]


FAMILY = [
    (ToolGuardError, RuntimeError),
    (CircuitOpen, ToolGuardError),
    (SessionStopped, CircuitOpen),
    (SettingsError, ToolGuardError),
    (SettingsError, ValueError),
    (SessionMissing, ToolGuardError),
    (SettingsWarning, UserWarning),
]


@pytest.mark.parametrize(("kind", "base"), FAMILY)
def test_the_family(kind, base):
    """Each error is of the stated kind and is named as users import it."""
    assert issubclass(kind, base)
    assert (kind.__module__, getattr(otel_toolguard, kind.__name__)) == ("otel_toolguard", kind)


def test_a_refusal_is_no_stop():
    """The two differ in type."""
    assert not isinstance(CircuitOpen(TRIP), SessionStopped)


def raised(outer, inner, *, how):
    try:
        try:
            raise inner
        except BaseException as error:
            if how == "cause":
                raise outer from error
            if how == "suppressed":
                raise outer from None
            raise outer  # noqa: B904  (the bare context is what is tried)
    except BaseException as error:
        return error


def loop():
    one, two = RuntimeError("1"), RuntimeError("2")
    one.__cause__, two.__cause__ = two, one
    return one


def with_attribute(name, value):
    error = RuntimeError("x")
    setattr(error, name, value)
    return error


STOP = SessionStopped(TRIP)
FOUND = {
    "itself": lambda: STOP,
    "both": lambda: Both(TRIP),
    "cause": lambda: raised(ValueError(), CircuitOpen(TRIP), how="cause"),
    "context": lambda: raised(ValueError(), CircuitOpen(TRIP), how="context"),
    "suppressed context": lambda: raised(ValueError(), CircuitOpen(TRIP), how="suppressed"),
    "deep": lambda: raised(ValueError(), raised(KeyError(), CircuitOpen(TRIP), how="context"), how="cause"),
    "group": lambda: ExceptionGroup("g", [ValueError(), CircuitOpen(TRIP)]),
    "base group": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), CircuitOpen(TRIP)]),
    "group in group": lambda: ExceptionGroup("g", [ExceptionGroup("h", [raised(ValueError(), STOP, how="cause")])]),
    "group as cause": lambda: raised(ValueError(), ExceptionGroup("g", [CircuitOpen(TRIP)]), how="cause"),
}
NOT_FOUND = {
    "none": lambda: None,
    "plain": lambda: ValueError("x"),
    "loop": loop,
    "foreign trip": lambda: with_attribute("trip", "to Rome"),
    "exceptions that is text": lambda: with_attribute("exceptions", "ab"),
    "exceptions that is a number": lambda: with_attribute("exceptions", 5),
    "group": lambda: ExceptionGroup("g", [ValueError()]),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_trip_is_found(name):
    """Through causes, contexts and groups, in any order."""
    assert find_trip(FOUND[name]()) == TRIP


@pytest.mark.parametrize("name", NOT_FOUND)
def test_no_trip_is_invented(name):
    """Foreign exceptions give None, whatever attributes they have and however they refer to each other."""
    assert find_trip(NOT_FOUND[name]()) is None


def test_words_are_the_same_everywhere():
    """Error, dict, model and message tell the same trip, and the model comes back from its JSON."""
    error = CircuitOpen(TRIP)
    model = error.model()
    assert isinstance(model, TripModel)
    assert model.model_dump() == error.to_dict() == TRIP.to_dict()
    assert TripModel.model_validate_json(model.model_dump_json()) == model
    assert Trip.from_dict(model.model_dump()) == TRIP
    assert json.loads(error.to_tool_message())["why"] == str(error)


def test_the_report_model_keeps_what_other_plugins_report():
    """Known keys are checked, unknown ones survive the round trip."""
    model = ReportModel.model_validate({"calls": 3, "trips": [TRIP.to_dict()], "longest_repeat": {"laps": 2}})
    assert ReportModel.model_validate_json(model.model_dump_json()) == model
    assert model.model_dump()["longest_repeat"] == {"laps": 2}
    with pytest.raises(ValueError, match="frozen"):
        model.calls = 4


def test_the_model_can_be_written_whatever_the_names_hold():
    """Lone surrogates in a tool's name do not keep the pydantic model from becoming JSON."""
    trip = Trip(id="1", rule="r", scope="run", tool="a\ud800b", session_id="s", loop_type="over_use", why="\udfff")
    assert "a?b" in CircuitOpen(trip).model().model_dump_json()
