"""The order in which results are judged when calls overlap.

A batch is a run of starts with no completion in between. It is committed when its last call ends, in canonical order,
so that the accidents of scheduling cannot hide a cycle. If another call starts after one of the batch has completed,
the completed ones are committed at once and those still running become stragglers: each commits alone when it ends.

Where a framework names the batch (the calls of one model turn, ``ToolCall.batch``) and its size, that decides instead:
siblings that happen not to overlap are one batch all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_toolguard.core.call import Outcome, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

Done = tuple[ToolCall, Outcome]

SAME_CALL, SAME_ANSWER, SAME_RESULT = 1, 2, 3  # how much alike an earlier call of the batch was (Outcome.twin)


class Batch:
    """The calls of one run that started together and have not been judged yet.

    Attributes:
        waiting: Those that have ended.
    """

    __slots__ = ("_missing", "_name", "_open", "waiting")

    def __init__(self) -> None:
        self._open: dict[int, None] = {}
        self.waiting: list[Done] = []
        self._name: str | None = None
        self._missing = 0  # siblings that have not been asked for yet, where the batch has a name

    @property
    def running(self) -> bool:
        """Whether calls have started and none of them has ended."""
        return bool(self._open) and not self.waiting

    def before_start(self, call: ToolCall) -> Sequence[Done]:
        """Closes the batch if the call is not of it; returns what is to be judged before it starts."""
        if not self.waiting or (call.batch is not None and call.batch == self._name):
            return ()
        return self.close()

    def start(self, number: int, call: ToolCall) -> None:
        """Lets a call start."""
        if call.batch is not None or self._name is not None:
            self._expect(call)
        self._open[number] = None

    def end(self, number: int, call: ToolCall, outcome: Outcome) -> Sequence[Done]:
        """Ends call ``number``; returns what is to be judged now, in order."""
        others = self._open
        if others.pop(number, self) is self or not (others or self.waiting or self._missing):
            return ((call, outcome),)  # a straggler, or a batch of one
        self.waiting.append((call, outcome))
        return self._complete()

    def skip(self, call: ToolCall) -> Sequence[Done]:
        """Notes that a call of the batch was refused; returns what only it was waited for."""
        if call.batch is None or (call.batch != self._name and (self._open or self.waiting)):
            return ()
        self._expect(call)
        return self._complete()

    def forget(self, number: int) -> Sequence[Done]:
        """Takes back the start of a call that was only paused; returns what it alone was waited for."""
        self._open.pop(number, None)
        return () if self._open else self.close()

    def close(self) -> Sequence[Done]:
        """Ends the batch; returns what was waiting. Calls that still run become stragglers."""
        ready = _in_canonical_order(self.waiting) if self.waiting else ()
        self.waiting, self._open, self._name, self._missing = [], {}, None, 0
        return ready

    def _expect(self, call: ToolCall) -> None:
        if call.batch != self._name:
            self._name = call.batch
            self._missing = max(0, call.siblings) if call.batch is not None else 0
        self._missing = max(0, self._missing - 1)

    def _complete(self) -> Sequence[Done]:
        if self._open or self._missing:
            return ()
        ready, self.waiting = _in_canonical_order(self.waiting), []
        return ready

    def to_plain(self) -> list[Any]:
        """The batch as JSON values."""
        waiting = [[call.to_plain(), outcome.to_plain()] for call, outcome in self.waiting]
        return [list(self._open), waiting, self._name, self._missing]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Batch:
        """The batch that ``to_plain`` described."""
        batch = cls()
        numbers, waiting, batch._name, batch._missing = plain
        batch._open = dict.fromkeys(numbers)
        batch.waiting = [(ToolCall.from_plain(call), Outcome.from_plain(outcome)) for call, outcome in waiting]
        return batch


def _in_canonical_order(waiting: list[Done]) -> list[Done]:
    ready = sorted(waiting, key=_order)
    seen: set[tuple[str | None, ...]] = set()
    for call, outcome in ready:
        answer = None if call.tool_class == "write" else outcome.volatile
        levels: list[tuple[str | None, ...]] = [(call.signature,), (call.signature, answer, outcome.kind)]
        if outcome.exact != "":  # "" says that no rule asked, not that two answers are equal
            levels.append((call.signature, outcome.exact, outcome.kind, "exact"))
        outcome.twin = max((level for level, key in enumerate(levels, SAME_CALL) if key in seen), default=0)
        seen.update(levels)
        outcome.echo = outcome.failed
    failures = [outcome for _, outcome in ready if outcome.failed]
    if failures:  # one counts; one that will not pass by itself says more than one that may
        min(failures, key=lambda outcome: outcome.failure == "transient").echo = False
    return ready


def _order(done: Done) -> tuple[str, str, str, str]:
    call, outcome = done
    return call.signature, outcome.volatile or "", outcome.exact or "", outcome.kind
