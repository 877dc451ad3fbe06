"""What stands behind a program that runs another: sudo, sh -c, python -m, find -exec."""

from __future__ import annotations

import re
from typing import NamedTuple

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*+(?:\[[^\]\s]*+\])?+\+?=")
PYTHON = re.compile(r"(?:python|pypy)[0-9.]*+")


class _Wrapper(NamedTuple):
    values: frozenset[str] = frozenset()  # options whose value is the next word
    operands: int = 0  # words of its own before the program
    assigns: bool = False  # takes NAME=value before the program
    script: str = ""  # option after the operands whose value is shell text


def _wrapper(values: str = "", operands: int = 0, assigns: bool = False, script: str = "") -> _Wrapper:
    return _Wrapper(frozenset(values.split()), operands, assigns, script)


_WRAPPERS = {
    "sudo": _wrapper("-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --chdir --chroot", assigns=True),
    "doas": _wrapper("-u -C"),
    "env": _wrapper("-u -C -S --unset --chdir --split-string", assigns=True),
    "timeout": _wrapper("-k -s --kill-after --signal", operands=1),
    "nohup": _wrapper(),
    "time": _wrapper("-f -o --format --output"),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c -n -p -P -u --class --classdata"),
    "stdbuf": _wrapper("-i -o -e --input --output --error"),
    "setsid": _wrapper(),
    "exec": _wrapper("-a"),
    "command": _wrapper(),
    "builtin": _wrapper(),
    "xargs": _wrapper("-n -P -I -L -d -E -s -a --max-args --max-procs --replace --delimiter --arg-file --max-lines"),
    "watch": _wrapper("-n --interval"),
    "chroot": _wrapper(operands=1),
    "flock": _wrapper("-w -E --timeout --wait --conflict-exit-code", operands=1, script="-c"),
    "strace": _wrapper("-e -o -p -s -u -E -P -a -b -I -O -S -X"),
}
SHELLS = frozenset(["sh", "bash", "zsh", "dash", "ksh", "ash", "fish"])
_SHELL_VALUES = frozenset(["-o", "+o", "-O", "+O", "--rcfile", "--init-file"])
_EXEC_ACTIONS = frozenset(["-exec", "-execdir", "-ok", "-okdir"])


def base(word: str) -> str:
    """Base name of a program; empty if only a substitution knows it."""
    name = word.rstrip("/").rpartition("/")[2]
    return "" if "$()" in name else name


def peel(words: list[str]) -> tuple[list[str], str | None]:
    """Takes wrappers off; also the script if the innermost one is given shell text."""
    while (wrapper := _WRAPPERS.get(name := base(words[0]))) is not None:
        if name == "command" and words[1:2] in (["-v"], ["-V"]):
            break
        at = _after_options(words, wrapper)
        if wrapper.script and words[at : at + 1] == [wrapper.script]:
            return words, words[at + 1] if len(words) > at + 1 else None
        if at >= len(words):
            break
        words = words[at:]
        if name == "watch" and len(words) == 1 and " " in words[0]:
            return words, words[0]  # watch hands its words to sh -c
    return words, None


def _after_options(words: list[str], wrapper: _Wrapper) -> int:
    """Index of the first word that belongs to the wrapped program."""
    at = 1
    while at < len(words) and (words[at].startswith("-") or (wrapper.assigns and ASSIGNMENT.match(words[at]))):
        option = words[at]
        at += 1
        if option == "--":
            break
        at += _takes_value(option, wrapper.values)
    return at + wrapper.operands


def _takes_value(option: str, values: frozenset[str]) -> bool:
    """True if the next word is the option's value; ``-n1`` holds its own."""
    if option.startswith("--") or option in values:
        return option in values
    first = next((i for i, letter in enumerate(option[1:], 1) if "-" + letter in values), None)
    return option.startswith("-") and first == len(option) - 1


def script_of(words: list[str]) -> str | None:
    """The text given to ``sh -c``, None for a script file or standard input."""
    at, wanted = 1, False
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        wanted |= not words[at].startswith("--") and words[at][0] == "-" and "c" in words[at]
        at += 2 if words[at] in _SHELL_VALUES or (words[at][0] == "-" and words[at][-1] == "o") else 1
    return words[at] if wanted and at < len(words) else None


def module_of(words: list[str]) -> list[str]:
    """The words of ``python -m X``, starting with X; empty otherwise."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "-c"):
        if words[at] == "-m":
            return words[at + 1 :]
        at += 2 if words[at] in ("-W", "-X") else 1
    return []


def actions(words: list[str]) -> list[list[str]]:
    """The commands that ``find`` is told to run."""
    found = []
    at = 1
    while at < len(words):
        at += 1
        if words[at - 1] in _EXEC_ACTIONS:
            begin = at
            while at < len(words) and words[at] not in (";", "+"):
                at += 1
            if at > begin:
                found.append(words[begin:at])
    return found
