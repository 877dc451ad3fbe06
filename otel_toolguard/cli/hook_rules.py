"""The rules of a process that judges one event and is gone: read from a cache, so that pydantic need not be loaded.

The cache holds what settings came to, beside the usual session file, for the environment and settings file that they
came from. Settings that it cannot hold (those of single tools, rules of other packages, a secret) are read each time.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from importlib import import_module
from typing import TYPE_CHECKING, Any

from otel_toolguard._version import __version__
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.canonical import canonical, fingerprints
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.classify import classify, is_shell_like
from otel_toolguard.core.commands import DIRECTORY_ARGUMENTS, command_text
from otel_toolguard.core.failures import EXIT_CODES, MESSAGE_LIMIT, TOOL_ERROR, is_transient
from otel_toolguard.core.masks import MASK_LIMIT, digits
from otel_toolguard.core.shell import exit_one_is_an_answer
from otel_toolguard.stores.sqlite_url import usual_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_toolguard.core.canonical import Signer
    from otel_toolguard.settings import Policy

Arguments = dict[str, Any] | str
NAME = "hook-rules.json"
KEPT = 16  # settings that the cache remembers
SECRET = "TOOLGUARD_SIGNATURE_KEY"  # noqa: S105  (the variable's name)
SOURCES = ("TOOLGUARD_CONFIG", "TOOLGUARD_PROFILE", "TOOLGUARD_MODE", "TOOLGUARD_STRICT", "TOOLGUARD_CAPTURE_ARGUMENTS")


class Rules:
    """The rules, and how they want calls and results described.

    Args:
        plain: What the cache holds.
        key: Under which signatures are made; None for the store's.
        policy: The policy behind it all, where there are settings that ``plain`` does not show.
    """

    def __init__(self, plain: dict[str, Any], key: bytes | None, policy: Policy | None = None) -> None:
        self.mode: str = plain["mode"]
        self.key = key
        self.policy = policy
        self._capture = bool(plain["capture"])
        self._patience = int(plain["patience"])
        self.chain = policy.chain if policy is not None else _chain(plain)

    def call(
        self, signer: Signer, tool: str, arguments: Arguments, *, call_id: str | None, agent: str | None,
        where: str | None,
    ) -> ToolCall | None:  # fmt: skip
        """The call as the rules see it; None if the settings say that the tool is not judged.

        Args:
            signer: Makes the signature.
            tool: The tool's name.
            arguments: By name; a text where they are none.
            call_id: The model's id of the call.
            agent: Who asks.
            where: The directory in which a shell command runs unless it says another.
        """
        named = arguments if isinstance(arguments, dict) else None
        given = named or {}
        said = (given[name] for name in DIRECTORY_ARGUMENTS if isinstance(given.get(name), str))
        world = next(said, where) if is_shell_like(tool) else None
        if self.policy is not None:
            from otel_toolguard.tool import Tool  # loads pydantic

            known = Tool(tool)
            if not known.traits(self.policy, named).enabled:
                return None
            return known.call(arguments, self.policy, signer, call_id, agent=agent, world=world)
        traits = classify(tool, named)
        text, whole = canonical(arguments)
        signature = signer.signature(tool, text, world)
        shape = ""
        if "digits" in self.chain.needs:
            masked = digits(text[:MASK_LIMIT]) + text[MASK_LIMIT:]
            shape = signature if masked == text else signer.signature(tool, masked, world)
        return ToolCall(
            tool, signature, shape, whole, traits.tool_class, traits.risk, traits.neutral, traits.poll,
            self._patience if traits.poll else 1, traits.reached and named is not None, call_id, agent=agent,
            arguments=named, capture=self._capture,
        )  # fmt: skip

    def ended(
        self, signer: Signer, tool: str, arguments: Arguments, result: Any, error: str | None, *, cancelled: bool
    ) -> Callable[[float | None], Outcome]:
        """How a call came out; called with its milliseconds for a record of it, as often as one is needed.

        Args:
            signer: Makes fingerprints.
            tool: The tool's name.
            arguments: As in ``call``.
            result: What it answered.
            error: What it said if it failed.
            cancelled: Whether somebody ended it.
        """
        if cancelled:
            return lambda ms: Outcome("cancelled", None, None, None, None, ms=ms)
        command = command_text(arguments) if isinstance(arguments, dict) else None
        code = _exit_code(result) if error is None else 1 if _says_one(error) else 0
        if code == 1 and exit_one_is_an_answer(command or ""):
            result, error = result if error is None else error, None
        elif code and error is None:
            error = f"exit code {code}"
        elif error is not None:
            result = error
        if self.policy is not None:
            return self._by_policy(signer, tool, result, error)
        prints = fingerprints(signer, result, failed=error is not None, needs=self.chain.needs)
        if error is None:
            return lambda ms: Outcome("ok", None, *prints, None, ms)
        text = error[:MESSAGE_LIMIT]
        passes = is_transient(None, text)
        return lambda ms: Outcome("failed", "transient" if passes else "permanent", *prints, TOOL_ERROR, ms)

    def _by_policy(
        self, signer: Signer, tool: str, result: Any, error: str | None
    ) -> Callable[[float | None], Outcome]:
        from otel_toolguard.outcomes import OK, failed_result, outcome  # loads asyncio
        from otel_toolguard.tool import Tool

        assert self.policy is not None  # noqa: S101  (whoever asks has one)
        known, ended = Tool(tool), OK
        if error is not None:
            ended = failed_result(error)
            passes = known.passes(self.policy, ended.error_type, ended.message or "", ended.failure == "transient")
            ended = ended._replace(failure="transient" if passes else "permanent")
        needs, compared = self.chain.needs, known.comparer(self.policy)
        return lambda ms: outcome(ended, result, (ms or 0.0) / 1000, signer, needs, compared)


def load() -> Rules:
    """The rules that environment and settings file say.

    Raises:
        SettingsError: They cannot be honoured.
    """
    key = os.environ.get(SECRET, "").encode("utf-8", "surrogatepass")
    source = _source()
    path = _place()
    entries = _read(path) if path is not None and source is not None and len(key) <= 64 else {}
    found = entries.get(source or "")
    if found is not None:
        try:
            return Rules(found, key or None)
        except (ImportError, AttributeError, KeyError, TypeError, ValueError):
            pass  # written by somebody else
    from otel_toolguard.settings import POLLER_PATIENCE, Policy  # loads pydantic

    policy = Policy()
    plain = {
        "mode": policy.mode, "observe": policy.mode == "observe", "lasting": policy.latch == "session",
        "nudge": policy.on_warn == "nudge", "capture": policy.capture_arguments, "patience": POLLER_PATIENCE,
        "plugins": [],
    }  # fmt: skip
    own = ((type(settings).rule, settings) for _, settings in policy.plugins if hasattr(type(settings), "rule"))
    plain["plugins"] = [
        [kind.__module__.rpartition(".")[2], kind.__name__,
         {name: getattr(settings, name) for name in type(settings).model_fields}]
        for kind, settings in own
    ]  # fmt: skip
    holds = len(plain["plugins"]) == len(policy.plugins) and not policy.tools
    if not holds or policy.signature_key != (key or None) or _revived(json.loads(json.dumps(plain))) != plain:
        return Rules(plain, policy.signature_key, policy)
    if path is not None and source is not None:
        _write(path, dict(list(entries.items())[1 - KEPT :]) | {source: plain})
    return Rules(plain, policy.signature_key)


def _chain(plain: dict[str, Any]) -> Chain:
    plugins = []
    for module, name, given in _revived(plain)["plugins"]:
        if not (str(module).isidentifier() and str(name).isidentifier()):
            raise ValueError(module)
        plugins.append(getattr(import_module(f"otel_toolguard.core.plugins.{module}"), name)(**given))
    return Chain(plugins, observe=plain["observe"], lasting_stop=plain["lasting"], nudge_on_warn=plain["nudge"])


def _revived(plain: dict[str, Any]) -> dict[str, Any]:
    """What JSON made of the rules, with whole numbers as keys again where periods are meant."""
    for _, _, given in plain["plugins"]:
        if isinstance(given.get("limits"), dict):
            given["limits"] = {int(period): limit for period, limit in given["limits"].items()}
    return plain


def _source() -> str | None:
    """Names the settings by all that they are read from; None if that cannot be read."""
    said = [__version__, *(os.environ.get(name, "") for name in SOURCES)]
    digest = hashlib.blake2b(repr(said).encode("utf-8", "surrogatepass"), digest_size=16)
    if said[1]:
        try:
            with open(said[1], "rb") as file:  # noqa: PTH123
                digest.update(file.read())
        except OSError:
            return None
    return digest.hexdigest()


def _place() -> Path | None:
    try:
        return usual_path().parent / NAME
    except RuntimeError:  # nobody's home
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            kept = os.fstat(file.fileno())
            if hasattr(os, "geteuid") and (kept.st_uid != os.geteuid() or kept.st_mode & 0o022):
                return {}  # who may write it decides what is judged
            found = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, entries: dict[str, Any]) -> None:
    """Puts the cache in place as a whole; without one the next process reads the settings again."""
    beside = path.with_name(f"{NAME}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(entries, file)
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
    except OSError:
        pass


def _exit_code(result: Any) -> int:
    code = next((result[name] for name in EXIT_CODES if name in result), 0) if isinstance(result, dict) else 0
    return code if isinstance(code, int) and not isinstance(code, bool) else 0


def _says_one(error: str) -> bool:
    """Whether a shell's failure is an exit code of 1 and nothing worse."""
    first = error[:32].partition("\n")[0].strip().lower()
    return first == "exit code 1"
