"""Masks what changes from run to run in the text of a tool's result.

Two results that differ only in a clock, a duration, an id or a temporary name say
the same thing. Plain numbers say something and stay: "12 rows" and "13 rows" are
two results. Every pattern is linear: each repeat is possessive or bounded, and each
attempt begins at the edge of a word or number.
"""

from __future__ import annotations

import re

MASK_LIMIT = 16 * 1024
"""Characters that a caller should have masked at most; the functions mask what they get."""

MARK = "\u2039~\u203a"
"""Stands where something volatile was."""

NUMBER = "\u2039#\u203a"
"""Stands where `digits` found a number."""

# The characters of the marks count as parts of words at every edge: a mask can then
# never free a neighbour for the next round, which makes masking idempotent.
_EDGE = r"[\w\u2039\u203a]"
_END = rf"(?!{_EDGE})"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})(?![\w:]))?"
_SECONDS = r":[0-6][0-9](?:[.,][0-9]{1,9})?"
_CLOCK = rf"[0-9]{{1,2}}:[0-5][0-9](?:{_SECONDS})?(?: ?[AaPp][Mm]\b)?{_ZONE}"
_UNIT = (
    r"(?:(?:[smhd]|days?|weeks?) ago|(?:it|[kKMGT]?i?[Bb])/s|s/it|ns|us|\u00b5s|\u03bcs|ms|msecs?|s|secs?|seconds?"
    r"|milliseconds?|microseconds?|nanoseconds?|mins?|minutes?|hrs?|hours?)"
)

