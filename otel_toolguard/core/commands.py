"""Where among a call's arguments a command stands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from otel_toolguard.core.shell import CAP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DIRECTORY_ARGUMENTS = ("cwd", "working_dir", "working_directory", "workdir")  # where a call may say where it runs
COMMAND_ARGUMENTS = ("command", "cmd", "script")  # the only arguments from which command text is read


def command_text(arguments: Mapping[str, object] | None) -> str | None:
    """The command line among a call's arguments.

    Args:
        arguments: the call's arguments; None if only the name is known.

    Returns:
        The text of ``command``, ``cmd`` or ``script``. A list of words is quoted so
        that a shell would read the same words. None if there is no such text.
    """
    for name in COMMAND_ARGUMENTS:
        value: Any = arguments.get(name) if arguments else None
        kind = type(value)  # not isinstance, which asks the value: it may lie or raise
        if issubclass(kind, str):
            return str.__str__(value)
        words = _words(value) if kind is list or kind is tuple else None
        if words:
            return "\n".join(words) if " " in words[0] else shlex.join(words)
    return None


def _words(value: Sequence[object]) -> list[str] | None:
    """A command's words, as far as shell text is looked at at all; None if one of them is no text."""
    words, room = list[str](), CAP + 1
    for word in value:
        if type(word) is not str:
            return None
        words.append(word[:room])
        room -= len(word) + 1
        if room <= 0:
            break
    return words
