"""One tool as the guard sees it: how its calls are signed, classed and compared."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.canonical import canonical
from otel_toolguard.core.classify import Classified, classify, is_shell_like
from otel_toolguard.core.commands import COMMAND_ARGUMENTS, DIRECTORY_ARGUMENTS, command_text
from otel_toolguard.core.masks import MASK_LIMIT, digits
from otel_toolguard.core.projection import folded, part_of
from otel_toolguard.settings import POLLER_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_toolguard.core.canonical import Signer
    from otel_toolguard.core.classify import Risk, ToolClass
    from otel_toolguard.settings import Policy

logger = logging.getLogger("otel_toolguard")
REMEMBERED = 1024  # commands, and arguments, whose class and shape a tool remembers
BRIEF = 256  # characters of arguments that are masked faster than looked up
REMEMBERED_TEXT = 2048  # characters of the longest of them
HERE = "\0here"  # the process's own working directory


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
        fold: True to take texts for equal that differ in Unicode composition or outer blanks only.
        hints: What the tool's protocol says about it (MCP annotations).
        kind: ``gen_ai.tool.type``: function, extension or datastore.
    """

    __slots__ = ("_broken", "_known", "_shapes", "fold", "hints", "ignore", "key", "kind", "name", "poll", "result_key",
                 "risk", "tool_class")  # fmt: skip

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
        fold: bool = False,
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
        self.fold = fold
        self.hints = hints
        self.kind = kind
        self._known: Known | None = None
        self._shapes: dict[str, str] = {}
        self._broken: set[str] = set()

    def named(self, name: str) -> Tool:
        """The same tool under another name: a framework may publish a function under one of its own."""
        return Tool(
            name, tool_class=self.tool_class, risk=self.risk, poll=self.poll, ignore=self.ignore, key=self.key,
            result_key=self.result_key, fold=self.fold, hints=self.hints, kind=self.kind,
        )  # fmt: skip

    def call(
        self,
        arguments: Mapping[str, Any] | str | None,
        policy: Policy,
        signer: Signer,
        call_id: str | None = None,
        batch: str | None = None,
        siblings: int = 0,
        agent: str | None = None,
        reached: bool = True,
        world: str | None = HERE,
    ) -> ToolCall:
        """A call of this tool, signed and classed.

        Args:
            arguments: By name; the raw text where it could not be parsed: then no tool is reached.
            policy: Knows what was set for this tool.
            signer: Makes the signature.
            call_id: The model's id of the call.
            batch: An id shared by the calls of one model turn.
            siblings: How many calls that turn has; 0 if unknown.
            agent: Who asks.
            reached: False for a call that never reaches a tool.
            world: Where a shell command runs, None if unknown. Left out: what the call says, else where the process is.
        """
        named = None if isinstance(arguments, str) else arguments
        known = self._known
        if known is None or known.policy is not policy:
            known = self.known(policy)
        traits = known.by_name if known.fixed else self.traits(policy, named)
        said = arguments if named is None or traits.unchanged else self._said(named, traits)
        text, whole = canonical(said)
        if not traits.shell:
            world = None
        elif world is HERE:
            world = _world(named or {})
        signature = signer.signature(self.name, text, world)
        shape = self._shape(signature, text, world, signer) if "digits" in policy.chain.needs else ""
        reached = reached and traits.reached and (named is not None or arguments is None)
        # By position, for keywords would cost as much again as the call itself.
        return ToolCall(
            self.name, signature, shape, whole, traits.tool_class, traits.risk, traits.neutral, traits.poll,
            traits.patience, reached, call_id, batch, siblings, agent, named, policy.capture_arguments,
            traits.overrides,
        )  # fmt: skip

    def traits(self, policy: Policy, arguments: Mapping[str, Any] | None) -> Traits:
        """What is known about a call: by the tool's name, by the command it runs, and by what the policy says."""
        known = self.known(policy)
        if known.fixed or not arguments:
            return known.by_name
        command = command_text(arguments)
        if command is None:
            return known.by_name
        found = known.commands.get(command)
        if found is None:
            classified = classify(self.name, arguments, hints=self.hints)
            found = Traits(self, policy, classified)
            if len(command) <= REMEMBERED_TEXT:
                if len(known.commands) >= REMEMBERED:
                    known.commands.clear()
                known.commands[command] = found
        return found

    def known(self, policy: Policy) -> Known:
        """What does not change between the calls under one policy."""
        # Read once and replaced as a whole: another thread may ask under another policy at the same moment.
        known = self._known
        if known is None or known.policy is not policy:
            known = self._known = Known(self, policy)
        return known

    def _shape(self, signature: str, text: str, world: str | None, signer: Signer) -> str:
        """The signature with every number in the arguments masked, remembered if the text is long."""
        if len(text) <= BRIEF:
            masked = digits(text)
            return signature if masked == text else signer.signature(self.name, masked, world)
        shape = self._shapes.get(signature)
        if shape is None:
            masked = digits(text[:MASK_LIMIT]) + text[MASK_LIMIT:]
            if len(self._shapes) >= REMEMBERED:
                self._shapes.clear()
            shape = self._shapes[signature] = signer.signature(self.name, masked, world)
        return shape

    def _said(self, arguments: Mapping[str, Any], traits: Traits) -> Any:
        ignore = traits.ignore
        said = {name: value for name, value in arguments.items() if name not in ignore} if ignore else arguments
        if traits.key is not None:
            said = self._by("key", traits.key, dict(said), said)
        return folded(said) if traits.fold else said

    def comparer(self, policy: Policy) -> Callable[[Any], Any] | None:
        """What makes of a result that which is compared instead; None if results are compared as they are."""
        key = self.traits(policy, None).result_key
        return None if key is None else lambda result: self._by("result_key", key, result, result)

    def passes(self, policy: Policy, error_type: str | None, message: str, otherwise: bool) -> bool:
        """Whether a failure may be gone at the next try, by what is set for the tool."""
        said = self.traits(policy, None).transient
        if said is None or isinstance(said, bool):
            return otherwise if said is None else said
        if isinstance(said, tuple):
            text = f"{error_type or ''}\n{message}".lower()
            return otherwise or any(word.lower() in text for word in said)
        return bool(self._by("transient", lambda _: said(error_type, message), None, otherwise))

    def _by(self, word: str, function: Callable[[Any], Any], given: Any, otherwise: Any) -> Any:
        """What the author's function makes of it; one that raises is said once, and it is as if it were not there."""
        try:
            return function(given)
        except Exception as fault:
            if word not in self._broken:
                self._broken.add(word)
                said = "%s of tool %s raised; it is left out wherever it raises"
                logger.exception(said, word, self.name, exc_info=hushed(fault))
            return otherwise


