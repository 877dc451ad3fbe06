"""Around a stream of messages: what they tell of calls, where their reader stands, and the stop at their end."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import anyio
from claude_agent_sdk import AssistantMessage, ClaudeSDKError, ResultMessage, ToolUseBlock

import otel_toolguard.adapter as kit

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from contextvars import Context

    from otel_toolguard import Trip
    from otel_toolguard_claude_agent_sdk._guard import Run

ClaudeAgentStopped = kit.native(ClaudeSDKError, name="ClaudeAgentStopped", module=__name__)
KEPT = 1024  # calls of a stream, and runs of a process, that are remembered

current: ContextVar[Stream | None] = ContextVar("otel_toolguard_claude_agent_sdk.stream", default=None)
streams: WeakValueDictionary[str, Stream] = WeakValueDictionary()  # of a client, by Claude Code's id of its session
runs: OrderedDict[tuple[Any, ...], Run] = OrderedDict()  # by stream or session, and what else tells them apart


class Asked(NamedTuple):
    """What a message tells of a call: its turn, the ids known of that turn, and the call that the agent works in."""

    turn: str
    ids: list[str]
    inside: str | None


class Stream:
    """One guarded stream.

    Attributes:
        asked: What its messages told of calls.
        context: Where its reader stands, as of the last step.
        task: Which task takes a step now.
        trip: Why its run was stopped.
        stopped_run: That run, once nobody reads on; Claude Code may take a moment to end.
    """

    def __init__(self) -> None:
        self.asked: OrderedDict[str, Asked] = OrderedDict()
        self.context: Context = copy_context()
        self.task: int | None = None
        self.trip: Trip | None = None
        self.stopped_run: Run | None = None
        self._session_id: str | None = None
        self._result: Any = None

    async def step(self, messages: AsyncIterator[Any]) -> Any:
        """The next message, None at the end; what the SDK starts meanwhile can tell that it works for this stream."""
        self.context = copy_context()
        token, self.task = current.set(self), anyio.get_current_task().id
        try:
            return await anext(messages, None)
        except Exception as error:
            self.trip = self.trip or self._over()
            if self.trip is None:
                raise
            raise self.stopped(self.trip) from error  # Claude Code may end badly when it is stopped
        finally:
            current.reset(token)
            self.task = None

    def note(self, message: Any) -> None:
        """Remembers what a message tells."""
        data = getattr(message, "data", None) or {}
        told = getattr(message, "session_id", None) or data.get("session_id")
        if told:
            self._session_id = told
            streams[told] = self
        if isinstance(message, AssistantMessage):
            last = next(reversed(self.asked.values()), None)
            turn = message.message_id or message.uuid or secrets.token_hex(8)
            ids = last.ids if last is not None and last.turn == turn else []
            for block in message.content:
                if isinstance(block, ToolUseBlock):
                    ids.append(block.id)
                    self.asked[block.id] = Asked(turn, ids, message.parent_tool_use_id)
            while len(self.asked) > KEPT:
                self.asked.popitem(last=False)
        elif isinstance(message, ResultMessage):
            self.trip, self._result = self.trip or self._over(), message

    @property
    def ends(self) -> bool:
        """Whether it ends by itself: that of a query does, that of a client need not."""
        return any(key[0] is self for key in runs)

    def stopped(self, trip: Trip) -> Exception:
        """What its reader gets in the end."""
        return ClaudeAgentStopped(trip, {"session_id": self._session_id, "result": self._result})

    def over(self) -> None:
        """There are no more messages."""
        self.trip = self.trip or self._over()
        if self.trip is not None:
            raise self.stopped(self.trip)

    def forget(self) -> None:
        """Nobody reads on: what was stopped has been said, or will not be heard."""
        for key in self._mine():
            if key[0] is self or runs[key].trip is not None:
                self._end(key)

    def _mine(self) -> list[tuple[Any, ...]]:
        mine = (self, self._session_id) if self._session_id else (self,)
        return [key for key, run in runs.items() if key[0] in mine and not run.over]

    def _over(self) -> Trip | None:
        """Why its run was stopped; a run that was not is over, and the next prompt begins another."""
        mine = self._mine()
        found = next((trip for key in mine if (trip := runs[key].trip) is not None), None)
        for key in mine if found is None else ():
            self._end(key)
        return found

    def _end(self, key: tuple[Any, ...]) -> None:
        _, _, prompt = key
        runs[key].over = True
        if key[0] is self or prompt is None or not runs[key].agents:  # else sub-agents may work on in the background
            run = runs.pop(key)
            run.close()
            self.stopped_run = run if key[0] is self and self.trip is not None else None


async def guarded_stream(messages: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Hands on the messages of ``query(...)``, ``client.receive_response()`` or ``client.receive_messages()``.

    Raises:
        CircuitOpen: After the last message of a run that was stopped; ``partial`` has its ``session_id``, which can be
            resumed, and its ``result``. It is a ``ClaudeSDKError``, too.
    """
    outer, inner, stream = current.get(), aiter(messages), Stream()
    if outer is not None and outer.task == anyio.get_current_task().id:  # it is guarded further out
        async for message in inner:
            yield message
        return
    try:
        while (message := await stream.step(inner)) is not None:
            if stream.trip is not None and isinstance(message, AssistantMessage):
                break  # it goes on all the same
            stream.note(message)
            yield message
            if stream.trip is not None and not stream.ends:
                break
        stream.over()
    finally:
        stream.forget()
        close = getattr(inner, "aclose", None)
        if close is not None:
            await close()
