"""One call through a framework: made and settled, or answered with why it was not made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from otel_toolguard.adapter.runs import stop_of
from otel_toolguard.adapter.stops import stop_in
from otel_toolguard.errors import SessionStopped
from otel_toolguard.guard import unfelt
from otel_toolguard.outcomes import Ended
from otel_toolguard.telemetry.content import NOTHING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from otel_toolguard.attempt import Attempt
    from otel_toolguard.errors import CircuitOpen


def dealt_with(attempt: Attempt, error: CircuitOpen) -> bool:
    """Whether a circuit that opened inside a call, now settled, needs no more than an answer to that call.

    A refusal leaves the run going on; a stop inside has stopped this run too, whose own gate ends it.
    """
    return not isinstance(error, SessionStopped) or stop_of(attempt.place) is not None


class Answers:
    """How a framework says what became of a call; an adapter overrides what is different in it."""

    def refusal(self, error: CircuitOpen) -> Any:
        """The answer to a call that was not run; may raise it where that is how a framework answers."""
        return error.to_tool_message()

    def said(self, answer: Any) -> Any:
        """What the tool said to the model, without what is new in each answer."""
        return answer

    def ended(self, answer: Any) -> Ended | BaseException | None:
        """How the call ended, by the answer or by what the tool raised; None leaves it to what the body returned."""
        return None

    def failure(self, error: BaseException) -> BaseException:
        """What an exception of the framework stands for."""
        return error

    def advised(self, answer: Any, nudges: tuple[str, ...]) -> Any:
        """The answer, or an exception that becomes one, with sentences for the model beside it."""
        return advised(answer, nudges) if isinstance(answer, str) else answer


def advised(text: str, nudges: tuple[str, ...]) -> str:
    """A text with sentences for the model after it."""
    return "\n\n".join((text, *nudges)) if nudges else text  # a text of the user's own kind stays that


class _Made:
    """An admitted call while its body runs."""

    def __init__(self, attempt: Attempt, answers: Answers) -> None:
        self._attempt = attempt
        self._answers = answers
        self.answer: Any = None

    def __enter__(self) -> Self:
        self._attempt.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        attempt, answers = self._attempt, self._answers
        attempt.leave()
        opened = settle(attempt, answers, self.answer, error)
        if opened is not None and dealt_with(attempt, opened):
            self.answer = answers.refusal(opened)
            return True
        told = _advised(attempt, answers, self.answer if error is None else error)
        if error is None:
            self.answer = told
        elif told is not error:
            raise told from error
        return told is not error


def settle(attempt: Attempt, answers: Answers, answer: Any, error: BaseException | None) -> CircuitOpen | None:
    """Settles a call by its answer, or by what was raised; returns the circuit that opened inside it.

    An answer that cannot be read is nobody's failure: how such a call ended is unknown.
    """
    said: Any = NOTHING
    try:
        ended = answers.ended(answer) if error is None else answers.failure(error)
        said = said if error is not None else answers.said(answer)
    except Exception as fault:
        unfelt("read an answer", fault)
        ended = Ended("unknown") if error is None else error
    if not isinstance(ended, BaseException):
        attempt.returned(said, ended)
        return None
    opened = stop_in(ended)
    attempt.raised(opened or ended)
    return opened


def _advised(attempt: Attempt, answers: Answers, answer: Any) -> Any:
    try:
        return answers.advised(answer, attempt.nudges)
    except Exception as fault:
        unfelt("advise a model", fault)
        return answer


def made(attempt: Attempt, answers: Answers, send: Callable[[], Any]) -> Any:
    """Makes a call, or answers why it was not made."""
    if attempt.refused is not None:
        return answers.refusal(attempt.error())
    with _Made(attempt, answers) as call:
        call.answer = send()
    return call.answer


async def made_async(attempt: Attempt, answers: Answers, send: Callable[[], Awaitable[Any]]) -> Any:
    """Makes a call, or answers why it was not made."""
    if attempt.refused is not None:
        return answers.refusal(attempt.error())
    with _Made(attempt, answers) as call:
        call.answer = await send()
    return call.answer