def hushed(fault: BaseException) -> Any:
    """For a log: an exception's class and place, without its words, nor those of one that was being handled.

    Words may quote what the tool was given.
    """
    kind = type(fault)
    same_name = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return kind, type(kind.__name__, (Exception,), same_name)("(its words are left out)"), fault.__traceback__


class Traits:
    """What does not change between two calls of one tool, or of one shell command.

    Attributes:
        enabled: False if the settings say that the tool is traced but not judged.
        shell: Whether the working directory is part of what a call does.
        ignore: Arguments that are left out of the signature.
        key, result_key: Functions of what is compared; None to compare it as it is.
        fold: Whether texts are folded before they are compared.
        transient: As in ``ToolSettings``.
        unchanged: Whether all arguments are compared, and as they are.
        tool_class, risk, neutral, poll, patience, reached, overrides: As on ``ToolCall``.
    """

    __slots__ = ("enabled", "fold", "ignore", "key", "neutral", "overrides", "patience", "poll", "reached",
                 "result_key", "risk", "shell", "tool_class", "transient", "unchanged")  # fmt: skip

    def __init__(self, tool: Tool, policy: Policy, known: Classified) -> None:
        settings = policy.tool(tool.name)
        self.tool_class: ToolClass = tool.tool_class or settings.tool_class or known.tool_class
        self.risk: Risk = tool.risk or settings.risk or known.risk
        self.neutral = known.neutral
        self.reached = known.reached
        self.enabled = settings.enabled
        self.ignore = tool.ignore.union(settings.ignore)
        self.shell = is_shell_like(tool.name)
        poll = settings.poll if tool.poll is None else tool.poll
        self.poll = known.poll if poll is None else bool(poll)
        # A number says how many times the limit; True is a number to Python, but not here.
        self.patience = poll if poll and poll is not True else POLLER_PATIENCE if self.poll else 1
        self.key = _function(tool.key or settings.key)
        self.result_key = _function(tool.result_key or settings.result_key)
        self.fold = tool.fold or settings.fold
        self.transient = settings.transient
        self.unchanged = not self.ignore and self.key is None and not self.fold
        self.overrides = settings.overrides(policy.glob(tool.name) or tool.name)


def _function(key: Callable[[Any], Any] | tuple[str, ...] | None) -> Callable[[Any], Any] | None:
    return functools.partial(part_of, paths=key) if isinstance(key, tuple) else key


class Known:
    """What a tool knows of itself under one policy.

    Attributes:
        policy: The policy.
        by_name: Of a call of which only the name is known.
        fixed: Whether no argument changes any of that.
        commands: What is known of calls that run a command, by command.
    """

    __slots__ = ("by_name", "commands", "fixed", "policy")

    def __init__(self, tool: Tool, policy: Policy) -> None:
        self.policy = policy
        self.by_name = Traits(tool, policy, classify(tool.name, None, hints=tool.hints))
        self.fixed = not any(_decides(tool.name, word) for word in COMMAND_ARGUMENTS)
        self.commands: dict[str, Traits] = {}


def _decides(name: str, word: str) -> bool:
    """Whether an argument of that name can change the class of the tool's calls."""
    return classify(name, {word: "view"}) != classify(name, None)


def _world(arguments: Mapping[str, Any]) -> str | None:
    """Where a shell command runs: what the call says, else where the process is; None if that is gone."""
    for name in DIRECTORY_ARGUMENTS:
        said = arguments.get(name)
        if issubclass(type(said), str):
            return str.__str__(said)
    try:
        return os.getcwd()  # noqa: PTH109  (on the hot path of each shell call)
    except OSError:
        return None