# Each pattern begins with one class of characters and looks back only behind it, since
# the engine skips fast to a first character but not to an assertion.
_DATED = re.compile(
    rf"[JFMASONDTW](?<!{_EDGE}.)(?:(?<=[MTWFS])(?:on|ue|ed|hu|ri|at|un)[a-z]{{0,6}},? {{1,2}})?"
    rf"(?:(?:(?<=J)an|(?<=F)eb|(?<=M)a[ry]|(?<=A)pr|(?<=J)u[nl]|(?<=A)ug|(?<=S)ep|(?<=O)ct|(?<=N)ov|(?<=D)ec"
    rf"|(?<= ){_MONTH})[a-z]{{0,6}} {{1,2}}[0-9]{{1,2}},? {{1,2}}"
    rf"(?:{_CLOCK}(?: [0-9]{{4}})?|[12][0-9]{{3}}(?: {_CLOCK})?)"
    rf"|(?<= )[0-9]{{1,2}} {_MONTH} [0-9]{{4}}(?: {_CLOCK})?){_END}"
)
_NUMERIC = re.compile(
    # A number that none of the alternatives can go on with is turned down at once: most numbers are plain.
    rf"[0-9](?=[0-9,.]*+(?:[-/:%T_dhmeiknsuwBGKMb\u00b5\u03bc]| [bdhikmnsuwABDFGJKMNOST\u00b5\u03bc]))"
    rf"(?<!{_EDGE}.)(?<![0-9\u203a][.:].)(?:"
    # 2024-05-20T10:11:12.345+02:00, 20240520T101112Z, 20/May/2024:10:11:12 +0000, 20/05/2024
    rf"[0-9]{{3}}([-/])[01]?[0-9]\1[0-3]?[0-9](?:[T _]{_CLOCK})?(?!-[0-9\u2039])"
    rf"|(?<=2)0[0-9]{{2}}[01][0-9][0-3][0-9][T_-][0-2][0-9][0-5][0-9][0-5][0-9]Z?"
    rf"|[0-9]?[ /-]{_MONTH}[ /-][0-9]{{4}}(?:[: ]{_CLOCK})?"
    rf"|[0-9]?/[0-9]{{1,2}}/[0-9]{{4}}(?:,? {_CLOCK})?"
    # 10:11:12.345, 10:11, 0:07; but neither a slice x[10:20] nor a line and column
    rf"|(?<![:.,/-].)(?<![\w\])\u203a]\[.)(?<!\{{.)"
    rf"[0-9]?:[0-5][0-9](?:{_SECONDS})?(?: ?[AaPp][Mm])?{_ZONE}(?!:[0-9\u2039])"
    # 45%|████▌     | 3/10 [00:01<00:02, 1.3it/s]
    rf"|[0-9]{{0,2}}(?:\.[0-9]{{1,2}})?%\|[^|\n\u2039\u203a]{{0,200}}\|"
    rf"(?: *+[0-9.]{{1,15}}[kKMGT]?/[0-9.]{{1,15}}[kKMGT]?)?"
    rf"(?: \[[0-9:]{{1,12}}<[^\]\n\u2039\u203a]{{0,60}}\])?"
    rf"|[0-9]{{0,14}}/[0-9]{{1,15}} \[[0-9:]{{1,12}}<[^\]\n\u2039\u203a]{{0,60}}\]"
    # 2m13s, 1h 2m, 3d4h; 3ms, 1.2 s, 1,234.5 ms, 1.2e-05 s, 1.3it/s
    rf"|[0-9]{{0,6}}(?:[dhm] ?[0-9]{{1,6}}){{1,3}}(?:\.[0-9]{{1,9}})?(?:ms|[hms])"
    rf"|[0-9]{{0,15}}(?:,[0-9]{{3}}){{0,4}}(?:\.[0-9]{{1,18}})?(?:e[+-]?[0-9]{{1,3}})? ?{_UNIT}"
    rf"){_END}"
)
_TOKEN = re.compile(
    r"[^A-Za-z0-9\u2039\u203a](?=[A-Za-z0-9]{8})(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![A-Za-z0-9])"
    r"|(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{8,}+)(?!\u2039)"
)
_HEX = re.compile("[0-9a-fA-F]++")
_SCIENTIFIC = re.compile("[0-9]++[eE][0-9]*+")
_COMMIT = re.compile(
    rf"((?:commit|HEAD is now at|\[[\w./-]{{1,80}}) )(?=[a-f]*+[0-9])(?=[0-9]*+[a-f])[0-9a-f]{{7}}{_END}"
)
_ADDRESS = re.compile(rf"0x(?<!{_EDGE}..)[0-9a-fA-F]{{4,}}+{_END}")
_EPOCH = re.compile(rf"1(?<!{_EDGE}.)(?<!\..)[0-9]{{9}}(?:[0-9]{{3}}){{0,3}}(?:\.[0-9]{{1,9}})?{_END}")
_LAST_WORD = re.compile("[A-Za-z_]{1,24}")  # on reversed text
_TIME_WORDS = frozenset(
    ["ts", "iat", "exp", "nbf", "at", "since", "created", "updated", "expires", "modified", "times", "timestamps"]
)
_TIME_ENDS = ("time", "stamp", "epoch", "date", "_at", "_ts", "_ms", "_us", "_ns", "_secs", "_seconds", "_millis")
_PID = re.compile(rf"([Pp][Ii][Dd]s?|[Pp]rocess [Ii][Dd])(['\"]?(?: is|:|=)? ?['\"]?)[0-9]{{1,10}}{_END}")
_BRACKETS = re.compile(
    # [1] 12345 of a started job; sshd[123]: and [12345] of a process; [===>   ] 45%
    rf"\[(?:(?<=\n\[)[0-9]{{1,4}}\][ \t]{{1,4}}\+? ?[0-9]{{2,8}}(?=\n|\Z)"
    rf"|(?<=\w\[)[0-9]{{3,8}}\](?=: )"
    rf"|(?<![\w\])\u203a]\[)[0-9]{{5,8}}\]"
    rf"|(?=[=#> ._-]{{4,200}}\])(?:[=#]{{1,200}}+>?|>)[ ._-]{{0,200}}+\](?: ?[0-9]{{1,3}}(?:\.[0-9]{{1,2}})?%)?){_END}"
)
_CELL = re.compile(r"(In|Out) ?\[(?:[0-9]{1,6}|\*)\]")
_SHELL_LINE = re.compile(r"sh: (?:line )?[0-9]{1,9}:")
_KILLED = re.compile(r"(line [0-9]{1,9}: {1,4})[0-9]{2,8}(?= )")
_TEMP = re.compile(
    rf"tmp(?<!{_EDGE}...)(?:/(?=[A-Za-z_.-]*+[0-9])[\w.-]++|(?=[A-Za-z_]*+[0-9])\w{{4,40}}+|\.\w{{6,12}}+"
    rf"|(?<=/tmp)\w{{8}}+){_END}(?!-)"
)
_QUERY = re.compile(r"([?&](?:amp;)?[\w.\[\]-]{1,64}=)[^\s&#\"'<>\u2039\u203a]{12,}+")
_BLOCKS = re.compile(
    "[\u2501\u2578\u257a\u2580-\u259f]{3,}+[^\\S\n]{0,80}+"
    "(?:[0-9.]{1,12}/[0-9.]{1,12} ?[kKMGT]?i?B)?(?: \u2039~\u203a)?"  # rate and remaining time are masked already
    "(?: eta (?:-:--:--|\u2039~\u203a))?"
)
_ASCII_DIGIT = re.compile("[0-9]")
_DIGITS = re.compile(r"\d++(?:[.,]\d++)*+(?:[eE][-+]?+\d++)?+")
_ASCII_DIGITS = re.compile(r"[0-9]++(?:[.,][0-9]++)*+(?:[eE][-+]?+[0-9]++)?+")
# The least that a digit must have beside it for any pattern above to match, whose text holds none of the words and
# signs that `_is_quiet` looks for: a longer word around it, or the next part of a date, clock, bar or duration.
_SUSPECT = re.compile(
    r"[0-9](?:(?=[0-9A-Za-z]{4})|(?<=[0-9A-Za-z]{4}.)|(?<!\w.)(?:[0-9]{3}[-/][01]?[0-9]"
    r"|[0-9]?(?:[ /-][JFMASOND]|/[0-9]|:[0-5])"
    rf"|[0-9,.]*+(?:%\||[dhm] ?[0-9]| {{1,2}}[0-9]|(?:e[+-]?[0-9]{{1,3}})?+ ?(?=[bdhikmnsuwBGKMT]){_UNIT}(?!\w))))"
)
_BRIEF = 200  # characters; a longer text is likely to hold something, or too many digits to be worth a look
_SIGN = re.compile(r"[-+](?<![\w+\u2039\u203a-].)" + NUMBER)


