"""Speed of ``otel-toolguard replay`` against only parsing the JSON of the same file."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSIONS = 150
CALLS = 200  # of each session, fewer than any rule's limit
REPETITIONS = 3


def replay() -> dict[str, float]:
    """Microseconds of one recorded call: parsed only, and replayed (start-up of the command taken off)."""
    with tempfile.TemporaryDirectory() as folder:
        return _both(Path(folder), "texts", _texts()) | _both(Path(folder), "hashes", _hashes())


def _both(folder: Path, kind: str, rows: Iterator[dict[str, Any]]) -> dict[str, float]:
    lines = [json.dumps(row) for row in rows]
    whole, first = folder / f"{kind}.jsonl", folder / f"{kind}-1.jsonl"
    whole.write_text("\n".join(lines) + "\n", encoding="utf-8")
    first.write_text(lines[0] + "\n", encoding="utf-8")
    times = [(_parse(whole), _command(whole), _command(first)) for _ in range(REPETITIONS)]
    parse, replayed, start_up = (min(column) for column in zip(*times, strict=True))
    each = 1e6 / len(lines)
    return {f"parse_{kind}": parse * each, f"replay_{kind}": (replayed - start_up) * each, "replay_start_up": start_up}


def _parse(path: Path) -> float:
    start = perf_counter()
    with path.open("rb") as file:
        for line in file:
            json.loads(line)
    return perf_counter() - start


def _command(path: Path) -> float:
    """Seconds of the command; an error if it stopped or skipped anything, which would flatter it."""
    # Not the installed script, so that the command comes from the same place as the library.
    command = [sys.executable, "-c", "from otel_toolguard.cli import main; main()"]
    command += ["replay", "--profile", "balanced", "--json", str(path)]
    start = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = perf_counter() - start
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    for line in done.stdout.splitlines():
        if json.loads(line)["trip"] is not None:
            raise RuntimeError("a rule stopped a session of the generated recording")
    return seconds


def _texts() -> Iterator[dict[str, Any]]:
    """Calls with text: results of about 200 characters, no two alike."""
    for number in range(SESSIONS * CALLS):
        session, i = divmod(number, CALLS)
        said = _digest(number)
        result = (
            f"order {said[:6]}: {number % 97} items for customer {said[6:12]} of the north-western region, packed at "
            f"10:{number % 60:02}:{number * 7 % 60:02} in {number % 900 + 3} ms; next step: {said[12:16]}-{said[16:20]}"
        )
        yield {
            "session": f"generated:{session}", "i": i, "tool": "lookup", "arguments": {"query": said, "limit": 10},
            "result": result, "result_sha256": hashlib.sha256(result.encode()).hexdigest(), "failed": False,
            "ts": 1_770_000_000 + number,
        }  # fmt: skip


def _hashes() -> Iterator[dict[str, Any]]:
    """The same calls as hashes."""
    for number in range(SESSIONS * CALLS):
        session, i = divmod(number, CALLS)
        a, r = _digest(number), _digest(-number)
        yield {
            "s": f"generated:{session}", "i": i, "t": "lookup", "a": a[:12], "an": a[1:13], "r": r[:12], "rn": r[1:13],
            "rv": r[2:14], "f": False, "x": None, "al": 40, "rl": 150, "ts": 1_770_000_000 + number,
        }  # fmt: skip


def _digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()
