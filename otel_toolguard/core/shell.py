"""Which programs a piece of shell text runs, found in one linear pass.

The scanner knows enough of the POSIX and bash grammar to tell commands from
data: quotes, here-documents, substitutions, compound commands, wrappers such as
``sudo`` or ``timeout``. It does not validate: text that no shell would accept
still gets a best answer, and no text raises.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from otel_toolguard.core.shell_words import PLAIN, TooDeep, WordReader
from otel_toolguard.core.shell_wrappers import ASSIGNMENT, PYTHON, SHELLS, actions, base, module_of, peel, script_of

if TYPE_CHECKING:
    from collections.abc import Sequence

CAP = 8 * 1024  # characters of shell text that are looked at; what lies beyond is not read
MAX_DEPTH = 5  # levels of substitution and ``sh -c`` that are followed


class Command(NamedTuple):
    """One program that the text runs, with wrappers such as ``sudo`` taken off."""

    program: str
    """Base name of the program."""
    words: tuple[str, ...]
    """The program and its arguments after quote removal, without redirections."""
    reads_pipe: bool
    """True if the program stands to the right of a pipe."""
    nested: bool
    """True inside a substitution or ``find -exec``."""
    writes: bool
    """True if the output is redirected into a file."""


class Scan(NamedTuple):
    """What a piece of shell text runs."""

    programs: tuple[str, ...]
    """Base names in order of appearance, repeats included."""
    commands: tuple[Command, ...]
    """The same programs with their words."""
    truncated: bool
    """True if the text was longer than `CAP` or nested deeper than `MAX_DEPTH`."""

    @property
    def last(self) -> Command | None:
        """The command that ends the text, None if it runs nothing by itself."""
        return next((c for c in reversed(self.commands) if not c.nested), None)


_OPENERS = frozenset(["if", "while", "until", "{"])
_CLOSERS = frozenset(["fi", "done", "}"])
_FILLERS = frozenset(["then", "else", "elif", "do", "!", "coproc"])
_NO_FILE = frozenset(["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"])
_ANSWERS_ONE = frozenset(["grep", "rg", "egrep", "fgrep", "diff", "cmp", "test", "["])

_REDIRECT = re.compile(r"&>>?|<<<|<<-?|<>|<&|>>|>\||>&|[<>]")
_MAGIC = re.compile(r"!(?=[^\s!(=])|%%?(?=[A-Za-z])")
_EMPTY_PARENS = re.compile(r"\s*+\(\s*+\)")
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*+)`?", re.DOTALL)
_ESCAPED = re.compile(r"\\([`\\$])")
_BEFORE_COMPOUND = re.compile(r"\s++(?:-p\s++)?+(?=[{(]|(?:for|while|until|if|case|select)\s)")


def programs(text: str | Sequence[str]) -> Scan:
    """The programs that shell text runs.

    Args:
        text: one script, or an argument vector. A vector whose first word holds a
            blank cannot be one and is read as several command lines.

    Returns:
        The scan of the first `CAP` characters.
    """
    if not isinstance(text, str):
        words = [word for word in text if isinstance(word, str)]
        if words and not any(blank in words[0] for blank in " \t\n"):
            return _scan_words(words)
        text = "\n".join(words)
    scanner = _Scanner(text)
    scanner.run()
    return scanner.scan()


def exit_one_is_an_answer(text: str | Sequence[str]) -> bool:
    """True where exit code 1 says "no" or "differs" and not "failed".

    That is so when the last command is grep, rg, egrep, fgrep, diff, cmp, test or
    ``[``, by the EXIT STATUS sections of their POSIX pages.
    """
    last = programs(text).last
    return last is not None and last.program in _ANSWERS_ONE


def _scan_words(words: list[str]) -> Scan:
    kept: list[str] = []
    left = CAP
    for word in words:
        if left <= 0:
            break
        kept.append(word[:left])
        left -= len(word) + 1
    scanner = _Scanner("")
    scanner.truncated = left < 0
    scanner.slots.append(scanner.resolve(kept, False, False, False))
    return scanner.scan()


class _Simple:
    """The simple command being read."""

    __slots__ = ("header", "slot", "words", "writes")

    def __init__(self) -> None:
        self.words: list[str] = []
        self.slot: list[Command] | None = None
        self.writes = False
        self.header = ""  # "for", "case" or "function": words that name no program


class _Scanner(WordReader):
    """Reads one text; scripts given to ``sh -c`` get a scanner of their own."""

    def __init__(self, text: str, depth: int = 0, nested: bool = False) -> None:
        self.truncated = len(text) > CAP
        if self.truncated:
            # A cut word would be taken for a program, so the cut is moved to a blank.
            head = text[:CAP]
            text = head[: max(head.rfind(" "), head.rfind("\n"))] if " " in head or "\n" in head else head
        super().__init__(text)
        self.depth = depth
        self.nested = nested
        self.slots: list[list[Command]] = []

    def scan(self) -> Scan:
        commands = tuple(command for slot in self.slots for command in slot)
        return Scan(tuple(command.program for command in commands), commands, self.truncated)

    def run(self) -> None:
        try:
            while self.at < len(self.text):
                _List(self).run("")
        except TooDeep:
            self.truncated = True

    def resolve(self, words: list[str], piped: bool, nested: bool, writes: bool) -> list[Command]:
        """The programs behind one simple command, wrappers peeled."""
        words, script = peel(words)
        name = base(words[0])
        if script is None and name in SHELLS:
            script = script_of(words)
        if script is not None:
            return self.inner(script, piped, nested, writes)
        if PYTHON.fullmatch(name) and (module := module_of(words)):
            name, words = module[0], module
        if not name:
            return []
        found = [Command(name, tuple(words), piped, nested, writes)]
        if name == "find" and (inside := actions(words)):
            if self.depth >= MAX_DEPTH:
                self.truncated = True
                return found
            self.depth += 1
            for action in inside:
                found += self.resolve(action, False, True, False)
            self.depth -= 1
        return found

    def inner(self, script: str, piped: bool, nested: bool, writes: bool) -> list[Command]:
        if self.depth >= MAX_DEPTH:
            self.truncated = True
            return []
        scanner = _Scanner(script, self.depth + 1, nested)
        scanner.run()
        self.truncated |= scanner.truncated
        commands = scanner.scan().commands
        return [c._replace(reads_pipe=c.reads_pipe or piped, writes=c.writes or writes) for c in commands]

    def substitution(self) -> None:
        if self.depth >= MAX_DEPTH:
            raise TooDeep
        was_nested, quotes = self.nested, self.quotes
        self.depth, self.nested, self.quotes = self.depth + 1, True, 0
        _List(self).run(")")
        self.depth, self.nested, self.quotes = self.depth - 1, was_nested, quotes

    def backticks(self) -> str:
        found = _BACKTICKS.match(self.text, self.at)
        self.at = found.end() if found else self.at + 1
        if found and self.depth >= MAX_DEPTH:
            raise TooDeep
        if found:
            script = _ESCAPED.sub(r"\1", found[1])
            self.slots.append(self.inner(script, False, True, False))
        return "$()"

    def heredoc(self, delimiter: str, tabs: bool, quoted: bool) -> None:
        """Reads a here-document; only an unquoted one holds substitutions."""
        text = self.here_text(delimiter, tabs)
        if quoted:
            return
        # A body of its own keeps an open quote in it from eating what follows.
        body = _Scanner(text, self.depth, True)
        try:
            body.expansions()
        finally:
            self.slots += body.slots
            self.truncated |= body.truncated


class _List:
    """Reads a list of commands up to its closer or the end of the text."""

    def __init__(self, scanner: _Scanner) -> None:
        self.scanner = scanner
        self.simple = _Simple()
        self.piped = False
        self.groups: list[tuple[str, bool]] = []  # open compound commands, and whether they read a pipe
        self.parens = 0
        self.heredocs: list[tuple[str, bool, bool]] = []

    def run(self, closer: str) -> None:
        try:
            self.read(closer)
        finally:
            self.end()  # what was read before the text became too deep counts

    def read(self, closer: str) -> None:
        scanner, text = self.scanner, self.scanner.text
        while scanner.at < len(text):
            char = text[scanner.at]
            if scanner.blank():
                continue
            if char == "\n":
                scanner.at += 1
                self.newline()
            elif char == ")":
                scanner.at += 1
                self.end()
                if closer and not self.parens:
                    return
                self.close()
            elif char in ";&|":
                self.separator()
            elif char == "(":
                self.parenthesis()
            elif char in "<>" and not text.startswith("(", scanner.at + 1):
                self.redirect()
            else:
                self.word()

    def newline(self) -> None:
        self.end(keep_pipe=not self.simple.words)
        heredocs, self.heredocs = self.heredocs, []
        for delimiter, tabs, quoted in heredocs:
            self.scanner.heredoc(delimiter, tabs, quoted)

    def separator(self) -> None:
        scanner, text = self.scanner, self.scanner.text
        if text.startswith("&>", scanner.at):
            self.redirect()
            return
        self.end()
        begin = scanner.at
        while scanner.at < len(text) and text[scanner.at] in ";&|" and scanner.at < begin + 3:
            scanner.at += 1
        operator = text[begin : scanner.at]
        self.piped = operator in ("|", "|&")
        if operator.startswith((";;", ";&")) and self.groups and self.groups[-1][0] == "case":
            self.pattern()

    def parenthesis(self) -> None:
        scanner, simple = self.scanner, self.simple
        empty = _EMPTY_PARENS.match(scanner.text, scanner.at)
        if empty and len(simple.words) == 1:  # a function definition: its name runs nothing
            scanner.at = empty.end()
            self.simple = _Simple()
        elif scanner.text.startswith("((", scanner.at) and (not simple.words or simple.header):
            scanner.at += 2
            scanner.arithmetic()
        else:
            scanner.at += 1
            self.end(keep_pipe=True)
            self.open("(")

    def open(self, kind: str) -> None:
        self.groups.append((kind, self.reads_pipe()))
        self.parens += kind == "("
        self.piped = False

    def close(self) -> None:
        if self.groups:
            self.parens -= self.groups.pop()[0] == "("

    def redirect(self) -> None:
        scanner = self.scanner
        found = _REDIRECT.match(scanner.text, scanner.at)
        operator = found[0] if found else ""
        scanner.at += max(len(operator), 1)
        while scanner.text.startswith((" ", "\t"), scanner.at):
            scanner.at += 1
        begin = scanner.at
        target = scanner.word()
        if operator in ("<<", "<<-"):
            quoted = any(mark in scanner.text[begin : scanner.at] for mark in "'\"\\")
            self.heredocs.append((target, operator == "<<-", quoted))
        elif ">" in operator and target not in _NO_FILE:
            copies = (operator == ">&" and target.rstrip("-").isdigit()) or target == "-"
            self.simple.writes |= not copies

    def word(self) -> None:
        scanner, simple = self.scanner, self.simple
        text, begin = scanner.text, scanner.at
        if not simple.words and not simple.header:
            if found := _MAGIC.match(text, scanner.at):
                scanner.at = found.end()  # an escape of notebooks: !git, %cd, %%bash
            if ASSIGNMENT.match(text, scanner.at):
                scanner.word()
                return
            begin = scanner.at
            plain = PLAIN.match(text, begin)
            if plain and self.keyword(plain[0], plain.end()):
                return
        if simple.slot is None and not simple.header:
            simple.slot = []
            scanner.slots.append(simple.slot)
        value = scanner.word()
        if scanner.at == begin:
            scanner.at += 1  # a character that can begin nothing
            return
        if text[scanner.at : scanner.at + 1] in ("<", ">") and text[begin : scanner.at].isdigit():
            return  # the descriptor of a redirection
        simple.words.append(value)
        self.headed(value)

    def keyword(self, word: str, end: int) -> bool:
        """Takes a reserved word in command position; False if it is none."""
        scanner = self.scanner
        whole = scanner.text[end : end + 1] not in tuple("\\'\"`$")
        if not whole:
            return False
        if word in _OPENERS:
            self.open(word)
        elif word in _CLOSERS or word == "esac":
            self.close()
        elif word in ("for", "select", "case", "function"):
            self.simple.header = word
        elif word == "[[":
            self.test(end)
            return True
        elif word == "time" and (ahead := _BEFORE_COMPOUND.match(scanner.text, end)):
            end = ahead.end()
        elif word not in _FILLERS:
            return False
        scanner.at = end
        return True

    def headed(self, value: str) -> None:
        """Leaves the head of a compound command where its last word was read."""
        header, words = self.simple.header, self.simple.words
        if header == "case" and value == "in" and len(words) > 1:
            self.simple = _Simple()
            self.open("case")
            self.pattern()
        elif header == "function":
            empty = _EMPTY_PARENS.match(self.scanner.text, self.scanner.at)
            self.scanner.at = empty.end() if empty else self.scanner.at
            self.simple = _Simple()

    def pattern(self) -> None:
        if self.scanner.patterns():
            self.close()

    def test(self, end: int) -> None:
        """Reads ``[[ … ]]``, in which operators are words."""
        scanner = self.scanner
        slot: list[Command] = []
        scanner.slots.append(slot)
        scanner.at = end
        words = scanner.test_words()
        slot += scanner.resolve(words, self.reads_pipe(), scanner.nested, False)

    def reads_pipe(self) -> bool:
        return self.piped or bool(self.groups and self.groups[-1][1])

    def end(self, keep_pipe: bool = False) -> None:
        """Files the simple command that was read, if there was one."""
        simple, self.simple = self.simple, _Simple()
        if simple.header in ("for", "select"):
            self.open(simple.header)
        elif simple.slot is not None and simple.words:
            scanner = self.scanner
            simple.slot += scanner.resolve(simple.words, self.reads_pipe(), scanner.nested, simple.writes)
        self.piped = self.piped and keep_pipe
