"""``file_edits``: one file that is edited over and over, whatever the edits say. After CMDC's check of that kind."""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from otel_toolguard.core.decision import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.state import RunState

FILES_KEPT = 512
ASKED_KEPT = 512
FILE_ARGUMENTS = ("path", "file_path", "filename", "file", "target_file", "notebook_path")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


class FileEdits:
    """Counts edits per file: calls of class write, or with edit or write in the tool's name, that name a file.

    Args:
        limit: Edits of one file that are allowed.
        on_limit: "stop": the edit after that stops the run; "nudge": it has the model told and the file's count starts
            again, and the next overrun of that file stops.
    """

    name = "file_edits"
    needs = ("class",)
    advice = "One file has been edited many times: read it as a whole and decide what it shall be before editing again."

    def __init__(self, limit: int, *, on_limit: Literal["nudge", "stop"] = "stop") -> None:
        self.limit = limit
        self.on_limit = on_limit

    def start(self) -> dict[str, Any]:
        """[edits, whether the model was told] by file, and the file of each call."""
        return {"files": {}, "asked": {}}

    def admit(self, mine: dict[str, Any], run: RunState, call: ToolCall) -> None:
        """Notes which file the call is about: its arguments are gone where results wait in a shared store."""
        file = _file_of(call, run.session.id)
        if file is not None:
            asked = mine["asked"]
            if call.signature not in asked and len(asked) >= ASKED_KEPT:
                del asked[next(iter(asked))]
            asked[call.signature] = file

    def settle(self, mine: dict[str, Any], run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """A finding once half the limit is used."""
        if outcome.kind in ("cancelled", "closed"):
            return None
        file = mine["asked"].get(call.signature) or _file_of(call, run.session.id)
        if file is None:
            return None
        files = mine["files"]
        if file not in files and len(files) >= FILES_KEPT:
            del files[next(iter(files))]
        known = files.setdefault(file, [0, False])
        known[0] += 1
        edits = known[0]
        if edits <= self.limit:
            share = edits / (self.limit + 1)
            return Finding(self.name, share) if share >= 0.5 else None
        if self.on_limit == "nudge" and not known[1]:
            known[:] = [0, True]
            return Finding(
                self.name, limit=self.limit, observed=edits,
                nudge=f"The same file has been edited {edits} times in this run: stop editing it piece by piece; read "
                f"it as a whole, decide what it shall be, or report what is in the way.",
            )  # fmt: skip
        again = " once more after a warning" if known[1] else ""
        return Finding(
            self.name, edits / self.limit, limit=self.limit, observed=edits,
            why=f"One file was edited {edits} times in this run{again}; "
            f"file_edits limit = {edits} would have allowed it.",
        )  # fmt: skip


def _file_of(call: ToolCall, salt: str) -> str | None:
    """A digest of the file that the call edits; None if it edits none. Argument values are no part of the state."""
    if call.arguments is None or (call.tool_class != "write" and not _edits(call.tool)):
        return None
    path = _path(call.arguments)
    if path is None:
        return None
    plain = posixpath.normpath(path.replace("\\", "/"))
    return hashlib.blake2b(f"{salt}\0{plain}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _path(arguments: Mapping[str, Any]) -> str | None:
    for name in FILE_ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str) and value:
            return value
        if type(value).__module__.partition(".")[0] == "pathlib":
            return str(value)
    return None


@lru_cache(maxsize=1024)
def _edits(tool: str) -> bool:
    return not {"edit", "write"}.isdisjoint(word.lower() for word in _WORD.findall(tool))
