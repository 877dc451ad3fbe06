"""One call through a framework, by the skeleton that adapters share."""

import asyncio

import pytest

from otel_toolguard import Policy, Session, SessionStopped
from otel_toolguard.adapter import (
    Answers,
    FrameworkRuns,
    GuardedTool,
    at_model,
    failed_result,
    made,
    made_async,
    stop_of,
)
from otel_toolguard.stores.memory import MemoryStore

POLICY = Policy(plugins=[{"plugin": "call_ceiling", "tools": {"search": 1}}, {"plugin": "tool_stats"}])


class Told(Answers):
    """Answers of a framework that has an error mark, and an exception of its own for a failure."""

    def refusal(self, error):
        return {"refused": error.trip.rule}

    def ended(self, answer):
        return failed_result("bad") if answer == "bad" else ValueError("below") if answer == "hidden" else None

    def advised(self, answer, nudges):
        return KeyError("told") if isinstance(answer, LookupError) else super().advised(answer, nudges)


def call(answers, send):
    with Session(policy=POLICY) as session:
        attempt = GuardedTool("search").attempt(FrameworkRuns().place("run", None), {}, call_id="1")
        try:
            return made(attempt, answers, send), session.report()["tools"]["search"]["failed"]
        except Exception as error:
            return error, session.report()["tools"]["search"]["failed"]


def raising(error):
    def send():
        raise error

    return send


@pytest.mark.parametrize(("send", "answer", "failed"), [
    (lambda: "fine", "fine", 0),
    (lambda: "bad", "bad", 1),
    (lambda: "hidden", "hidden", 1),
])  # fmt: skip
def test_answer_says_how_a_call_ended(send, answer, failed):
    """An answer comes back as it is, and counts as a failure where the framework marks it so or hides an exception."""
    assert call(Told(), send) == (answer, failed)


def test_exception_leaves_as_it_is():
    """What the body raises leaves as the same object, and is counted."""
    error = ValueError("no")
    assert call(Answers(), raising(error)) == (error, 1)


def test_exception_may_become_another_that_is_told_to_the_model():
    """An adapter may put sentences on an exception that its framework answers; the original is its cause."""
    error = IndexError("no")
    told, failed = call(Told(), raising(error))
    assert (type(told), told.__cause__, failed) == (KeyError, error, 1)


def test_refused_call_is_answered_and_not_made():
    """Past a limit the body does not run; the answer is the adapter's refusal, sync and async."""
    with Session(policy=POLICY):
        runs, tool, ran = FrameworkRuns(), GuardedTool("search"), []

        async def send():
            ran.append(1)
            return "fine"

        def attempt():
            return tool.attempt(runs.place("run", None), {}, call_id=None)

        assert asyncio.run(made_async(attempt(), Told(), send)) == "fine"
        assert asyncio.run(made_async(attempt(), Told(), send)) == {"refused": "call_ceiling"}
        assert made(attempt(), Told(), raising(ValueError())) == {"refused": "call_ceiling"}
    assert ran == [1]


def test_circuit_that_opened_inside_a_call_is_its_answer():
    """A refusal of a nested call is answered to the outer call and lets the run go on."""
    with Session(policy=POLICY) as session:
        place = FrameworkRuns().place("run", None)
        inner = GuardedTool("search")
        inner.attempt(place, {}, call_id=None).returned(None)
        refused = inner.attempt(place, {}, call_id=None).error()
        outer = GuardedTool("delegate").attempt(place, {}, call_id=None)
        assert made(outer, Told(), raising(refused)) == {"refused": "call_ceiling"}
        assert (stop_of(place), session.trip) == (None, None)


def test_stop_of_another_session_inside_a_call_is_its_answer():
    """A stop of another session inside a call stops this run too, so it is the call's answer: the gate ends the run."""
    with Session(policy=Policy(plugins=[{"plugin": "call_ceiling", "run": 1}])) as other:
        other.stop("test")
        stop = SessionStopped(other.trip)
    assert call(Told(), raising(stop))[0] == {"refused": stop.trip.rule}


class Unreadable(Answers):
    """Answers that nobody can read."""

    def ended(self, answer):
        raise ValueError("hostile")

    failure = said = ended

    def advised(self, answer, nudges):
        raise ValueError("hostile")


def test_answer_that_cannot_be_read_is_not_felt():
    """Where our own reading of an answer or an exception fails, the caller gets it as it came."""
    error = KeyError("no")
    assert call(Unreadable(), lambda: "fine") == ("fine", 0)
    assert call(Unreadable(), raising(error)) == (error, 1)


def test_text_without_advice_is_the_very_text():
    """A text of the user's own kind stays the same object where there is nothing to say beside it."""

    class Text(str):
        __slots__ = ()

    said = Text("fine")
    assert call(Answers(), lambda: said)[0] is said


class Away:
    """A store that fails from some transaction on."""

    key = b"k" * 16

    def __init__(self, after, error):
        self.kept, self.left, self.error = MemoryStore(), after, error

    def transact(self, session_id, step):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.kept.transact(session_id, step)


@pytest.mark.parametrize("error", [OSError("away"), TimeoutError(), RuntimeError("a bug")])
@pytest.mark.parametrize("after", range(4))
def test_store_that_is_away_is_not_felt_at_a_gate(after, error):
    """A store that fails at any moment of a run stops it nowhere: not at a call, not at a model boundary, not at its end."""
    runs = FrameworkRuns()
    with Session(policy=POLICY, store=Away(after, error)):
        for _ in range(3):
            place = runs.place("run", None)
            assert (at_model(place), stop_of(place)) == (None, None)
            assert made(GuardedTool("look").attempt(place, {}, call_id=None), Answers(), lambda: "fine") == "fine"
        runs.end(place)


def test_store_that_refuses_is_heard_at_a_gate():
    """A store that says by a ``CircuitOpen`` that it refuses ends the run at the model boundary."""
    with Session(policy=POLICY) as other:
        other.stop("test")
        refusal = SessionStopped(other.trip)
    with Session(policy=POLICY, store=Away(0, refusal)):
        place = FrameworkRuns().place("run", None)
        for gate in (at_model, stop_of):
            with pytest.raises(SessionStopped):
                gate(place)
