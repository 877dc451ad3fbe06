"""One file that is edited over and over, whatever the edits say."""

import json
from pathlib import PurePosixPath

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.decision import Permit
from otel_toolguard.core.plugins.file_edits import ASKED_KEPT, FILES_KEPT, FileEdits
from otel_toolguard.core.state import SessionState


class Play:
    """Plays edits of files; one letter a call: "." nothing, w warned, n told, S stopped by the result, x refused."""

    def __init__(self, rule, *, disturb=False):
        self.chain, self.state, self.number, self.disturb = Chain([rule]), SessionState("s"), 0, disturb
        self.told, self.trip = [], None

    def __call__(self, files, **more):
        return "".join(self.edit(file, **more) for file in files)

    def edit(self, file, tool="edit_file", kind="ok", tool_class="write", argument="path"):
        self.number += 1
        arguments = {argument: file, "text": self.number}
        call = ToolCall(tool, f"{tool}:{self.number}", tool_class=tool_class, arguments=arguments)
        admission = self.chain.admit(self.state, "r", call)
        if not isinstance(admission, Permit):
            return "x"
        if self.disturb:  # as in a shared store: the state goes through JSON, and a waiting call loses its arguments
            self.state = SessionState.from_plain(json.loads(json.dumps(self.state.to_plain())))
            call = ToolCall.from_plain(json.loads(json.dumps(call.to_plain())))
        settled = self.chain.settle(self.state, "r", admission.number, call, Outcome(kind))
        self.told += settled.nudges
        self.trip = settled.trip or self.trip
        return "S" if settled.trip else "n" if settled.nudges else "w" if settled.warned else "."


TABLE = [
    ({"limit": 3}, "fff", ".ww"),
    ({"limit": 3}, "ffff", ".wwS"),
    ({"limit": 3}, "fffff", ".wwSx"),
    ({"limit": 1}, "ff", "wS"),
    ({"limit": 3}, "fgfgfgfg", "..wwwwSx"),
    ({"limit": 3}, "abcdefghijkl", "............"),
    ({"limit": 3, "on_limit": "nudge"}, "ffff", ".wwn"),
    ({"limit": 3, "on_limit": "nudge"}, "ffff" + "fff", ".wwn.ww"),
    ({"limit": 3, "on_limit": "nudge"}, "ffff" + "ffff" + "g", ".wwn" + ".wwS" + "x"),
    ({"limit": 1, "on_limit": "nudge"}, "ffggff", "wnwnwS"),
]


@pytest.mark.parametrize("disturb", [False, True])
@pytest.mark.parametrize(("settings", "files", "expected"), TABLE)
def test_the_edit_after_the_limit_is_one_too_many(settings, files, expected, disturb):
    """L edits of a file pass and edit L + 1 stops, or has the model told once and stops at the next overrun; per file."""
    assert Play(FileEdits(**settings), disturb=disturb)(files) == expected


NAMED = [
    ({"argument": "file_path"}, True),
    ({"argument": "filename"}, True),
    ({"argument": "file"}, True),
    ({"argument": "target_file"}, True),
    ({"argument": "notebook_path"}, True),
    ({"argument": "directory"}, False),
    ({"tool": "mcp__fs__write_file", "tool_class": "mcp"}, True),
    ({"tool": "fsEditFile", "tool_class": "mcp"}, True),
    ({"tool": "read_file", "tool_class": "read"}, False),
    ({"tool": "credits", "tool_class": "other"}, False),
    ({"kind": "failed"}, True),
    ({"kind": "unknown"}, True),
    ({"kind": "cancelled"}, False),
]


@pytest.mark.parametrize(("how", "counts"), NAMED)
def test_what_an_edit_is(how, counts):
    """A write, or a tool named edit or write, that names a file; one that never took place is none."""
    assert Play(FileEdits(1))("ff", **how) == ("wS" if counts else "..")


def test_one_file_under_several_spellings():
    """Separators, dots and path objects make no other file; values that are no path are left alone."""
    assert Play(FileEdits(3))(["a/f.py", "./a/f.py", "a/b/../f.py", "a\\f.py"]) == ".wwS"
    assert Play(FileEdits(1))([PurePosixPath("f"), "f"]) == "wS"
    assert Play(FileEdits(1))([None, None, 5, 5, ["f"], ["f"], "", ""]) == "........"


def test_neither_the_state_nor_the_model_is_told_the_path():
    """Argument values are no part of the state, the nudge or the trip."""
    play = Play(FileEdits(1, on_limit="nudge"))
    play(["secret.py"] * 4)
    assert "secret" not in json.dumps(play.state.to_plain())
    assert play.told[0].rule == "file_edits"
    assert "edited 2 times" in play.told[0].text
    assert (play.trip.rule, play.trip.scope, play.trip.observed, "secret" in play.trip.why) == (
        "file_edits",
        "run",
        2,
        False,
    )
    assert "file_edits limit = 2 " in play.trip.why


def test_memory_is_bounded():
    """However many files there are, so many are remembered."""
    play = Play(FileEdits(3))
    play([f"f{number}" for number in range(FILES_KEPT + 50)])
    mine = play.state.runs["r"].rules["file_edits"]
    assert (len(mine["files"]), len(mine["asked"])) == (FILES_KEPT, ASKED_KEPT)
