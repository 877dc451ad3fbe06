"""Around a stream of messages: what they tell of calls, where their reader stands, and the stop at their end."""

from __future__ import annotations

import secrets
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import anyio
from claude_agent_sdk import AssistantMessage, ClaudeSDKError, ResultMessage, ToolUseBlock

import otel_toolguard.adapter as kit

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

    from otel_toolguard import Trip
    from otel_toolguard_claude_agent_sdk._guard import Run

ClaudeAgentStopped = kit.native(ClaudeSDKError, name="ClaudeAgentStopped", module=__name__)
KEPT = 1024  # calls of a stream, and runs of a process, that are remembered

current: ContextVar[Stream | None] = ContextVar("otel_toolguard_claude_agent_sdk.stream", default=None)
streams: WeakValueDictionary[str, Stream] = WeakValueDictionary()  # of a client, by Claude Code's id of its session
runs: kit.Recent[tuple[Any, ...], Run] = kit.Recent(KEPT, lambda _, run: run.close())  # by stream or session, and more


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
        ends: Whether it ends by itself: that of a query does, that of a client need not.
    """

    def __init__(self) -> None:
        self.asked: kit.Recent[str, Asked] = kit.Recent(KEPT)
        self.context = copy_context()
        self.task: int | None = None
        self.trip: Trip | None = None
        self.ends = False
        self._last = Asked("", [], None)
        self._session_id: str | None = None
        self._result: Any = None

    async def step(self, messages: AsyncIterator[Any]) -> Any:
        """The next message, None at the end; what the SDK starts meanwhile can tell that it works for this stream."""
        self.context = copy_context()
        token, self.task = current.set(self), anyio.get_current_task().id
        try:
            return await anext(messages, None)
        finally:
            current.reset(token)
            self.task = None

    def note(self, message: Any) -> None:
        """Remembers what a message tells; a result ends the run."""
        data = getattr(message, "data", None) or {}
        self._session_id = getattr(message, "session_id", None) or data.get("session_id") or self._session_id
        if self._session_id:
            streams[self._session_id] = self
        if isinstance(message, AssistantMessage):
            turn = message.message_id or message.uuid or secrets.token_hex(8)
            if self._last.turn != turn:
                self._last = Asked(turn, [], message.parent_tool_use_id)
            for block in message.content:
                if isinstance(block, ToolUseBlock):
                    self._last.ids.append(block.id)
                    self.asked.of(block.id, lambda: self._last)
        elif isinstance(message, ResultMessage):
            self._result = message
            self.end()

    def end(self, *, left: bool = False) -> None:
        """Closes the runs of a prompt that is over, and learns why one was stopped; the next prompt begins another.

        Where its reader has left, a client's may go on.
        """
        for key in [key for key in runs if key[0] is self or (key[0] == self._session_id and not left)]:
            run, (owner, _, prompt) = runs.get(key), key
            if run is None or run.over:
                continue
            self.trip = self.trip or run.trip()
            self.ends |= owner is self
            run.close()
            if owner is self or prompt is None or not run.agents:  # else those may work on in the background
                runs.pop(key)

    def raise_if_stopped(self, cause: BaseException | None = None) -> None:
        """What its reader gets in the end."""
        self.end()
        if self.trip is not None:
            partial = {"session_id": self._session_id, "result": self._result}
            raise ClaudeAgentStopped(self.trip, partial) from cause


async def guarded_stream(messages: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Hands on the messages of ``query(...)``, ``client.receive_response()`` or ``client.receive_messages()``.

    Raises:
        CircuitOpen: After the result of a run that was stopped; ``partial`` has its ``session_id``, which can be
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
    except Exception as error:  # Claude Code may end badly when it is stopped
        stream.raise_if_stopped(error)
        raise
    finally:
        if hasattr(inner, "aclose"):
            await inner.aclose()
        stream.end(left=True)
    stream.raise_if_stopped()
