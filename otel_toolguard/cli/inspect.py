"""``otel-toolguard inspect``: what the rules see of one call."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from otel_toolguard.core.canonical import Signer, canonical
from otel_toolguard.core.classify import classify
from otel_toolguard.core.masks import MASK_LIMIT, volatile

KEY = b"otel-toolguard"  # signs where no key is set: the same call gets the same signature on every machine


def inspect(tool: str, args: str | None, result: str | None, *, as_json: bool) -> int:
    """Prints class, risk, programs, signature and masked result of a call; returns the exit code."""
    try:
        arguments = _arguments(args)
    except ValueError as error:
        sys.stderr.write(f"otel-toolguard: --args {error}\n")
        return 2
    known = classify(tool, arguments)
    answer: dict[str, Any] = {
        "class": known.tool_class,
        "risk": known.risk,
        "programs": list(known.programs),
        "signature": _signer().signature(tool, canonical(arguments).text),
        "masked_result": None if result is None else volatile(result[:MASK_LIMIT]) + result[MASK_LIMIT:],
        "why": known.why,
    }
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.write(_text(answer))
    return 0


def _arguments(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"must be a JSON object, not {type(arguments).__name__}")  # noqa: TRY004  (a usage error)
    return arguments


def _signer() -> Signer:
    key = os.environ.get("TOOLGUARD_SIGNATURE_KEY", "")
    return Signer(key.encode("utf-8", "surrogateescape") or KEY)


def _text(answer: dict[str, Any]) -> str:
    shown = answer | {"programs": ", ".join(answer["programs"]) or "none"}
    if answer["masked_result"] is None:
        del shown["masked_result"]
    return "".join(f"{name.replace('_', ' '):<14} {value}\n" for name, value in shown.items())
