"""Leases on the places of calls in flight, so that a process that was killed does not hold them for ever."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from otel_toolguard.core.batch import Batch

if TYPE_CHECKING:
    from otel_toolguard.stores.sqlite_rows import Kept


def lease(kept: Kept, now: float, lease_s: float) -> float:
    """Gives each call in flight that has none a lease; returns until when the last one lasts."""
    state = kept.state
    flights: set[tuple[str, int]] = set()
    if state is not None:
        flights = {(run.id, number) for run in dict.values(state.runs) for number in run.flight}
    if flights or kept.leases:
        mine = owner()
        kept.leases = {each: kept.leases.get(each) or [now + lease_s, mine] for each in flights}
    return max((until for until, _ in kept.leases.values()), default=0.0)


def give_back(kept: Kept, now: float, lease_s: float) -> None:
    """Frees the places of calls whose lease is over and whose process is; what they have counted stays.

    A process that lives on this machine has its leases prolonged by whoever looks.
    """
    state = kept.state
    for (run_id, number), entry in list(kept.leases.items()):
        if entry[0] > now or state is None:
            continue
        if lives(entry[1]):
            entry[0] = now + lease_s
            continue
        del kept.leases[run_id, number]
        run = state.runs.get(run_id)
        if run is not None and run.flight.pop(number, None) is not None:
            # Results that waited for this one are judged before the next call that starts.
            numbers, *rest = run.batch.to_plain()
            run.batch = Batch.from_plain([[each for each in numbers if each != number], *rest])


def owner() -> str:
    """This process, so that others on the machine can tell whether it still lives."""
    global _me  # noqa: PLW0603
    pid = os.getpid()
    if _me is None or _me[0] != pid:
        _me = (pid, f"{_machine()}|{pid}|{_began(pid) or secrets.token_hex(4)}")
    return _me[1]


def lives(who: str) -> bool:
    """Whether that process certainly lives."""
    machine, _, rest = str(who).rpartition("|")[0].rpartition("|")
    began = str(who).rpartition("|")[2]
    if who == owner():
        return True
    return rest.isdecimal() and machine == _machine() and began == _began(int(rest))


_me: tuple[int, str] | None = None


def _machine() -> str:
    """What must be equal for process ids to mean the same: this boot of the machine, and the space of ids."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, in ticks; nothing if there is none, or nobody says."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""
