"""``up.py`` in the background: ``detached.py up`` returns once all is there, ``detached.py down`` ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("LIVE_UP", HERE.parents[2] / ".live-up"))
LOG, PID = FOLDER / "log", FOLDER / "pid"
READY = "up for "  # how up.py begins its last line once all is there
SLICE_S = 0.2


def up(minutes: str) -> int:
    """Starts it, shows what it says and returns, unless it ends first; its exit code then."""
    down()
    FOLDER.mkdir(exist_ok=True)
    with LOG.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", HERE / "up.py", "--minutes", minutes],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    PID.write_text(str(process.pid), encoding="ascii")
    with LOG.open(encoding="utf-8") as log:
        while not (code := process.poll()):
            for line in log:
                print(line, end="", flush=True)
                if line.startswith(READY):
                    print(f"in the background as process {process.pid}; make live-down ends it sooner")
                    return 0
            if code == 0:
                break
            time.sleep(SLICE_S)
        print(log.read(), end="", file=sys.stderr)
    PID.unlink(missing_ok=True)
    return code or 1


def down() -> None:
    """Ends what ``up`` started, if it still runs; no other process that has its number by now."""
    try:
        pid = int(PID.read_text(encoding="ascii"))
        if str(HERE / "up.py").encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGTERM)
            while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
                time.sleep(SLICE_S)
            print(f"ended process {pid}")
    except (FileNotFoundError, ProcessLookupError):
        pass
    PID.unlink(missing_ok=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["up"]:
        sys.exit(up(*(sys.argv[2:3] or ["60"])))
    down()
