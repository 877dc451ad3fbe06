"""Reads the words of shell text: quotes, escapes and expansions."""

from __future__ import annotations

import re

_MAX_QUOTES = 25  # levels of "${x:-"${y}"}"; keeps the interpreter's stack flat

PLAIN = re.compile(r"[^\s\\'\"`$<>|&;()]++")
_IN_DOUBLE = re.compile(r"[^\"\\$`]++")
_IN_BRACE = re.compile(r"[^\"'\\$`}]++")
_AFTER_TEST = " \t\r\n;&|)<>"
_IN_TEST = re.compile(r"[^\s\\'\"`$]++")


class TooDeep(Exception):
    """The text is nested too deeply to go on."""


class WordReader:
    """A place in shell text. Each method starts at `at` and leaves it behind what it read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.quotes = 0

    def substitution(self) -> None:
        """Reads the commands of ``$(`` up to its parenthesis."""
        raise NotImplementedError

    def backticks(self) -> str:
        """Reads the commands between backticks."""
        raise NotImplementedError

    def blank(self) -> bool:
        """Skips one blank, comment or joined line; False if none is here."""
        text, at = self.text, self.at
        if text[at] == "#":
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end
        elif text.startswith("\\\n", at):
            self.at += 2
        elif text[at] != "\n" and text[at].isspace():
            self.at += 1
        return self.at > at

    def word(self, stop: re.Pattern[str] = PLAIN) -> str:
        """One word; "" if none begins here."""
        text, pieces, begin = self.text, [], self.at
        while self.at < len(text):
            if run := stop.match(text, self.at):
                self.at = run.end()
                pieces.append(run[0])
                continue
            char = text[self.at]
            if char in "'\"\\$`":
                pieces.append(self.special(char))
            elif char == "(" and self.at > begin and stop is PLAIN and text[self.at - 1] in "=?*+@!":
                self.parentheses()
            elif char in "<>" and text.startswith("(", self.at + 1) and stop is PLAIN:
                self.at += 2
                self.substitution()
            else:
                break
        return "".join(pieces)

    def special(self, char: str) -> str:
        r"""Reads what one of the characters \, ', ", $ and ` begins."""
        text = self.text
        if char == "\\":
            self.at += 2
            return "" if text.startswith("\n", self.at - 1) else text[self.at - 1 : self.at]
        if char == "'":
            return self.single()
        if char == '"':
            return self.double()
        if char == "`":
            return self.backticks()
        return self.dollar()

    def single(self) -> str:
        """The text between apostrophes."""
        begin = self.at + 1
        end = self.text.find("'", begin)
        end = len(self.text) if end < 0 else end
        self.at = end + 1
        return self.text[begin:end]

    def double(self) -> str:
        """The text between double quotes."""
        self.deeper()
        self.at += 1
        text, pieces = self.text, []
        while self.at < len(text) and text[self.at] != '"':
            if run := _IN_DOUBLE.match(text, self.at):
                self.at = run.end()
                pieces.append(run[0])
            elif text[self.at] == "\\" and text[self.at + 1 : self.at + 2] not in tuple('"\\$`\n'):
                self.at += 2
                pieces.append(text[self.at - 2 : self.at])
            else:
                pieces.append(self.special(text[self.at]))
        self.at += 1
        self.quotes -= 1
        return "".join(pieces)

    def dollar(self) -> str:
        """Reads an expansion; "$()" stands for the output of commands."""
        text, begin = self.text, self.at
        self.at += 1
        if text.startswith("((", self.at):
            self.at += 2
            self.arithmetic()
        elif text.startswith("(", self.at):
            self.at += 1
            self.substitution()
        elif text.startswith("{", self.at):
            self.brace()
            return text[begin : self.at]
        elif text.startswith("'", self.at):
            return self.ansi()
        else:
            return "$"
        return "$()"  # the shell that reads this word has run it, so no inner shell may

    def ansi(self) -> str:
        """The text of ``$'…'``, escapes left as they are."""
        self.at += 1
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] != "'":
            self.at += 2 if self.text[self.at] == "\\" else 1
        self.at += 1
        return self.text[begin : self.at - 1]

    def brace(self) -> None:
        """Skips ``${…}``."""
        self.deeper()
        self.at += 1
        text = self.text
        while self.at < len(text) and text[self.at] != "}":
            if run := _IN_BRACE.match(text, self.at):
                self.at = run.end()
            elif text[self.at] == "'" and self.quotes > 1:
                self.at += 1  # between double quotes an apostrophe is a letter
            else:
                self.special(text[self.at])
        self.at += 1
        self.quotes -= 1

    def deeper(self) -> None:
        """Enters a level of quotes and stops where there are too many."""
        self.quotes += 1
        if self.quotes > _MAX_QUOTES:
            raise TooDeep

    def arithmetic(self) -> None:
        """Skips to behind the parenthesis that closes two open ones."""
        self.parentheses(2)

    def parentheses(self, open_ones: int = 0) -> None:
        """Skips an array value or an extended pattern: to where no parenthesis is open."""
        self.deeper()
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "'\"\\$`":
                self.special(char)
                continue
            open_ones += (char == "(") - (char == ")")
            self.at += 1
            if not open_ones:
                break
        self.quotes -= 1

    def expansions(self) -> None:
        """Reads the expansions of a here-document, in which quotes mean nothing."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "\\$`":
                self.special(char)
            else:
                self.at += 1

    def here_text(self, delimiter: str, tabs: bool) -> str:
        """The body of a here-document; tabs before its lines are dropped for ``<<-``."""
        text, begin = self.text, self.at
        while self.at < len(text):
            start = self.at
            stop = text.find("\n", start)
            stop = len(text) if stop < 0 else stop
            self.at = min(stop + 1, len(text))
            line = text[start:stop].rstrip("\r")
            if (line.lstrip("\t") if tabs else line) == delimiter:
                return text[begin:start]
        return text[begin:]

    def patterns(self) -> bool:
        """Skips the patterns of one ``case`` branch; True if ``esac`` came instead."""
        text, first = self.text, True
        while self.at < len(text):
            char = text[self.at]
            if char.isspace() or char == "|" or (char == "(" and first):
                self.at += 1
                first = first and char != "("
                continue
            if char == ")":
                self.at += 1
                return False
            begin = self.at
            if self.word() == "esac" and first:
                return True
            first = False
            self.at += self.at == begin
        return False

    def test_words(self) -> list[str]:
        """Reads on behind ``[[`` to ``]]``; operators in between are words."""
        words = ["[["]
        while self.at < len(self.text) and words[-1] != "]]":
            if self.text[self.at].isspace():
                self.at += 1
            elif self.text.startswith("]]", self.at) and (self.text[self.at + 2 : self.at + 3] or ";") in _AFTER_TEST:
                self.at += 2  # an operator may stand right behind
                words.append("]]")
            else:
                words.append(self.word(_IN_TEST))
        return words
