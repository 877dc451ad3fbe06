"""One tool as the guard sees it: how its calls are signed, classed and compared."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.canonical import canonical
from otel_toolguard.core.classify import Classified, classify, command_text, is_shell_like
from otel_toolguard.core.masks import digits
from otel_toolguard.settings import POLLER_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_toolguard.core.canonical import Signer
    from otel_toolguard.core.classify import Risk, ToolClass
    from otel_toolguard.settings import Policy

COMMANDS_KEPT = 1024  # classifications of shell text that are remembered per tool
_DIRECTORY = ("cwd", "working_dir", "working_directory", "workdir")
_ARGUMENTS_DECIDE = ("command", "cmd", "script")


class Tool:
    """A tool's name and what its author said about it.

    Args:
        name: As the model knows it.
        tool_class: Overrides the class that name and shell programs suggest; None leaves it to them.
        risk: Overrides the risk; None likewise.
        poll: True for 10 times the repeat limit, a number for that many times; False for no poller; None by name.
        ignore: Arguments that say nothing about what the call does.
        key: Turns the arguments (a dict) into what shall be compared instead of them.
        result_key: Turns the result into what shall be compared instead of it.
        hints: What the tool's protocol says about it (MCP annotations).
        kind: ``gen_ai.tool.type``: function, extension or datastore.
    """

    __slots__ = ("_commands", "_traits", "hints", "ignore", "key", "kind", "name", "poll", "result_key", "risk",
                 "tool_class")  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        tool_class: ToolClass | None = None,
        risk: Risk | None = None,
        poll: bool | int | None = None,
        ignore: Iterable[str] = (),
        key: Callable[[dict[str, Any]], Any] | None = None,
        result_key: Callable[[Any], Any] | None = None,
        hints: Mapping[str, Any] | None = None,
        kind: str = "function",
    ) -> None:
        self.name = name
        self.tool_class = tool_class
        self.risk = risk
        self.poll = poll
        self.ignore = frozenset(ignore)
        self.key = key
        self.result_key = result_key
        self.hints = hints
        self.kind = kind
        self._traits: tuple[Policy, _Traits] | None = None
        self._commands: dict[str, Classified] = {}

    def named(self, name: str) -> Tool:
        """The same tool under another name: a framework may publish a function under one of its own."""
        return Tool(
            name, tool_class=self.tool_class, risk=self.risk, poll=self.poll, ignore=self.ignore, key=self.key,
            result_key=self.result_key, hints=self.hints, kind=self.kind,
        )  # fmt: skip

    def call(
        self,
        arguments: Mapping[str, Any] | str,
        policy: Policy,
        signer: Signer,
        *,
        call_id: str | None = None,
        batch: str | None = None,
        agent: str | None = None,
        reached: bool = True,
    ) -> ToolCall:
        """A call of this tool, signed and classed.

        Args:
            arguments: By name; the raw text where it could not be parsed (then pass ``reached=False``).
            policy: Knows what was set for this tool.
            signer: Makes the signature.
            call_id: The model's id of the call.
            batch: An id shared by the calls of one model turn.
            agent: Who asks.
            reached: False for a call that never reaches a tool.
        """
        traits = self._for(policy)
        known = traits.known if traits.known is not None else self._classified(arguments)
        said = self._said(arguments, traits.ignore)
        text, whole = canonical(said)
        world = _world(arguments) if traits.shell else None
        signature = signer.signature(self.name, text, world)
        poll, patience = traits.patience(known)
        return ToolCall(
            self.name,
            signature,
            shape=signer.signature(self.name, digits(text), world) if "digits" in policy.chain.needs else "",
            whole=whole,
            tool_class=traits.tool_class or known.tool_class,
            risk=traits.risk or known.risk,
            neutral=known.neutral,
            poll=poll,
            patience=patience,
            reached=reached and known.reached,
            call_id=call_id,
            batch=batch,
            agent=agent,
            arguments=arguments if not isinstance(arguments, str) else None,
            capture=policy.capture_arguments,
        )

    def enabled(self, policy: Policy) -> bool:
        """False if the settings say that this tool is traced but not judged."""
        return self._for(policy).enabled

    def _for(self, policy: Policy) -> _Traits:
        if self._traits is None or self._traits[0] is not policy:
            self._traits = (policy, _Traits(self, policy))
        return self._traits[1]

    def _classified(self, arguments: Mapping[str, Any] | str) -> Classified:
        if isinstance(arguments, str):
            return classify(self.name, None, hints=self.hints)
        text = command_text(arguments)
        if text is None:
            return classify(self.name, arguments, hints=self.hints)
        found = self._commands.get(text)
        if found is None:
            found = classify(self.name, arguments, hints=self.hints)
            if len(self._commands) < COMMANDS_KEPT:
                self._commands[text] = found
        return found

    def _said(self, arguments: Mapping[str, Any] | str, ignore: frozenset[str]) -> Any:
        if isinstance(arguments, str):
            return arguments
        said = {name: value for name, value in arguments.items() if name not in ignore} if ignore else dict(arguments)
        return self.key(said) if self.key is not None else said


class _Traits:
    """What a policy makes of a tool, worked out once. ``known`` is None where the arguments decide the class."""

    __slots__ = ("_poll", "enabled", "ignore", "known", "risk", "shell", "tool_class")

    def __init__(self, tool: Tool, policy: Policy) -> None:
        settings = policy.tool(tool.name)
        self.tool_class = tool.tool_class or settings.tool_class
        self.risk = tool.risk or settings.risk
        self.ignore = tool.ignore.union(settings.ignore)
        self.enabled = settings.enabled
        self.shell = is_shell_like(tool.name)
        self._poll = settings.poll if tool.poll is None else tool.poll
        by_name = classify(tool.name, None, hints=tool.hints)
        decided = by_name if not self.shell and not _may_take_a_command(tool.name) else None
        self.known: Classified | None = decided

    def patience(self, known: Classified) -> tuple[bool, int]:
        """(poller or not, times the repeat limit)."""
        if self._poll is None:
            return known.poll, POLLER_PATIENCE if known.poll else 1
        if self._poll is True or self._poll is False:
            return bool(self._poll), POLLER_PATIENCE if self._poll else 1
        return True, int(self._poll)


def _may_take_a_command(name: str) -> bool:
    return any(classify(name, {key: "view"}) != classify(name, None) for key in _ARGUMENTS_DECIDE)


def _world(arguments: Mapping[str, Any] | str) -> str | None:
    """Where a shell command runs: what the call says, else where the process is; None if that is gone."""
    if not isinstance(arguments, str):
        for name in _DIRECTORY:
            said = arguments.get(name)
            if isinstance(said, str):
                return said
    try:
        return os.getcwd()  # noqa: PTH109  (on the hot path of each shell call)
    except OSError:
        return None
