"""Whether this is one of several worker processes, each of which counts for itself in memory."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys

logger = logging.getLogger("otel_toolguard")
_WORKERS = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GUNICORN_WORKERS")
_born = os.getpid()
_told = False


def several() -> str | None:
    """By what it shows that there are other workers; None if nothing does."""
    if os.getpid() != _born:
        return "this process was forked"
    if multiprocessing.parent_process() is not None:
        return "this is a process of multiprocessing"
    for name in _WORKERS:
        value = os.environ.get(name, "")
        if value.isdecimal() and int(value) > 1:
            return f"{name} is {value}"
    module = os.path.basename(sys.argv[0] if sys.argv else "")  # noqa: PTH119
    if module.startswith(("gunicorn", "celery")):
        return f"{module} runs several"
    return None


def tell_once() -> None:
    """Warns, once a process, if limits in memory are those of one worker among several."""
    global _told  # noqa: PLW0603
    if _told:
        return
    how = several()
    if how is None:
        return
    _told = True
    try:
        logger.warning(
            "%s: sessions are kept in the memory of each worker, so each has ceilings of its own; a session whose "
            "calls reach several workers needs a store that they share, such as TOOLGUARD_STORE=sqlite:",
            how,
        )
    except Exception:  # a handler of the application that raises must not be felt
        pass