def volatile(text: str) -> str:
    """The text with what changes from run to run replaced by a mark.

    Args:
        text: raw text, not escaped as in JSON; any length, though the cost is linear
            and callers should pass at most `MASK_LIMIT` characters.

    Returns:
        Masked text, on which a second call changes nothing.
    """
    if "=" in text and ("?" in text or "&" in text):
        text = _QUERY.sub(_behind, text)
    has_digit = _ASCII_DIGIT.search(text) is not None
    if not has_digit and text.isascii() and "[" not in text and "tmp" not in text:
        return text
    if has_digit and len(text) <= _BRIEF and _is_quiet(text):
        return text
    # With a character in front, a pattern may ask for the one before a word.
    text = "\n" + text
    if "[" in text:
        text = _BRACKETS.sub(MARK, text)
        if "In" in text or "Out" in text:
            text = _CELL.sub(_cell, text)
    if "tmp" in text:
        text = _TEMP.sub(f"tmp{MARK}", text)
    if has_digit:
        text = _with_digits(text)
    return (text if text.isascii() else _BLOCKS.sub(MARK, text))[1:]


def _is_quiet(text: str) -> bool:
    """Whether none of the patterns can match, as one look at a text tells whose digits are plain numbers."""
    return (
        text.isascii() and "[" not in text and _SUSPECT.search(text) is None and "tmp" not in text
        and "id" not in text and "ID" not in text and "Id" not in text and "sh: " not in text and "line " not in text
        and "commit" not in text and "HEAD" not in text
    )  # fmt: skip


def _with_digits(text: str) -> str:
    """Masks all that holds a digit. Names go before numbers, which they may contain."""
    if "0x" in text:
        text = _ADDRESS.sub(MARK, text)
    if "id" in text or "ID" in text or "Id" in text:
        text = _PID.sub(_pid, text)
    if "sh: " in text:
        text = _SHELL_LINE.sub(f"sh: {MARK}:", text)
    if "line " in text:
        text = _KILLED.sub(_behind, text)
    if "commit" in text or "HEAD" in text or "[" in text:
        text = _COMMIT.sub(_behind, text)
    if len(text) > 8:
        text = _EPOCH.sub(_epoch, text)
        text = _TOKEN.sub(_token, text)
    if ":" in text or " 20" in text or " 19" in text:
        text = _DATED.sub(MARK, text)
    return _NUMERIC.sub(MARK, text)


# Functions, for a template with groups is looked up anew at each call, whether or not anything matches.
def _behind(match: re.Match[str]) -> str:
    """The mark behind what tells that something volatile follows."""
    return match[1] + MARK


def _pid(match: re.Match[str]) -> str:
    return match[1] + match[2] + MARK


def _cell(match: re.Match[str]) -> str:
    return f"{match[1]}[{MARK}]"


def _epoch(match: re.Match[str]) -> str:
    """A number of ten and more digits is a time only if the word before it says so."""
    begin = match.start()
    before = match.string[max(0, begin - 32) : begin].rstrip(" \t:=('\"")
    found = _LAST_WORD.match(before[::-1])
    word = found[0][::-1] if found else ""
    lower = word.lower()
    return MARK if lower in _TIME_WORDS or lower.endswith(_TIME_ENDS) or word.endswith(("At", "Ms")) else match[0]


def _token(match: re.Match[str]) -> str:
    """An id or a key goes; numbers and words that end in a number stay."""
    found = match[0]
    token = found[1:]
    if "-" in token:
        return found[0] + MARK
    if _HEX.fullmatch(token):
        volatile_id = not token.isdigit() and not _SCIENTIFIC.fullmatch(token)
    else:
        volatile_id = len(token) >= 16 and not token.isupper() and not token.islower()
    return found[0] + MARK if volatile_id else found


def digits(text: str) -> str:
    """The text of `volatile` in which every number has become one and the same mark.

    Sign, decimal point and thousands separators belong to the number; decimal digits
    of every script count.

    Args:
        text: raw text, as for `volatile`.

    Returns:
        Masked text, on which a second call changes nothing.
    """
    return numbers(volatile(text))


def numbers(masked: str) -> str:
    """What `digits` makes of a text that `volatile` has masked already."""
    text = (_ASCII_DIGITS if masked.isascii() else _DIGITS).sub(NUMBER, masked)
    return _SIGN.sub(NUMBER, text) if "-" + NUMBER in text or "+" + NUMBER in text else text
