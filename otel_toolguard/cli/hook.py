"""``otel-toolguard hook``: judges the tool calls of coding agents, one process for each event of their hooks.

The agent gives JSON on standard input and reads JSON on standard output. The exit code is 0 whatever happens, for each
agent takes another one for something else.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from otel_toolguard.cli.hook_events import BEFORE, COMMANDS, Answer, Event, Unreadable, config, read, told

if TYPE_CHECKING:
    from otel_toolguard.stores import SessionStore

ON_ERROR = ("allow", "deny")
INPUT_LIMIT = 64 << 20  # bytes of one event that are read
PATIENCE_S = 5.0  # for the store's lock: there is no second try, and other events of the agent come at the same time


def plain_options(argv: list[str]) -> str | None:
    """What ``--on-error`` says where that is all that is said; None leaves the command line to a real parser."""
    if not argv:
        return "allow"
    words = argv[0].split("=", 1) if len(argv) == 1 else argv
    return words[1] if len(words) == 2 and words[0] == "--on-error" and words[1] in ON_ERROR else None


def run(on_error: str) -> NoReturn:
    """Answers the event on standard input, and ends the process at once: taking all down again takes as long as it."""
    gc.disable()
    code = 0
    try:
        code = hook(on_error)
        sys.stderr.flush()
    finally:
        os._exit(code)


def hook(on_error: str = "allow") -> int:
    """Answers the event on standard input."""
    heard, logger = _Heard(), logging.getLogger("otel_toolguard")
    logger.addHandler(heard)
    event: Event | None = None
    try:
        event = _event(sys.stdin)
        answer = Answer() if event is None else _judged(event, on_error)
    except Exception as fault:
        answer = _failed(event, fault, on_error)
    logger.removeHandler(heard)
    if heard.faults:
        answer = answer._replace(message="\n".join(filter(None, (answer.message, *heard.faults))))
    said = told(event, answer)
    if said:
        _print(said)
    return 0


def print_config(agent: str, on_error: str) -> int:
    """Prints the settings that install the hook."""
    here = os.path.abspath(sys.argv[0])  # noqa: PTH100
    command = here if os.path.basename(here).startswith("otel-toolguard") else "otel-toolguard"  # noqa: PTH119
    words = [command, "hook", *(["--on-error", on_error] if on_error != ON_ERROR[0] else [])]
    sys.stdout.write(json.dumps(config(agent, shlex.join(words)), indent=2) + "\n")
    return 0


AGENTS = tuple(COMMANDS)


class _Heard(logging.Handler):
    """Brings what the library logs to standard error, and faults to whoever runs the agent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Says it; a trip is no fault."""
        try:
            text = record.getMessage()
        except Exception:
            return
        _say(text)
        if not hasattr(record, "toolguard"):
            self.faults.append(f"otel-toolguard: {text}")


def _event(given_in: Any) -> Event | None:
    if given_in is None or given_in.isatty():
        raise Unreadable("it speaks to an agent, not to a person: install it with the output of --print-config")
    stream = given_in.buffer
    data = stream.read(INPUT_LIMIT + 1)
    if len(data) > INPUT_LIMIT:
        while stream.read(1 << 20):  # whoever writes shall not find the pipe closed
            pass
        raise Unreadable(f"the input has more than {INPUT_LIMIT >> 20} MiB")
    text = data.decode("utf-8-sig", "replace")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as fault:
        from otel_toolguard.cli.mcp_frames import value_of  # seldom needed, and every event waits for what is loaded

        given = value_of(text)  # an argument that Python does not read must be no way round the guard
        if not isinstance(given, dict) or "hook_event_name" not in given:
            kind = "no JSON" if isinstance(fault, ValueError) else "too deep"
            raise Unreadable(f"the input is {kind}") from None
    return read(given)


def _judged(event: Event, on_error: str) -> Answer:
    from otel_toolguard.cli.hook_judge import Judge  # not for an event that is passed on
    from otel_toolguard.cli.hook_rules import load

    rules = load()
    if rules.mode == "off":
        return Answer()
    store = _store(on_error)
    try:
        return Judge(rules, store, event.session).answer(event)
    finally:
        close = getattr(store, "close", None)
        if close is not None:
            close()


def _store(on_error: str) -> SessionStore:
    """The store that is set, else the usual file: what only a process remembers is of no use to one that is gone."""
    url = os.environ.get("TOOLGUARD_STORE", "")
    kind = url.partition(":")[0]
    if kind in ("", "memory"):
        url = kind = "sqlite"
    if kind != "sqlite":
        from otel_toolguard.stores import store_of

        return store_of(url)
    from otel_toolguard.stores.sqlite import SQLiteStore
    from otel_toolguard.stores.sqlite_url import options_of

    usual: dict[str, Any] = {"on_error": "closed" if on_error == "deny" else "open", "timeout_s": PATIENCE_S}
    return SQLiteStore(**usual | options_of(url if ":" in url else "sqlite:"))


def _failed(event: Event | None, fault: Exception, on_error: str) -> Answer:
    """What is answered where we failed; the words of an exception may quote anything, those of ours do not."""
    from otel_toolguard.errors import ToolGuardError

    ours = isinstance(fault, (Unreadable, ToolGuardError))
    what = str(fault) if ours else f"{type(fault).__module__}.{type(fault).__qualname__}".removeprefix("builtins.")
    denies = on_error == "deny" and (event is None or event.kind == BEFORE)
    text = f"otel-toolguard could not judge this event ({what}); " + (
        "the call is not run, as --on-error deny says" if denies else "it goes on unguarded"
    )
    _say(text)
    return Answer(deny=text if denies else None, message=text)


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
    except (OSError, ValueError, AttributeError):
        pass


def _print(said: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    except OSError:  # nobody reads; what is buffered must not fail once more when the interpreter ends
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
